"""Find the jobs that an action on many jobs would touch, and count them for the person who decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from switchyard.errors import Denied
from switchyard.model.job.blocker import Blocker, has_blocker
from switchyard.model.job.bulk_actions import BulkAction, JobSelection, ReasonCount, SelectedCount, SelectedJob
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import FINAL_STATES, LIVE_STATES
from switchyard.model.job.unreadable import UNREADABLE_ERRORS
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.job.jobs import array_tally
from switchyard.service.lifecycle.retry_keys import retry_key
from switchyard.service.lifecycle.visible_jobs import need_job_control, visible_filter
from switchyard.store.jobs import jobs
from switchyard.store.jobs.job_rows import JobDetails

FIRST_JOBS = 10  # named in each round
RETRIED_BY_DEFAULT = (State.FAILED,)  # without a filter by state, as `yard retry` does


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
