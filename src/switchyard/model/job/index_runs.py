"""Runs of whole numbers with a step, of which index sets consist: sorting, packing and intersecting them. Pure.

A run is (first, last, step), and `last` is one of its numbers. Runs of a set are in order and apart: each begins behind
the last number of the one before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from math import gcd

IndexRun = tuple[int, int, int]

INTERLEAVED_NUMBERS_MAX = 10_000  # of runs that lie within each other and follow no rule: these alone are written out
INTERLEAVED_RUNS_MAX = 64  # of runs within each other, if they are more numbers than that


def run_length(run: IndexRun) -> int:
    return (run[1] - run[0]) // run[2] + 1


def pack_runs(runs: Iterable[IndexRun]) -> tuple[IndexRun, ...]:
    """Join runs that are in order and apart, where one goes on as the other does; three single numbers make a run."""
    done: list[IndexRun] = []
    for run in runs:
        for part in canonical_runs(*run):
            _add(done, part)
    return tuple(done)


def canonical_runs(first: int, last: int, step: int) -> list[IndexRun]:
    """A run as it is kept: one number has no step, and two that are not neighbours are shorter by themselves."""
    if first == last:
        return [(first, first, 1)]
    if last == first + step and step > 1:
        return [(first, first, 1), (last, last, 1)]
    return [(first, last, step)]


def _add(done: list[IndexRun], run: IndexRun) -> None:
    if not done:
        done.append(run)
        return
    first, last, step = run
    begins, ends, last_step = done[-1]
    gap = first - ends
    is_one, was_one = first == last, begins == ends
    # Both go on by the same step: by that of the one that has some, else as neighbours.
    if gap == (last_step if not was_one else step if not is_one else 1) and (is_one or was_one or last_step == step):
        done[-1] = (begins, last, gap)
    elif is_one and was_one and len(done) > 1 and done[-2][0] == done[-2][1] == ends - gap:
        done[-2:] = [(ends - gap, last, gap)]
    else:
        done.append(run)


def normalize_runs(runs: Sequence[IndexRun]) -> tuple[IndexRun, ...]:
    """Put runs in order and apart; numbers that several have are there once.

    Runs may lie within each other, as 0-10:5 and 1-11:5 do. ValueError: those are many, and follow no common rule.
    """
    ordered = sorted(runs)
    apart: list[IndexRun] = []
    place = 0
    while place < len(ordered):
        end, last = place + 1, ordered[place][1]
        while end < len(ordered) and ordered[end][0] <= last:
            last = max(last, ordered[end][1])
            end += 1
        apart += [ordered[place]] if end == place + 1 else _untangle(ordered[place:end])
        place = end
    return pack_runs(apart)


def _untangle(runs: Sequence[IndexRun]) -> list[IndexRun]:
    if all(step == 1 or first == last for first, last, step in runs):
        return [(runs[0][0], max(run[1] for run in runs), 1)]
    if sum(map(run_length, runs)) <= INTERLEAVED_NUMBERS_MAX:
        return _written_out(runs)
    if len(runs) > INTERLEAVED_RUNS_MAX:
        raise ValueError(f"{len(runs)} ranges lie within each other, as {_shown(runs)}: write them in order")
    edges = sorted({edge for first, last, _ in runs for edge in (first, last + 1)})
    untangled: list[IndexRun] = []
    for lowest, behind in pairwise(edges):
        within = [part for run in runs if (part := _clip(run, lowest, behind - 1)) is not None]
        untangled += _merge_interleaved(within)
    return untangled


def _merge_interleaved(runs: list[IndexRun]) -> list[IndexRun]:
    """Runs that lie within each other from end to end."""
    if len(runs) <= 1:
        return runs
    first, last = min(run[0] for run in runs), max(run[1] for run in runs)
    if any(run == (first, last, 1) for run in runs):
        return [(first, last, 1)]
    step = runs[0][2]
    begins = sorted({run[0] for run in runs})
    even = step // len(begins)
    if (
        all(run[2] == step for run in runs)
        and even * len(begins) == step
        and begins == list(range(begins[0], begins[0] + step, even))
        and sum(map(run_length, runs)) == (last - first) // even + 1
    ):
        return [(first, last, even)]
    if sum(map(run_length, runs)) > INTERLEAVED_NUMBERS_MAX:
        raise ValueError(f"the ranges {_shown(runs)} lie within each other: make them arrays of their own")
    return _written_out(runs)


def _written_out(runs: Sequence[IndexRun]) -> list[IndexRun]:
    return [(number, number, 1) for number in sorted({index for a, b, step in runs for index in range(a, b + 1, step)})]


def _clip(run: IndexRun, lowest: int, highest: int) -> IndexRun | None:
    """Return the part of a run between two numbers, both included."""
    first, last, step = run
    first += max(0, -((first - lowest) // step)) * step
    last = min(last, first + (highest - first) // step * step)
    return (first, last, step) if lowest <= first <= last else None


def _shown(runs: Sequence[IndexRun]) -> str:
    return " and ".join(f"{first}-{last}:{step}" for first, last, step in runs[:2])


def intersect_runs(first: Sequence[IndexRun], second: Sequence[IndexRun]) -> Iterator[IndexRun]:
    """The numbers that are in both sets, as runs in order."""
    here, there = 0, 0
    while here < len(first) and there < len(second):
        if (common := _intersect_pair(first[here], second[there])) is not None:
            yield common
        if first[here][1] < second[there][1]:
            here += 1
        else:
            there += 1


def _intersect_pair(one: IndexRun, second: IndexRun) -> IndexRun | None:
    """The numbers of two runs that are in both: a run again, by the least common multiple of the steps."""
    lowest, highest = max(one[0], second[0]), min(one[1], second[1])
    if lowest > highest:
        return None
    step, second_step = one[2], second[2]
    shared = gcd(step, second_step)
    apart = second[0] - one[0]
    if apart % shared:
        return None
    multiple = step // shared * second_step
    turns = apart // shared * pow(step // shared, -1, second_step // shared) if second_step > shared else 0
    start = one[0] + turns % (second_step // shared) * step
    clipped = _clip((start, start + (highest - start) // multiple * multiple, multiple), lowest, highest)
    if clipped is None:
        return None
    first, last, by = clipped
    return (first, last, by if last > first else 1)
