"""The kinds of events of a job. They are stored and shown by the API, so the words never change."""

from __future__ import annotations

from enum import StrEnum

from switchyard.model.job.job import State

TASK_PREFIX = "task-"  # before the kind of an event about one task of an array: `task-failed`


class EventKind(StrEnum):
    """What happened to a job. docs/explanation/job-states.md shows which kinds change its state."""

    # A cluster was decided, or the lack of one.
    ACCEPTED = "accepted"  # the submit; read from the job's row, not stored as an event
    ASSIGNED = "assigned"
    MOVED = "moved"  # assigned to another cluster
    REJECTED = "rejected"
    UNASSIGNED = "unassigned"
    WAITS = "waits"  # the job still waits for a cluster, for another reason than before
    # A user or an administrator asked for a change.
    CANCEL_REQUESTED = "cancel-requested"
    HELD = "held"
    PRIORITY = "priority"
    RELEASED = "released"
    TASKS_CANCELLED = "tasks-cancelled"
    # An attempt went on or ended.
    ADOPTED = "adopted"  # an agent has it from before a restore
    CANCELLED = "cancelled"
    FAILED = "failed"
    LEASED = "leased"
    LOST = "lost"
    PREEMPTED = "preempted"
    REFUSED = "refused"  # by the cluster, before anything of it ran
    REQUEUED = "requeued"  # after the attempt was lost
    RETRYING = "retrying"  # after the attempt failed
    RETURNED = "returned"  # the cluster gave the lease back
    RUNNING = "running"
    SUBMITTED = "submitted"
    SUCCEEDED = "succeeded"
    # The rest.
    DIFFERS = "differs"  # the cluster gave less or other than the job asked for
    LATE = "late"  # the job is over its time budget
    OUTPUTS_FAILED = "outputs-failed"
    OUTPUTS_READY = "outputs-ready"
    PROGRESS = "progress"  # tasks of an array were leased, returned or ended


# The kind of an event that says no more than the job's new state. No event of its own leads to PENDING.
EVENT_OF_STATE: dict[State, EventKind] = {
    state: EventKind(state.value.lower()) for state in State if state is not State.PENDING
}
