"""Cancel, hold or release many named jobs, or change their priority, in short transactions."""

from __future__ import annotations

import msgspec

from switchyard.errors import Denied, YardError
from switchyard.model.job.blocker import Blocker, has_blocker
from switchyard.model.job.bulk_actions import ActedOnJobs, ActOnJobs, BulkAction, RefusedJob
from switchyard.model.wire.api import JobChange
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.core.writes.batch import Batch
from switchyard.service.core.writes.change_budget import JOB_CHANGE_UNITS
from switchyard.service.job.bulk_cancel import PIECE_JOBS, cancel_jobs
from switchyard.service.job.job_control import change_update
from switchyard.service.lifecycle.visible_jobs import audit_others_jobs, need_job_control, visible_filter
from switchyard.store.jobs import jobs
from switchyard.store.jobs.job_update import JobUpdate


def change_many(context: Context, actor: Actor, wanted: ActOnJobs) -> ActedOnJobs:
    """Change the jobs that are named. Each job that stays as it was is counted, or named with the reason."""
    change = _change_of(wanted)
    allowed, refused = _allowed(context, actor, list(dict.fromkeys(wanted.jobs)))
    if change is None:
        changed = cancel_jobs(context, actor, allowed, wanted.reason) if allowed else []
        return ActedOnJobs(len(changed), len(allowed) - len(changed), refused)
    if allowed:
        context.changes.charge(actor, JOB_CHANGE_UNITS * len(allowed))
    changed = []
    for start in range(0, len(allowed), PIECE_JOBS):
        piece_changed, piece_refused = _change_piece(context, actor, allowed[start : start + PIECE_JOBS], change)
        changed += piece_changed
        refused += piece_refused
    return ActedOnJobs(len(changed), len(set(wanted.jobs)) - len(changed) - len(refused), refused)


def _change_of(wanted: ActOnJobs) -> JobChange | None:
    """The change of each job; None: it is cancelled."""
    if wanted.action is BulkAction.PRIORITY:
        return JobChange(priority=wanted.priority)
    if wanted.action is BulkAction.CANCEL:
        return None
    return JobChange(hold=wanted.action is BulkAction.HOLD)


def _allowed(context: Context, actor: Actor, ids: list[str]) -> tuple[list[str], list[RefusedJob]]:
    """Return the jobs that the actor may change, and the others with the reason."""
    with context.database.read() as tx:
        visible = visible_filter(context, actor, jobs.JobFilter(ids=ids))
        rows, _ = jobs.job_list(tx, visible, before=None, limit=len(ids), budget=len(ids) + 1, with_spec=False)
    allowed, refused = [], [no_such_job(job_id) for job_id in ids if job_id not in {row.id for row in rows}]
    for row in rows:
        try:
            need_job_control(actor, row)
        except Denied as exc:
            refused.append(RefusedJob(row.id, exc.detail))
        else:
            allowed.append(row.id)
    return allowed, refused


def no_such_job(job_id: str) -> RefusedJob:
    return RefusedJob(job_id, f"There is no job {job_id}, or it is not yours to see.")


def _change_piece(
    context: Context, actor: Actor, ids: list[str], change: JobChange
) -> tuple[list[str], list[RefusedJob]]:
    def apply(batch: Batch) -> tuple[list[str], list[RefusedJob]]:
        locked = batch.rows  # as they are now: no other write of this transaction has changed them
        refused = [no_such_job(job_id) for job_id in ids if job_id not in locked]
        updates: dict[str, JobUpdate] = {}
        for row in locked.values():
            if change.hold and has_blocker(row.blocked, Blocker.HOLD):
                continue
            try:
                if update := change_update(batch, context, actor, row, change):
                    updates[row.id] = update
            except YardError as exc:
                refused.append(RefusedJob(row.id, exc.detail))
        jobs.job_update_many(batch.tx, updates)
        changed = [locked[job_id] for job_id in updates]
        audit_others_jobs(batch, context, actor, "job.change", changed, **msgspec.to_builtins(change))
        return list(updates), refused

    return context.committer.call_large(apply, locks=ids, user=actor.id)
