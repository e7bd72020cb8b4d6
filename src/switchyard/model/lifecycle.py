"""The life of a job: one table of allowed transitions, one function that applies them. Pure.

              ┌────────────── requeue, unassign ──────────────┐
              ▼                                               │
           PENDING ──assign──▶ ASSIGNED ──▶ SUBMITTED ──▶ RUNNING ──▶ SUCCEEDED | FAILED | CANCELLED
              │                   └────── an agent's report may skip ahead, never back ──────▲
              └──▶ REJECTED | CANCELLED

Late, repeated or out-of-order reports change nothing; a report under a fence that is too low is told to stop.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from switchyard.model.job import OnLost, State

FINAL_STATES = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED, State.REJECTED})
LIVE_STATES = frozenset(State) - FINAL_STATES

_ENDED_STATES = {State.SUCCEEDED, State.FAILED, State.CANCELLED}
ALLOWED_TRANSITIONS: dict[State, frozenset[State]] = {
    State.PENDING: frozenset({State.ASSIGNED, State.REJECTED, State.CANCELLED, State.FAILED}),
    State.ASSIGNED: frozenset({State.SUBMITTED, State.RUNNING, State.PENDING, *_ENDED_STATES}),
    State.SUBMITTED: frozenset({State.RUNNING, State.PENDING, *_ENDED_STATES}),
    State.RUNNING: frozenset({State.PENDING, *_ENDED_STATES}),
    State.SUCCEEDED: frozenset(),
    State.FAILED: frozenset(),
    State.CANCELLED: frozenset(),
    State.REJECTED: frozenset(),
}


class ObservedState(StrEnum):
    """What an agent says of an attempt. LOST: the cluster denies knowing it. UNKNOWN changes nothing."""

    SUBMITTED = "SUBMITTED"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    LOST = "LOST"
    RETURNED = "RETURNED"  # the cluster gave it back before it began
    UNKNOWN = "UNKNOWN"


class ReportAnswer(StrEnum):
    """What the server made of a report. Each settles it: the agent need not send it again."""

    TAKEN = "taken"
    STALE = "stale"  # late or repeated: nothing changed
    STOP = "stop"  # the fence is too low, or the job is over: stop that attempt


@dataclass(frozen=True, slots=True)
class LifecycleState:
    """The part of a job that its life is about. `attempt` counts hand-overs; `fence` only grows."""

    state: State
    attempt: int
    fence: int
    is_leased: bool
    cancel_requested: bool = False
    on_lost: OnLost = OnLost.WAIT
    floor: int = 0  # after a restore: fences up to here may have been handed out, though nothing here says so

    @property
    def next_fence(self) -> int:
        return max(self.fence, self.floor) + 1


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of life, with the event that records it."""

    life: LifecycleState
    event: str
    reason: str = ""


def make_transition(life: LifecycleState, to: State, event: str, reason: str = "", **changes: object) -> Transition:
    """The only way a state changes."""
    assert to in ALLOWED_TRANSITIONS[life.state], f"{life.state} → {to} is not allowed"
    return Transition(replace(life, state=to, **changes), event, reason)  # type: ignore[arg-type]


def assign(life: LifecycleState) -> Transition:
    """Hand the job to a cluster: a new attempt under a higher fence."""
    return make_transition(
        life, State.ASSIGNED, "assigned", attempt=life.attempt + 1, fence=life.next_fence, is_leased=False
    )


def unassign(life: LifecycleState, reason: str) -> Transition | None:
    """Take an attempt back that no agent has leased. The fence grows, so a lease given meanwhile is refused."""
    if life.state is not State.ASSIGNED or life.is_leased:
        return None
    return make_transition(life, State.PENDING, "unassigned", reason, fence=life.next_fence)


def reassign(life: LifecycleState, reason: str) -> Transition | None:
    """Hand what no agent has leased to another cluster, at once. Of an array that runs: the tasks nobody has."""
    if life.state not in (State.ASSIGNED, State.RUNNING) or life.is_leased:
        return None
    given = assign(make_transition(life, State.PENDING, "moved").life)
    return Transition(given.life, "moved", reason)


def reject(life: LifecycleState, reason: str) -> Transition:
    return make_transition(life, State.REJECTED, "rejected", reason)


