"""Queries that count many jobs at once, within a bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from switchyard.store.database import Tx
from switchyard.store.schema import clusters, jobs

Row = sa.Row[*tuple[Any, ...]]
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
) -> tuple[list[Row], int]:
    """Jobs from an id on, the newest `budget` of them, counted by all that says where they went; and how many were
    looked at. Of those that wait also by the reason, of the rejected by their verdicts.

    `projects`: those the reader may view, besides their own jobs; none: all.
    """
    window = sa.select(*_READ).where(jobs.c.id >= oldest).order_by(jobs.c.id.desc()).limit(budget).subquery()
    ids = sa.select(jobs.c.id).where(jobs.c.id >= oldest).limit(budget).subquery()
    looked_at: int = tx.execute(sa.select(sa.func.count()).select_from(ids)).scalar_one()
    groups = (
        window.c.bounds,
        window.c.lane,
        window.c.state,
        window.c.blocked,
        clusters.c.name.label("cluster"),
        window.c.cluster_id,
        (window.c.owner_id == reader).label("is_own"),  # the reader knows where their own ran
        (window.c.attempt > 0).label("is_assigned"),
        sa.case((window.c.state == "PENDING", window.c.reason), else_="").label("reason"),
        sa.case((window.c.state == "REJECTED", window.c.plan_hash), else_=None).label("plan_hash"),
    )
    query = sa.select(*groups, sa.func.count().label("size")).select_from(
        window.outerjoin(clusters, clusters.c.id == window.c.cluster_id)
    )
    if projects is not None:
        query = query.where(sa.or_(window.c.project.in_(projects), window.c.owner_id == reader))
    return list(tx.execute(query.group_by(*groups).order_by(sa.desc("size")).limit(limit))), looked_at
