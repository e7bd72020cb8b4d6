"""Hold and release a job, change its priority, and cancel some tasks of an array."""

from __future__ import annotations

from itertools import islice

import msgspec

from switchyard.errors import BadRequest, Conflict, PolicyRefused
from switchyard.model.cluster.idset import IdSet
from switchyard.model.job.blocker import Blocker, change_blocked, has_blocker, is_held_back
from switchyard.model.job.event_kind import EventKind
from switchyard.model.job.job import CancelledTasks, Job, State
from switchyard.model.job.lifecycle import FINAL_STATES, make_transition, unassign
from switchyard.model.job.taskset import read_delayed_tasks
from switchyard.model.job.unreadable import UNREADABLE_ERRORS
from switchyard.model.wire.api import JobChange
from switchyard.policy.kinds.job_priority import JOB_PRIORITY, nearest_priority, priority_refusal
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.service.core.writes.change_budget import JOB_CHANGE_UNITS
from switchyard.service.job.jobs import array_tally, cancelled_view, job_view
from switchyard.service.lifecycle.arrays import BatchArrays, cancel_tasks
from switchyard.service.lifecycle.damage import damage_of, unreadable_error
from switchyard.service.lifecycle.transitions import life_of, record_step, step_update
from switchyard.service.lifecycle.visibility import Visibility, audit_others_jobs, need_job_control, visible_job
from switchyard.service.lifecycle.wait_clock import start_wait_clock
from switchyard.store.jobs import jobs, unreadable_jobs
from switchyard.store.jobs.job_rows import JobDetails, JobRow
from switchyard.store.jobs.job_update import JobUpdate

INDEXES_CHECKED_MAX = 10_000  # indexes searched for an unknown one to name in the error
# Blockers that a release removes from a job whose row was repaired: the router decides about the job again.
_DECIDED_AGAIN = (Blocker.UNREADABLE, Blocker.QUEUE, Blocker.QUOTES, Blocker.BACKOFF)


def job_change(context: Context, actor: Actor, ref: str, wanted: JobChange) -> Job:
    """Hold or release a job, or change its priority.

    A job that an agent already has cannot be held, and its priority no longer matters here. Of an array, the tasks that
    no agent has are held; the others run on.
    """
    with context.database.read() as tx:
        job = visible_job(tx, actor, ref)
    need_job_control(actor, job)
    context.changes.charge(actor, JOB_CHANGE_UNITS)

    def apply(batch: Batch) -> JobDetails:
        row = jobs.job_lock(batch.tx, [job.id])[job.id]
        update = change_update(batch, context, actor, row, wanted)
        if update:
            jobs.job_update_many(batch.tx, {row.id: update})
            audit_others_jobs(batch, context, actor, "job.change", [row], **msgspec.to_builtins(wanted))
        changed = jobs.job_get(batch.tx, row.id)
        assert changed is not None
        return changed

    return job_view(context.committer.call(apply, locks=[job.id]), Visibility(context, actor))


def change_update(batch: Batch, context: Context, actor: Actor, row: JobRow, wanted: JobChange) -> JobUpdate:
    """Return the update of a locked job and record its events; an empty update: nothing changes.

    A refusal raises. If one thing alone is wanted, a refusal has recorded nothing.
    """
    if State(row.state) in FINAL_STATES:
        raise Conflict(f"Job {row.id} is over: {row.state}.", next_step="`yard retry` submits it once more.")
    update = JobUpdate()
    if wanted.priority is not None and wanted.priority != row.priority:
        _check_priority(context, actor, row, wanted.priority)
        update = JobUpdate(priority=wanted.priority)
        batch.job_event(row, EventKind.PRIORITY, f"{row.priority} → {wanted.priority} by {actor.name}")
    if wanted.hold is True:
        return update.merged(_hold(batch, row, actor))
    if wanted.hold is False and has_blocker(row.blocked, Blocker.UNREADABLE):
        return update.merged(_release_repaired(batch, row, actor))
    if wanted.hold is False and has_blocker(row.blocked, Blocker.HOLD):
        return update.merged(_release(batch, row, actor))
    return update


def _check_priority(context: Context, actor: Actor, row: JobRow, priority: int) -> None:
    """Refuse a priority outside the bounds of the job's scope, unless it is nearer to them than the present one."""
    if actor.is_platform_operator:
        return
    scope = (row.domain, row.project, row.workflow or "", row.launch_plan or "")
    fields = context.snapshots.policy.effective(scope).fields(JOB_PRIORITY)
    nearest = nearest_priority(priority, fields)
    is_nearer = nearest <= priority < row.priority or row.priority < priority <= nearest
    if not is_nearer and (refusal := priority_refusal(priority, fields)):
        raise PolicyRefused(f"A rule of project {row.project}, domain {row.domain} refuses the change. {refusal}.")


