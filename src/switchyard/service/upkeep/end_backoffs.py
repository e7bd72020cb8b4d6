"""End back-offs whose time is over."""

from __future__ import annotations

from switchyard.model.job.blocker import Blocker, change_blocked
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import FINAL_STATES
from switchyard.service.core.context import Context
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.service.lifecycle.array_job import ArrayJob
from switchyard.service.lifecycle.array_spread import lessee_ids
from switchyard.service.upkeep.leadership import ROUND_MAX, Leadership
from switchyard.store.jobs import jobs
from switchyard.store.jobs.job_rows import JobRow
from switchyard.store.jobs.job_update import JobUpdate


def end_backoffs(context: Context, leadership: Leadership) -> int:
    """End due back-offs: jobs are routed again, and tasks of arrays leased again. Returns the number of jobs."""
    with context.database.read() as tx:
        due = jobs.job_ids_backoff_over(tx, now_us=context.now_us(), limit=ROUND_MAX)

    def change(batch: Batch, row: JobRow) -> JobUpdate | None:
        if row.wake_us is None or row.wake_us > batch.now_us:
            return None
        if State(row.state) in FINAL_STATES:
            return JobUpdate(wake_us=None)
        batch.topics.add(Topic.PENDING)
        over = JobUpdate(wake_us=None, blocked=change_blocked(row.blocked, remove=Blocker.BACKOFF))
        return over if row.array is None else over.then(_return_due_tasks(batch, row))

    return leadership.change_jobs(context, due, change)


def _return_due_tasks(batch: Batch, row: JobRow) -> JobUpdate:
    array = ArrayJob.of(row)
    for due_us, tasks in array.later:
        if due_us <= batch.now_us:
            array.todo = array.todo.union(tasks)
    array.later = [(due_us, tasks) for due_us, tasks in array.later if due_us > batch.now_us]
    batch.clusters.update(lessee_ids(row))
    return array.update(batch.now_us)
