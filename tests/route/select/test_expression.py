"""Expressions: what each operator does, what has no value and why, and that nothing hostile costs more than a bound."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.errors import Malformed
from switchyard.features.rainbow.route.expression import CHARS_MAX, NODES_MAX, NoValue, parse_expression
from switchyard.route.operators import BudgetExceeded, EvaluationBudget

VALUES: dict[str, Any] = {
    "x": 6.0,
    "zero": 0.0,
    "name": "alpha-7",
    "yes": True,
    "nodes-free": 3.0,
    "nothing": None,
    "in": 2.0,
}


def value(text: str, budget: int = 100_000) -> Any:
    return parse_expression(text).value(VALUES, EvaluationBudget(budget))


RIGHT: list[tuple[str, Any]] = [
    ("1 + 2 * 3", 7.0),
    ("(1 + 2) * 3", 9.0),
    ("7 % 4", 3.0),
    ("-7 % 4", -3.0),
    ("2 ** 10", 1024.0),
    ("-2 ** 2", 4.0),
    ("0x10", 16.0),
    ("1.5e2", 150.0),
    (".5", 0.5),
    ("10 - 4 - 3", 3.0),
    ("100 / 10 / 2", 5.0),
    ("6 & 3", 2.0),
    ("6 | 3", 7.0),
    ("6 ^ 3", 5.0),
    ("~5", -6.0),
    ("1 << 4", 16.0),
    ("16 >> 2", 4.0),
    ("x > 5 && x < 7", True),
    ("x > 6 || yes", True),
    ("yes || missing", True),
    ("x > 6 && missing > 1", False),
    ("!yes", False),
    ("!!yes", True),
    ("x == 6", True),
    ("x != 6", False),
    ("yes == 1", False),
    ("'a' < 'b'", True),
    ("name == 'alpha-7'", True),
    ('name == "alpha-7"', True),
    (r"'it\'s' == 'it' + '\'s'", True),
    ("name =~ '^alpha-[0-9]+$'", True),
    ("name !~ 'beta'", True),
    ("x in (1, 2, 6)", True),
    ("x in (1, '6')", False),
    ("x > 5 ? 'big' : 'small'", "big"),
    ("x > 9 ? 1 : x > 5 ? 2 : 3", 2.0),
    ("missing ?? 4", 4.0),
    ("nothing ?? 4", 4.0),
    ("missing ?? nothing ?? 5", 5.0),
    ("x ?? 4", 6.0),
    ("[nodes-free] * 2", 6.0),
    ("[in] + 1", 3.0),
    ("min(3, x)", 3.0),
    ("max(3, x, 9)", 9.0),
    ("min(100, x - 1)", 5.0),
    ("true", True),
    ("  x\n +\t1 ", 7.0),
]


@pytest.mark.parametrize(("text", "right"), RIGHT)
def test_values(text: str, right: Any) -> None:
    found = value(text)
    assert found == right
    assert type(found) is type(right)


WITHOUT_VALUE = [
    ("missing + 1", "there is no 'missing'"),
    ("nodes-free > 1", "there is no 'nodes'"),
    ("x / 0", "division by zero"),
    ("x / zero", "division by zero"),
    ("x % zero", "division by zero"),
    ("name * 2", "* takes numbers, not 'alpha-7'"),
    ("name + 2", "+ takes numbers, not 'alpha-7'"),
    ("yes + 1", "+ takes numbers, not true"),
    ("name > 2", "neither two numbers nor two texts"),
    ("x && yes", "&& takes true or false, not 6"),
    ("!x", "! takes true or false, not 6"),
    ("x ? 1 : 2", "? takes true or false, not 6"),
    ("10 ** 400", "is no number"),
    ("(-1) ** 0.5", "is no number"),
    ("1e308 * 10", "too large"),
    ("1.5 & 1", "whole numbers"),
    ("1e300 | 1", "whole numbers"),
    ("1 << 64", "shifts by 0 to 63"),
    ("1 << (0 - 1)", "shifts by 0 to 63"),
    ("min(name, 1)", "min takes numbers"),
    ("x =~ '6'", "=~ takes two texts"),
    ("name =~ name + '('", "is not closed"),
    ("nothing + 1", "+ takes numbers, not nothing"),
    ("1 < 2 < 3", "neither two numbers nor two texts"),
]


@pytest.mark.parametrize(("text", "why"), WITHOUT_VALUE)
def test_what_has_no_value_says_why(text: str, why: str) -> None:
    found = value(text)
    assert isinstance(found, NoValue)
    assert why in found.why


MALFORMED = [
    ("", "empty"),
    ("  ", "empty"),
    ("x +", "ends too early"),
    ("(x", "ends too early: expected ')'"),
    ("x)", "unexpected ')'"),
    ("x y", "unexpected 'y'"),
    ("x = 1", "unexpected '='"),
    ("x.__class__", "there are no attributes here"),
    ("().x", "there are no attributes here"),
    ("x[0]", "unexpected '0'"),
    ("open('f')", "undefined function open"),
    ("missing_unless(x)", "undefined function missing_unless"),
    ("min(x)", "takes two values or more"),
    ("min()", "unexpected ')'"),
    ("x in 5", "expected '('"),
    ("x ? 1", "expected ':'"),
    ("2 ** 3 ** 2", "write parentheses"),
    ("name =~ '('", "is not closed"),
    ("name =~ 'a{9}'", "counted repetition"),
    ("'open", 'unexpected "\'"'),
    ("1e999", "too large a number"),
    ("x; y", "unexpected ';'"),
    ("lambda: x", "unexpected ':'"),
    ("while true: x", "unexpected 'true'"),
    ("x if yes", "unexpected 'if'"),
    ("`x`", "unexpected '`'"),
    ("(" * 200 + "x" + ")" * 200, "nested deeper than"),
    ("!" * 200 + "yes", "nested deeper than"),
    ("x?" * 100 + "x", "nested deeper than"),
    (" + ".join(f"v{number}" for number in range(NODES_MAX)), f"at most {NODES_MAX} names"),
    (" + ".join(f"v{number}" for number in range(10_000)), f"at most {CHARS_MAX} characters"),
]


@pytest.mark.parametrize(("text", "why"), MALFORMED, ids=[text[:20] for text, _ in MALFORMED])
def test_what_cannot_be_read_is_refused(text: str, why: str) -> None:
    with pytest.raises(Malformed) as caught:
        parse_expression(text)
    assert why in caught.value.detail


def test_the_longest_chain_that_is_taken_can_be_evaluated() -> None:
    assert value(" + ".join(["1"] * (NODES_MAX // 2))) == NODES_MAX // 2


def test_a_pattern_that_would_run_for_hours_ends_with_the_budget() -> None:
    text = parse_expression("[long] =~ '(a|a|a|a)*(b|b|b)*$'")
    with pytest.raises(BudgetExceeded):
        text.value({"long": "a" * 1000 + "!"}, EvaluationBudget(5_000))


@given(st.text(alphabet="x1. +-*/%&|^~<>=!?:(),'\"[]\\inmax", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = parse_expression(text)
    except Malformed:
        return
    found.value(VALUES, EvaluationBudget(100_000))
