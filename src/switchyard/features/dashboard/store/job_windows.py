"""Count jobs by a field, or list them by another order than by id. Each query reads a bounded number of jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, columns_of, fetch_all
from switchyard.store.jobs.job_rows import JobDetails
from switchyard.store.jobs.jobs import JobFilter, filter_conditions
from switchyard.store.tables.clusters_tables import clusters
from switchyard.store.tables.schema import jobs

GROUP_COLUMNS: dict[str, sa.ColumnElement[str | None]] = {
    "state": jobs.c.state,
    "project": jobs.c.project,
    "domain": jobs.c.domain,
    "owner": jobs.c.owner,
    "queue": jobs.c.lane,
    "cluster": clusters.c.name,
    "workflow": jobs.c.workflow,
    "label": jobs.c.labels,  # all labels of a job, as JSON
}
_COLUMNS = columns_of(JobDetails, jobs, cluster=clusters.c.name, spec=sa.null())
_NOT_STARTED = -1  # the run time of a job that has not started: such jobs come last
WINDOWS_MAX = 10  # a filter that few jobs match reads so many windows, and no more


class GroupCount(StoredRow, frozen=True):
    """How many jobs (`size`) have the same value. `is_own`: the reader's jobs are counted apart from others' jobs."""

    name: str | None
    cluster_id: str | None
    is_own: bool | None
    size: int


def count_groups(
    tx: Tx, wanted: JobFilter, *, by: str, budget: int, limit: int
) -> tuple[list[GroupCount], JobWindow | None]:
    """Group the newest jobs that match, by a key of GROUP_COLUMNS. `budget`: as in `find_window`.

    Also returns the jobs among which were counted (None: there is no job).
    """
    window = find_window(tx, wanted, budget=budget)
    if window is None:
        return [], None
    is_own = jobs.c.owner_id == (wanted.reader or "")
    groups: list[sa.ColumnElement[Any]] = [GROUP_COLUMNS[by], is_own, *([jobs.c.cluster_id] if by == "cluster" else [])]
    query = (
        sa.select(
            GROUP_COLUMNS[by].label("name"),
            (jobs.c.cluster_id if by == "cluster" else sa.null()).label("cluster_id"),
            is_own.label("is_own"),
            sa.func.count().label("size"),
        )
        .select_from(jobs.outerjoin(clusters, clusters.c.id == jobs.c.cluster_id))
        .where(jobs.c.id >= window.lowest, *filter_conditions(wanted))
        .group_by(*groups)
        .order_by(sa.desc("size"))
        .limit(limit)
    )
    return fetch_all(tx, GroupCount, query), window


def _orders(now_us: int) -> dict[str, sa.ColumnElement[object]]:
    """The orders by name. `oldest` is about the oldest jobs, all others about the newest."""
    ran = sa.func.coalesce(jobs.c.ended_us, now_us) - jobs.c.started_us
    waited = sa.func.coalesce(jobs.c.started_us, jobs.c.ended_us, now_us) - jobs.c.created_us
    return {
        "oldest": jobs.c.id.asc(),
        "priority": jobs.c.priority.desc(),
        "ran": sa.func.coalesce(ran, _NOT_STARTED).desc(),
        "waited": waited.desc(),
        "name": jobs.c.name.asc(),
    }


ORDERS = tuple(_orders(0))


def job_sorted(
    tx: Tx, wanted: JobFilter, *, order: str, offset: int, limit: int, budget: int, now_us: int
) -> tuple[list[JobDetails], bool, JobWindow | None]:
    """List jobs that match among the newest ones (of `oldest`: among the oldest), sorted.

    Also returns whether there are more after these, and the jobs among which were sorted (None: there is no job).
    """
    window = find_window(tx, wanted, budget=budget, is_oldest=order == "oldest")
    if window is None:
        return [], False, None
    query = (
        sa.select(*_COLUMNS)
        .select_from(jobs.outerjoin(clusters, clusters.c.id == jobs.c.cluster_id))
        .where(jobs.c.id >= window.lowest, jobs.c.id <= window.highest, *filter_conditions(wanted))
        .order_by(_orders(now_us)[order], jobs.c.id.desc())
        .limit(limit + 1)
        .offset(offset)
    )
    rows = fetch_all(tx, JobDetails, query)
    return rows[:limit], len(rows) > limit, window


@dataclass(frozen=True, slots=True)
class JobWindow:
    """A range of job ids. `is_whole`: there is no older job (from the oldest jobs on: no newer job)."""

    lowest: str
    highest: str
    jobs_read: int
    is_whole: bool


def find_window(tx: Tx, wanted: JobFilter, *, budget: int, is_oldest: bool = False) -> JobWindow | None:
    """Return the newest jobs among which `budget` jobs match, with `is_oldest` the oldest ones. None: there are none.

    Reads `budget` jobs at a time and at most WINDOWS_MAX times as many. So the jobs of one busy user do not hide the
    jobs of others, and the cost stays bounded.
    """
    has_filter = bool(filter_conditions(wanted))
    lowest = highest = None
    jobs_read = matching = 0
    while True:
        window = sa.select(jobs.c.id).order_by(jobs.c.id.asc() if is_oldest else jobs.c.id.desc()).limit(budget)
        if wanted.oldest is not None:
            window = window.where(jobs.c.id >= wanted.oldest)
        if lowest is not None:
            window = window.where(jobs.c.id > highest if is_oldest else jobs.c.id < lowest)
        ids = window.subquery().c.id
        first, last, size = tx.execute(sa.select(sa.func.min(ids), sa.func.max(ids), sa.func.count())).one()
        jobs_read += size
        if size:
            lowest, highest = min(lowest or first, first), max(highest or last, last)
        is_whole = size < budget
        if not is_whole and has_filter:
            matching += _count_matching(tx, wanted, first, last)
        if is_whole or not has_filter or matching >= budget or jobs_read >= budget * WINDOWS_MAX:
            return None if lowest is None or highest is None else JobWindow(lowest, highest, jobs_read, is_whole)


def _count_matching(tx: Tx, wanted: JobFilter, lowest: str, highest: str) -> int:
    query = (
        sa.select(sa.func.count())
        .select_from(jobs.outerjoin(clusters, clusters.c.id == jobs.c.cluster_id))
        .where(jobs.c.id >= lowest, jobs.c.id <= highest, *filter_conditions(wanted))
    )
    count: int = tx.execute(query).scalar_one()
    return count
