"""Some of an array's tasks: those that nobody has leased, and those that wait for a retry. Pure.

At first these are the runs of the array itself. Later they may be any subset: each task can fail and come back alone.
A subset of many runs is kept as one bit per task of the array, by the task's position. So every subset has a written
form of bounded length, which `TaskSet.read` accepts, and no operation makes a list of all indexes.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

import msgspec

from switchyard.model.cluster.idset import TASKS_MAX, IdSet, IndexPositions
from switchyard.model.job.index_runs import IndexRun, canonical_runs, pack_runs

RUNS_MAX = 1000  # of a set that is no longer as submitted; beyond that, it is stored as bits
NO_RUNS = IdSet()
DELAY_TIMES_MAX = 8  # times at which tasks of one array are due again; the two nearest of more become one
BITS_MARK = "~"  # `~120:BASE64`: bit i is the task at position 120 + i
BITS_CHARS_MAX = 4 * (TASKS_MAX // 24 + 2) + 9
WINDOW = 4096  # bits that are looked at together
_BITS = re.compile(r"~(\d{1,7}):([A-Za-z0-9+/]*={0,2})\Z", re.ASCII)


@lru_cache(maxsize=16)
def _positions(array: str) -> IndexPositions:
    return IndexPositions(IdSet.parse(array))


@dataclass(frozen=True, slots=True)
class TaskSet:
    """Tasks of the array whose indexes are written in `array`: either `runs`, or `bits` by position."""

    array: str
    runs: IdSet = NO_RUNS
    bits: int = 0

    @staticmethod
    def read(text: str | None, array: str) -> TaskSet:
        """Read what `str` wrote. ValueError: something else wrote it."""
        if not text or not text.startswith(BITS_MARK):
            return TaskSet(array, IdSet.stored(text or ""))
        match = _BITS.match(text)
        if match is None:
            raise ValueError(f"{text[:40]!r} is not a set of tasks")
        bits = int.from_bytes(b64decode(match[2], validate=True), "little") << int(match[1])
        if bits.bit_length() > _positions(array).total:
            raise ValueError("a set of tasks has more than its array")
        return TaskSet(array, bits=bits)

    def __str__(self) -> str:
        if not self.bits:
            return str(self.runs)
        if self.bits.bit_count() <= RUNS_MAX:
            return str(self.as_runs())
        skipped = (self.bits & -self.bits).bit_length() - 1
        bits = self.bits >> skipped
        return f"{BITS_MARK}{skipped}:{b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, 'little')).decode()}"

    def __len__(self) -> int:
        return self.bits.bit_count() or len(self.runs)

    def __bool__(self) -> bool:
        return bool(self.bits or self.runs)

    def __contains__(self, index: int) -> bool:
        if not self.bits:
            return index in self.runs
        position = _positions(self.array).of(index)
        return position is not None and bool(self.bits >> position & 1)

    def __iter__(self) -> Iterator[int]:
        for first, last, step in self._each_run():
            yield from range(first, last + 1, step)

    def take(self, count: int) -> tuple[IdSet, TaskSet]:
        """Return the first tasks, at most `count`, and the rest."""
        if not self.bits:
            first, later_runs = self.runs.take(count)
            return first, TaskSet(self.array, later_runs)
        taken: list[IndexRun] = []
        for run in self._each_run():
            taken_run = IdSet((run,)).take(count)[0]
            taken += taken_run.runs
            count -= len(taken_run)
            if not count:
                break
        if not taken:
            return IdSet(), self
        last = _positions(self.array).of(taken[-1][1])
        assert last is not None
        return IdSet(pack_runs(taken)), TaskSet(self.array, bits=self.bits >> last + 1 << last + 1)

    def plus(self, indexes: Iterable[int]) -> TaskSet:
        """Return the set with these tasks added."""
        return self.union(TaskSet(self.array, IdSet.of(indexes)))

    def union(self, other: TaskSet) -> TaskSet:
        if not self:
            return other
        if not other:
            return self
        if not self.bits and not other.bits and len(self.runs.runs) + len(other.runs.runs) <= RUNS_MAX:
            try:
                return TaskSet(self.array, self.runs.union(other.runs))
            except ValueError:  # the runs are interleaved without a rule
                pass
        return TaskSet(self.array, bits=self.as_bits() | other.as_bits())

    def split(self, wanted: IdSet | None) -> tuple[TaskSet, TaskSet]:
        """Return the wanted tasks and the others. None: all are wanted."""
        if wanted is None:
            return self, TaskSet(self.array)
        if not self.bits:
            common = self.runs.common(wanted)
            runs_max = RUNS_MAX + len(self.runs.runs)
            remaining = tuple(islice(_without(self.runs.runs, common), runs_max + 1))
            if len(remaining) <= runs_max:
                return TaskSet(self.array, IdSet(tuple(common))), TaskSet(self.array, IdSet(remaining))
        bits = self.as_bits()
        chosen = _mask(self.array, wanted.runs) & bits
        return TaskSet(self.array, bits=chosen), TaskSet(self.array, bits=bits ^ chosen)

    def spans(self) -> Iterator[tuple[int, int]]:
        """First and last index of each run of neighbours."""
        yield from self.as_runs().spans()

    def span_count(self) -> int:
        """A lower bound of the number of runs of neighbours; exact if the array itself is one run."""
        return (self.bits & ~(self.bits << 1)).bit_count() if self.bits else self.runs.span_count()

    def _each_run(self) -> Iterator[IndexRun]:
        if not self.bits:
            yield from self.runs.runs
            return
        positions = _positions(self.array)
        for first, last in _bit_runs(self.bits):
            yield from positions.runs(first, last)

    def as_runs(self) -> IdSet:
        return IdSet(pack_runs(self._each_run())) if self.bits else self.runs

    def as_bits(self) -> int:
        return self.bits or _mask(self.array, self.runs.runs)


def read_delayed_tasks(text: str | None, array: str) -> list[tuple[int, TaskSet]]:
    """Read what `write_delayed_tasks` wrote: tasks that wait for a retry, by the time when they are due."""
    delayed = msgspec.json.decode(text, type=list[tuple[int, str]]) if text else []
    return [(due_us, TaskSet.read(tasks, array)) for due_us, tasks in delayed]


def write_delayed_tasks(later: Iterable[tuple[int, TaskSet]]) -> str | None:
    return msgspec.json.encode([(due_us, str(tasks)) for due_us, tasks in later if tasks]).decode() if later else None


def add_delayed_tasks(
    later: Iterable[tuple[int, TaskSet]], new: Iterable[tuple[int, TaskSet]]
) -> list[tuple[int, TaskSet]]:
    """Merge both, the soonest first. Above DELAY_TIMES_MAX times, the two nearest times become the later one."""
    by_time: dict[int, TaskSet] = {}
    for due_us, tasks in (*later, *new):
        by_time[due_us] = by_time[due_us].union(tasks) if due_us in by_time else tasks
    times = sorted(by_time)
    while len(times) > DELAY_TIMES_MAX:
        place = min(range(len(times) - 1), key=lambda index: times[index + 1] - times[index])
        sooner = times.pop(place)
        by_time[times[place]] = by_time[times[place]].union(by_time.pop(sooner))
    return [(due_us, by_time[due_us]) for due_us in times]


def _bit_runs(bits: int) -> Iterator[tuple[int, int]]:
    """Iterate over runs of adjacent set bits, the lowest first: first and last position. Works window by window."""
    skipped = (bits & -bits).bit_length() - 1 if bits else 0
    bits >>= skipped
    while bits:
        text = f"{bits & ((1 << WINDOW) - 1):b}"[::-1]
        begins = text.find("1")
        while begins >= 0:
            ends = text.find("0", begins)
            ends = len(text) if ends < 0 else ends
            yield skipped + begins, skipped + ends - 1
            begins = text.find("1", ends)
        bits >>= WINDOW
        skipped += WINDOW


def _mask(array: str, runs: Iterable[IndexRun]) -> int:
    mask = 0
    for first, count, step in _positions(array).strides(runs):
        mask |= _strided_bits(count, step) << first
    return mask


def _strided_bits(count: int, step: int) -> int:
    """Return `count` set bits, `step` apart."""
    if step == 1:
        return (1 << count) - 1
    bits, have = 1, 1
    while have < count:
        more = min(have, count - have)
        bits |= (bits & ((1 << more * step) - 1)) << have * step
        have += more
    return bits


def _without(runs: Iterable[IndexRun], gone: list[IndexRun]) -> Iterator[IndexRun]:
    """Return the runs without those in `gone`, which must be parts of them and sorted."""
    cuts = iter(gone)
    cut = next(cuts, None)
    for first, last, step in runs:
        begins = first
        while cut is not None and cut[0] <= last:
            is_one_piece = cut[2] == step or cut[0] == cut[1]
            for low, high in (
                [cut[:2]] if is_one_piece else ((index, index) for index in range(cut[0], cut[1] + 1, cut[2]))
            ):
                if low > begins:
                    yield from canonical_runs(begins, low - step, step)
                begins = high + step
            cut = next(cuts, None)
        if begins <= last:
            yield from canonical_runs(begins, last, step)
