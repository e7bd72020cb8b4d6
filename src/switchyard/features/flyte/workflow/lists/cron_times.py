"""When a schedule is due: the next time of a cron schedule in a time zone, and of a fixed rate. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo

from switchyard.features.flyte.workflow.lists.cron import FIELDS, split_zone

_WORDS = {
    **dict.fromkeys(("hourly", "hours", "@hourly"), "0 * * * *"),
    **dict.fromkeys(("daily", "days", "@daily", "@midnight"), "0 0 * * *"),
    **dict.fromkeys(("weekly", "weeks", "@weekly"), "0 0 * * 0"),
    **dict.fromkeys(("monthly", "months", "@monthly"), "0 0 1 * *"),
    **dict.fromkeys(("annually", "yearly", "years", "@annually", "@yearly"), "0 0 1 1 *"),
}
DAYS_MAX = 366 * 9  # a 29 February is at most eight years away
# Around a change of the offset of a time zone, times of the day come twice or not at all. No change is larger.
OFFSET_CHANGE = timedelta(hours=3)
_PART = re.compile(r"(?P<low>\*|\?|\w+)(?:-(?P<high>\w+))?(?:/(?P<step>\d+))?\Z", re.ASCII)


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
        _, text = split_zone(text)
        parts = _WORDS.get(text.strip().lower(), text).split()
        minutes, hours, days, months, weekdays = (
            _numbers(part, low, high, words) for part, (_, low, high, words) in zip(parts, FIELDS, strict=True)
        )
        is_either_day = parts[2][0] not in "*?" and parts[4][0] not in "*?"
        return CronTimes(
            tuple(sorted(minutes)),
            tuple(sorted(hours)),
            frozenset(days),
            frozenset(months),
            frozenset(day % 7 for day in weekdays),
            is_either_day,
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


def _numbers(part: str, low: int, high: int, words: dict[str, int]) -> set[int]:
    found: set[int] = set()
    for one in part.split(","):
        match = _PART.match(one)
        assert match is not None, "the schedule was checked"
        first, last = low, high
        if match["low"] not in ("*", "?"):
            first = _number(match["low"], words)
            # As in other crons: 5/15 is 5-59/15.
            last = _number(match["high"], words) if match["high"] else (high if match["step"] else first)
        found.update(range(first, last + 1, int(match["step"] or 1)))
    return found


def _number(text: str, words: dict[str, int]) -> int:
    return int(text) if text.isdigit() else words[text.lower()]
