"""Whether a text is a cron schedule: five fields, or a word such as @daily; a time zone may stand before them."""

from __future__ import annotations

import re

# Flyte's words; flytekit knows them without the @ too.
_PERIODS = ("hourly", "daily", "weekly", "monthly", "annually", "yearly")
_PLURALS = ("hours", "days", "weeks", "months", "years")
DESCRIPTORS = frozenset({*_PERIODS, *_PLURALS, "@midnight", *(f"@{period}" for period in _PERIODS)})
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


def cron_mistake(text: str) -> str:
    """What is wrong with a schedule. Empty: nothing."""
    _, text = split_zone(text)
    if text.strip().lower() in DESCRIPTORS:
        return ""
    parts = text.split()
    if len(text) > SCHEDULE_CHARS_MAX or len(parts) != len(FIELDS):
        return f"{text[:80]!r} is no cron schedule: it has five fields, or is a word such as @daily"
    for part, (name, low, high, words) in zip(parts, FIELDS, strict=True):
        if not all(_is_range(one, low, high, words) for one in part.split(",")):
            return f"{part[:80]!r} is no {name} of a cron schedule ({low} to {high})"
    return ""


def split_zone(text: str) -> tuple[str, str]:
    """The time zone in `CRON_TZ=Europe/Berlin 0 3 * * *`, and the schedule. Empty: there is none."""
    match = _ZONE.match(text.strip())
    return (match["zone"], match["rest"]) if match is not None else ("", text)


def _is_range(text: str, low: int, high: int, words: dict[str, int]) -> bool:
    match = _PART.match(text)
    if match is None or (match["step"] is not None and int(match["step"]) < 1):
        return False
    if match["low"] in ("*", "?"):
        return match["high"] is None
    first = _number(match["low"], words)
    last = first if match["high"] is None else _number(match["high"], words)
    return first is not None and last is not None and low <= first <= last <= high


def _number(text: str, words: dict[str, int]) -> int | None:
    return int(text) if text.isdigit() else words.get(text.lower())
