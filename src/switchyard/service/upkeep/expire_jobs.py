"""End jobs that did not start in time."""

from __future__ import annotations

from switchyard.model.job.bounds import decode_bounds
from switchyard.model.job.event_kind import EVENT_OF_STATE
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import FINAL_STATES, LifecycleState, Transition, make_transition, unassign
from switchyard.service.core.context import Context
from switchyard.service.core.writes.batch import Batch
from switchyard.service.lifecycle.array_cancel import drop_unleased_tasks
from switchyard.service.lifecycle.transitions import life_of, record_step, step_update
from switchyard.service.lifecycle.wait_clock import expiry_cause
from switchyard.service.placement.decision_counts import count_spill_rejection
from switchyard.service.upkeep.leadership import ROUND_MAX, Leadership
from switchyard.store.jobs import jobs
from switchyard.store.jobs.job_rows import JobRow
from switchyard.store.jobs.job_update import JobUpdate


def expire_jobs(context: Context, leadership: Leadership) -> int:
    """End expired jobs that have not started. By `expires_after` a job fails; by a spill rule it is rejected."""
    with context.database.read() as tx:
        due = jobs.job_ids_expired(tx, now_us=context.now_us(), limit=ROUND_MAX)

    def change(batch: Batch, row: JobRow) -> JobUpdate | None:
        if row.expires_us is None or row.expires_us > batch.now_us:
            return None
        life = life_of(row)
        if life.state in FINAL_STATES or life.is_leased or row.leased_us is not None or row.tries:
            return JobUpdate(expires_us=None)  # the job started in time
        bounds = decode_bounds(row.bounds)
        rule = expiry_cause(row, bounds, batch.now_us)
        if isinstance(rule, int):  # a later expiry time
            return JobUpdate(expires_us=rule)
        jobs.dependency_clear(batch.tx, [row.id])
        if rule is not None:
            reason = f"it has not begun after {rule.after}: rule `{rule.text}` ({bounds.spill_from})"
            count_spill_rejection(context.tally, batch, row)
            return end_unleased_job(batch, row, State.REJECTED, reason)
        return end_unleased_job(batch, row, State.FAILED, "expired: it did not begin in time")

    return leadership.change_jobs(context, due, change)


def end_unleased_job(batch: Batch, row: JobRow, to: State, reason: str) -> JobUpdate:
    """Return the update that ends a job that no agent has leased, and record the event."""
    life: LifecycleState = life_of(row)
    unassigned = unassign(life, reason)
    step: Transition = make_transition(unassigned.life if unassigned else life, to, EVENT_OF_STATE[to], reason)
    record_step(batch, row, step)
    ended = step_update(batch, row, step).then(JobUpdate(blocked=None, wake_us=None, expires_us=None))
    return ended.merged(drop_unleased_tasks(row))
