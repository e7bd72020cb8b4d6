"""The earlier attempts of a job, as the API shows them."""

from __future__ import annotations

import msgspec

from switchyard.model.failures.asked_resources import AskedResources
from switchyard.model.failures.failure_kind import FailureKind, is_failure_kind
from switchyard.model.job.event_kind import EventKind
from switchyard.model.job.job import JobAttempt, State
from switchyard.service.core.unreadable_rows import read_each
from switchyard.service.lifecycle.visibility import Visibility
from switchyard.store.engine.database import Tx
from switchyard.store.jobs import jobs
from switchyard.store.jobs.job_rows import AttemptOnCluster, JobRow

SHOWN_MAX = 100
_ENDS = {
    EventKind.RETRYING.value: "failed",
    EventKind.REQUEUED.value: "lost",
    EventKind.UNASSIGNED.value: "moved",
}


def earlier_attempts(tx: Tx, row: JobRow, visibility: Visibility) -> list[JobAttempt]:
    """Return the attempts after which the job went on, oldest first. Tasks of an array have attempts of their own."""
    has_none = row.attempt == 0 or (row.attempt == 1 and row.state != State.PENDING.value)
    if row.array is not None or has_none:
        return []
    is_own = visibility.is_own(row)

    def view(attempt: AttemptOnCluster) -> JobAttempt:
        return JobAttempt(
            attempt=attempt.attempt,
            fence=attempt.fence,
            cluster=visibility.cluster(attempt.cluster_id, attempt.cluster, is_own=is_own),
            ended=_ENDS.get(attempt.ended, attempt.ended),
            failure=_kind_of(attempt.failure),
            reason=visibility.text(attempt.reason, is_own=is_own),
            asked=None if attempt.asked is None else msgspec.json.decode(attempt.asked, type=AskedResources),
            started_us=attempt.started_us,
            ended_us=attempt.ended_us,
        )

    return read_each("attempts", jobs.attempt_list(tx, row.id)[-SHOWN_MAX:], view, key="job_id")


def failure_of_row(row: JobRow) -> FailureKind | None:
    """Return the kind of failure of a FAILED job."""
    return _kind_of(row.failure)


def _kind_of(word: str | None) -> FailureKind | None:
    """Return the kind of a stored word. A word of a newer server is none."""
    return FailureKind(word) if word is not None and is_failure_kind(word) else None
