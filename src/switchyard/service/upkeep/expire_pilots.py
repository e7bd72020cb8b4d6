"""Cancel the jobs of pilots that did not start in time, or whose agents do not join."""

from __future__ import annotations

from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import cancel
from switchyard.service.core.context import Context
from switchyard.service.core.writes.batch import Batch
from switchyard.service.lifecycle.transitions import cancel_update, life_of
from switchyard.service.upkeep.leadership import ROUND_MAX, Leadership
from switchyard.store.clusters import pilots
from switchyard.store.jobs.job_rows import JobRow
from switchyard.store.jobs.job_update import JobUpdate

JOIN_WITHIN_US = 600_000_000  # from the start of a job to the join of its agent, on slow nodes
NOT_STARTED = "cancelled by the server: the pilot did not start in time"
NOT_JOINED = "cancelled by the server: the pilot's agent did not join"


def expire_pilots(context: Context, leadership: Leadership) -> int:
    """Cancel jobs that did not run when their join token expired, or whose agents do not join. Returns how many."""
    if not any(row.is_ephemeral for row in context.snapshots.fleet.rows.values()):
        return 0
    with context.database.read() as tx:
        due = pilots.pilot_jobs_too_late(tx, now_us=context.now_us(), join_within_us=JOIN_WITHIN_US, limit=ROUND_MAX)

    def change(batch: Batch, row: JobRow) -> JobUpdate | None:
        step = cancel(life_of(row)) if row.array is None else None
        reason = NOT_JOINED if State(row.state) is State.RUNNING else NOT_STARTED
        return cancel_update(batch, row, step, reason) if step is not None else None

    return leadership.change_jobs(context, due, change)
