"""Cron schedules of Flyte's: whether a text is one, and when it is due, in a time zone. Pure.

A schedule has five fields, or is a word such as @daily; a time zone may stand before them. No library does this:
croniter and cronsim take forms that Flyte refuses (`L`, `1#2`), cronsim does not know `?`, and both move a time that a
change of the clock leaves out to the change itself. To read and check the text would stay here, whichever is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo

# Flyte's words; flytekit knows them without the @ too.
_WORDS = {
    **dict.fromkeys(("hourly", "hours", "@hourly"), "0 * * * *"),
    **dict.fromkeys(("daily", "days", "@daily", "@midnight"), "0 0 * * *"),
    **dict.fromkeys(("weekly", "weeks", "@weekly"), "0 0 * * 0"),
    **dict.fromkeys(("monthly", "months", "@monthly"), "0 0 1 * *"),
    **dict.fromkeys(("annually", "yearly", "years", "@annually", "@yearly"), "0 0 1 1 *"),
}
_MONTH_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTHS = {name: number for number, name in enumerate(_MONTH_NAMES, start=1)}
_DAYS = {name: number for number, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}
FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of the month", 1, 31, {}),
    ("month", 1, 12, _MONTHS),
    ("day of the week", 0, 7, _DAYS),  # both 0 and 7 are Sunday
)
_PART = re.compile(r"(?P<low>\*|\?|\w{1,9})(?:-(?P<high>\w{1,9}))?(?:/(?P<step>[0-9]{1,4}))?\Z", re.ASCII)
_ZONE = re.compile(r"(?:CRON_)?TZ=(?P<zone>[A-Za-z0-9_+\-/]{1,64})\s+(?P<rest>.*)\Z", re.ASCII)
SCHEDULE_CHARS_MAX = 1000
DAYS_MAX = 366 * 9  # a 29 February is at most eight years away
# Around a change of the offset of a time zone, times of the day come twice or not at all. No change is larger.
OFFSET_CHANGE = timedelta(hours=3)


def cron_mistake(text: str) -> str:
    """What is wrong with a schedule. Empty: nothing."""
    text = _in_fields(text)
    parts = text.split()
    if len(text) > SCHEDULE_CHARS_MAX or len(parts) != len(FIELDS):
        return f"{text[:80]!r} is no cron schedule: it has five fields, or is a word such as @daily"
    for part, (name, low, high, words) in zip(parts, FIELDS, strict=True):
        if _numbers(part, low, high, words) is None:
            return f"{part[:80]!r} is no {name} of a cron schedule ({low} to {high})"
    return ""


@dataclass(frozen=True, slots=True)
class CronTimes:
    """The minutes, hours, days and months of a schedule. `is_either_day`: one of the two kinds of days is enough."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    is_either_day: bool

    @staticmethod
    def of(text: str) -> CronTimes:
        """Of a text in which `cron_mistake` finds no mistake."""
        parts = _in_fields(text).split()
        minutes, hours, days, months, weekdays = (
            _numbers(part, low, high, words) or set() for part, (_, low, high, words) in zip(parts, FIELDS, strict=True)
        )
        is_either_day = parts[2][0] not in "*?" and parts[4][0] not in "*?"
        return CronTimes(
            minutes=tuple(sorted(minutes)),
            hours=tuple(sorted(hours)),
            days=frozenset(days),
            months=frozenset(months),
            weekdays=frozenset(day % 7 for day in weekdays),
            is_either_day=is_either_day,
        )

    def next_after(self, after: datetime, zone: tzinfo) -> datetime | None:
        """The first time after another one. None: there is none, as for 30 February.

        A time of the day that a change of the clock leaves out comes as much later as the clock was changed. One that
        comes twice counts once, unless the schedule names every hour.
        """
        first: datetime | None = None
        begin = after.astimezone(zone).replace(tzinfo=None, second=0, microsecond=0) - OFFSET_CHANGE
        for local in self._local_times(begin):
            if first is not None and local > first.astimezone(zone).replace(tzinfo=None) + OFFSET_CHANGE:
                break
            for moment in self._moments(local, zone):
                if moment > after and (first is None or moment < first):
                    first = moment
        return first

    def _moments(self, local: datetime, zone: tzinfo) -> Iterator[datetime]:
        folds = (0, 1) if len(self.hours) == 24 else (0,)
        for fold in folds:
            yield local.replace(tzinfo=zone, fold=fold).astimezone(UTC)

    def _local_times(self, begin: datetime) -> Iterator[datetime]:
        for number in range(DAYS_MAX):
            day = begin.date() + timedelta(days=number)
            if not self._has_day(day):
                continue
            for hour in self.hours:
                for minute in self.minutes:
                    local = datetime(day.year, day.month, day.day, hour, minute)  # noqa: DTZ001
                    if local >= begin:
                        yield local

    def _has_day(self, day: date) -> bool:
        is_day, is_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        is_right = (is_day or is_weekday) if self.is_either_day else (is_day and is_weekday)
        return day.month in self.months and is_right


def next_of_rate(since_us: int, rate_us: int, after_us: int) -> int:
    """The first time after another one, of times that are `rate_us` apart. `since_us`: one of them.

    It may lie in the future, if the clock was set back.
    """
    return since_us + ((after_us - since_us) // rate_us + 1) * rate_us


def split_zone(text: str) -> tuple[str, str]:
    """The time zone in `CRON_TZ=Europe/Berlin 0 3 * * *`, and the schedule. Empty: there is none."""
    match = _ZONE.match(text.strip())
    return (match["zone"], match["rest"]) if match is not None else ("", text)


def _in_fields(text: str) -> str:
    """The schedule without its time zone, and a word as the fields that it means."""
    _, text = split_zone(text)
    return _WORDS.get(text.strip().lower(), text)


def _numbers(part: str, low: int, high: int, words: dict[str, int]) -> set[int] | None:
    """The numbers that a field names. None: it is not well-formed."""
    numbers: set[int] = set()
    for one in part.split(","):
        match = _PART.match(one)
        if match is None:
            return None
        step, first, last = int(match["step"] or 1), _number(match["low"], words), _number(match["high"], words)
        if match["low"] in ("*", "?"):
            first, last = (low, high) if match["high"] is None else (None, None)
        elif match["high"] is None:
            last = high if match["step"] else first  # as in other crons: 5/15 is 5-59/15
        if step < 1 or first is None or last is None or not low <= first <= last <= high:
            return None
        numbers.update(range(first, last + 1, step))
    return numbers


def _number(text: str | None, words: dict[str, int]) -> int | None:
    return None if text is None else int(text) if text.isdigit() else words.get(text.lower())
