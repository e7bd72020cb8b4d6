"""`constraint`: Rainbow's steps, done right. Filters filter, sorts sort, and nothing outlives the request. Pure.

Priorities are tried in the order of their numbers until one leaves a cluster. A cluster for which an expression has no
value (a variable it does not have, a division by zero) is out, with the reason; it can only come back at a later
priority. Variables: the job's parameters, over them the cluster's state, over both what `calc` made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from switchyard.errors import Malformed
from switchyard.route.expression import NoValue
from switchyard.route.operators import BudgetExceeded, EvaluationBudget, ExpressionValue, show_value
from switchyard.route.select.constraint_steps import PrioritySteps, SelectionStep, read_priorities
from switchyard.route.select.selector import Candidate, SelectionFailure, SelectionResult, refuse_options

# Parts of expressions visited in one decision, over all clusters: under a second of one core at the very worst, and
# enough for 10,000 clusters with steps of a hundred parts.
WORK_MAX = 1_000_000
VALUES_SHOWN_MAX = 3  # values named in a reason


class ConstraintSelector:
    reads_state: ClassVar[bool] = True

    def __init__(self, options: Mapping[str, Any]) -> None:
        refuse_options("constraint", options, ["priorities"])
        if not options.get("priorities"):
            raise Malformed(
                "The constraint selection algorithm requires priorities to be defined in options.",
                next_step="Give options.priorities: a list of {priority, steps}, or its YAML text.",
            )
        self.priorities = read_priorities(options["priorities"])

    def select(
        self, contenders: Sequence[Candidate], parameters: Mapping[str, ExpressionValue]
    ) -> SelectionResult | SelectionFailure:
        race = _ConstraintRun(
            EvaluationBudget(WORK_MAX), {each.name: {**parameters, **each.state} for each in contenders}
        )
        try:
            for priority in self.priorities:
                selected = race.run(priority)
                if isinstance(selected, SelectionFailure) or selected.remaining:
                    return selected
        except BudgetExceeded:
            return SelectionFailure(
                f"the steps are too much work for {len(contenders)} clusters: give fewer or shorter ones"
            )
        return selected


@dataclass(slots=True)
class _ConstraintRun:
    """One decision: the variables of every contender, who is still in, and why the others are not."""

    budget: EvaluationBudget
    values: dict[str, dict[str, ExpressionValue]]
    remaining: list[str] = field(default_factory=list)
    out: dict[str, str] = field(default_factory=dict)

    def run(self, priority: PrioritySteps) -> SelectionResult | SelectionFailure:
        """One priority, from all contenders on."""
        self.remaining, self.out = list(self.values), {}
        sorted_by = method = ""
        for step in priority.steps:
            if step.kind == "select":
                method = step.word
                break
            if step.kind == "filter" and (failed := self._filter(step)) is not None:
                return failed
            if step.kind == "calc":
                self._calc(step)
            elif step.kind != "filter":
                self._sort(step)
                sorted_by = step.word
        return self._selected(priority, method or "first", sorted_by)

    def _filter(self, step: SelectionStep) -> SelectionFailure | None:
        assert step.expression is not None
        kept = []
        for name in self.remaining:
            found = step.expression.value(self.values[name], self.budget)
            if isinstance(found, NoValue):
                self.out[name] = f"{step.where}: {found.why}"
            elif not isinstance(found, bool):
                return SelectionFailure(
                    f"{step.where}, cluster {name}: filter must be boolean, and is {show_value(found)}"
                )
            elif found:
                kept.append(name)
            else:
                self.out[name] = f"{step.where}: is false{self._seen(name, step)}"
        self.remaining = kept
        return None

    def _calc(self, step: SelectionStep) -> None:
        assert step.expression is not None
        kept = []
        for name in self.remaining:
            found = step.expression.value(self.values[name], self.budget)
            if isinstance(found, NoValue):
                self.out[name] = f"{step.where}: {found.why}"
            else:
                self.values[name][step.word] = found
                kept.append(name)
        self.remaining = kept

    def _sort(self, step: SelectionStep) -> None:
        """Numbers, then texts, then clusters without the variable, whichever way it goes; equals keep their order."""
        self.budget.spend(len(self.remaining))
        is_down = step.kind == "sort_descending"
        numbers: list[tuple[float, str]] = []
        texts: list[tuple[str, str]] = []
        lacking: list[str] = []
        for name in self.remaining:
            value = self.values[name].get(step.word)
            if isinstance(value, float | bool):
                numbers.append((float(value), name))
            elif isinstance(value, str):
                texts.append((value, name))
            else:
                lacking.append(name)
        numbers.sort(key=lambda pair: pair[0], reverse=is_down)
        texts.sort(key=lambda pair: pair[0], reverse=is_down)
        self.remaining = [*(name for _, name in numbers), *(name for _, name in texts), *lacking]

    def _selected(self, priority: PrioritySteps, method: str, sorted_by: str) -> SelectionResult:
        remaining = tuple(self.remaining)
        among = {"first": remaining[:1], "last": remaining[-1:], "random": remaining}[method]
        said = f"constraint, priority {priority.number}: {method} of {len(remaining)}"
        passed_over = f"; passed over unknown steps: {', '.join(priority.ignored)}" if priority.ignored else ""
        notes = {name: said + self._by(name, sorted_by) + passed_over for name in among}
        return SelectionResult(remaining, among, is_even=True, notes=notes, out=dict(self.out))

    def _by(self, name: str, sorted_by: str) -> str:
        if not sorted_by:
            return ""
        return f" by {sorted_by} = {show_value(self.values[name].get(sorted_by))}"

    def _seen(self, name: str, step: SelectionStep) -> str:
        assert step.expression is not None
        values = self.values[name]
        shown = [f"{each} = {show_value(values[each])}" for each in sorted(step.expression.names) if each in values]
        return f" ({', '.join(shown[:VALUES_SHOWN_MAX])})" if shown else ""
