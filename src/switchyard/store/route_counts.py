"""Count where many jobs went, and when, in queries that read a bounded number of jobs."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from switchyard.store.database import Tx
from switchyard.store.fetch import StoredRow, fetch_all
from switchyard.store.job_rows import StateName
from switchyard.store.schema import clusters, jobs


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


_READ = [
    jobs.c[name]
    for name in (
        "bounds",
        "lane",
        "state",
        "blocked",
        "cluster_id",
        "owner_id",
        "attempt",
        "reason",
        "plan_hash",
        "project",
    )
]  # a job has many more columns, and 20,000 jobs are read


def count_by_route(
    tx: Tx, *, oldest: str, projects: Sequence[str] | None, reader: str, budget: int, limit: int
) -> tuple[list[RouteCount], int]:
    """Group the newest `budget` jobs from an id on by the way they went. Also returns how many jobs were read.

    `projects`: those the reader may view, besides their own jobs; None: all.
    """
    window = sa.select(*_READ).where(jobs.c.id >= oldest).order_by(jobs.c.id.desc()).limit(budget).subquery()
    ids = sa.select(jobs.c.id).where(jobs.c.id >= oldest).limit(budget).subquery()
    read_count: int = tx.execute(sa.select(sa.func.count()).select_from(ids)).scalar_one()
    groups = (
        window.c.bounds,
        window.c.lane,
        window.c.state,
        window.c.blocked,
        clusters.c.name.label("cluster"),
        window.c.cluster_id,
        (window.c.owner_id == reader).label("is_own"),  # the reader may see the clusters of their own jobs
        (window.c.attempt > 0).label("is_assigned"),
        sa.case((window.c.state == "PENDING", window.c.reason), else_="").label("reason"),
        sa.case((window.c.state == "REJECTED", window.c.plan_hash), else_=None).label("plan_hash"),
    )
    query = sa.select(*groups, sa.func.count().label("size")).select_from(
        window.outerjoin(clusters, clusters.c.id == window.c.cluster_id)
    )
    if projects is not None:
        query = query.where(sa.or_(window.c.project.in_(projects), window.c.owner_id == reader))
    return fetch_all(tx, RouteCount, query.group_by(*groups).order_by(sa.desc("size")).limit(limit)), read_count


class TimeCount(StoredRow, frozen=True):
    """How many jobs (`size`) were made in one span of time, by state and cluster."""

    span: int
    state: StateName
    cluster: str | None
    cluster_id: str | None
    is_own: bool | None
    size: int


_TIMED = [jobs.c[name] for name in ("created_us", "state", "cluster_id", "owner_id", "project")]


def count_by_time(
    tx: Tx, *, oldest: str, span_us: int, projects: Sequence[str] | None, reader: str, budget: int, limit: int
) -> list[TimeCount]:
    """Group the newest `budget` jobs from an id on by the span of time in which they were made: time // span_us."""
    window = sa.select(*_TIMED).where(jobs.c.id >= oldest).order_by(jobs.c.id.desc()).limit(budget).subquery()
    span = window.c.created_us // sa.literal(span_us, sa.BigInteger)
    groups = (
        span,
        window.c.state,
        clusters.c.name,
        window.c.cluster_id,
        window.c.owner_id == reader,
    )
    names = ("span", "state", "cluster", "cluster_id", "is_own")
    query = sa.select(
        *(column.label(name) for column, name in zip(groups, names, strict=True)), sa.func.count().label("size")
    ).select_from(window.outerjoin(clusters, clusters.c.id == window.c.cluster_id))
    if projects is not None:
        query = query.where(sa.or_(window.c.project.in_(projects), window.c.owner_id == reader))
    return fetch_all(tx, TimeCount, query.group_by(*groups).order_by(sa.desc("size")).limit(limit))
