"""Queries that remove ended executions, in bounded pieces."""

from __future__ import annotations

import sqlalchemy as sa

from switchyard.features.flyte.store.tables.executions_tables import (
    ENDED_EXECUTION,
    execution_attempts,
    execution_dynamics,
    execution_map_parts,
    execution_maps,
    execution_nodes,
    execution_signals,
    execution_tags,
    executions,
)
from switchyard.store.engine.database import Tx

IDS_PER_DELETE = 500
LARGE_ROWS_MAX = 20  # nodes whose dynamic workflows are deleted at once: each has at most some MiB


def executions_hide(tx: Tx, *, ended_before_us: int, limit: int) -> int:
    """Hide executions that ended before a time: readers see an execution whole or not at all. Returns how many."""
    query = sa.select(executions.c.id).where(
        sa.text(f"executions.{ENDED_EXECUTION}"),
        executions.c.ended_us < ended_before_us,
        sa.not_(executions.c.is_removed),
        sa.not_(executions.c.is_due),
        sa.not_(sa.func.coalesce(executions.c.is_awaited, sa.false())),  # its parent has not stored its end
    )
    ids = list(tx.execute(query.order_by(executions.c.ended_us).limit(limit)).scalars())
    if ids:
        tx.execute(sa.update(executions).where(executions.c.id.in_(ids)).values(is_removed=True))
    return len(ids)


def hidden_execution(tx: Tx) -> str | None:
    """One execution whose rows are to be removed. Hidden ones are the oldest of those that have ended."""
    query = sa.select(executions.c.id).where(sa.text(f"executions.{ENDED_EXECUTION}"), executions.c.is_removed)
    found: str | None = tx.execute(query.order_by(executions.c.ended_us).limit(1)).scalar()
    return found


def execution_delete_rows(tx: Tx, execution_id: str, *, limit: int) -> int:
    """Delete some rows of a hidden execution, itself last. Returns how many; 0: nothing is left."""
    attempts = execution_attempts.c
    of_it = sa.select(attempts.node_id, attempts.attempt).where(attempts.execution_id == execution_id).limit(limit)
    if pairs := tx.execute(of_it).all():
        nodes = sorted({row.node_id for row in pairs})
        return _delete(tx, execution_attempts, execution_id, nodes)
    for table, column in (
        (execution_dynamics, execution_dynamics.c.node_id),
        (execution_signals, execution_signals.c.signal_id),
        (execution_map_parts, execution_map_parts.c.node_id),
        (execution_maps, execution_maps.c.node_id),
    ):
        query = sa.select(column).where(table.c.execution_id == execution_id).distinct().limit(LARGE_ROWS_MAX)
        if ids := list(tx.execute(query).scalars()):
            return tx.execute(sa.delete(table).where(table.c.execution_id == execution_id, column.in_(ids))).rowcount
    rows = sa.select(execution_nodes.c.node_id).where(execution_nodes.c.execution_id == execution_id).limit(limit)
    if nodes := list(tx.execute(rows).scalars()):
        return _delete(tx, execution_nodes, execution_id, nodes)
    tx.execute(sa.delete(execution_tags).where(execution_tags.c.execution_id == execution_id))  # at most some hundred
    return tx.execute(sa.delete(executions).where(executions.c.id == execution_id)).rowcount


def _delete(tx: Tx, table: sa.Table, execution_id: str, node_ids: list[str]) -> int:
    count = 0
    for first in range(0, len(node_ids), IDS_PER_DELETE):
        page = node_ids[first : first + IDS_PER_DELETE]
        delete = sa.delete(table).where(table.c.execution_id == execution_id, table.c.node_id.in_(page))
        count += tx.execute(delete).rowcount
    return count
