"""Queries about dynamic workflows: what an attempt of a dynamic task made, compiled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sqlalchemy as sa
from msgspec.structs import asdict

from switchyard.store.database import Tx
from switchyard.store.fetch import StoredRow, columns_of, fetch_all, fetch_one
from switchyard.store.schema_executions import execution_dynamics, execution_nodes

IDS_MAX = 500  # of one query


class DynamicRow(StoredRow, frozen=True):
    """The workflow that one attempt made."""

    execution_id: str
    node_id: str
    attempt: int
    closure: bytes


def dynamic_insert(tx: Tx, rows: Sequence[DynamicRow]) -> None:
    if rows:
        tx.execute(sa.insert(execution_dynamics), [asdict(row) for row in rows])


def dynamic_live(tx: Tx, execution_id: str) -> list[DynamicRow]:
    """The workflows inside the nodes that run: each of the node's last attempt."""
    nodes, dynamics = execution_nodes.c, execution_dynamics.c
    source = execution_dynamics.join(
        execution_nodes,
        sa.and_(
            nodes.execution_id == dynamics.execution_id,
            nodes.node_id == dynamics.node_id,
            nodes.attempts == dynamics.attempt + 1,
        ),
    )
    query = sa.select(*columns_of(DynamicRow, execution_dynamics)).select_from(source)
    return fetch_all(tx, DynamicRow, query.where(dynamics.execution_id == execution_id, nodes.ended_us.is_(None)))


def dynamic_last(tx: Tx, execution_id: str, node_id: str) -> DynamicRow | None:
    """The workflow that a node made last."""
    dynamics = execution_dynamics.c
    query = sa.select(*columns_of(DynamicRow, execution_dynamics)).where(
        dynamics.execution_id == execution_id, dynamics.node_id == node_id
    )
    return fetch_one(tx, DynamicRow, query.order_by(dynamics.attempt.desc()).limit(1))


def dynamic_nodes(tx: Tx, execution_id: str, node_ids: Iterable[str]) -> set[str]:
    """Those of these nodes that made a workflow."""
    wanted, found = sorted(node_ids), set[str]()
    for first in range(0, len(wanted), IDS_MAX):
        query = sa.select(execution_dynamics.c.node_id).where(
            execution_dynamics.c.execution_id == execution_id,
            execution_dynamics.c.node_id.in_(wanted[first : first + IDS_MAX]),
        )
        found |= set(tx.execute(query).scalars())
    return found
