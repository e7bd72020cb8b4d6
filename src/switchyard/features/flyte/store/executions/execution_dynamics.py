"""Queries about dynamic workflows: what an attempt of a dynamic task made, compiled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sqlalchemy as sa
from msgspec.structs import asdict

from switchyard.features.flyte.store.tables.executions_tables import execution_dynamics, execution_nodes
from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, columns_of, fetch_all, fetch_one

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
    query = sa.select(*columns_of(DynamicRow, execution_dynamics)).select_from(_OF_LAST_ATTEMPTS)
    return fetch_all(tx, DynamicRow, query.where(dynamics.execution_id == execution_id, nodes.ended_us.is_(None)))


def dynamics_shown(tx: Tx, execution_id: str, *, bytes_max: int) -> list[DynamicRow]:
    """The workflows that nodes made last, whether they run or not, up to so many bytes of them."""
    dynamics, size = execution_dynamics.c, sa.func.length(execution_dynamics.c.closure)
    sizes = sa.select(dynamics.node_id, dynamics.attempt, size).select_from(_OF_LAST_ATTEMPTS)
    found, left = list[DynamicRow](), bytes_max
    rows = tx.execute(sizes.where(dynamics.execution_id == execution_id).order_by(dynamics.node_id)).all()
    for node_id, attempt, length in rows:
        left -= length
        if left < 0:
            break
        query = sa.select(*columns_of(DynamicRow, execution_dynamics)).where(
            dynamics.execution_id == execution_id, dynamics.node_id == node_id, dynamics.attempt == attempt
        )
        found += fetch_all(tx, DynamicRow, query)
    return found


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


_OF_LAST_ATTEMPTS = execution_dynamics.join(
    execution_nodes,
    sa.and_(
        execution_nodes.c.execution_id == execution_dynamics.c.execution_id,
        execution_nodes.c.node_id == execution_dynamics.c.node_id,
        execution_nodes.c.attempts == execution_dynamics.c.attempt + 1,
    ),
)
