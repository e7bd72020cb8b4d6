"""The table of transitions and the one function that applies them, case by case."""

from __future__ import annotations

import pytest

from switchyard.model.job.event_kind import EventKind
from switchyard.model.job.job import OnLost, State
from switchyard.model.job.lifecycle import (
    ALLOWED_TRANSITIONS,
    FINAL_STATES,
    LIVE_STATES,
    ObservedState,
    ReportAnswer,
    apply_report,
    assign,
    cancel,
    make_transition,
    mark_lost,
    reject,
    unassign,
)
from tests.builders import a_life

P, A, S, R = State.PENDING, State.ASSIGNED, State.SUBMITTED, State.RUNNING
OK, BAD, END, NO = State.SUCCEEDED, State.FAILED, State.CANCELLED, State.REJECTED

TABLE = {
    P: {A, NO, END, BAD},
    A: {S, R, P, OK, BAD, END},
    S: {R, P, OK, BAD, END},
    R: {P, OK, BAD, END},
    OK: set(),
    BAD: set(),
    END: set(),
    NO: set(),
}


def test_the_table_says_exactly_this() -> None:
    assert ALLOWED_TRANSITIONS == {state: frozenset(allowed) for state, allowed in TABLE.items()}


@pytest.mark.parametrize("to", list(State))
@pytest.mark.parametrize("state", list(State))
def test_move_makes_allowed_steps_and_no_others(state: State, to: State) -> None:
    if to in TABLE[state]:
        step = make_transition(a_life(state), to, EventKind.MOVED, "why")
        assert (step.life.state, step.event, step.reason) == (to, EventKind.MOVED, "why")
    else:
        with pytest.raises(AssertionError, match="not allowed"):
            make_transition(a_life(state), to, EventKind.MOVED)


def test_final_and_live_states_part_all_states() -> None:
    assert set(State) == FINAL_STATES | LIVE_STATES
    assert {OK, BAD, END, NO} == FINAL_STATES


def test_assign_begins_a_new_attempt_under_a_higher_fence() -> None:
    life = assign(a_life(P, attempt=3, fence=7)).life
    assert life == a_life(A, attempt=4, fence=8, is_leased=False)


def test_unassign_takes_back_only_what_nobody_leased() -> None:
    taken = unassign(a_life(A, fence=4), "its cluster went away")
    assert taken is not None
    assert taken.life == a_life(P, attempt=1, fence=5, is_leased=False)
    assert unassign(a_life(A, is_leased=True), "late") is None
    for state in set(State) - {A}:
        assert unassign(a_life(state), "late") is None


def test_reject_ends_a_waiting_job_only() -> None:
    assert reject(a_life(P), "nowhere").life.state is NO
    with pytest.raises(AssertionError):
        reject(a_life(R), "nowhere")


@pytest.mark.parametrize(
    ("life", "state", "is_asked"),
    [
        (a_life(P), END, True),
        (a_life(A), END, True),
        (a_life(A, is_leased=True), A, True),
        (a_life(S), S, True),
        (a_life(R), R, True),
    ],
)
def test_cancel_ends_at_once_only_what_nobody_has(life, state, is_asked) -> None:
    step = cancel(life)
    assert step is not None
    assert (step.life.state, step.life.cancel_requested) == (state, is_asked)
    assert step.life.fence == life.fence


def test_a_second_cancel_and_one_of_a_final_job_change_nothing() -> None:
    assert cancel(a_life(R, cancel_requested=True)) is None
    assert all(cancel(a_life(state)) is None for state in FINAL_STATES)


@pytest.mark.parametrize(
    ("on_lost", "definite", "state", "fence"),
    [
        (OnLost.WAIT, False, None, None),
        (OnLost.WAIT, True, BAD, 1),
        (OnLost.FAIL, False, BAD, 1),
        (OnLost.FAIL, True, BAD, 1),
        (OnLost.REQUEUE, False, P, 2),
        (OnLost.REQUEUE, True, P, 2),
    ],
)
def test_a_lost_attempt_follows_on_lost(on_lost, definite, state, fence) -> None:
    step = mark_lost(a_life(R, on_lost=on_lost), "silence", definite=definite)
    if state is None:
        assert step is None
    else:
        assert step is not None
        assert (step.life.state, step.life.fence, step.life.is_leased) == (state, fence, False)


@pytest.mark.parametrize(
    ("on_lost", "definite", "is_removed", "state"),
    [
        (OnLost.WAIT, False, False, None),  # silence is no proof, whatever the retry policy says
        (OnLost.WAIT, False, True, P),
        (OnLost.WAIT, True, False, P),
        (OnLost.FAIL, False, False, P),
        (OnLost.FAIL, False, True, P),
        (OnLost.FAIL, True, False, P),
        (OnLost.REQUEUE, False, False, P),
        (OnLost.REQUEUE, False, True, P),
        (OnLost.REQUEUE, True, False, P),
    ],
)
def test_a_lost_attempt_that_is_granted_a_retry_goes_back_under_a_higher_fence(
    on_lost, definite, is_removed, state
) -> None:
    life = a_life(R, on_lost=on_lost)
    step = mark_lost(life, "silence", definite=definite, again=True, is_removed=is_removed)
    if state is None:
        assert step is None
        return
    assert step is not None
    assert (step.life.state, step.life.fence, step.life.is_leased, step.event) == (state, 2, False, "requeued")
    assert apply_report(step.life, fence=life.fence, seen=ObservedState.SUCCEEDED) == (ReportAnswer.STOP, None)


