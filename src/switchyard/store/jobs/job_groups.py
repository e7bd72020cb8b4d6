"""Count jobs by one of their fields, in one query that reads a bounded number of jobs."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, fetch_all
from switchyard.store.jobs.job_windows import JobWindow, find_window
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
