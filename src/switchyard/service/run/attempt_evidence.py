"""Count how attempts end, and put clusters on probation, in the transaction of the reports.

Only a quick failure leaves a row. From then on the successes of the same jobs count, too, and those of all owners at
the clusters that are suspected. While nothing fails quickly, a report costs one comparison more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from switchyard.model.cluster.poll import Report
from switchyard.model.job.bounds import decode_bounds
from switchyard.model.job.lifecycle import ObservedState, ReportAnswer
from switchyard.model.job.retry import Cause
from switchyard.model.job.unreadable import UNREADABLE_ERRORS
from switchyard.model.rules.names import printable_line
from switchyard.service.core.context import Context
from switchyard.service.core.writes.batch import Batch
from switchyard.service.lifecycle.arrays import BatchArrays, is_refused_before_start
from switchyard.service.run.evidence_round import EvidenceRound
from switchyard.store.jobs.job_rows import JobRow

REPEAT_US = 10_000_000  # evidence that changes nothing is written this often
SUBJECT_CHARS_MAX = 100
REASON_CHARS_MAX = 200
NODE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?\Z")


class Ending(Enum):
    """What a report says about the cluster."""

    QUICK = "failed quickly"
    WELL = "succeeded, or ran for longer than a quick failure does"
    RUNS = "runs"
    OTHER = "ended, which says nothing"


@dataclass(frozen=True, slots=True)
class AttemptOutcome:
    """What became of an attempt at a cluster."""

    cluster_id: str
    owner_id: str
    subject: str  # an array's id, or the name of plain jobs
    node: str
    job: str
    fence: int
    ending: Ending
    reason: str = ""


class AttemptEvidence:
    """Reads outcomes from reports, and has them counted."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def outcomes(
        self,
        batch: Batch,
        arrays: BatchArrays,
        agent_id: str,
        reports: Sequence[Report],
        answers: Sequence[ReportAnswer],
    ) -> list[AttemptOutcome]:
        """Return what these reports say of their cluster, if it counts. Their changes are made, but not yet written."""
        snapshot = self._context.snapshots.probation
        if snapshot.is_empty and not any(item.seen is ObservedState.FAILED for item in reports):
            return []
        agent = self._context.snapshots.fleet.agents.get(agent_id)
        if agent is None or not self._context.probation.is_enabled or agent.cluster_id in snapshot.exempt:
            return []
        began_us = {(item.job, item.fence): item.ago_us for item in reports if item.seen is ObservedState.RUNNING}
        outcomes = []
        for item, answer in zip(reports, answers, strict=True):
            row = batch.rows.get(item.job)
            if answer is not ReportAnswer.TAKEN or row is None or row.cancel_us is not None:
                continue
            began_ago_us = began_us.get((item.job, item.fence))
            lasted_us = _lasted_us(batch, arrays, row, item, began_ago_us)
            outcome = self._outcome(agent.cluster_id, row, item, lasted_us)
            if self._counts(outcome, batch.now_us) and not _is_pinned(row, outcome):
                outcomes.append(outcome)
        return outcomes

    def apply(self, batch: Batch, outcomes: list[AttemptOutcome]) -> None:
        """Count these outcomes, and begin or end probations."""
        round_ = EvidenceRound(self._context, batch, {(one.cluster_id, one.owner_id) for one in outcomes})
        for one in outcomes:
            key = (one.owner_id, one.cluster_id, one.subject, one.node)
            if one.ending is Ending.QUICK:
                round_.note_failure(key, one.reason)
            elif one.ending is Ending.WELL:
                round_.note_success(key)
            round_.note_canary(
                one.cluster_id,
                (one.job, one.fence),
                did_well={Ending.QUICK: False, Ending.WELL: True}.get(one.ending),
                is_running=one.ending is Ending.RUNS,
            )
        round_.decide()
        round_.write()

    def _outcome(self, cluster_id: str, row: JobRow, item: Report, lasted_us: int | None) -> AttemptOutcome:
        subject = row.id if row.array is not None else row.name[:SUBJECT_CHARS_MAX] or "-"
        node = item.usage.nodes if item.usage is not None and NODE_NAME.match(item.usage.nodes) else ""
        ending = _ending_of(item, lasted_us, self._context.probation.quick_us)
        reason = printable_line(item.reason)[:REASON_CHARS_MAX] if ending is Ending.QUICK else ""
        return AttemptOutcome(
            cluster_id, row.owner_id or row.owner, subject, node, item.job, item.fence, ending, reason
        )

    def _counts(self, one: AttemptOutcome, now_us: int) -> bool:
        """Whether the outcome says anything new: most reports of most days do not."""
        snapshot = self._context.snapshots.probation
        if one.cluster_id in snapshot.gated:
            return True
        if one.ending not in (Ending.QUICK, Ending.WELL):
            return False
        known = snapshot.evidence.get((one.owner_id, one.cluster_id, one.subject, one.node))
        is_fresh = known is not None and now_us - known.last_us < REPEAT_US
        if one.ending is Ending.QUICK:
            # After so many failures, what was decided does not change with the next ones.
            return not (known is not None and is_fresh and known.fails > 2 * self._context.probation.failures)
        is_watched = (one.owner_id, one.subject) in snapshot.watched or one.cluster_id in snapshot.suspects
        return is_watched and not (known is not None and is_fresh and not known.fails)


def _ending_of(item: Report, lasted_us: int | None, quick_us: int) -> Ending:
    if item.seen is ObservedState.SUCCEEDED:
        return Ending.WELL
    if item.seen is ObservedState.RUNNING:
        return Ending.RUNS
    if item.seen is ObservedState.FAILED and item.cause in (Cause.JOB, Cause.CLUSTER) and lasted_us is not None:
        return Ending.QUICK if lasted_us < quick_us else Ending.WELL
    return Ending.OTHER


def _lasted_us(batch: Batch, arrays: BatchArrays, row: JobRow, item: Report, began_ago_us: int | None) -> int | None:
    """Return how long the attempt ran, or an upper bound; None: unknown."""
    if item.seen is not ObservedState.FAILED:
        return None
    if is_refused_before_start(item, None):
        return 0
    if item.usage is not None:
        return item.usage.elapsed_s * 1_000_000
    if began_ago_us is not None:
        return max(0, began_ago_us - item.ago_us)
    since_us = row.started_us or row.leased_us
    if row.array is not None:
        range_ = arrays.job(row.id).range_with(item.fence)
        since_us = range_.leased_us if range_ is not None else None
    return None if since_us is None else max(0, batch.now_us - item.ago_us - since_us)


def _is_pinned(row: JobRow, outcome: AttemptOutcome) -> bool:
    """Whether the failure of a job says nothing, since the job may run on this cluster alone: nothing compares."""
    if outcome.ending is not Ending.QUICK:
        return False
    try:
        bounds = decode_bounds(row.bounds)
        return bounds.is_one_cluster or bounds.begun_on is not None
    except UNREADABLE_ERRORS:  # others log it, and set the row aside
        return True
