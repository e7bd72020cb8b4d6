"""Count where many jobs went, and when, in queries that read a bounded number of jobs."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, columns_of, fetch_all
from switchyard.store.jobs.job_rows import StateName
from switchyard.store.tables.clusters_tables import clusters
from switchyard.store.tables.schema import jobs


class RouteCount(StoredRow, frozen=True):
    """How many jobs (`size`) went the same way. `reason` of pending jobs only, `plan_hash` of rejected jobs only."""

    bounds: str
    lane: str
    state: StateName
    blocked: str | None
    cluster: str | None
    cluster_id: str | None
    is_own: bool | None
    is_assigned: bool
    reason: str
    plan_hash: str | None
    size: int


def count_by_route(
    tx: Tx, *, oldest: str, projects: Sequence[str] | None, reader: str, budget: int, limit: int
) -> tuple[list[RouteCount], int]:
    """Group the newest `budget` jobs from an id on by the way they went. Also returns how many jobs were read.

    `projects`: those the reader may view, besides their own jobs; None: all.
    """
    ids = sa.select(jobs.c.id).where(jobs.c.id >= oldest).limit(budget).subquery()
    read_count: int = tx.execute(sa.select(sa.func.count()).select_from(ids)).scalar_one()
    window = (
        sa.select(
            # Short columns that differ come first: the database sorts by them, and seldom compares the long bounds.
            jobs.c.state,
            jobs.c.cluster_id,
            jobs.c.lane,
            (jobs.c.attempt > 0).label("is_assigned"),
            jobs.c.blocked,
            (jobs.c.owner_id == reader).label("is_own"),  # the reader may see the clusters of their own jobs
            sa.case((jobs.c.state == "PENDING", jobs.c.reason), else_="").label("reason"),
            sa.case((jobs.c.state == "REJECTED", jobs.c.plan_hash), else_=None).label("plan_hash"),
            jobs.c.bounds,
            jobs.c.project,
        )
        .where(jobs.c.id >= oldest)
        .order_by(jobs.c.id.desc())
        .limit(budget)
        .subquery()
    )
    return fetch_all(tx, RouteCount, _counted(window, RouteCount, projects, limit)), read_count


class TimeCount(StoredRow, frozen=True):
    """How many jobs (`size`) were made in one span of time, by state and cluster."""

    span: int
    state: StateName
    cluster: str | None
    cluster_id: str | None
    is_own: bool | None
    size: int


def count_by_time(
    tx: Tx, *, oldest: str, span_us: int, projects: Sequence[str] | None, reader: str, budget: int, limit: int
) -> list[TimeCount]:
    """Group the newest `budget` jobs from an id on by the span of time in which they were made: time // span_us."""
    window = (
        sa.select(
            (jobs.c.created_us // sa.literal(span_us, sa.BigInteger)).label("span"),
            jobs.c.state,
            jobs.c.cluster_id,
            (jobs.c.owner_id == reader).label("is_own"),
            jobs.c.project,
        )
        .where(jobs.c.id >= oldest)
        .order_by(jobs.c.id.desc())
        .limit(budget)
        .subquery()
    )
    return fetch_all(tx, TimeCount, _counted(window, TimeCount, projects, limit))


def _counted(
    window: sa.Subquery, row_type: type[RouteCount | TimeCount], projects: Sequence[str] | None, limit: int
) -> sa.Select[tuple[object, ...]]:
    """Count the equal rows of a window, then look up the names of clusters: once for a group, not for a job."""
    groups = [column for column in window.c if column.name != "project"]
    query = sa.select(*groups, sa.func.count().label("size"))
    if projects is not None:
        query = query.where(sa.or_(window.c.project.in_(projects), window.c.is_own))
    counts = query.group_by(*groups).order_by(sa.desc("size")).limit(limit).subquery()
    columns = columns_of(row_type, counts, cluster=clusters.c.name)
    named = sa.select(*columns).select_from(counts.outerjoin(clusters, clusters.c.id == counts.c.cluster_id))
    return named.order_by(counts.c.size.desc())
