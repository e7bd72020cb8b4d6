"""Reads the steps of `constraint`: priorities, each with its steps. All mistakes are found here. Pure.

- priority: 1
  steps:
  - filter: nodes_free > 0
  - calc: build_cost=cost_per_node_hour * hours
  - sort_ascending: build_cost
  - select: first
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from switchyard.errors import Malformed
from switchyard.features.rainbow.route.expression import Expression, parse_expression
from switchyard.model.wire.decode import load_yaml

TEXT_CHARS_MAX = 16 * 1024
PRIORITIES_MAX = 32
STEPS_MAX = 64  # of one priority
PRIORITY_MAX = 2**31 - 1
SELECT_METHODS = ("first", "last", "random")
VARIABLE_NAME = re.compile(r"[^\W\d][\w-]{0,127}\Z")


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
