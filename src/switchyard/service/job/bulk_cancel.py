"""Cancel all jobs that a selector means, in short rounds: a hundred thousand cancels never hold up anybody's submit."""

from __future__ import annotations

from switchyard.errors import BadRequest, Denied, Malformed
from switchyard.model.api import CancelledMany, CancelMany, JobSelector
from switchyard.model.ids import is_id, make_id
from switchyard.model.job import State
from switchyard.model.lifecycle import LIVE_STATES
from switchyard.model.names import printable_line
from switchyard.service.committer import Batch
from switchyard.service.context import Context
from switchyard.service.job.jobs import audit_others_jobs, need_job_control, request_cancel, visible_filter
from switchyard.service.rights import Actor
from switchyard.store import jobs


def cancel_many(context: Context, actor: Actor, wanted: CancelMany) -> CancelledMany:
    """One round, newest jobs first. The cursor goes down only, so what is submitted meanwhile is left alone."""
    if wanted.selector == JobSelector() and not wanted.everything:
        raise BadRequest(
            "The selector is empty: that would be every job.",
            next_step="Say which jobs are meant, or send `everything: true`.",
        )
    if wanted.cursor is not None and not is_id(wanted.cursor):
        raise Malformed("The cursor is not one of ours.")
    states = [state for state in (wanted.selector.states or State) if state in LIVE_STATES]
    if not states:
        return CancelledMany()
    with context.database.read() as tx:
        rows, more = jobs.job_list(
            tx,
            visible_filter(context, actor, selector_filter(context, wanted.selector, states)),
            before=wanted.cursor,
            limit=wanted.limit,
            budget=context.list_budget,
            with_spec=False,
        )
    mine = [row.id for row in rows if row.cancel_us is None and _may_control(actor, row)]
    refused = sum(1 for row in rows if row.cancel_us is None) - len(mine)
    asked = mine if wanted.dry_run or not mine else _cancel(context, actor, mine, wanted.reason)
    return CancelledMany(len(asked), refused, asked, more)


def selector_filter(context: Context, wanted: JobSelector, states: list[State]) -> jobs.JobFilter:
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
    """The lowest id that a job made since then can have: ids begin with their time."""
    return None if since_s is None else make_id(max(0, context.now_us() - since_s * 1_000_000), 0)


def _cancel(context: Context, actor: Actor, ids: list[str], reason: str) -> list[str]:
    said = f"cancelled by {actor.name}" + (f": {printable_line(reason)}" if reason else "")

    def apply(batch: Batch) -> list[str]:
        locked = jobs.job_lock(batch.tx, ids)
        asked = request_cancel(batch, list(locked.values()), said)
        audit_others_jobs(
            batch, context, actor, "job.cancel", [locked[each] for each in asked], reason=printable_line(reason)
        )
        return asked

    return context.committer.call(apply, locks=ids)


def _may_control(actor: Actor, row: jobs.Row) -> bool:
    try:
        need_job_control(actor, row)
    except Denied:
        return False
    return True
