"""Samples of the health and load of clusters. A sample holds until the next one of its cluster."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from msgspec.structs import asdict

from switchyard.store.engine import dialect
from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, fetch_all
from switchyard.store.tables.clusters_tables import cluster_samples


class ClusterSample(StoredRow, frozen=True):
    """A cluster at one time. `cores_used` and what follows: None if the agent did not say."""

    cluster_id: str
    at_us: int
    health: str
    cores: int
    cores_used: int | None
    gpus: int
    gpus_used: int | None
    running: int | None
    queued: int | None


def samples_insert(tx: Tx, samples: Sequence[ClusterSample]) -> int:
    dialect.insert_missing(tx, cluster_samples, [asdict(sample) for sample in samples])
    return len(samples)


def samples_since(tx: Tx, cluster_id: str, *, since_us: int, limit: int) -> list[ClusterSample]:
    """Return the newest samples, oldest first, and the one before `since_us`, which held at that time."""
    of_cluster = cluster_samples.c.cluster_id == cluster_id
    first = sa.select(sa.func.max(cluster_samples.c.at_us)).where(of_cluster, cluster_samples.c.at_us <= since_us)
    begin_us = tx.execute(first).scalar() or since_us
    query = sa.select(cluster_samples).where(of_cluster, cluster_samples.c.at_us >= begin_us)
    rows = fetch_all(tx, ClusterSample, query.order_by(cluster_samples.c.at_us.desc()).limit(limit))
    return rows[::-1]


def samples_delete(tx: Tx, *, before_us: int, limit: int) -> int:
    """Delete the oldest samples."""
    keys = sa.tuple_(cluster_samples.c.cluster_id, cluster_samples.c.at_us)
    old = sa.select(cluster_samples.c.cluster_id, cluster_samples.c.at_us).where(cluster_samples.c.at_us < before_us)
    return tx.execute(sa.delete(cluster_samples).where(keys.in_(old.limit(limit)))).rowcount
