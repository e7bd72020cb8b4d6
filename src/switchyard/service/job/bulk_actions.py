"""Actions on many jobs: find and count the jobs for the person who decides, then change them in short transactions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import msgspec

from switchyard.errors import BadRequest, Denied, Malformed, YardError
from switchyard.model.job.blocker import Blocker, has_blocker
from switchyard.model.job.bulk_actions import (
    ActedOnJobs,
    ActOnJobs,
    BulkAction,
    JobSelection,
    ReasonCount,
    RefusedJob,
    SelectedCount,
    SelectedJob,
)
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import FINAL_STATES, LIVE_STATES
from switchyard.model.job.unreadable import UNREADABLE_ERRORS
from switchyard.model.rules.names import printable_line
from switchyard.model.wire.api import CancelledMany, CancelMany, JobChange, JobSelector
from switchyard.model.wire.ids import is_id, make_id
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.core.writes.batch import Batch
from switchyard.service.core.writes.change_budget import JOB_CHANGE_UNITS
from switchyard.service.job.job_control import change_update
from switchyard.service.job.jobs import array_tally, request_cancel
from switchyard.service.lifecycle.retry_keys import retry_key
from switchyard.service.lifecycle.visibility import audit_others_jobs, need_job_control, visible_filter
from switchyard.store.jobs import jobs
from switchyard.store.jobs.job_rows import JobDetails, JobRow
from switchyard.store.jobs.job_update import JobUpdate

FIRST_JOBS = 10  # named in each round
RETRIED_BY_DEFAULT = (State.FAILED,)  # without a filter by state, as `yard retry` does
PIECE_JOBS = 50  # in one transaction, which takes some tens of milliseconds: a submit waits for at most one


def select_jobs(
    context: Context, actor: Actor, wanted: jobs.JobFilter, action: BulkAction, *, before: str | None, limit: int
) -> JobSelection:
    """Return one round of the matching jobs that the action would touch, newest first. Reads a bounded number of rows.

    Jobs on a cluster are those that are there as a whole: an array with some tasks there is not one of them.
    """
    states = _states(action, wanted.states)
    if not states:
        return JobSelection()
    narrowed = visible_filter(context, actor, replace(wanted, states=states, is_by_task=False))
    with context.database.read() as tx:
        rows, more = jobs.job_list(
            tx, narrowed, before=before, limit=limit, budget=context.list_budget, with_spec=False
        )
        retried = _retried(tx, actor, rows) if action is BulkAction.RETRY else frozenset()
    touched: list[JobDetails] = []
    refused: Counter[str] = Counter()
    for row in rows:
        if row.id in retried or not _would_change(action, row):
            continue
        try:
            need_job_control(actor, row)
        except Denied as exc:
            refused[exc.detail] += 1
        else:
            touched.append(row)
    return JobSelection(
        ids=[row.id for row in touched],
        counts=_counts(touched),
        first=[SelectedJob(row.id, str(row.name), str(row.state), str(row.owner)) for row in touched[:FIRST_JOBS]],
        refused=[ReasonCount(reason, count) for reason, count in refused.most_common()],
        next=more,
    )


def _states(action: BulkAction, wanted: Iterable[str]) -> list[str]:
    """The states of jobs that the action applies to, among the wanted ones."""
    if action is BulkAction.RETRY:
        return [state for state in (wanted or RETRIED_BY_DEFAULT) if state in FINAL_STATES]
    return [State(state).value for state in (wanted or State) if state in LIVE_STATES]


def _would_change(action: BulkAction, row: JobDetails) -> bool:
    if action is BulkAction.CANCEL:
        return row.cancel_us is None
    if action is BulkAction.HOLD:
        return not has_blocker(row.blocked, Blocker.HOLD) and _has_waiting_work(row)
    if action is BulkAction.RELEASE:
        return has_blocker(row.blocked, Blocker.HOLD)
    return True


def _has_waiting_work(row: JobDetails) -> bool:
    """Whether no cluster has the job; of an array, whether tasks wait."""
    try:
        tally = array_tally(row)
    except UNREADABLE_ERRORS:
        return True  # a damaged array may be held
    return row.leased_us is None if tally is None else tally.waiting > 0


def _retried(tx: jobs.Tx, actor: Actor, rows: list[JobDetails]) -> frozenset[str]:
    """The jobs that were retried by an action on many jobs before."""
    keys = {retry_key(row.id): row.id for row in rows}
    return frozenset(keys[key] for key in jobs.idempotency_used(tx, actor.id, keys))


def _counts(rows: list[JobDetails]) -> list[SelectedCount]:
    counts = Counter((str(row.state), str(row.owner), str(row.project)) for row in rows)
    return [SelectedCount(*group, count) for group, count in counts.most_common()]


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


def cancel_many(context: Context, actor: Actor, wanted: CancelMany) -> CancelledMany:
    """Cancel one round of jobs, newest first. The cursor only moves to older jobs, so new jobs are not cancelled."""
    if wanted.selector == JobSelector() and not wanted.everything:
        raise BadRequest(
            "The selector is empty: that would be every job.",
            next_step="Say which jobs are meant, or send `everything: true`.",
        )
    if wanted.cursor is not None and not is_id(wanted.cursor):
        raise Malformed("The cursor is not one that this call returned.")
    states = [state for state in (wanted.selector.states or State) if state in LIVE_STATES]
    if not states:
        return CancelledMany()
    with context.database.read() as tx:
        rows, more = jobs.job_list(
            tx,
            visible_filter(context, actor, _selector_filter(context, wanted.selector, states)),
            before=wanted.cursor,
            limit=wanted.limit,
            budget=context.list_budget,
            with_spec=False,
        )
    allowed = [row.id for row in rows if row.cancel_us is None and _may_control(actor, row)]
    refused_count = sum(1 for row in rows if row.cancel_us is None) - len(allowed)
    cancelled = allowed if wanted.dry_run or not allowed else cancel_jobs(context, actor, allowed, wanted.reason)
    return CancelledMany(len(cancelled), refused_count, cancelled, more)


def _selector_filter(context: Context, wanted: JobSelector, states: list[State]) -> jobs.JobFilter:
    return jobs.JobFilter(
        states=[state.value for state in states],
        cluster=wanted.cluster,
        project=wanted.project,
        domain=wanted.domain,
        workflow=wanted.workflow,
        launch_plan=wanted.launch_plan,
        owner=wanted.owner,
        labels=wanted.labels,
        oldest=lowest_id_since(context, wanted.since_s),
    )


def lowest_id_since(context: Context, since_s: int | None) -> str | None:
    """Return the lowest id of a job made in the last `since_s` seconds. Ids begin with their time."""
    return None if since_s is None else make_id(max(0, context.now_us() - since_s * 1_000_000), 0)


def cancel_jobs(context: Context, actor: Actor, ids: list[str], reason: str) -> list[str]:
    """Cancel jobs piece by piece. If a piece fails, earlier ones stay cancelled; the caller's next try skips those."""
    pieces = (ids[start : start + PIECE_JOBS] for start in range(0, len(ids), PIECE_JOBS))
    return [job_id for piece in pieces for job_id in _cancel_piece(context, actor, piece, reason)]


def _cancel_piece(context: Context, actor: Actor, ids: list[str], reason: str) -> list[str]:
    event_reason = f"cancelled by {actor.name}" + (f": {printable_line(reason)}" if reason else "")

    def apply(batch: Batch) -> list[str]:
        locked = batch.rows  # as they are now: no other write of this transaction has changed them
        cancelled = request_cancel(batch, list(locked.values()), event_reason)
        audit_others_jobs(
            batch, context, actor, "job.cancel", [locked[job_id] for job_id in cancelled], reason=printable_line(reason)
        )
        return cancelled

    return context.committer.call_large(apply, locks=ids, user=actor.id)


def _may_control(actor: Actor, row: JobRow) -> bool:
    try:
        need_job_control(actor, row)
    except Denied:
        return False
    return True
