"""`soonest` and `cheapest`: the best quote wins; equals, and everybody where there is none, are drawn by weight."""

from __future__ import annotations

import pytest

from switchyard.errors import Malformed
from switchyard.route.select.registry import selector
from switchyard.route.select.selector import Candidate, CandidateQuote, SelectionResult, reads_quotes


def select(name: str, **quotes: CandidateQuote | None) -> SelectionResult:
    found = selector(name).select([Candidate(each, quote=quote) for each, quote in quotes.items()], {})
    assert isinstance(found, SelectionResult)
    return found


def yes(starts_s: float | None = None, cost: float | None = None) -> CandidateQuote:
    return CandidateQuote(can=True, starts_s=starts_s, cost=cost)


NO = CandidateQuote(can=False, reason="closed")


@pytest.mark.parametrize(
    ("name", "quotes", "among", "remaining"),
    [
        ("soonest", {"a": yes(20), "b": yes(10)}, ("b",), ("b", "a")),
        ("soonest", {"a": yes(10.2), "b": yes(9.8)}, ("a", "b"), ("a", "b")),  # the same to the second
        ("soonest", {"a": None, "b": yes(3600)}, ("b",), ("b", "a")),  # an answer beats none
        ("soonest", {"a": yes(cost=1), "b": yes(3600)}, ("b",), ("b", "a")),  # one that does not say when is none
        ("soonest", {"a": None, "b": None}, ("a", "b"), ("a", "b")),
        ("soonest", {"a": yes(), "b": None}, ("a", "b"), ("a", "b")),
        ("soonest", {"a": NO, "b": None}, ("b",), ("b",)),
        ("soonest", {"a": NO, "b": yes(9)}, ("b",), ("b",)),
        ("soonest", {"a": NO, "b": NO}, (), ()),
        ("cheapest", {"a": yes(0, 3), "b": yes(99, 2)}, ("b",), ("b", "a")),
        ("cheapest", {"a": yes(0, 2), "b": yes(99, 2.00001)}, ("a", "b"), ("a", "b")),
        ("cheapest", {"a": yes(0, 0), "b": yes(0, 0)}, ("a", "b"), ("a", "b")),
        ("cheapest", {"a": yes(0), "b": yes(99, 2)}, ("b",), ("b", "a")),
    ],
)
def test_the_best_quote_wins(
    name: str, quotes: dict[str, CandidateQuote | None], among: tuple[str, ...], remaining: tuple[str, ...]
) -> None:
    found = select(name, **quotes)
    assert (found.among, found.remaining, found.is_even) == (among, remaining, False)


def test_reasons_have_no_numbers_for_they_are_stored_once_for_many_jobs() -> None:
    found = select("soonest", a=yes(12.3), b=NO, c=None)
    assert found.notes == {"a": "soonest by its quote"}
    assert found.out == {"b": "says no: closed"}
    assert set(select("cheapest", a=None).notes.values()) == {"no quote to go by: drawn by weight"}


@pytest.mark.parametrize("name", ["soonest", "cheapest"])
def test_they_take_no_options_and_others_ask_nobody(name: str) -> None:
    with pytest.raises(Malformed, match="has no option 'by'"):
        selector(name, '{"by": 1}')
    assert reads_quotes(selector(name))
    assert not reads_quotes(selector("weighted"))