def cancel(life: LifecycleState) -> Transition | None:
    """Ask for the end. Nobody has it: it is over at once. An agent has it: only the agent's word ends it."""
    if life.state in FINAL_STATES:
        return None
    if life.state is State.PENDING or not life.is_leased:
        return make_transition(
            life, State.CANCELLED, "cancelled", "cancelled before it was handed over", cancel_requested=True
        )
    if life.cancel_requested:
        return None
    return Transition(replace(life, cancel_requested=True), "cancel-requested")


def mark_lost(
    life: LifecycleState, reason: str, *, definite: bool, again: bool = False, is_removed: bool = False
) -> Transition | None:
    """The attempt is lost. Definitely (the cluster denies it): it ends. By silence: only if `on_lost` says so.

    `again`: the job's retry policy grants another try. `is_removed`: its agent is no more, and will never say.
    """
    if life.state in FINAL_STATES or not life.is_leased:
        return None
    if life.on_lost is OnLost.WAIT and not (definite or is_removed):
        return None
    if life.cancel_requested:
        # CANCELLED only where the cluster said that it is gone; silence is no such word.
        to, event = (State.CANCELLED, "cancelled") if definite else (State.FAILED, "lost")
        return make_transition(life, to, event, f"lost while being cancelled: {reason}", is_leased=False)
    if again or life.on_lost is OnLost.REQUEUE:
        return make_transition(life, State.PENDING, "requeued", reason, fence=life.next_fence, is_leased=False)
    return make_transition(life, State.FAILED, "lost", reason, is_leased=False)


def return_lease(life: LifecycleState, reason: str) -> Transition | None:
    """The cluster returns a lease it has not begun: the job is routed anew.

    A RUNNING job may come back, too: a batch system says that a job runs before the node has begun it.
    """
    if life.state in FINAL_STATES or life.state is State.PENDING:
        return None
    if life.cancel_requested:
        return make_transition(life, State.CANCELLED, "cancelled", "cancelled before it began", is_leased=False)
    return make_transition(life, State.PENDING, "returned", reason, fence=life.next_fence, is_leased=False)


def adopt_attempt(life: LifecycleState, fence: int) -> Transition | None:
    """An agent has an attempt that was handed over after the backup this job was restored from: it goes on.

    Such a fence is above all that is known of the job and below the floor; nothing else ever is.
    """
    known = life.fence if life.is_leased else life.fence - 1
    if life.state in FINAL_STATES or not known < fence < life.floor:
        return None
    said = "its agent has it from before the restore"
    waiting = life if life.state is State.PENDING else make_transition(life, State.PENDING, "requeued", said).life
    return make_transition(
        waiting, State.ASSIGNED, "adopted", said, attempt=life.attempt + 1, fence=fence, is_leased=True
    )


def apply_report(
    life: LifecycleState,
    *,
    fence: int,
    seen: ObservedState,
    reason: str = "",
    again: bool = False,
    is_preempted: bool = False,
) -> tuple[ReportAnswer, Transition | None]:
    """Apply what an agent saw under `fence`. `again`: a failure would be tried once more, as after a preemption."""
    if fence < life.fence or (fence == life.fence and not life.is_leased and life.state not in FINAL_STATES):
        return ReportAnswer.STOP, None
    if fence > life.fence:
        return (
            ReportAnswer.STALE,
            None,
        )  # from a future this store does not know, and that no restore explains: not trusted
    if life.state in FINAL_STATES:
        return (ReportAnswer.STALE if seen in _ENDED_OBSERVATIONS else ReportAnswer.STOP), None
    if seen is ObservedState.UNKNOWN:
        return ReportAnswer.STALE, None
    if seen is ObservedState.LOST:
        return ReportAnswer.TAKEN, mark_lost(
            life, reason or "the cluster does not know this job", definite=True, again=again
        )
    if seen is ObservedState.RETURNED:
        step = return_lease(life, reason or "returned by the cluster")
        return (ReportAnswer.TAKEN if step else ReportAnswer.STALE), step
    to = State(seen.value)
    if to not in ALLOWED_TRANSITIONS[life.state]:
        return ReportAnswer.STALE, None
    if to is State.FAILED and again and not life.cancel_requested:
        event = "preempted" if is_preempted else "retrying"
        return ReportAnswer.TAKEN, make_transition(
            life, State.PENDING, event, reason, fence=life.next_fence, is_leased=False
        )
    return ReportAnswer.TAKEN, make_transition(life, to, to.value.lower(), reason)


_ENDED_OBSERVATIONS = frozenset(
    {ObservedState.SUCCEEDED, ObservedState.FAILED, ObservedState.CANCELLED, ObservedState.LOST, ObservedState.RETURNED}
)
