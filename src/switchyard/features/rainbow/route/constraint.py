"""`constraint`: the steps of Rainbow's algorithm of that name. Nothing is kept between two requests. Pure.

Priorities are tried in the order of their numbers until one leaves a cluster. A cluster for which an expression has no
value (a missing variable, a division by zero) is excluded with the reason, until the next priority. Variables: the
job's parameters, overridden by the cluster's state, overridden by results of `calc`. All mistakes are found when the
steps are read:

- priority: 1
  steps:
  - filter: nodes_free > 0
  - calc: build_cost=cost_per_node_hour * hours
  - sort_ascending: build_cost
  - select: first
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from switchyard.errors import Malformed
from switchyard.features.rainbow.route.expression import Expression, NoValue, parse_expression
from switchyard.model.wire.decode import load_yaml
from switchyard.route.operators import BudgetExceeded, EvaluationBudget, ExpressionValue, show_value
from switchyard.route.select.selector import Candidate, SelectionFailure, SelectionResult, refuse_options

# Nodes of expressions evaluated in one decision, over all clusters: seconds of one core at the very worst, and enough
# for 10,000 clusters with steps of a hundred nodes.
WORK_MAX = 1_000_000
VALUES_SHOWN_MAX = 3  # values named in a reason
TEXT_CHARS_MAX = 16 * 1024
PRIORITIES_MAX = 32
STEPS_MAX = 64  # of one priority
PRIORITY_MAX = 2**31 - 1
SELECT_METHODS = ("first", "last", "random")
VARIABLE_NAME = re.compile(r"[^\W\d][\w-]{0,127}\Z")


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

    def check_default(self) -> None:
        """Unknown steps are ignored in a job's options, as in Rainbow. In the config they are mistakes."""
        for priority in self.priorities:
            if priority.ignored:
                raise Malformed(f"priority {priority.number}: there is no step {priority.ignored[0]!r}.")

    def select(
        self, candidates: Sequence[Candidate], parameters: Mapping[str, ExpressionValue]
    ) -> SelectionResult | SelectionFailure:
        race = _ConstraintRun(
            EvaluationBudget(WORK_MAX), {candidate.name: {**parameters, **candidate.state} for candidate in candidates}
        )
        try:
            for priority in self.priorities:
                selected = race.run(priority)
                if isinstance(selected, SelectionFailure) or selected.remaining:
                    return selected
        except BudgetExceeded:
            return SelectionFailure(
                f"the steps are too much work for {len(candidates)} clusters: give fewer or shorter ones"
            )
        return selected


@dataclass(slots=True)
class _ConstraintRun:
    """One decision: the variables of every candidate, the remaining candidates, and why the others are out."""

    budget: EvaluationBudget
    values: dict[str, dict[str, ExpressionValue]]
    remaining: list[str] = field(default_factory=list)
    out: dict[str, str] = field(default_factory=dict)

    def run(self, priority: PrioritySteps) -> SelectionResult | SelectionFailure:
        """Run one priority, beginning with all candidates."""
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
        passed = []
        for name in self.remaining:
            value = step.expression.value(self.values[name], self.budget)
            if isinstance(value, NoValue):
                self.out[name] = f"{step.where}: {value.why}"
            elif not isinstance(value, bool):
                return SelectionFailure(
                    f"{step.where}, cluster {name}: filter must be boolean, and is {show_value(value)}"
                )
            elif value:
                passed.append(name)
            else:
                self.out[name] = f"{step.where}: is false{self._variables_text(name, step)}"
        self.remaining = passed
        return None

    def _calc(self, step: SelectionStep) -> None:
        assert step.expression is not None
        passed = []
        for name in self.remaining:
            value = step.expression.value(self.values[name], self.budget)
            if isinstance(value, NoValue):
                self.out[name] = f"{step.where}: {value.why}"
            else:
                self.values[name][step.word] = value
                passed.append(name)
        self.remaining = passed

    def _sort(self, step: SelectionStep) -> None:
        """Sort: numbers, then texts, then clusters without the variable, in either direction. Ties keep their order."""
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
        note = f"constraint, priority {priority.number}: {method} of {len(remaining)}"
        ignored_note = f"; passed over unknown steps: {', '.join(priority.ignored)}" if priority.ignored else ""
        notes = {name: note + self._by(name, sorted_by) + ignored_note for name in among}
        return SelectionResult(remaining, among, is_even=True, notes=notes, out=dict(self.out))

    def _by(self, name: str, sorted_by: str) -> str:
        if not sorted_by:
            return ""
        return f" by {sorted_by} = {show_value(self.values[name].get(sorted_by))}"

    def _variables_text(self, name: str, step: SelectionStep) -> str:
        assert step.expression is not None
        values = self.values[name]
        shown = [f"{name_} = {show_value(values[name_])}" for name_ in sorted(step.expression.names) if name_ in values]
        return f" ({', '.join(shown[:VALUES_SHOWN_MAX])})" if shown else ""


