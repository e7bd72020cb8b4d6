"""The step language of `constraint`, read: priorities, each with its steps. Every mistake is found here. Pure.

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
from switchyard.model.decode import load_yaml
from switchyard.route.expression import Expression, parse_expression

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
    ignored: tuple[str, ...] = ()  # steps nobody knows, as Rainbow passes over them


def read_priorities(given: Any) -> tuple[PrioritySteps, ...]:
    """In the order in which they are tried: by number, equal ones as they stand."""
    if isinstance(given, str):
        if len(given) > TEXT_CHARS_MAX:
            raise Malformed(f"priorities has at most {TEXT_CHARS_MAX} characters.")
        given = load_yaml(given, where="priorities (yaml)", is_fast=True)
    if not isinstance(given, list) or not given:
        raise Malformed("priorities is not a yaml list of {priority, steps}.")
    if len(given) > PRIORITIES_MAX:
        raise Malformed(f"priorities has {len(given)} entries; at most {PRIORITIES_MAX} are taken.")
    return tuple(sorted((_read_priority(each) for each in given), key=lambda each: each.number))


def _read_priority(given: Any) -> PrioritySteps:
    if not isinstance(given, dict) or not set(given) <= {"priority", "steps"}:
        raise Malformed("priorities: each entry is {priority: NUMBER, steps: [{STEP: EXPRESSION}]}.")
    number, steps = given.get("priority", 0), given.get("steps") or []
    if not isinstance(number, int) or isinstance(number, bool) or abs(number) > PRIORITY_MAX:
        raise Malformed(f"priorities: {str(number)[:40]!r} is no priority; give a whole number.")
    if not isinstance(steps, list) or not all(isinstance(each, dict) for each in steps):
        raise Malformed(f"priority {number}: steps is a list of {{STEP: EXPRESSION}}.")
    pairs = [pair for each in steps for pair in each.items()]
    if len(pairs) > STEPS_MAX:
        raise Malformed(f"priority {number} has {len(pairs)} steps; at most {STEPS_MAX} are taken.")
    found = [_read_step(number, place, str(kind), value) for place, (kind, value) in enumerate(pairs, start=1)]
    ignored = tuple(each for each in found if isinstance(each, str))
    return PrioritySteps(number, tuple(each for each in found if isinstance(each, SelectionStep)), ignored)


def _read_step(number: int, place: int, kind: str, value: Any) -> SelectionStep | str:
    """The step, or the name of one that is not known."""
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
    """YAML reads `filter: true` and `calc: 1` as values; here they are texts."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else "" if value is None else str(value)


def _expression(text: str, where: str) -> Expression:
    try:
        return parse_expression(text)
    except Malformed as exc:
        raise Malformed(f"{where}: logic expression {text.strip()[:80]!r} is not valid: {exc.detail}.") from exc
