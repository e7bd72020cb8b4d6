"""Queries about what clusters' graphs are made from."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from switchyard.store import dialect
from switchyard.store.database import Tx
from switchyard.store.schema import graph_sources

Row = sa.Row[*tuple[Any, ...]]

_HEAD = tuple(column for column in graph_sources.c if column.name != "body")


def source_put(tx: Tx, row: dict[str, Any]) -> None:
    """Put or replace one source of a cluster."""
    statement = dialect.insert_statement(tx, graph_sources).values(**row)
    kept = {name: statement.excluded[name] for name in row if name not in ("cluster_id", "subsystem")}
    keys = [graph_sources.c.cluster_id, graph_sources.c.subsystem]
    tx.execute(statement.on_conflict_do_update(index_elements=keys, set_=kept))


def source_heads(tx: Tx, cluster_id: str) -> list[Row]:
    """All sources of a cluster without their bodies, by subsystem."""
    query = sa.select(*_HEAD).where(graph_sources.c.cluster_id == cluster_id)
    return list(tx.execute(query.order_by(graph_sources.c.subsystem)))


def source_all(tx: Tx, cluster_id: str) -> list[Row]:
    """All sources of a cluster, whole."""
    query = sa.select(graph_sources).where(graph_sources.c.cluster_id == cluster_id)
    return list(tx.execute(query.order_by(graph_sources.c.subsystem)))


def source_get(tx: Tx, cluster_id: str, subsystem: str) -> Row | None:
    query = sa.select(graph_sources).where(
        graph_sources.c.cluster_id == cluster_id, graph_sources.c.subsystem == subsystem
    )
    return tx.execute(query).one_or_none()


def source_delete(tx: Tx, cluster_id: str, subsystem: str) -> bool:
    gone = sa.delete(graph_sources).where(
        graph_sources.c.cluster_id == cluster_id, graph_sources.c.subsystem == subsystem
    )
    return tx.execute(gone).rowcount > 0


def source_delete_of(tx: Tx, cluster_id: str) -> None:
    """A registration ended: nothing of its graph stays."""
    tx.execute(sa.delete(graph_sources).where(graph_sources.c.cluster_id == cluster_id))