@dataclass(frozen=True, slots=True)
class SelectionStep:
    """`kind`: filter, calc, sort_ascending, sort_descending or select; `word`: a variable, or how to select."""

    kind: str
    where: str  # for messages: priority, number and text
    word: str = ""
    expression: Expression | None = None


@dataclass(frozen=True, slots=True)
class PrioritySteps:
    number: int
    steps: tuple[SelectionStep, ...]
    ignored: tuple[str, ...] = ()  # unknown steps, which Rainbow skips, too


def read_priorities(priorities: Any) -> tuple[PrioritySteps, ...]:
    """Return the priorities in the order in which they are tried: by number, ties as written."""
    if isinstance(priorities, str):
        if len(priorities) > TEXT_CHARS_MAX:
            raise Malformed(f"priorities has at most {TEXT_CHARS_MAX} characters.")
        priorities = load_yaml(priorities, where="priorities (yaml)", is_fast=True)
    if not isinstance(priorities, list) or not priorities:
        raise Malformed("priorities is not a yaml list of {priority, steps}.")
    if len(priorities) > PRIORITIES_MAX:
        raise Malformed(f"priorities has {len(priorities)} entries; at most {PRIORITIES_MAX} are taken.")
    return tuple(sorted((_read_priority(priority) for priority in priorities), key=lambda priority: priority.number))


def _read_priority(entry: Any) -> PrioritySteps:
    if not isinstance(entry, dict) or not set(entry) <= {"priority", "steps"}:
        raise Malformed("priorities: each entry is {priority: NUMBER, steps: [{STEP: EXPRESSION}]}.")
    number, steps = entry.get("priority", 0), entry.get("steps") or []
    if not isinstance(number, int) or isinstance(number, bool) or abs(number) > PRIORITY_MAX:
        raise Malformed(f"priorities: {str(number)[:40]!r} is no priority; give a whole number.")
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise Malformed(f"priority {number}: steps is a list of {{STEP: EXPRESSION}}.")
    pairs = [pair for step in steps for pair in step.items()]
    if len(pairs) > STEPS_MAX:
        raise Malformed(f"priority {number} has {len(pairs)} steps; at most {STEPS_MAX} are taken.")
    read = [_read_step(number, place, str(kind), value) for place, (kind, value) in enumerate(pairs, start=1)]
    ignored = tuple(step for step in read if isinstance(step, str))
    return PrioritySteps(number, tuple(step for step in read if isinstance(step, SelectionStep)), ignored)


def _read_step(number: int, place: int, kind: str, value: Any) -> SelectionStep | str:
    """Return the step, or the name of an unknown step."""
    text = _text(value)
    where = f"priority {number}, step {place} ({kind[:40]} {text[:80]})"
    if kind == "filter":
        return SelectionStep(kind, where, expression=_expression(text, where))
    if kind == "calc":
        name, _, expression = text.partition("=")
        if not VARIABLE_NAME.match(name.strip()):
            raise Malformed(f"{where}: logic expression {text[:80]!r} is not valid, should be in format var=expr.")
        return SelectionStep(kind, where, name.strip(), _expression(expression, where))
    if kind in ("sort_ascending", "sort_descending"):
        word = text.strip().removeprefix("[").removesuffix("]").strip()
        if not word:
            raise Malformed(f"{where}: name the variable to sort by.")
        return SelectionStep(kind, where, word)
    if kind == "select":
        if text.strip() not in SELECT_METHODS:
            raise Malformed(f"{where}: {text[:80]!r} is not a valid select method: {', '.join(SELECT_METHODS)}.")
        return SelectionStep(kind, where, text.strip())
    return kind[:80]


def _text(value: Any) -> str:
    """Turn a value into text: YAML reads `filter: true` and `calc: 1` as other types."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else "" if value is None else str(value)


def _expression(text: str, where: str) -> Expression:
    try:
        return parse_expression(text)
    except Malformed as exc:
        raise Malformed(f"{where}: logic expression {text.strip()[:80]!r} is not valid: {exc.detail}.") from exc
