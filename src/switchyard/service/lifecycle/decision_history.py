"""The history of routing decisions about a job. It is read from the job's events.

Most decisions change the job's state, which writes an event. If only the reason of a pending job changes, the same
transaction writes an event `waits`. A job may be pending for months, so only its first and last `waits` are kept.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from switchyard.model.cluster.verdict import Answer, Decision, Verdict
from switchyard.model.job.event_kind import EventKind
from switchyard.model.job.job import State
from switchyard.model.job.unreadable import UNREADABLE_ERRORS
from switchyard.route.apply_selection import NO_CANDIDATE_LEFT
from switchyard.route.verdicts import decode_verdicts
from switchyard.service.core.unreadable_rows import log_unreadable
from switchyard.service.core.writes.batch import Batch
from switchyard.store.engine.database import Tx
from switchyard.store.jobs import decision_events
from switchyard.store.jobs.job_rows import AttemptOnCluster, JobDetails, JobRow

FIRST_KEPT, LAST_KEPT = 10, 40  # `waits` events of one job
SHOWN_MAX = 100  # decisions in one explanation
_DECIDED = frozenset({State.PENDING.value, State.ASSIGNED.value, State.REJECTED.value})
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
# Events that do not change where the job runs.
_NO_DECISIONS = frozenset({EventKind.LEASED, EventKind.CANCEL_REQUESTED, EventKind.LATE})


def record_wait_reason(batch: Batch, row: JobRow, reason: str) -> None:
    """Record that a pending job now waits for another reason."""
    batch.job_event(row, EventKind.WAITS, reason)


def is_same_reason(old: str, new: str) -> bool:
    """Whether two reasons to wait are the same decision.

    Reasons of a selection contain current numbers of the clusters, which are ignored. Otherwise every change of a
    cluster's load would write an event for every pending job.
    """
    if old == new or not (old.startswith(NO_CANDIDATE_LEFT) and new.startswith(NO_CANDIDATE_LEFT)):
        return old == new
    return _NUMBER.sub("", old) == _NUMBER.sub("", new)


def thin_wait_events(batch: Batch, job_ids: Iterable[str]) -> None:
    """Delete all but the first and last `waits` events of jobs that got a new reason in this batch."""
    if ids := sorted(set(job_ids)):
        decision_events.decision_trim(batch.tx, ids, EventKind.WAITS, first=FIRST_KEPT, last=LAST_KEPT)


def readable_verdicts(bodies: Mapping[str, str]) -> dict[str, list[Verdict]]:
    """Decode sets of verdicts, by hash. Unreadable sets are logged and skipped."""
    readable = {}
    for key, body in bodies.items():
        try:
            readable[key] = decode_verdicts(body)
        except UNREADABLE_ERRORS as exc:
            log_unreadable("verdict_sets", key, str(exc))
    return readable


class EarlierVerdicts:
    """Verdicts of each pending job's previous decision. They explain why a cluster is assigned only now."""

    def __init__(self, tx: Tx, rows: Collection[JobRow]) -> None:
        bodies = decision_events.verdicts_get_many(tx, {row.plan_hash for row in rows if row.plan_hash})
        sets = readable_verdicts(bodies)
        self._verdicts = {key: {verdict.cluster: verdict for verdict in verdicts} for key, verdicts in sets.items()}

    def cause(self, row: JobRow, cluster: str) -> str:
        """Return why this cluster was not assigned earlier; empty: unknown, or its earlier verdict was yes."""
        verdicts = self._verdicts.get(row.plan_hash or "")
        if verdicts is None:
            return ""
        if cluster not in verdicts:
            return f"{cluster} is new"
        return "" if verdicts[cluster].say is Answer.YES else f"until now {cluster}: {verdicts[cluster].reason}"


def history_of(tx: Tx, row: JobDetails, earlier: Sequence[AttemptOnCluster]) -> list[Decision]:
    """Return the decisions about a job, oldest first, starting with its submit. `earlier`: its ended attempts."""
    events = decision_events.decision_list(tx, row.id, states=_DECIDED, but=_NO_DECISIONS, limit=SHOWN_MAX)
    return [_arrival(row, earlier), *(Decision(e.at_us, e.kind, e.state, e.cluster, e.reason) for e in events)]


def _arrival(row: JobDetails, earlier: Sequence[AttemptOnCluster]) -> Decision:
    """Return the decision at submit. It has no event: an attempt assigned at the time of submit shows the cluster."""
    attempts = [*((attempt.assigned_us, attempt.cluster) for attempt in earlier), (row.assigned_us, row.cluster)]
    clusters = [cluster for assigned_us, cluster in attempts if assigned_us == row.created_us]
    if clusters:
        return Decision(row.created_us, EventKind.ACCEPTED.value, State.ASSIGNED.value, clusters[0])
    if row.state == State.REJECTED.value and row.ended_us == row.created_us:
        return Decision(row.created_us, EventKind.ACCEPTED.value, State.REJECTED.value, reason=row.reason)
    return Decision(row.created_us, EventKind.ACCEPTED.value, State.PENDING.value, reason=row.arrival or "")
