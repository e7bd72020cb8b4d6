"""Report jobs that have waited longer than their queueing budget."""

from __future__ import annotations

from switchyard.model.job.event_kind import EventKind
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import Transition
from switchyard.service.core.context import Context
from switchyard.service.core.writes.batch import Batch
from switchyard.service.lifecycle.transitions import life_of, record_step
from switchyard.service.upkeep.leadership import ROUND_MAX, Leadership
from switchyard.store.jobs import jobs
from switchyard.store.jobs.job_rows import JobRow
from switchyard.store.jobs.job_update import JobUpdate


def report_late_jobs(context: Context, leadership: Leadership) -> int:
    """Record a `late` event, once, for jobs that have not started within their queueing budget."""
    with context.database.read() as tx:
        due = jobs.job_ids_late(tx, now_us=context.now_us(), limit=ROUND_MAX)

    def change(batch: Batch, row: JobRow) -> JobUpdate | None:
        if row.late_from_us is None or row.late_from_us > batch.now_us:
            return None
        if State(row.state) not in (State.PENDING, State.ASSIGNED) or row.agent_id is not None:
            return JobUpdate(late_from_us=None)  # the job started in time, or has ended
        budget_s = (row.late_from_us - row.created_us) // 1_000_000
        reason = f"it waits for longer than its budget of {budget_s} s"
        record_step(batch, row, Transition(life_of(row), EventKind.LATE, reason))
        return JobUpdate(late_from_us=None, late_us=batch.now_us)

    return leadership.change_jobs(context, due, change)
