"""The kind of a reported failure, and the record of each failed attempt for the statistics."""

from __future__ import annotations

from switchyard.model.cluster.poll import Report
from switchyard.model.failures.failure_kind import FailureKind, is_failure_kind
from switchyard.model.job.event_kind import EventKind
from switchyard.model.job.job import Usage
from switchyard.model.job.lifecycle import ObservedState, Transition
from switchyard.model.job.retry import Cause, failure_kind
from switchyard.model.rules.names import printable_line
from switchyard.service.core.writes.batch import Batch
from switchyard.store.jobs.failed_attempts import NODES_CHARS_MAX, FailedAttempt
from switchyard.store.jobs.job_rows import JobRow

# Events by which an attempt ends that failed. An attempt that was refused or returned has not begun.
_ENDS = frozenset({EventKind.FAILED, EventKind.LOST, EventKind.RETRYING, EventKind.REQUEUED, EventKind.PREEMPTED})


def reported_failure(item: Report) -> FailureKind:
    """Return the kind that the agent names, else the one that follows from the cause, the exit code and the signal."""
    if item.seen is ObservedState.LOST:
        return FailureKind.LOST
    if item.failure is not None and is_failure_kind(item.failure):
        return FailureKind(item.failure)
    if item.cause is Cause.CLUSTER and item.native_id is None:
        return FailureKind.START  # the batch system never had it
    return failure_kind(item.cause, exit_code=item.exit_code, signal=item.signal)


def failure_of_step(step: Transition, item: Report | None) -> FailureKind | None:
    """Return the kind of failure by which this transition ends an attempt. None: the attempt has not failed.

    `item`: the report that caused it. Without a report an attempt is lost because its agent is silent or removed.
    """
    if step.event not in _ENDS:
        return None
    if item is not None:
        return reported_failure(item)
    return None if step.event is EventKind.FAILED else FailureKind.LOST


def note_failure(
    batch: Batch, row: JobRow, failure: FailureKind, *, fence: int, cluster_id: str | None, usage: Usage | None
) -> None:
    batch.failures.append(
        FailedAttempt(
            job_id=row.id,
            fence=fence,
            at_us=batch.now_us,
            kind=failure.value,
            cluster_id=cluster_id,
            nodes=printable_line(usage.nodes)[:NODES_CHARS_MAX] if usage is not None else "",
            owner=row.owner,
            owner_id=row.owner_id,
            project=row.project,
        )
    )
