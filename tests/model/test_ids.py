"""Ids: sorted by time, never twice, never back."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from switchyard.model.wire.ids import ALPHABET, LENGTH, RANDOM_BITS, is_id, make_id
from switchyard.service.core.writes.clock import IdGenerator

TIMES = st.integers(0, 2**48 * 1000 - 1)
ENTROPY = st.integers(0, 2**RANDOM_BITS - 1)


@given(TIMES, ENTROPY)
def test_an_id_is_twenty_six_characters_of_the_alphabet(at_us: int, entropy: int) -> None:
    assert is_id(make_id(at_us, entropy))


@given(TIMES, TIMES, ENTROPY, ENTROPY)
def test_ids_sort_as_their_times_do(one_us: int, other_us: int, one: int, other: int) -> None:
    if one_us // 1000 != other_us // 1000:
        assert (make_id(one_us, one) < make_id(other_us, other)) == (one_us < other_us)
    else:
        assert (make_id(one_us, one) < make_id(other_us, other)) == (one < other)


def test_what_is_no_id() -> None:
    good = make_id(10**15, 10**20)
    assert not any(
        is_id(bad) for bad in ("", good[:-1], good + "0", good.lower(), "I" * 26, "U" * 26, good[:-1] + "\n")
    )
    assert len(set(ALPHABET)) == 32
    assert "~" > ALPHABET[-1]
    assert LENGTH == 26


@given(st.lists(st.integers(0, 10**15), min_size=2, max_size=50))
def test_ids_grow_whatever_the_clock_does(times: list[int]) -> None:
    clock = iter(times)
    make = IdGenerator(lambda: next(clock))
    made = [make() for _ in times]
    assert made == sorted(set(made))


def test_ids_made_at_once_on_many_threads_never_repeat_or_go_back() -> None:
    make, lists = IdGenerator(), [list[str]() for _ in range(8)]
    threads = [threading.Thread(target=lambda own=own: own.extend(make() for _ in range(2000))) for own in lists]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({made for own in lists for made in own}) == 16_000
    assert all(own == sorted(own) for own in lists)
