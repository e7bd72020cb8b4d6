"""What the parts of an expression do: each is a function of the scope. Pure.

Whatever has no value (a missing name, a text times two, a division by zero) raises `Undefined` with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from switchyard.route.pattern import TEXT_CHARS_MAX, BadPattern, compile_pattern

WHOLE_MAX = 2**53  # up to here floats hold every whole number, so bits mean something
SHIFT_MAX = 63

Value = float | str | bool | None


class Undefined(Exception):
    """There is no value, and why."""


class Missing(Undefined):
    """A name that stands for nothing here: what `??` is for."""


class Spent(Exception):
    """The work allowed for one decision is used up."""


@dataclass(slots=True)
class Budget:
    """How much work is left, for all expressions of one decision together."""

    left: int

    def spend(self, amount: int) -> None:
        self.left -= amount
        if self.left < 0:
            raise Spent


@dataclass(frozen=True, slots=True)
class Scope:
    """What names stand for, in one evaluation."""

    values: Mapping[str, Value]
    budget: Budget


Node = Callable[[Scope], Value]


def constant(value: Value) -> Node:
    return lambda _: value


def variable(name: str) -> Node:
    def node(scope: Scope) -> Value:
        try:
            return scope.values[name]
        except KeyError:
            raise Missing(f"there is no {name[:128]!r}") from None

    return node


def ternary(condition: Node, yes: Node, no: Node) -> Node:
    return lambda scope: yes(scope) if _truth(condition(scope), "?") else no(scope)


def coalesce(left: Node, right: Node) -> Node:
    def node(scope: Scope) -> Value:
        try:
            found = left(scope)
        except Missing:
            found = None
        return right(scope) if found is None else found

    return node


def is_in(left: Node, several: tuple[Node, ...]) -> Node:
    def node(scope: Scope) -> Value:
        value = left(scope)
        return any(_is_same(value, each(scope)) for each in several)

    return node


def extreme(pick: Callable[[list[float]], float], name: str, nodes: tuple[Node, ...]) -> Node:
    return lambda scope: pick([_number(each(scope), name) for each in nodes])


def one(sign: str, inner: Node) -> Node:
    if sign == "!":
        return lambda scope: not _truth(inner(scope), "!")
    if sign == "-":
        return lambda scope: -_number(inner(scope), "-")
    return lambda scope: float(~_whole(inner(scope), "~"))


def two(sign: str, left: Node, right: Node) -> Node:
    """Both sides, then the operator; of `&&` and `||` the right one only if it matters."""
    if sign == "&&":
        return lambda scope: _truth(left(scope), sign) and _truth(right(scope), sign)
    if sign == "||":
        return lambda scope: _truth(left(scope), sign) or _truth(right(scope), sign)
    if sign in ("=~", "!~"):
        return lambda scope: _is_found(left(scope), right(scope), sign, scope.budget) == (sign == "=~")
    operate = OPERATORS[sign]
    return lambda scope: operate(left(scope), right(scope))


def _is_found(text: Value, pattern: Value, sign: str, budget: Budget) -> bool:
    if not isinstance(text, str) or not isinstance(pattern, str):
        raise Undefined(f"{sign} takes two texts, not {show(text)} and {show(pattern)}")
    if len(text) > TEXT_CHARS_MAX:
        raise Undefined(f"{sign} takes texts of at most {TEXT_CHARS_MAX} characters")
    try:
        return compile_pattern(pattern).is_in(text, budget.spend)
    except BadPattern as exc:
        raise Undefined(f"{pattern[:80]!r}: {exc}") from exc


def _add(left: Value, right: Value) -> Value:
    if isinstance(left, str) and isinstance(right, str):
        if len(left) + len(right) > TEXT_CHARS_MAX:
            raise Undefined(f"a text has at most {TEXT_CHARS_MAX} characters")
        return left + right
    return _finite(_number(left, "+") + _number(right, "+"), "+")


def _divide(left: Value, right: Value) -> Value:
    return _finite(_number(left, "/") / _divisor(right, "/"), "/")


def _modulo(left: Value, right: Value) -> Value:
    return math.fmod(_number(left, "%"), _divisor(right, "%"))


def _divisor(value: Value, sign: str) -> float:
    number = _number(value, sign)
    if number == 0:
        raise Undefined("division by zero")
    return number


def _power(left: Value, right: Value) -> Value:
    try:
        return _finite(math.pow(_number(left, "**"), _number(right, "**")), "**")
    except (OverflowError, ValueError) as exc:
        raise Undefined(f"{show(left)} ** {show(right)} is no number") from exc


def _shift(sign: str) -> Callable[[Value, Value], Value]:
    def operate(left: Value, right: Value) -> Value:
        by = _whole(right, sign)
        if not 0 <= by <= SHIFT_MAX:
            raise Undefined(f"{sign} shifts by 0 to {SHIFT_MAX}, not by {by}")
        return float(_whole(left, sign) << by if sign == "<<" else _whole(left, sign) >> by)

    return operate


def _compare(sign: str, is_so: Callable[[float | str, float | str], bool]) -> Callable[[Value, Value], Value]:
    def operate(left: Value, right: Value) -> Value:
        if isinstance(left, str) and isinstance(right, str):
            return is_so(left, right)
        if isinstance(left, float) and isinstance(right, float):
            return is_so(left, right)
        raise Undefined(f"{show(left)} {sign} {show(right)}: neither two numbers nor two texts")

    return operate


def _is_same(left: Value, right: Value) -> bool:
    return type(left) is type(right) and left == right  # true is not 1


OPERATORS: dict[str, Callable[[Value, Value], Value]] = {
    "+": _add,
    "-": lambda left, right: _finite(_number(left, "-") - _number(right, "-"), "-"),
    "*": lambda left, right: _finite(_number(left, "*") * _number(right, "*"), "*"),
    "/": _divide,
    "%": _modulo,
    "**": _power,
    "&": lambda left, right: float(_whole(left, "&") & _whole(right, "&")),
    "|": lambda left, right: float(_whole(left, "|") | _whole(right, "|")),
    "^": lambda left, right: float(_whole(left, "^") ^ _whole(right, "^")),
    "<<": _shift("<<"),
    ">>": _shift(">>"),
    "==": _is_same,
    "!=": lambda left, right: not _is_same(left, right),
    ">": _compare(">", lambda left, right: left > right),  # type: ignore[operator]
    ">=": _compare(">=", lambda left, right: left >= right),  # type: ignore[operator]
    "<": _compare("<", lambda left, right: left < right),  # type: ignore[operator]
    "<=": _compare("<=", lambda left, right: left <= right),  # type: ignore[operator]
}


def _truth(value: Value, sign: str) -> bool:
    if not isinstance(value, bool):
        raise Undefined(f"{sign} takes true or false, not {show(value)}")
    return value


def _number(value: Value, sign: str) -> float:
    if not isinstance(value, float):
        raise Undefined(f"{sign} takes numbers, not {show(value)}")
    return value


def _whole(value: Value, sign: str) -> int:
    number = _number(value, sign)
    if not number.is_integer() or abs(number) > WHOLE_MAX:
        raise Undefined(f"{sign} takes whole numbers, not {show(value)}")
    return int(number)


def _finite(number: float, sign: str) -> float:
    if not math.isfinite(number):
        raise Undefined(f"the result of {sign} is too large")
    return number


def show(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "nothing" if value is None else "true" if value is True else "false" if value is False else repr(value[:40])