def _release(batch: Batch, row: JobRow, actor: Actor) -> JobUpdate:
    """Release a held job. The leader routes it again and checks again whether it needs a place in its queue."""
    batch.job_event(row, EventKind.RELEASED, f"by {actor.name}")
    batch.topics.add(Topic.PENDING)
    blocked = change_blocked(change_blocked(row.blocked, remove=Blocker.HOLD), remove=Blocker.QUEUE)
    released = JobUpdate(blocked=blocked, reason="")
    return released if is_held_back(blocked) else released.merged(start_wait_clock(row, batch.now_us))


def _release_repaired(batch: Batch, row: JobRow, actor: Actor) -> JobUpdate:
    """Release a job that was blocked because its row could not be read. Refuse it while the row is still damaged."""
    if damage := damage_of(unreadable_jobs.jobs_with_specs(batch.tx, [row.id])[0]):
        raise unreadable_error(row.id, damage)
    blocked = row.blocked
    for blocker in _DECIDED_AGAIN:
        blocked = change_blocked(blocked, remove=blocker)
    batch.job_event(row, EventKind.RELEASED, f"by {actor.name}, after its row was repaired")
    batch.topics.add(Topic.PENDING)
    due_times_us = [due_us for due_us, _ in read_delayed_tasks(row.later, row.array)] if row.array is not None else []
    return JobUpdate(blocked=blocked, reason="", wake_us=min(due_times_us, default=None))


def _hold(batch: Batch, row: JobRow, actor: Actor) -> JobUpdate:
    reason = f"held by {actor.name}; `yard release` lets it go"
    held = JobUpdate(blocked=change_blocked(row.blocked, add=Blocker.HOLD), reason=reason)
    if row.array is not None:
        _refuse_hold_without_waiting_tasks(row)
    if State(row.state) is State.PENDING:
        batch.job_event(row, EventKind.HELD, reason)
        return held
    life = life_of(row)
    step = unassign(life, reason)
    if step is None and row.array is not None and life.state is State.RUNNING:
        # Tasks that a cluster has run on; only the others are held.
        step = make_transition(life, State.PENDING, EventKind.UNASSIGNED, reason, fence=life.next_fence)
    if step is None:
        raise Conflict(f"Job {row.id} has been handed over.", next_step="Cancel it, or wait for its end.")
    record_step(batch, row, step)
    return step_update(batch, row, step).then(held)


def _refuse_hold_without_waiting_tasks(row: JobRow) -> None:
    try:
        tally = array_tally(row)
    except UNREADABLE_ERRORS:
        return  # its tasks cannot be counted; a damaged array may be held
    if tally is not None and not tally.waiting:
        ended = tally.ok + tally.failed + tally.cancelled
        raise Conflict(
            f"No task of {row.id} waits: clusters have {tally.live} of {tally.total}, and {ended} have ended.",
            next_step="Cancel it, or wait for its end.",
        )


def tasks_cancel(context: Context, actor: Actor, ref: str, indexes: IdSet) -> Job:
    """Request the cancel of some tasks of an array."""
    with context.database.read() as tx:
        job = visible_job(tx, actor, ref)
    need_job_control(actor, job)
    if job.array is None:
        raise BadRequest(f"Job {job.id} is not an array.", next_step="Leave out the indexes.")
    known = IdSet.parse(job.array)
    if not indexes.is_within(known):
        unknown = next(
            (index for index in islice(indexes, INDEXES_CHECKED_MAX) if index not in known), str(indexes)[:80]
        )
        raise BadRequest(f"Job {job.id} has no task {unknown}.", next_step=f"Its tasks are {job.array[:80]}.")
    context.changes.charge(actor, JOB_CHANGE_UNITS)

    def apply(batch: Batch) -> tuple[JobDetails, CancelledTasks]:
        row, done = jobs.job_lock(batch.tx, [job.id])[job.id], CancelledTasks(ended=len(indexes))
        if State(row.state) not in FINAL_STATES:
            arrays = BatchArrays(batch)
            arrays.load([row])
            done = cancel_tasks(batch, arrays.job(row.id), indexes)
            batch.job_event(row, EventKind.TASKS_CANCELLED, f"tasks {indexes} by {actor.name}"[:500])
            arrays.flush()
            audit_others_jobs(batch, context, actor, "job.cancel-tasks", [row], tasks=str(indexes)[:500])
        changed = jobs.job_get(batch.tx, row.id)
        assert changed is not None
        return changed, done

    changed, done = context.committer.call(apply, locks=[job.id])
    return cancelled_view(changed, Visibility(context, actor), done)
