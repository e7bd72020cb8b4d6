"""End a job that no agent has leased."""

from __future__ import annotations

from switchyard.model.job.event_kind import EVENT_OF_STATE
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import LifecycleState, Transition, make_transition, unassign
from switchyard.service.core.writes.batch import Batch
from switchyard.service.lifecycle.array_cancel import drop_unleased_tasks
from switchyard.service.lifecycle.transitions import life_of, record_step, step_update
from switchyard.store.jobs.job_rows import JobRow
from switchyard.store.jobs.job_update import JobUpdate


def end_unleased_job(batch: Batch, row: JobRow, to: State, reason: str) -> JobUpdate:
    """Return the update that ends a job that no agent has leased, and record the event."""
    life: LifecycleState = life_of(row)
    unassigned = unassign(life, reason)
    step: Transition = make_transition(unassigned.life if unassigned else life, to, EVENT_OF_STATE[to], reason)
    record_step(batch, row, step)
    ended = step_update(batch, row, step).then(JobUpdate(blocked=None, wake_us=None, expires_us=None))
    return ended.merged(drop_unleased_tasks(row))
