"""Checks the conditions of a branch: comparisons of its inputs and constants, joined by and, or."""

from __future__ import annotations

from typing import Any

from switchyard.workflow.compile.mistakes import Mistakes
from switchyard.workflow.compile.signature import Types
from switchyard.workflow.values.bindings import show_type
from switchyard.workflow.values.casting import Caster
from switchyard.workflow.values.literals import type_of_primitive, type_of_scalar


class ConditionChecker:
    """Checks the conditions of one branch. `inputs`: its inputs by name; `types`: those whose type is known."""

    def __init__(self, node: str, inputs: frozenset[str], types: Types, *, caster: Caster, mistakes: Mistakes) -> None:
        self._node = node
        self._inputs = inputs
        self._types = types
        self._caster = caster
        self._mistakes = mistakes

    def check(self, case: Any) -> None:
        """Check the condition of one case."""
        if not case.HasField("condition"):
            self._mistakes.add("BranchNodeHasNoCondition", self._node, "One of the cases has no condition.")
            return
        self._expression(case.condition)

    def _expression(self, expression: Any) -> None:
        case = expression.WhichOneof("expr")
        if case == "comparison":
            left = self._operand(expression.comparison, "left_value")
            right = self._operand(expression.comparison, "right_value")
            if left is not None and right is not None and not self._comparable(left, right):
                text = f"A condition compares {show_type(left)} with {show_type(right)}."
                self._mistakes.add("MismatchingTypes", self._node, text)
        elif case == "conjunction":
            self._expression(expression.conjunction.left_expression)
            self._expression(expression.conjunction.right_expression)
        else:
            self._mistakes.add("ValueRequired", self._node, "A condition is empty.")

    def _comparable(self, left: Any, right: Any) -> bool:
        return self._caster.can_cast(left, right) or self._caster.can_cast(right, left)

    def _operand(self, comparison: Any, side: str) -> Any | None:
        """The type of one side. None: it is not known."""
        operand = getattr(comparison, side)
        case = operand.WhichOneof("val")
        if case == "primitive":
            return type_of_primitive(operand.primitive)
        if case == "scalar":
            return type_of_scalar(operand.scalar)
        if case == "var":
            if operand.var not in self._inputs:
                text = f"Variable [{operand.var}] not found on node [{self._node}]."
                self._mistakes.add("VariableNameNotFound", self._node, text)
            return self._types.get(operand.var)
        self._mistakes.add("ValueRequired", self._node, f"A comparison has no {side}.")
        return None
