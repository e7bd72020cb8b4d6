"""Count the decisions about new jobs."""

from __future__ import annotations

from collections.abc import Sequence

from switchyard.service.core.process_metrics import ProcessMetrics
from switchyard.service.core.writes.batch import Batch
from switchyard.service.placement.decision_counts import decision_key, rejecting_step
from switchyard.service.submit.new_job import JobInsert


def count_new_jobs(tally: ProcessMetrics, batch: Batch, writes: Sequence[JobInsert]) -> None:
    """Count the jobs of this batch once it is committed."""
    if not writes:
        return
    keys = [
        decision_key(write.row.bounds, write.row.lane, write.created.cluster, write.created.state.lower())
        for write in writes
    ]
    rejected = [rejecting_step(write.kept.ruling.verdicts) for write in writes if write.created.state == "REJECTED"]

    def count() -> None:
        tally.decided(keys, rejected)
        tally.accepted.add(amount=len(keys))

    batch.settled.append(count)
