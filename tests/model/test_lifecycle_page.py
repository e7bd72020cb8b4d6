"""The page about the states of a job says what the table and the functions of the lifecycle do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from switchyard.model.job import lifecycle
from switchyard.model.job.job import OnLost, State
from switchyard.model.job.lifecycle import ALLOWED_TRANSITIONS, FINAL_STATES, LifecycleState, ObservedState, Transition

PAGE = (Path(__file__).resolve().parents[2] / "docs/explanation/job-states.md").read_text(encoding="utf-8")
FENCE, FLOOR = 3, 9
EITHER = (False, True)


def test_the_picture_has_the_transitions_of_the_table() -> None:
    shown = re.findall(r"^    (\S+) --> (\S+)$", PAGE, re.MULTILINE)
    allowed = [(before.value, after.value) for before, states in ALLOWED_TRANSITIONS.items() for after in states]
    ends = [(state.value, "[*]") for state in FINAL_STATES]
    assert sorted(shown) == sorted([("[*]", "PENDING"), *allowed, *ends])


def test_each_state_has_a_meaning() -> None:
    assert re.findall(r"^\| ([A-Z]+) \|", PAGE, re.MULTILINE) == [state.value for state in State]


def test_the_table_of_events_is_what_the_functions_do() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| ([A-Z, ]+) \| ([A-Z]+) \|", PAGE, re.MULTILINE)
    shown = {(event, before, after) for event, states, after in rows for before in states.split(", ")}
    done = {(step.event, life.state.value, step.life.state.value) for life, step in all_steps()}
    assert shown == {(event, before, after) for event, before, after in done if event != "cancel-requested"}


def all_steps() -> Iterator[tuple[LifecycleState, Transition]]:
    """Every change that a function of the lifecycle makes, from every life that a job can have."""
    for state, leased, cancelling, on_lost, floor in product(State, EITHER, EITHER, OnLost, (0, FLOOR)):
        if (state is State.PENDING and leased) or (state is State.SUBMITTED and not leased):
            continue
        life = LifecycleState(state, 1, FENCE, leased, cancelling, on_lost, floor)
        yield from ((life, step) for step in steps_from(life) if step is not None)


def steps_from(life: LifecycleState) -> Iterator[Transition | None]:
    if life.state is State.PENDING:
        yield from (lifecycle.assign(life), lifecycle.reject(life, ""))
    if life.is_leased:
        yield from (lifecycle.return_lease(life, ""), lifecycle.refuse_lease(life, ""))
    yield from (lifecycle.unassign(life, ""), lifecycle.reassign(life, ""), lifecycle.cancel(life))
    yield lifecycle.adopt_attempt(life, FLOOR - 1)
    for definite, again, is_removed in product(EITHER, EITHER, EITHER):
        yield lifecycle.mark_lost(life, "", definite=definite, again=again, is_removed=is_removed)
    for seen, again, is_preempted in product(ObservedState, EITHER, EITHER):
        yield lifecycle.apply_report(life, fence=FENCE, seen=seen, again=again, is_preempted=is_preempted)[1]
