"""List jobs by another order than that of their ids: among the newest ones, in one query of bounded cost."""

from __future__ import annotations

import sqlalchemy as sa

from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import columns_of, fetch_all
from switchyard.store.jobs.job_rows import JobDetails
from switchyard.store.jobs.job_windows import JobWindow, find_window
from switchyard.store.jobs.jobs import JobFilter, filter_conditions
from switchyard.store.tables.clusters_tables import clusters
from switchyard.store.tables.schema import jobs

_COLUMNS = columns_of(JobDetails, jobs, cluster=clusters.c.name, spec=sa.null())
_NOT_STARTED = -1  # the run time of a job that has not started: such jobs come last


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
