"""Sets of array indexes as runs with a step: `0-999`, `1,3,7-9`, `0-100:10`. Immutable.

A set is never expanded into its indexes: reading, cutting and joining cost the number of runs. What cannot be written
in TEXT_CHARS_MAX characters is refused when it is read, so that `parse` always accepts what `str` writes.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from switchyard.errors import ImpossibleValue
from switchyard.model.job.index_runs import (
    IndexRun,
    canonical_runs,
    intersect_runs,
    normalize_runs,
    pack_runs,
    run_length,
)

TASKS_MAX = 1_000_000  # of one array: two bytes of state each
INDEX_MAX = 2**31 - 1
TEXT_CHARS_MAX = 65_536
CACHED_CHARS_MAX = 1000  # longer texts are rare; only the last few are cached
INDEX_RANGE_PATTERN = r"([0-9]{1,10})(?:-([0-9]{1,10})(?::([0-9]{1,10}))?)?"
_PART = re.compile(INDEX_RANGE_PATTERN + r"\Z")
_COUNT = re.compile(r"[0-9]{1,7}\Z")
BLANKS = " \t\r\n"  # may stand around a part
# What a schema says of the texts: made of the part that reads them.
_SPACED = rf"[ \t\r\n]*{INDEX_RANGE_PATTERN}[ \t\r\n]*"
IDSET_PATTERN = f"^{_SPACED}(,{_SPACED})*$"
ARRAY_PATTERN = rf"^{_SPACED}(,{_SPACED})*(%[ \t\r\n]*[0-9]{{1,7}}[ \t\r\n]*)?$"


@dataclass(frozen=True, slots=True)
class IdSet:
    """Runs (first, last, step) in order: each begins behind the last index of the one before."""

    runs: tuple[IndexRun, ...] = ()

    @staticmethod
    def parse(text: str) -> IdSet:
        """Read `0-9,20,30-40:2`. Refuses what is empty, backwards, twice or too large."""
        if len(text) > TEXT_CHARS_MAX:
            raise ImpossibleValue(f"an index set of over {TEXT_CHARS_MAX} characters")
        return _parse_short(text) if len(text) <= CACHED_CHARS_MAX else _parse_long(text)

    @staticmethod
    def stored(text: str) -> IdSet:
        """Read what `str` wrote, of whatever length; empty: no index."""
        if not text:
            return IdSet()
        if "," not in text:
            return IdSet(tuple(canonical_runs(*_parse_range(text))))
        return IdSet(normalize_runs([_parse_range(part) for part in text.split(",")]))

    @staticmethod
    def of(indexes: Iterable[int]) -> IdSet:
        return IdSet(pack_runs((index, index, 1) for index in sorted(set(indexes))))

    def __len__(self) -> int:
        return sum(map(run_length, self.runs))

    def __bool__(self) -> bool:
        return bool(self.runs)

    def __iter__(self) -> Iterator[int]:
        for first, last, step in self.runs:
            yield from range(first, last + 1, step)

    def __contains__(self, index: int) -> bool:
        place = bisect_right(self.runs, (index, INDEX_MAX + 1, 0)) - 1
        if place < 0:
            return False
        first, last, step = self.runs[place]
        return index <= last and (index - first) % step == 0

    def __str__(self) -> str:
        return ",".join(map(_format_run, self.runs))

    def after(self, index: int) -> Iterator[int]:
        """Iterate over the indexes behind this one, in order, without visiting those before it."""
        place = max(0, bisect_right(self.runs, (index, INDEX_MAX + 1, 0)) - 1)
        for first, last, step in self.runs[place:]:
            skipped = max(0, (index - first) // step + 1)
            yield from range(first + skipped * step, last + 1, step)

    def spans(self) -> Iterator[tuple[int, int]]:
        """First and last index of each run of neighbours."""
        for first, last, step in self.runs:
            if step == 1:
                yield first, last
            else:
                yield from ((index, index) for index in range(first, last + 1, step))

    def span_count(self) -> int:
        return sum(1 if run[2] == 1 else run_length(run) for run in self.runs)

    def take(self, most: int) -> tuple[IdSet, IdSet]:
        """Return the first indexes, at most so many, and the rest."""
        taken: list[IndexRun] = []
        for place, (first, last, step) in enumerate(self.runs):
            count = (last - first) // step + 1
            if count > most:
                cut = first + most * step
                taken += canonical_runs(first, cut - step, step) if most else []
                return IdSet(tuple(taken)), IdSet((*canonical_runs(cut, last, step), *self.runs[place + 1 :]))
            taken.append((first, last, step))
            most -= count
        return self, IdSet()

    def union(self, other: IdSet) -> IdSet:
        return IdSet(normalize_runs([*self.runs, *other.runs]))

    def common(self, other: IdSet) -> list[IndexRun]:
        """The runs that both sets have, in order. Their number is at most that of the runs of both sets."""
        return list(intersect_runs(self.runs, other.runs))

    def is_within(self, other: IdSet) -> bool:
        return sum(map(run_length, intersect_runs(self.runs, other.runs))) == len(self)


class IndexPositions:
    """The indexes of an array by their position in it."""

    def __init__(self, indexes: IdSet) -> None:
        self._runs = indexes.runs
        self._offsets = [0, *accumulate(map(run_length, self._runs))]
        self.total = self._offsets[-1]

    def of(self, index: int) -> int | None:
        place = bisect_right(self._runs, (index, INDEX_MAX + 1, 0)) - 1
        if place >= 0:
            first, last, step = self._runs[place]
            if index <= last and (index - first) % step == 0:
                return self._offsets[place] + (index - first) // step
        return None

    def runs(self, first: int, last: int) -> Iterator[IndexRun]:
        """The indexes from one position to another, both included."""
        place = bisect_right(self._offsets, first) - 1
        while first <= last:
            begins, _, step = self._runs[place]
            end = min(last, self._offsets[place + 1] - 1)
            offset = self._offsets[place]
            yield begins + (first - offset) * step, begins + (end - offset) * step, step
            first, place = end + 1, place + 1

    def strides(self, runs: Iterable[IndexRun]) -> Iterator[tuple[int, int, int]]:
        """Runs of indexes of the array as runs of positions: first, count and step."""
        for first, last, step in intersect_runs(self._runs, tuple(runs)):
            place = bisect_right(self._runs, (first, INDEX_MAX + 1, 0)) - 1
            begins, _, run_step = self._runs[place]
            yield (
                self._offsets[place] + (first - begins) // run_step,
                (last - first) // step + 1,
                max(1, step // run_step),
            )


def parse_array(text: str) -> tuple[IdSet, int | None]:
    """Read `0-999%50`: the indexes, and how many may run at once."""
    indexes, percent, limit = text.partition("%")
    if not percent:
        return IdSet.parse(indexes), None
    limit = limit.strip(BLANKS)
    if not _COUNT.match(limit) or not 1 <= int(limit) <= TASKS_MAX:
        kind = ImpossibleValue if _COUNT.match(limit) else ValueError
        raise kind(f"after % comes how many may run at once, from 1 to {TASKS_MAX:,}; not {limit[:20]!r}")
    return IdSet.parse(indexes), int(limit)


@lru_cache(maxsize=256)
def _parse_short(text: str) -> IdSet:
    return _parse(text)


@lru_cache(maxsize=4)
def _parse_long(text: str) -> IdSet:
    return _parse(text)


def _parse(text: str) -> IdSet:
    parts: list[IndexRun] = []
    count = 0
    for part in text.split(","):
        first, last, step = _parse_range(part)
        tasks = (last - first) // step + 1
        count += tasks
        if count > TASKS_MAX:
            raise ImpossibleValue(f"an array has at most {TASKS_MAX:,} tasks")
        parts.append((first, first + (tasks - 1) * step, step))
    ids = IdSet(normalize_runs(parts))
    if len(ids) != count:
        raise ImpossibleValue(f"{text[:80]!r} names an index twice")
    if len(str(ids)) > TEXT_CHARS_MAX:
        raise ImpossibleValue(f"the indexes {text[:40]!r} take over {TEXT_CHARS_MAX} characters to write in order")
    return ids


def _parse_range(part: str) -> IndexRun:
    match = _PART.match(part.strip(BLANKS))
    if not match:
        raise ValueError(f"{part[:40]!r} is not an index or a range such as 0-999 or 0-100:10")
    first = int(match[1])
    last = int(match[2]) if match[2] else first
    step = int(match[3]) if match[3] else 1
    if last < first:
        raise ImpossibleValue(f"the range {part[:40]!r} is backwards")
    if step < 1 or last > INDEX_MAX:
        raise ImpossibleValue(f"{part[:40]!r}: a step is at least 1, and an index at most {INDEX_MAX}")
    return first, last, step


def _format_run(run: IndexRun) -> str:
    first, last, step = run
    if first == last:
        return str(first)
    return f"{first}-{last}" if step == 1 else f"{first}-{last}:{step}"
