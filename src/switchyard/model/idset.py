"""Sets of array indexes as ranges: `0-999`, `1,3,7-9`, `0-100:10`. Immutable; cutting and joining cost the ranges."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from switchyard.errors import ImpossibleValue

TASKS_MAX = 1_000_000  # of one array: two bytes of state each
INDEX_MAX = 2**31 - 1
TEXT_CHARS_MAX = 65_536
PART = r"([0-9]{1,10})(?:-([0-9]{1,10})(?::([0-9]{1,10}))?)?"
_PART = re.compile(PART + r"\Z")
_COUNT = re.compile(r"[0-9]{1,7}\Z")
BLANKS = " \t\r\n"  # may stand around a part
# What a schema says of the texts: made of the part that reads them.
_SPACED = rf"[ \t\r\n]*{PART}[ \t\r\n]*"
IDSET_PATTERN = f"^{_SPACED}(,{_SPACED})*$"
ARRAY_PATTERN = rf"^{_SPACED}(,{_SPACED})*(%[ \t\r\n]*[0-9]{{1,7}}[ \t\r\n]*)?$"


@dataclass(frozen=True, slots=True)
class IdSet:
    """Sorted, disjoint, never touching ranges, both ends included."""

    ranges: tuple[tuple[int, int], ...] = ()

    @staticmethod
    def parse(text: str) -> IdSet:
        """Read `0-9,20,30-40:2`. Refuses what is empty, backwards, twice or too large."""
        if len(text) > TEXT_CHARS_MAX:
            raise ImpossibleValue(f"an index set of over {TEXT_CHARS_MAX} characters")
        found: list[tuple[int, int]] = []
        count = 0
        for part in text.split(","):
            lo, hi, step = _numbers(part)
            count += (hi - lo) // step + 1
            if count > TASKS_MAX:
                raise ImpossibleValue(f"an array has at most {TASKS_MAX:,} tasks")
            found += [(lo, hi)] if step == 1 else [(index, index) for index in range(lo, hi + 1, step)]
        joined = IdSet(_join(found))
        if len(joined) != count:
            raise ImpossibleValue(f"{text[:80]!r} names an index twice")
        return joined

    @staticmethod
    def of(indexes: Iterable[int]) -> IdSet:
        return IdSet(_join([(index, index) for index in indexes]))

    def __len__(self) -> int:
        return sum(hi - lo + 1 for lo, hi in self.ranges)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __iter__(self) -> Iterator[int]:
        for lo, hi in self.ranges:
            yield from range(lo, hi + 1)

    def __contains__(self, index: int) -> bool:
        return any(lo <= index <= hi for lo, hi in self.ranges)

    def __str__(self) -> str:
        return ",".join(str(lo) if lo == hi else f"{lo}-{hi}" for lo, hi in self.ranges)

    def first(self, most: int) -> tuple[int, int] | None:
        """The first run of neighbours, at most that many."""
        if not self.ranges or most < 1:
            return None
        lo, hi = self.ranges[0]
        return lo, min(hi, lo + most - 1)

    def without(self, lo: int, hi: int) -> IdSet:
        left: list[tuple[int, int]] = []
        for low, high in self.ranges:
            if high < lo or low > hi:
                left.append((low, high))
                continue
            if low < lo:
                left.append((low, lo - 1))
            if high > hi:
                left.append((hi + 1, high))
        return IdSet(tuple(left))

    def union(self, other: IdSet) -> IdSet:
        return IdSet(_join([*self.ranges, *other.ranges]))


def parse_array(text: str) -> tuple[IdSet, int | None]:
    """Read `0-999%50`: the indexes, and how many may run at once."""
    indexes, percent, most = text.partition("%")
    if not percent:
        return IdSet.parse(indexes), None
    most = most.strip(BLANKS)
    if not _COUNT.match(most) or not 1 <= int(most) <= TASKS_MAX:
        kind = ImpossibleValue if _COUNT.match(most) else ValueError
        raise kind(f"after % comes how many may run at once, from 1 to {TASKS_MAX:,}; not {most[:20]!r}")
    return IdSet.parse(indexes), int(most)


def _numbers(part: str) -> tuple[int, int, int]:
    found = _PART.match(part.strip(BLANKS))
    if not found:
        raise ValueError(f"{part[:40]!r} is not an index or a range such as 0-999 or 0-100:10")
    lo = int(found[1])
    hi = int(found[2]) if found[2] else lo
    step = int(found[3]) if found[3] else 1
    if hi < lo:
        raise ImpossibleValue(f"the range {part[:40]!r} is backwards")
    if step < 1 or hi > INDEX_MAX:
        raise ImpossibleValue(f"{part[:40]!r}: a step is at least 1, and an index at most {INDEX_MAX}")
    return lo, hi, step


def _join(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for lo, hi in sorted(ranges):
        if found and lo <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], hi))
        else:
            found.append((lo, hi))
    return tuple(found)
