"""Queries that copy the nodes of an execution that have succeeded into another one."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from switchyard.features.flyte.store.tables.executions_tables import (
    execution_attempts,
    execution_dynamics,
    execution_nodes,
    executions,
)
from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, columns_of, fetch_all

IDS_PER_QUERY = 500
RECOVERED = "RECOVERED"
DONE_PHASES = ("SUCCEEDED", RECOVERED)


class RecoverableNode(StoredRow, frozen=True):
    """A node of an ended execution, without its values. `has_jobs`: a task ran for it."""

    node_id: str
    parent_id: str
    phase: str
    attempts: int
    has_jobs: bool

    @property
    def is_done(self) -> bool:
        return self.phase in DONE_PHASES


def recoverable_nodes(tx: Tx, execution_id: str) -> list[RecoverableNode]:
    attempts = execution_attempts.c
    has_jobs = sa.exists().where(
        attempts.execution_id == execution_nodes.c.execution_id, attempts.node_id == execution_nodes.c.node_id
    )
    columns = columns_of(RecoverableNode, execution_nodes, has_jobs=has_jobs)
    query = sa.select(*columns).where(execution_nodes.c.execution_id == execution_id)
    return fetch_all(tx, RecoverableNode, query.order_by(execution_nodes.c.node_id))


def is_removed(tx: Tx, execution_id: str) -> bool:
    query = sa.select(executions.c.is_removed).where(executions.c.id == execution_id)
    return tx.execute(query.with_for_update(read=True)).scalar() is not False


def nodes_copy(tx: Tx, source: str, target: str, node_ids: Sequence[str], *, now_us: int) -> None:
    """Copy nodes with their inputs and outputs, as recovered ones, and the workflows that dynamic ones made.

    The database copies; no value passes through us.
    """
    names = [column.name for column in execution_nodes.c]
    new = {"execution_id": target, "phase": RECOVERED, "created_us": now_us, "updated_us": now_us, "ended_us": now_us}
    columns = [sa.literal(new[name]).label(name) if name in new else execution_nodes.c[name] for name in names]
    for first in range(0, len(node_ids), IDS_PER_QUERY):
        page = node_ids[first : first + IDS_PER_QUERY]
        rows = sa.select(*columns).where(execution_nodes.c.execution_id == source, execution_nodes.c.node_id.in_(page))
        tx.execute(sa.insert(execution_nodes).from_select(names, rows))
        made = [column for column in execution_dynamics.c if column.name != "execution_id"]
        inner = sa.select(sa.literal(target), *made).where(
            execution_dynamics.c.execution_id == source, execution_dynamics.c.node_id.in_(page)
        )
        fields = ["execution_id", *(column.name for column in made)]
        tx.execute(sa.insert(execution_dynamics).from_select(fields, inner))
