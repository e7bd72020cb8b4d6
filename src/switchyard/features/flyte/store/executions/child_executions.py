"""Queries about executions that nodes of other executions started."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sqlalchemy as sa

from switchyard.features.flyte.store.executions.executions import ExecutionRow, ExecutionUpdate
from switchyard.features.flyte.store.page_bytes import NOTHING, keys_within, size_of
from switchyard.features.flyte.store.tables.executions_tables import AWAITED_EXECUTION, executions
from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import columns_of, fetch_all

FINAL_PHASES = ("SUCCEEDED", "FAILED", "ABORTED")
_IS_AWAITED = sa.text(f"executions.{AWAITED_EXECUTION}")


# Built once: each step of an execution runs it.
_ENDED = (
    sa.select(executions.c.id, size_of(executions.c.outputs, executions.c.error))
    .where(executions.c.parent_id == sa.bindparam("parent"), _IS_AWAITED, executions.c.ended_us.is_not(None))
    .order_by(executions.c.ended_us, executions.c.id)
    .limit(sa.bindparam("most"))
)


def children_ended(tx: Tx, parent_id: str, *, limit: int, bytes_max: int) -> list[ExecutionRow]:
    """Children that have ended, and whose nodes do not know it yet, without their specs and inputs.

    `bytes_max`: of their outputs together. At least one comes.
    """
    ids = keys_within(tx.execute(_ENDED, {"parent": parent_id, "most": limit}), bytes_max)
    columns = columns_of(ExecutionRow, executions, spec=NOTHING, inputs=NOTHING)
    query = sa.select(*columns).where(executions.c.id.in_(ids))
    return fetch_all(tx, ExecutionRow, query.order_by(executions.c.ended_us, executions.c.id))


def children_close(tx: Tx, ids: Sequence[str]) -> None:
    """The nodes know the ends of these children."""
    if ids:
        tx.execute(sa.update(executions).where(executions.c.id.in_(ids)).values(is_awaited=False))


def children_abandon(tx: Tx, parent_id: str) -> None:
    """The parent was given up: none of its nodes waits for a child."""
    tx.execute(sa.update(executions).where(executions.c.parent_id == parent_id, _IS_AWAITED).values(is_awaited=False))


def children_stop(tx: Tx, parent_id: str, prefixes: Iterable[str], *, cause: str, by: str, now_us: int) -> int:
    """Ask for the end of children whose nodes have ids that begin so. Returns how many were asked for."""
    columns = executions.c
    of_scopes = [sa.func.substr(columns.parent_node, 1, len(prefix)) == prefix for prefix in prefixes]
    is_live = columns.phase.not_in((*FINAL_PHASES, "ABORTING"))
    update = ExecutionUpdate(
        phase="ABORTING", is_due=True, is_stopping=False, abort_cause=cause, abort_by=by, updated_us=now_us
    )
    statement = sa.update(executions).where(columns.parent_id == parent_id, _IS_AWAITED, is_live, sa.or_(*of_scopes))
    return tx.execute(statement.values({**update.columns(), "steps": columns.steps + 1})).rowcount


def live_count(tx: Tx, *, root_id: str | None = None, parent_id: str | None = None) -> int:
    """How many children of one execution, or of all that began with one, nodes wait for."""
    query = sa.select(sa.func.count()).select_from(executions).where(_IS_AWAITED)
    query = query.where(executions.c.root_id == root_id if root_id is not None else executions.c.parent_id == parent_id)
    return int(tx.execute(query).scalar_one())


def launchers(tx: Tx, parent_id: str | None, parent_node: str | None, *, limit: int) -> list[tuple[str, str]]:
    """The nodes that an execution is inside of: execution and node, from the inside out."""
    found: list[tuple[str, str]] = []
    columns = executions.c
    while parent_id is not None and len(found) < limit:
        found.append((parent_id, parent_node or ""))
        row = tx.execute(sa.select(columns.parent_id, columns.parent_node).where(columns.id == parent_id)).first()
        parent_id, parent_node = (row.parent_id, row.parent_node) if row is not None else (None, None)
    return found


def descendants_count(tx: Tx, root_id: str, *, is_locked: bool = False) -> int:
    """How many executions began with this one, live or not. `is_locked`: it stays locked until the commit."""
    query = sa.select(executions.c.descendants).where(executions.c.id == root_id)
    return int(tx.execute(query.with_for_update() if is_locked else query).scalar() or 0)


def descendants_add(tx: Tx, root_id: str, count: int) -> None:
    columns = executions.c
    tx.execute(sa.update(executions).where(columns.id == root_id).values(descendants=columns.descendants + count))


def names_taken(tx: Tx, project: str, domain: str, names: Sequence[str]) -> set[str]:
    """Those of these names that executions have."""
    columns = executions.c
    query = sa.select(columns.name).where(columns.project == project, columns.domain == domain, columns.name.in_(names))
    return set(tx.execute(query).scalars())
