"""Which arm of a branch runs, from the branch's inputs: comparisons of primitive values, joined by and, or."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from flyteidl.core import condition_pb2

_COMPARE: Mapping[int, Callable[[Any, Any], bool]] = {
    condition_pb2.ComparisonExpression.EQ: operator.eq,
    condition_pb2.ComparisonExpression.NEQ: operator.ne,
    condition_pb2.ComparisonExpression.GT: operator.gt,
    condition_pb2.ComparisonExpression.GTE: operator.ge,
    condition_pb2.ComparisonExpression.LT: operator.lt,
    condition_pb2.ComparisonExpression.LTE: operator.le,
}
COMPARED_CHARS_MAX = 100_000_000  # in all conditions of one branch: some ten milliseconds
_EQUALITY = (condition_pb2.ComparisonExpression.EQ, condition_pb2.ComparisonExpression.NEQ)


class NoArm(Exception):
    """No arm can run. `code`: Flyte's word for why."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def choose_arm(block: Any, inputs: Any) -> Any:
    """The node of the first case that is true, else the else node. Raises NoArm."""
    values = _InputValues(inputs)
    for case in (block.case, *block.other):
        if _is_true(case.condition, values):
            return case.then_node
    if block.HasField("else_node"):
        return block.else_node
    raise NoArm("UserProvidedError", block.error.message or "no case of the branch is true")


def _is_true(expression: Any, inputs: _InputValues) -> bool:
    if expression.WhichOneof("expr") == "conjunction":
        both = expression.conjunction
        left = _is_true(both.left_expression, inputs)
        is_and = both.operator == condition_pb2.ConjunctionExpression.AND
        return _is_true(both.right_expression, inputs) if left == is_and else left
    comparison = expression.comparison
    left_kind, left_value = _operand(comparison.left_value, inputs)
    right_kind, right_value = _operand(comparison.right_value, inputs)
    if left_kind != right_kind:
        raise NoArm("MalformedBranch", f"a condition compares {_word(left_kind)} with {_word(right_kind)}")
    if left_kind == "boolean" and comparison.operator not in _EQUALITY:
        raise NoArm("MalformedBranch", "booleans are equal or not equal; no other comparison has a meaning")
    if comparison.operator not in _COMPARE:
        raise NoArm("MalformedBranch", f"a condition has the unknown comparison {comparison.operator}")
    inputs.add(left_value, right_value)
    return _COMPARE[comparison.operator](left_value, right_value)


def _operand(operand: Any, inputs: _InputValues) -> tuple[str, Any]:
    """The kind and the value of one side."""
    case = operand.WhichOneof("val")
    if case == "primitive":
        return _value(operand.primitive)
    if case == "var":
        return inputs.value(operand.var)
    return _scalar_value(operand.scalar, "a constant")


class _InputValues:
    """The inputs of a branch, each read once, and how much text its conditions have compared."""

    def __init__(self, inputs: Any) -> None:
        self._literals = inputs.literals
        self._values: dict[str, tuple[str, Any]] = {}
        self._compared = 0

    def value(self, name: str) -> tuple[str, Any]:
        if name not in self._values:
            if name not in self._literals:
                raise NoArm("MalformedBranch", f"the branch has no input {name[:80]}")
            self._values[name] = _scalar_value(self._literals[name].scalar, name[:80])
        return self._values[name]

    def add(self, left: Any, right: Any) -> None:
        if isinstance(left, str):
            self._compared += min(len(left), len(right))
        if self._compared > COMPARED_CHARS_MAX:
            raise NoArm("MalformedBranch", f"its conditions compare over {COMPARED_CHARS_MAX} characters of text")


def _scalar_value(scalar: Any, name: str) -> tuple[str, Any]:
    if scalar.WhichOneof("value") != "primitive":
        what = "None" if scalar.HasField("none_type") else "no primitive value"
        raise NoArm("MalformedBranch", f"a condition compares {name or 'a constant'}, which is {what}")
    return _value(scalar.primitive)


def _value(primitive: Any) -> tuple[str, Any]:
    kind = primitive.WhichOneof("value") or ""
    if kind in ("datetime", "duration"):
        moment = getattr(primitive, kind)
        return kind, (moment.seconds, moment.nanos)
    return kind, getattr(primitive, kind) if kind else None


def _word(kind: str) -> str:
    return kind.removesuffix("_value") or "nothing"
