"""The operators of expressions. Each node of an expression is a function of the scope. Pure.

An operation without a value (a missing name, a text times two, a division by zero) raises `Undefined` with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from switchyard.route.pattern import TEXT_CHARS_MAX, BadPattern, compile_pattern

EXACT_INTEGER_MAX = 2**53  # up to here floats hold every whole number, so bits mean something
SHIFT_MAX = 63

ExpressionValue = float | str | bool | None


class Undefined(Exception):
    """The expression has no value; the message says why."""


class UndefinedName(Undefined):
    """A name has no value here. `??` replaces it."""


class BudgetExceeded(Exception):
    """The work allowed for one decision is used up."""


@dataclass(slots=True)
class EvaluationBudget:
    """How much work is left, for all expressions of one decision together."""

    left: int

    def spend(self, amount: int) -> None:
        self.left -= amount
        if self.left < 0:
            raise BudgetExceeded


@dataclass(frozen=True, slots=True)
class EvaluationScope:
    """The values of names in one evaluation."""

    values: Mapping[str, ExpressionValue]
    budget: EvaluationBudget


ExpressionNode = Callable[[EvaluationScope], ExpressionValue]


def constant(value: ExpressionValue) -> ExpressionNode:
    return lambda _: value


def variable(name: str) -> ExpressionNode:
    def node(scope: EvaluationScope) -> ExpressionValue:
        try:
            return scope.values[name]
        except KeyError:
            raise UndefinedName(f"there is no {name[:128]!r}") from None

    return node


def ternary(condition: ExpressionNode, yes: ExpressionNode, no: ExpressionNode) -> ExpressionNode:
    return lambda scope: yes(scope) if _require_bool(condition(scope), "?") else no(scope)


def coalesce(left: ExpressionNode, right: ExpressionNode) -> ExpressionNode:
    def node(scope: EvaluationScope) -> ExpressionValue:
        try:
            value = left(scope)
        except UndefinedName:
            value = None
        return right(scope) if value is None else value

    return node


def membership(left: ExpressionNode, items: tuple[ExpressionNode, ...]) -> ExpressionNode:
    def node(scope: EvaluationScope) -> ExpressionValue:
        value = left(scope)
        return any(_is_same(value, item(scope)) for item in items)

    return node


def min_or_max(pick: Callable[[list[float]], float], name: str, nodes: tuple[ExpressionNode, ...]) -> ExpressionNode:
    return lambda scope: pick([_require_number(node(scope), name) for node in nodes])


def unary(sign: str, inner: ExpressionNode) -> ExpressionNode:
    if sign == "!":
        return lambda scope: not _require_bool(inner(scope), "!")
    if sign == "-":
        return lambda scope: -_require_number(inner(scope), "-")
    return lambda scope: float(~_require_integer(inner(scope), "~"))


def binary(sign: str, left: ExpressionNode, right: ExpressionNode) -> ExpressionNode:
    """Evaluate both sides, then the operator. `&&` and `||` evaluate the right side only if it matters."""
    if sign == "&&":
        return lambda scope: _require_bool(left(scope), sign) and _require_bool(right(scope), sign)
    if sign == "||":
        return lambda scope: _require_bool(left(scope), sign) or _require_bool(right(scope), sign)
    if sign in ("=~", "!~"):
        return lambda scope: _matches_pattern(left(scope), right(scope), sign, scope.budget) == (sign == "=~")
    operate = OPERATORS[sign]
    return lambda scope: operate(left(scope), right(scope))


def _matches_pattern(text: ExpressionValue, pattern: ExpressionValue, sign: str, budget: EvaluationBudget) -> bool:
    if not isinstance(text, str) or not isinstance(pattern, str):
        raise Undefined(f"{sign} takes two texts, not {show_value(text)} and {show_value(pattern)}")
    if len(text) > TEXT_CHARS_MAX:
        raise Undefined(f"{sign} takes texts of at most {TEXT_CHARS_MAX} characters")
    try:
        return compile_pattern(pattern).is_in(text, budget.spend)
    except BadPattern as exc:
        raise Undefined(f"{pattern[:80]!r}: {exc}") from exc


def _add(left: ExpressionValue, right: ExpressionValue) -> ExpressionValue:
    if isinstance(left, str) and isinstance(right, str):
        if len(left) + len(right) > TEXT_CHARS_MAX:
            raise Undefined(f"a text has at most {TEXT_CHARS_MAX} characters")
        return left + right
    return _require_finite(_require_number(left, "+") + _require_number(right, "+"), "+")


def _divide(left: ExpressionValue, right: ExpressionValue) -> ExpressionValue:
    return _require_finite(_require_number(left, "/") / _divisor(right, "/"), "/")


def _modulo(left: ExpressionValue, right: ExpressionValue) -> ExpressionValue:
    return math.fmod(_require_number(left, "%"), _divisor(right, "%"))


def _divisor(value: ExpressionValue, sign: str) -> float:
    number = _require_number(value, sign)
    if number == 0:
        raise Undefined("division by zero")
    return number


def _power(left: ExpressionValue, right: ExpressionValue) -> ExpressionValue:
    try:
        return _require_finite(math.pow(_require_number(left, "**"), _require_number(right, "**")), "**")
    except (OverflowError, ValueError) as exc:
        raise Undefined(f"{show_value(left)} ** {show_value(right)} is no number") from exc


def _shift(sign: str) -> Callable[[ExpressionValue, ExpressionValue], ExpressionValue]:
    def operate(left: ExpressionValue, right: ExpressionValue) -> ExpressionValue:
        by = _require_integer(right, sign)
        if not 0 <= by <= SHIFT_MAX:
            raise Undefined(f"{sign} shifts by 0 to {SHIFT_MAX}, not by {by}")
        return float(_require_integer(left, sign) << by if sign == "<<" else _require_integer(left, sign) >> by)

    return operate


def _compare(
    sign: str, is_so: Callable[[float | str, float | str], bool]
) -> Callable[[ExpressionValue, ExpressionValue], ExpressionValue]:
    def operate(left: ExpressionValue, right: ExpressionValue) -> ExpressionValue:
        if isinstance(left, str) and isinstance(right, str):
            return is_so(left, right)
        if isinstance(left, float) and isinstance(right, float):
            return is_so(left, right)
        raise Undefined(f"{show_value(left)} {sign} {show_value(right)}: neither two numbers nor two texts")

    return operate


def _is_same(left: ExpressionValue, right: ExpressionValue) -> bool:
    return type(left) is type(right) and left == right  # true is not 1


OPERATORS: dict[str, Callable[[ExpressionValue, ExpressionValue], ExpressionValue]] = {
    "+": _add,
    "-": lambda left, right: _require_finite(_require_number(left, "-") - _require_number(right, "-"), "-"),
    "*": lambda left, right: _require_finite(_require_number(left, "*") * _require_number(right, "*"), "*"),
    "/": _divide,
    "%": _modulo,
    "**": _power,
    "&": lambda left, right: float(_require_integer(left, "&") & _require_integer(right, "&")),
    "|": lambda left, right: float(_require_integer(left, "|") | _require_integer(right, "|")),
    "^": lambda left, right: float(_require_integer(left, "^") ^ _require_integer(right, "^")),
    "<<": _shift("<<"),
    ">>": _shift(">>"),
    "==": _is_same,
    "!=": lambda left, right: not _is_same(left, right),
    ">": _compare(">", lambda left, right: left > right),  # type: ignore[operator]
    ">=": _compare(">=", lambda left, right: left >= right),  # type: ignore[operator]
    "<": _compare("<", lambda left, right: left < right),  # type: ignore[operator]
    "<=": _compare("<=", lambda left, right: left <= right),  # type: ignore[operator]
}


def _require_bool(value: ExpressionValue, sign: str) -> bool:
    if not isinstance(value, bool):
        raise Undefined(f"{sign} takes true or false, not {show_value(value)}")
    return value


def _require_number(value: ExpressionValue, sign: str) -> float:
    if not isinstance(value, float):
        raise Undefined(f"{sign} takes numbers, not {show_value(value)}")
    return value


def _require_integer(value: ExpressionValue, sign: str) -> int:
    number = _require_number(value, sign)
    if not number.is_integer() or abs(number) > EXACT_INTEGER_MAX:
        raise Undefined(f"{sign} takes whole numbers, not {show_value(value)}")
    return int(number)


def _require_finite(number: float, sign: str) -> float:
    if not math.isfinite(number):
        raise Undefined(f"the result of {sign} is too large")
    return number


def show_value(value: ExpressionValue) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "nothing" if value is None else "true" if value is True else "false" if value is False else repr(value[:40])
