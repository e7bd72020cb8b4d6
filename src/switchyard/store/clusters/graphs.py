"""Queries about the sources from which the graphs of clusters are compiled."""

from __future__ import annotations

import sqlalchemy as sa
from msgspec.structs import asdict

from switchyard.store.engine import dialect
from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, columns_of, fetch_all, fetch_one
from switchyard.store.tables.clusters_tables import graph_sources


class GraphSourceHead(StoredRow, frozen=True):
    """A source without its body. `bytes`: the size of the unpacked body."""

    cluster_id: str
    subsystem: str
    hash: str
    bytes: int
    actor: str
    at_us: int


class GraphSourceRow(GraphSourceHead, frozen=True):
    """A source. `body` is compressed with gzip."""

    body: bytes


_HEAD = columns_of(GraphSourceHead, graph_sources)
_SOURCE = columns_of(GraphSourceRow, graph_sources)


def source_put(tx: Tx, row: GraphSourceRow) -> None:
    """Insert or replace one source of a cluster."""
    statement = dialect.insert_statement(tx, graph_sources).values(**asdict(row))
    columns = {
        name: statement.excluded[name] for name in row.__struct_fields__ if name not in ("cluster_id", "subsystem")
    }
    keys = [graph_sources.c.cluster_id, graph_sources.c.subsystem]
    tx.execute(statement.on_conflict_do_update(index_elements=keys, set_=columns))


def source_heads(tx: Tx, cluster_id: str) -> list[GraphSourceHead]:
    """List all sources of a cluster without their bodies, by subsystem."""
    query = sa.select(*_HEAD).where(graph_sources.c.cluster_id == cluster_id)
    return fetch_all(tx, GraphSourceHead, query.order_by(graph_sources.c.subsystem))


def source_all(tx: Tx, cluster_id: str) -> list[GraphSourceRow]:
    """List all sources of a cluster with their bodies, by subsystem."""
    query = sa.select(*_SOURCE).where(graph_sources.c.cluster_id == cluster_id)
    return fetch_all(tx, GraphSourceRow, query.order_by(graph_sources.c.subsystem))


def source_get(tx: Tx, cluster_id: str, subsystem: str) -> GraphSourceRow | None:
    condition = (graph_sources.c.cluster_id == cluster_id, graph_sources.c.subsystem == subsystem)
    return fetch_one(tx, GraphSourceRow, sa.select(*_SOURCE).where(*condition))


def source_delete(tx: Tx, cluster_id: str, subsystem: str) -> bool:
    condition = (graph_sources.c.cluster_id == cluster_id, graph_sources.c.subsystem == subsystem)
    return tx.execute(sa.delete(graph_sources).where(*condition)).rowcount > 0


def source_delete_of(tx: Tx, cluster_id: str) -> None:
    tx.execute(sa.delete(graph_sources).where(graph_sources.c.cluster_id == cluster_id))
