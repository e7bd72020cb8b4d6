"""Queries about arrays that several clusters may lease: the column `spread` lists these clusters.

The array's own cluster finds it like any other job (`leases.lease_candidates`). These queries are for the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sqlalchemy as sa

from switchyard.store.engine import dialect
from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, columns_of, fetch_all
from switchyard.store.jobs.job_rows import StateName
from switchyard.store.tables.schema import LIVE_ARRAY, SPREAD, jobs

READY_SETS_MAX = 1000  # sets of clusters that one sweep reads

# Ids have one length, so no id is a part of another one. `lane` and the order are those of ix_jobs_spread.
_IS_FOR_CLUSTER = (
    f"lane = {{lane}} AND {SPREAD} AND cluster_id <> {{cluster}} AND spread LIKE '%' || {{cluster}} || '%'"
)
_FREE_CLUSTERS = sa.text("""
    SELECT id FROM clusters WHERE id IN :clusters AND deleted_us IS NULL AND NOT is_cordoned
""").bindparams(sa.bindparam("clusters", expanding=True))


def open_clusters(tx: Tx, cluster_ids: Iterable[str]) -> list[str]:
    """Return the clusters of these that are neither cordoned nor removed."""
    return list(tx.execute(_FREE_CLUSTERS, {"clusters": sorted(cluster_ids)}).scalars())


def lane_candidates_sqlite(columns: str) -> str:
    """The statement for one cluster and one lane: lane, cluster, cluster and limit are its parameters."""
    condition = _IS_FOR_CLUSTER.format(cluster="?", lane="?")
    return f"""
        SELECT {columns} FROM jobs j JOIN specs s ON s.hash = j.spec_hash
        WHERE {condition} ORDER BY j.priority DESC, j.id LIMIT ?
    """


def candidates_postgresql(columns: str) -> sa.TextClause:
    """The statement for all clusters and lanes. Its last column is the cluster that asks."""
    condition = _IS_FOR_CLUSTER.format(cluster="ask.cluster_id", lane="ask.lane")
    return sa.text(f"""
        SELECT {columns}, ask.cluster_id AS asking
        FROM unnest(CAST(:clusters AS text[]), CAST(:lanes AS text[]), CAST(:limits AS int[]))
            AS ask(cluster_id, lane, lane_limit)
        CROSS JOIN LATERAL (
            SELECT * FROM jobs WHERE {condition}
            ORDER BY priority DESC, id LIMIT ask.lane_limit FOR UPDATE SKIP LOCKED
        ) AS j
        JOIN specs s ON s.hash = j.spec_hash
    """)


_HAS_ARRAY = sa.text(f"""
    SELECT ask.cluster_id
    FROM unnest(CAST(:clusters AS text[]), CAST(:lanes AS text[])) AS ask(cluster_id, lane)
    WHERE EXISTS (SELECT 1 FROM jobs WHERE {_IS_FOR_CLUSTER.format(cluster="ask.cluster_id", lane="ask.lane")})
""")


def clusters_passed_over(tx: Tx, cluster_ids: Sequence[str], lanes: Sequence[str]) -> set[str]:
    """Return the clusters of these for which there is an array, although they were given none: it was locked."""
    if not cluster_ids or not dialect.is_postgresql(tx):
        return set()
    pairs = [(cluster_id, lane) for cluster_id in cluster_ids for lane in lanes]
    values = {"clusters": [cluster_id for cluster_id, _ in pairs], "lanes": [lane for _, lane in pairs]}
    return set(tx.execute(_HAS_ARRAY, values).scalars())


def clusters_with_ready_arrays(tx: Tx) -> set[str]:
    """Return the clusters that may lease a ready array, to repeat wake-ups that were lost."""
    rows = dialect.rows_by_index(tx, "jobs", "ix_jobs_spread")
    query: sa.Select[tuple[str]] = (
        sa.select(sa.column("spread")).select_from(rows).where(sa.text(SPREAD)).distinct().limit(READY_SETS_MAX)
    )
    return {cluster_id for text in tx.execute(query).scalars() for cluster_id in str(text).split(",")}


class SpreadArray(StoredRow, frozen=True):
    """What the router needs to decide again which clusters may lease an array."""

    id: str
    owner: str
    owner_id: str | None
    bounds: str
    avoid: str | None
    spec_hash: str
    cluster_id: str | None
    state: StateName
    fence: int
    created_us: int
    waits_us: int | None
    assigned_us: int | None
    reason: str
    spread: str | None
    alternatives: str | None


_LIVE = sa.select(*columns_of(SpreadArray, jobs)).where(
    sa.text(LIVE_ARRAY), jobs.c.spread.is_not(None), jobs.c.state.in_(("ASSIGNED", "RUNNING"))
)


def spread_arrays(tx: Tx, *, limit: int) -> list[SpreadArray]:
    """List assigned arrays that several clusters may lease."""
    return fetch_all(tx, SpreadArray, _LIVE.limit(limit))
