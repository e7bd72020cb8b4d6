"""Patterns: the same answers as Python's `re` for what both know, and bounded work where `re` runs for hours."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from switchyard.route.pattern import PATTERN_CHARS_MAX, BadPattern, compile_pattern

ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", "[a-c]", r"\d", r"\w", r"\.", "^", "$"])


def _joined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    group = inner.map(lambda text: f"({text})")
    repeated = st.tuples(group | st.sampled_from(["a", ".", "[ab]"]), st.sampled_from("*+?")).map("".join)
    return st.lists(inner | group | repeated, min_size=1, max_size=3).map("".join) | st.tuples(inner, inner).map(
        "|".join
    )


PATTERNS = st.recursive(ATOMS, _joined, max_leaves=6)


def is_found(pattern: str, text: str) -> tuple[bool, int]:
    spent: list[int] = []
    return compile_pattern(pattern).is_in(text, spent.append), sum(spent)


@given(PATTERNS, st.text("abc.1", max_size=6))
@example("(a|b|c)$", "xb")
@example("((a*)*)*", "")
@example("a|b|", "c")
def test_answers_are_those_of_re(pattern: str, text: str) -> None:
    if len(pattern) <= PATTERN_CHARS_MAX:
        # `$` of Python also stands before a last newline; there is none here.
        assert is_found(pattern, text)[0] == (re.search(pattern, text) is not None)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*$", "(.*)*x", ".*.*.*.*.*x", "(a*)*b", "(a|aa)+$"])
def test_work_is_at_most_the_pattern_times_the_text(pattern: str) -> None:
    text = "a" * 1000 + "!"
    assert is_found(pattern, text)[1] <= len(compile_pattern(pattern).states) * (len(text) + 1)


STRANGE = ["(", ")", "a)", "[", "[]", "[a", "[b-a]", "*", "a**", "a+?", "a{2}", "(?i)a", "(?=a)", "\\", r"\b", r"[\W]"]


@pytest.mark.parametrize("pattern", [*STRANGE, "(" * 30, "a" * (PATTERN_CHARS_MAX + 1)])
def test_what_is_not_known_is_refused(pattern: str) -> None:
    with pytest.raises(BadPattern):
        compile_pattern(pattern)
