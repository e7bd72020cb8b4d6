"""Cancel all jobs that match a selector, in short transactions, so that 100,000 cancels never delay a submit."""

from __future__ import annotations

from switchyard.errors import BadRequest, Denied, Malformed
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import LIVE_STATES
from switchyard.model.rules.names import printable_line
from switchyard.model.wire.api import CancelledMany, CancelMany, JobSelector
from switchyard.model.wire.ids import is_id, make_id
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.core.writes.batch import Batch
from switchyard.service.job.jobs import request_cancel
from switchyard.service.lifecycle.visible_jobs import audit_others_jobs, need_job_control, visible_filter
from switchyard.store.jobs import jobs
from switchyard.store.jobs.job_rows import JobRow

PIECE_JOBS = 50  # in one transaction, which takes some tens of milliseconds: a submit waits for at most one


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
