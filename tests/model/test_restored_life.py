"""The life of a job after a restore: fences go on above the floor, and what an agent has from before goes on."""

from __future__ import annotations

import pytest

from switchyard.model.job.job import OnLost, State
from switchyard.model.job.lifecycle import (
    LifecycleState,
    ObservedState,
    ReportAnswer,
    adopt_attempt,
    apply_report,
    assign,
    mark_lost,
    return_lease,
    unassign,
)

FLOOR = 1_000
PENDING = LifecycleState(State.PENDING, attempt=1, fence=2, is_leased=False, floor=FLOOR)
WAITING = LifecycleState(State.ASSIGNED, attempt=1, fence=2, is_leased=False, floor=FLOOR)
RUNNING = LifecycleState(State.RUNNING, attempt=1, fence=2, is_leased=True, floor=FLOOR, on_lost=OnLost.REQUEUE)


def test_every_new_fence_is_above_the_floor() -> None:
    steps = [
        assign(PENDING),
        unassign(WAITING, ""),
        mark_lost(RUNNING, "", definite=True),
        return_lease(LifecycleState(State.SUBMITTED, 1, 2, True, floor=FLOOR), ""),
        apply_report(RUNNING, fence=2, seen=ObservedState.FAILED, again=True)[1],
    ]
    assert [step.life.fence for step in steps if step is not None] == [FLOOR + 1] * 5


def test_what_is_leased_keeps_its_fence_and_ends_under_it() -> None:
    answer, step = apply_report(RUNNING, fence=2, seen=ObservedState.SUCCEEDED)
    assert answer is ReportAnswer.TAKEN
    assert step is not None
    assert (step.life.state, step.life.fence) == (State.SUCCEEDED, 2)


@pytest.mark.parametrize(
    ("life", "fence", "is_taken"),
    [
        (PENDING, 1, False),  # from before the backup: known to be over
        (PENDING, 2, True),  # the fence of a job nobody had: handed over after the backup
        (PENDING, 7, True),
        (PENDING, FLOOR - 1, True),
        (PENDING, FLOOR, False),  # nothing was ever handed out from the floor on but by this store
        (WAITING, 2, True),
        (RUNNING, 2, False),  # its own: no news
        (RUNNING, 3, True),  # it was moved on after the backup
        (LifecycleState(State.SUCCEEDED, 1, 2, False, floor=FLOOR), 3, False),
        (LifecycleState(State.PENDING, 1, FLOOR + 1, False, floor=FLOOR), 3, False),  # handed out anew: too late
        (LifecycleState(State.PENDING, 1, 2, False), 3, False),  # no restore: nothing explains such a fence
    ],
)
def test_only_a_fence_from_the_lost_time_is_adopted(life: LifecycleState, fence: int, is_taken: bool) -> None:
    step = adopt_attempt(life, fence)
    assert (step is not None) is is_taken
    if step is not None:
        assert (step.event, step.life.state, step.life.fence) == ("adopted", State.ASSIGNED, fence)
        assert step.life.is_leased
        assert step.life.attempt == life.attempt + 1
        assert step.life.next_fence == FLOOR + 1, "and the one after it is above the floor"


def test_the_attempt_before_an_adopted_one_is_stopped() -> None:
    step = adopt_attempt(RUNNING, 3)
    assert step is not None
    assert apply_report(step.life, fence=2, seen=ObservedState.SUCCEEDED) == (ReportAnswer.STOP, None)
