"""Any subset of an array's tasks has a written form that is bounded, and is read as it was written."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchyard.model.cluster.idset import IdSet
from switchyard.model.job import taskset
from switchyard.model.job.taskset import (
    BITS_CHARS_MAX,
    DELAY_TIMES_MAX,
    TaskSet,
    add_delayed_tasks,
    read_delayed_tasks,
    write_delayed_tasks,
)

ARRAYS = ["0-99", "0-198:2", "5-400:7,401-420,1000", "1,2,4,8,16,32,64", "0-60:3,1-61:3"]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_operations_are_those_of_sets_in_either_form(data: st.DataObject) -> None:
    array = str(IdSet.parse(data.draw(st.sampled_from(ARRAYS))))
    every = list(IdSet.parse(array))
    subset = st.sets(st.sampled_from(every))
    one, other = data.draw(subset), data.draw(subset)
    number = data.draw(st.integers(0, 120))
    runs_max = data.draw(st.sampled_from([1, 3, 1000]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(taskset, "RUNS_MAX", runs_max)
        patch.setattr(taskset, "WINDOW", 16)
        here, there = TaskSet(array).plus(one), TaskSet(array).plus(other)
        if data.draw(st.booleans()):
            here = TaskSet(array, bits=here.as_bits())
        for made, means in (
            (here, one),
            (here.union(there), one | other),
            (here.plus(other), one | other),
            (here.split(IdSet.of(other))[0], one & other),
            (here.split(IdSet.of(other))[1], one - other),
            (here.take(number)[1], set(sorted(one)[number:])),
        ):
            assert set(made) == means
            assert len(made) == len(means)
            assert bool(made) == bool(means)
            assert [index for index in every if index in made] == sorted(means)
            again = TaskSet.read(str(made), array)
            assert set(again) == means
            assert bool(str(made)) == bool(means)
            assert [i for low, high in made.spans() for i in range(low, high + 1)] == sorted(means)
        assert list(here.take(number)[0]) == sorted(one)[:number]
        assert here.split(None) == (here, TaskSet(array))


@pytest.mark.parametrize("array", ["0-999999", "0-1999998:2", "0-2147483000:2148"])
def test_the_worst_subset_is_bounded_and_quick(array: str) -> None:
    """Each second task of those that a random half of the array is: no runs describe it."""
    every = IdSet.parse(array)
    chosen = random.Random(1).sample(range(len(every)), len(every) // 3)
    bits = 0
    blob = bytearray(len(every) // 8 + 1)
    for position in chosen:
        blob[position // 8] |= 1 << position % 8
    bits = int.from_bytes(blob, "little")
    some = TaskSet(array, bits=bits)
    text = str(some)
    assert len(text) <= BITS_CHARS_MAX
    began = time.process_time()
    found = TaskSet.read(text, array)
    taken, rest = found.take(1000)
    assert len(str(rest.plus(taken))) <= BITS_CHARS_MAX
    assert time.process_time() - began < 1
    assert found == some
    assert len(taken) == 1000


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.sets(st.integers(0, 199), max_size=20)), max_size=40))
def test_retries_are_due_never_too_soon_and_at_few_times(new: list[tuple[int, set[int]]]) -> None:
    array = "0-199"
    later: list[tuple[int, TaskSet]] = []
    due: dict[int, int] = {}
    for at_us, indexes in new:
        fresh = indexes - due.keys()
        due |= dict.fromkeys(fresh, at_us)
        later = add_delayed_tasks(later, [(at_us, TaskSet(array).plus(fresh))] if fresh else [])
        later = read_delayed_tasks(write_delayed_tasks(later), array)
        assert len(later) <= DELAY_TIMES_MAX
    assert sorted(index for _, some in later for index in some) == sorted(due)
    assert all(at_us >= due[index] for at_us, some in later for index in some)


@pytest.mark.parametrize("text", ["~", "~5", "~0:AAAA====", "~0:" + "/" * 400, "x", "5-", "~-1:AA=="])
def test_what_was_not_written_so_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        TaskSet.read(text, "0-99")
