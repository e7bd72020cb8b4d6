"""Runs of whole numbers with a step, as index sets are made of: put in order, packed, met with others. Pure.

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
    begins, ends, own = done[-1]
    gap = first - ends
    is_one, was_one = first == last, begins == ends
    # Both go on by the same step: by that of the one that has some, else as neighbours.
    if gap == (own if not was_one else step if not is_one else 1) and (is_one or was_one or own == step):
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
    found: list[IndexRun] = []
    for lowest, behind in pairwise(edges):
        within = [part for run in runs if (part := _clip(run, lowest, behind - 1)) is not None]
        found += _merge_interleaved(within)
    return found


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
    return [(number, number, 1) for number in sorted({each for a, b, step in runs for each in range(a, b + 1, step)})]


def _clip(run: IndexRun, lowest: int, highest: int) -> IndexRun | None:
    """What a run has between these, both included."""
    first, last, step = run
    first += max(0, -((first - lowest) // step)) * step
    last = min(last, first + (highest - first) // step * step)
    return (first, last, step) if lowest <= first <= last else None


def _shown(runs: Sequence[IndexRun]) -> str:
    return " and ".join(f"{first}-{last}:{step}" for first, last, step in runs[:2])


def intersect_runs(some: Sequence[IndexRun], others: Sequence[IndexRun]) -> Iterator[IndexRun]:
    """The numbers that are in both sets, as runs in order."""
    here, there = 0, 0
    while here < len(some) and there < len(others):
        if (found := _intersect_pair(some[here], others[there])) is not None:
            yield found
        if some[here][1] < others[there][1]:
            here += 1
        else:
            there += 1


def _intersect_pair(one: IndexRun, other: IndexRun) -> IndexRun | None:
    """The numbers of two runs that are in both: a run again, by the least common multiple of the steps."""
    lowest, highest = max(one[0], other[0]), min(one[1], other[1])
    if lowest > highest:
        return None
    step, theirs = one[2], other[2]
    shared = gcd(step, theirs)
    apart = other[0] - one[0]
    if apart % shared:
        return None
    multiple = step // shared * theirs
    turns = apart // shared * pow(step // shared, -1, theirs // shared) if theirs > shared else 0
    found = one[0] + turns % (theirs // shared) * step
    clipped = _clip((found, found + (highest - found) // multiple * multiple, multiple), lowest, highest)
    if clipped is None:
        return None
    first, last, by = clipped
    return (first, last, by if last > first else 1)