@pytest.mark.parametrize("on_lost", OnLost)
def test_a_retry_is_never_granted_to_a_job_that_is_being_cancelled(on_lost) -> None:
    life = a_life(R, on_lost=on_lost, cancel_requested=True)
    told = mark_lost(life, "denied", definite=True, again=True)
    silent = mark_lost(life, "silence", definite=False, again=True, is_removed=True)
    assert told is not None
    assert silent is not None
    assert (told.life.state, silent.life.state) == (END, BAD)


def test_a_job_that_nobody_holds_cannot_be_lost() -> None:
    for life in (a_life(P), a_life(A), *(a_life(state) for state in FINAL_STATES)):
        assert mark_lost(life, "silence", definite=True) is None


def test_a_job_that_is_being_cancelled_is_never_requeued() -> None:
    step = mark_lost(a_life(R, cancel_requested=True, on_lost=OnLost.REQUEUE), "silence", definite=True)
    assert step is not None
    assert step.life.state is END


REPORTS = [
    # state, what was seen → answer, state afterwards
    (A, ObservedState.SUBMITTED, ReportAnswer.TAKEN, S),
    (A, ObservedState.RUNNING, ReportAnswer.TAKEN, R),
    (A, ObservedState.SUCCEEDED, ReportAnswer.TAKEN, OK),
    (A, ObservedState.CANCELLED, ReportAnswer.TAKEN, END),
    (S, ObservedState.SUBMITTED, ReportAnswer.STALE, S),
    (S, ObservedState.RUNNING, ReportAnswer.TAKEN, R),
    (S, ObservedState.FAILED, ReportAnswer.TAKEN, BAD),
    (R, ObservedState.SUBMITTED, ReportAnswer.STALE, R),
    (R, ObservedState.RUNNING, ReportAnswer.STALE, R),
    (R, ObservedState.UNKNOWN, ReportAnswer.STALE, R),
    (R, ObservedState.SUCCEEDED, ReportAnswer.TAKEN, OK),
    (R, ObservedState.LOST, ReportAnswer.TAKEN, BAD),
    (A, ObservedState.RETURNED, ReportAnswer.TAKEN, P),
    (S, ObservedState.RETURNED, ReportAnswer.TAKEN, P),
    (R, ObservedState.RETURNED, ReportAnswer.TAKEN, P),  # its batch system had said too early that it runs
    (OK, ObservedState.RETURNED, ReportAnswer.STALE, OK),
    (OK, ObservedState.SUCCEEDED, ReportAnswer.STALE, OK),
    (OK, ObservedState.FAILED, ReportAnswer.STALE, OK),
    (OK, ObservedState.LOST, ReportAnswer.STALE, OK),
    (OK, ObservedState.RUNNING, ReportAnswer.STOP, OK),
    (END, ObservedState.SUBMITTED, ReportAnswer.STOP, END),
    (BAD, ObservedState.UNKNOWN, ReportAnswer.STOP, BAD),
]


@pytest.mark.parametrize(("state", "seen", "answer", "after"), REPORTS)
def test_reports_move_a_job_forward_only(state, seen, answer, after) -> None:
    life = a_life(state, is_leased=True)
    said, step = apply_report(life, fence=life.fence, seen=seen)
    assert said is answer
    assert (step.life.state if step else life.state) is after


@pytest.mark.parametrize("seen", list(ObservedState))
@pytest.mark.parametrize("state", list(State))
def test_a_low_fence_is_told_to_stop_and_changes_nothing(state: State, seen: ObservedState) -> None:
    assert apply_report(a_life(state, fence=5, is_leased=True), fence=4, seen=seen) == (ReportAnswer.STOP, None)


@pytest.mark.parametrize("seen", list(ObservedState))
@pytest.mark.parametrize("state", list(State))
def test_a_fence_from_the_future_is_never_trusted(state: State, seen: ObservedState) -> None:
    assert apply_report(a_life(state, fence=5, is_leased=True), fence=6, seen=seen) == (ReportAnswer.STALE, None)


@pytest.mark.parametrize("seen", list(ObservedState))
def test_a_report_for_an_attempt_that_nobody_leased_is_told_to_stop(seen: ObservedState) -> None:
    assert apply_report(a_life(A, is_leased=False), fence=1, seen=seen) == (ReportAnswer.STOP, None)
    assert apply_report(a_life(P, fence=1), fence=1, seen=seen) == (ReportAnswer.STOP, None)
