"""Index sets mean what they say, whatever is done with them, and can be read as they were written."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchyard.model.cluster.idset import INDEX_MAX, TEXT_CHARS_MAX, IdSet, IndexPositions, parse_array

PART = st.tuples(st.integers(0, 120), st.integers(0, 60), st.integers(1, 9))


def written(part: tuple[int, int, int]) -> str:
    first, length, step = part
    return f"{first}-{first + length}:{step}"


def indexes_of(part: tuple[int, int, int]) -> set[int]:
    first, length, step = part
    return set(range(first, first + length + 1, step))


@given(st.lists(PART, min_size=1, max_size=8))
def test_a_set_has_the_indexes_of_its_parts_and_is_read_as_written(parts: list[tuple[int, int, int]]) -> None:
    sets = [indexes_of(part) for part in parts]
    whole = set().union(*sets)
    text = ",".join(map(written, parts))
    if len(whole) < sum(map(len, sets)):
        with pytest.raises(ValueError, match="twice"):
            IdSet.parse(text)
        return
    found = IdSet.parse(text)
    assert list(found) == sorted(whole)
    assert len(found) == len(whole)
    assert [index for index in range(200) if index in found] == sorted(whole)
    assert set(IdSet.parse(str(found))) == set(IdSet.stored(str(found))) == whole
    assert all(behind[0] > before[1] for before, behind in zip(found.runs, found.runs[1:], strict=False))
    assert [index for low, high in found.spans() for index in range(low, high + 1)] == sorted(whole)
    positions = IndexPositions(found)
    assert [positions.of(index) for index in found] == list(range(positions.total))
    middle = list(found)[1:-1]
    assert [i for a, b, step in positions.runs(1, positions.total - 2) for i in range(a, b + 1, step)] == middle


@given(st.sets(st.integers(0, 300)), st.sets(st.integers(0, 300)), st.integers(0, 310))
def test_operations_are_those_of_sets(one: set[int], other: set[int], number: int) -> None:
    here, there = IdSet.of(one), IdSet.of(other)
    assert set(here.union(there)) == one | other
    assert {i for run in here.common(there) for i in range(run[0], run[1] + 1, run[2])} == one & other
    assert here.is_within(there) == (one <= other)
    taken, rest = here.take(number)
    assert list(taken) == sorted(one)[:number]
    assert list(rest) == sorted(one)[number:]
    assert list(here.after(number)) == [index for index in sorted(one) if index > number]
    assert here.span_count() == len(list(here.spans()))


@given(PART, PART)
def test_two_strides_meet_where_both_are(one: tuple[int, int, int], other: tuple[int, int, int]) -> None:
    common = IdSet.parse(written(one)).common(IdSet.parse(written(other)))
    assert {i for run in common for i in range(run[0], run[1] + 1, run[2])} == indexes_of(one) & indexes_of(other)


@pytest.mark.parametrize(
    ("text", "shown", "count"),
    [
        ("0-30000:2", "0-30000:2", 15_001),
        ("0-1999998:2", "0-1999998:2", 1_000_000),
        ("1-2147483647:2200", "1-2147481601:2200", 976_129),
        ("0-1999998:4,2-1999998:4", "0-1999998:2", 1_000_000),
        ("0-999998:2,1-999999:2", "0-999999", 1_000_000),
        ("0-499999,1000000-1999998:2", "0-499999,1000000-1999998:2", 1_000_000),
        ("0-1999996:2,1000001", "0-1000000:2,1000001,1000002-1999996:2", 1_000_000),
        ("5,3,1", "1-5:2", 3),
        ("3,7", "3,7", 2),
        ("0-9:4,9", "0-8:4,9", 4),
        (f"{INDEX_MAX}", f"{INDEX_MAX}", 1),
    ],
)
def test_large_sets_are_read_at_once(text: str, shown: str, count: int) -> None:
    began = time.process_time()
    found = IdSet.parse(text)
    assert time.process_time() - began < 1
    assert str(found) == shown
    assert len(found) == count
    assert IdSet.parse(shown) == found


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not an index"),
        ("9-3", "backwards"),
        ("0-9:0", "at least 1"),
        ("0-1999999", "at most 1,000,000 tasks"),
        (f"0-{INDEX_MAX + 1}", "at most"),
        ("0-999999:2,4", "twice"),
        ("0-999999:3,2-999999:5", "lie within each other"),
        (",".join(f"{first}-{first + 1000000}:700" for first in range(0, 200, 2)), "100 ranges lie within each other"),
        ("0-" + "9" * TEXT_CHARS_MAX, "over 65536"),
        ("0-9%0", "is not an index"),
        ("1,٣", "is not an index"),
    ],
)
def test_what_has_no_short_form_is_refused_with_the_reason(text: str, says: str) -> None:
    began = time.process_time()
    with pytest.raises(ValueError, match=says):
        IdSet.parse(text)
    assert time.process_time() - began < 1


def test_a_bound_of_thousands_of_digits_is_refused() -> None:
    with pytest.raises(ValueError, match="after %"):
        parse_array("0-9%" + "9" * 60_000)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 5000)), min_size=1, max_size=60))
def test_what_is_accepted_is_read_again_however_long(parts: list[tuple[int, int, int]]) -> None:
    """The law of the door: whatever `parse` takes, it takes again as it is written."""
    try:
        found = IdSet.parse(",".join(map(written, parts)))
    except ValueError:
        return
    text = str(found)
    assert len(text) <= TEXT_CHARS_MAX
    assert len(IdSet.parse(text)) == len(found)
    assert IdSet.parse(text).is_within(found)
