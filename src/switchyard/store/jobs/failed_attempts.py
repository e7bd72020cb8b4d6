"""Attempts that failed: recorded with the report of their end, and counted in queries that read a bounded number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import sqlalchemy as sa
from msgspec.structs import asdict

from switchyard.store.engine import dialect
from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, columns_of, fetch_all
from switchyard.store.tables.clusters_tables import clusters
from switchyard.store.tables.schema import failures

NODES_CHARS_MAX = 200
CountedBy = Literal["nodes", "owner"]  # what failures are counted by, besides kind and cluster


class FailedAttempt(StoredRow, frozen=True):
    """An attempt of a job or of a task that failed."""

    job_id: str
    fence: int
    at_us: int
    kind: str
    cluster_id: str | None
    nodes: str
    owner: str
    owner_id: str | None
    project: str


class FailureGroup(StoredRow, frozen=True):
    """How many attempts (`size`) failed in the same way at the same place. `by`: the node or the owner."""

    kind: str
    cluster_id: str | None
    cluster: str | None
    by: str
    is_own: bool | None
    size: int


def failure_insert_many(tx: Tx, rows: Iterable[FailedAttempt]) -> None:
    """Insert failures. One that is stored already is this same one, of an earlier try of the transaction."""
    ordered = sorted(rows, key=lambda row: (row.job_id, row.fence))
    dialect.insert_missing(tx, failures, [asdict(row) for row in ordered])


def count_failures(
    tx: Tx,
    *,
    since_us: int,
    by: CountedBy | None,
    project: str | None,
    projects: Sequence[str] | None,
    reader: str,
    budget: int,
    limit: int,
) -> tuple[list[FailureGroup], int]:
    """Count the newest `budget` failures since a time. Also returns how many were read, before any filter.

    `projects`: those the reader may view, besides their own jobs; None: all.
    """
    window = (
        sa.select(
            failures.c.kind,
            failures.c.cluster_id,
            (sa.literal("") if by is None else failures.c[by]).label("by"),
            (failures.c.owner_id == reader).label("is_own"),  # the reader may see the clusters of their own jobs
            failures.c.project,
        )
        .where(failures.c.at_us >= since_us)
        .order_by(failures.c.at_us.desc())
        .limit(budget)
        .subquery()
    )
    read_count: int = tx.execute(sa.select(sa.func.count()).select_from(window)).scalar_one()
    groups = [column for column in window.c if column.name != "project"]
    query = sa.select(*groups, sa.func.count().label("size"))
    if projects is not None:
        query = query.where(sa.or_(window.c.project.in_(projects), window.c.is_own))
    if project is not None:
        query = query.where(window.c.project == project)
    grouped = query.group_by(*groups)
    counts = grouped.order_by(sa.desc("size")).limit(limit).subquery()
    columns = columns_of(FailureGroup, counts, cluster=clusters.c.name)
    named = sa.select(*columns).select_from(counts.outerjoin(clusters, clusters.c.id == counts.c.cluster_id))
    return fetch_all(tx, FailureGroup, named.order_by(counts.c.size.desc())), read_count
