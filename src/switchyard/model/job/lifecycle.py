"""The life of a job: one table of allowed transitions, one function that applies them. Pure.

              ┌─────────┬─ requeue, unassign ─┬───────────────┐
              ▼         │                     │               │
           PENDING ──▶ ASSIGNED ──────▶ SUBMITTED ──────▶ RUNNING ──▶ SUCCEEDED | FAILED | CANCELLED
              │         └────── an agent's report may skip ahead, never back ──────▲
              └──▶ REJECTED | CANCELLED | FAILED (expired, or a dependency failed)

Late, repeated and out-of-order reports change nothing. The answer to a report under a fence that is too low is to stop.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from switchyard.model.job.event_kind import EVENT_OF_STATE, EventKind
from switchyard.model.job.job import OnLost, State

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


# Then a job that is lost, preempted or given back again and again fails. With the pauses between them that takes days:
# no cluster will run it. Retries by the job's own policy are bounded by that policy.
ATTEMPTS_MAX = 1000


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
    event: EventKind
    reason: str = ""


def make_transition(
    life: LifecycleState, to: State, event: EventKind, reason: str = "", **changes: object
) -> Transition:
    """Change the state, as the table allows. ARCHITECTURE.md names the four writes that do not call this."""
    assert to in ALLOWED_TRANSITIONS[life.state], f"{life.state} → {to} is not allowed"
    return Transition(replace(life, state=to, **changes), event, reason)  # type: ignore[arg-type]


def assign(life: LifecycleState) -> Transition:
    """Hand the job to a cluster: a new attempt under a higher fence."""
    return make_transition(
        life, State.ASSIGNED, EventKind.ASSIGNED, attempt=life.attempt + 1, fence=life.next_fence, is_leased=False
    )


def unassign(life: LifecycleState, reason: str) -> Transition | None:
    """Take back an attempt that no agent has leased. The fence grows, so that a lease given meanwhile is refused."""
    if life.state is not State.ASSIGNED or life.is_leased:
        return None
    return make_transition(life, State.PENDING, EventKind.UNASSIGNED, reason, fence=life.next_fence)


def reassign(life: LifecycleState, reason: str) -> Transition | None:
    """Hand what no agent has leased to another cluster, at once. Of an array that runs: the tasks nobody has."""
    if life.state not in (State.ASSIGNED, State.RUNNING) or life.is_leased:
        return None
    assigned = assign(make_transition(life, State.PENDING, EventKind.MOVED).life)
    return Transition(assigned.life, EventKind.MOVED, reason)


def reject(life: LifecycleState, reason: str) -> Transition:
    return make_transition(life, State.REJECTED, EventKind.REJECTED, reason)


def cancel(life: LifecycleState) -> Transition | None:
    """Cancel a job. It ends at once if no agent has it; else it ends when the agent reports the end."""
    if life.state in FINAL_STATES:
        return None
    if life.state is State.PENDING or not life.is_leased:
        return make_transition(
            life, State.CANCELLED, EventKind.CANCELLED, "cancelled before it was handed over", cancel_requested=True
        )
    if life.cancel_requested:
        return None
    return Transition(replace(life, cancel_requested=True), EventKind.CANCEL_REQUESTED)


def mark_lost(
    life: LifecycleState, reason: str, *, definite: bool, again: bool = False, is_removed: bool = False
) -> Transition | None:
    """End or requeue a lost attempt. `definite`: the cluster denies knowing it. After mere silence, `on_lost` decides.

    `again`: the job's retry policy grants another try. `is_removed`: its agent was removed and will never report.
    """
    if life.state in FINAL_STATES or not life.is_leased:
        return None
    if life.on_lost is OnLost.WAIT and not (definite or is_removed):
        return None
    if life.cancel_requested:
        # CANCELLED only if the cluster denies knowing the job; silence proves nothing.
        to, event = (State.CANCELLED, EventKind.CANCELLED) if definite else (State.FAILED, EventKind.LOST)
        return make_transition(life, to, event, f"lost while being cancelled: {reason}", is_leased=False)
    if not again and life.on_lost is OnLost.REQUEUE and life.attempt >= ATTEMPTS_MAX:
        return make_transition(life, State.FAILED, EventKind.LOST, _give_up_reason(life, reason), is_leased=False)
    if again or life.on_lost is OnLost.REQUEUE:
        return make_transition(life, State.PENDING, EventKind.REQUEUED, reason, fence=life.next_fence, is_leased=False)
    return make_transition(life, State.FAILED, EventKind.LOST, reason, is_leased=False)


def return_lease(life: LifecycleState, reason: str) -> Transition | None:
    """The cluster returns a lease it has not begun: the job is routed anew.

    A RUNNING job may come back, too: a batch system says that a job runs before the node has begun it.
    """
    if life.state in FINAL_STATES or life.state is State.PENDING:
        return None
    if life.cancel_requested:
        return make_transition(life, State.CANCELLED, EventKind.CANCELLED, "cancelled before it began", is_leased=False)
    if life.attempt >= ATTEMPTS_MAX:
        return make_transition(life, State.FAILED, EventKind.FAILED, _give_up_reason(life, reason), is_leased=False)
    return make_transition(life, State.PENDING, EventKind.RETURNED, reason, fence=life.next_fence, is_leased=False)


def _give_up_reason(life: LifecycleState, reason: str) -> str:
    return f"{reason}; it was handed over {life.attempt} times, and is not handed over again"


def refuse_lease(life: LifecycleState, reason: str) -> Transition | None:
    """The cluster refuses a lease, and nothing of it ran: the job is routed to other clusters. Not of a RUNNING job."""
    if life.state not in (State.ASSIGNED, State.SUBMITTED) or not life.is_leased or life.cancel_requested:
        return None
    return make_transition(life, State.PENDING, EventKind.REFUSED, reason, fence=life.next_fence, is_leased=False)


def adopt_attempt(life: LifecycleState, fence: int) -> Transition | None:
    """Continue an attempt that an agent got after the backup from which this job was restored.

    Its fence is above every fence that the job knows, and at most the floor. No other attempt has such a fence.
    """
    known = life.fence if life.is_leased else life.fence - 1
    if life.state in FINAL_STATES or not known < fence < life.floor:
        return None
    reason = "its agent has it from before the restore"
    waiting = life
    if life.state is not State.PENDING:
        waiting = make_transition(life, State.PENDING, EventKind.REQUEUED, reason).life
    return make_transition(
        waiting, State.ASSIGNED, EventKind.ADOPTED, reason, attempt=life.attempt + 1, fence=fence, is_leased=True
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
        event = EventKind.PREEMPTED if is_preempted else EventKind.RETRYING
        return ReportAnswer.TAKEN, make_transition(
            life, State.PENDING, event, reason, fence=life.next_fence, is_leased=False
        )
    return ReportAnswer.TAKEN, make_transition(life, to, EVENT_OF_STATE[to], reason)


_ENDED_OBSERVATIONS = frozenset(
    {ObservedState.SUCCEEDED, ObservedState.FAILED, ObservedState.CANCELLED, ObservedState.LOST, ObservedState.RETURNED}
)
