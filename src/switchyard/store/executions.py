"""Queries about Flyte's executions."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from switchyard.store import dialect
from switchyard.store.column_update import ColumnUpdate
from switchyard.store.database import Tx
from switchyard.store.entity_filters import condition
from switchyard.store.fetch import StoredRow, columns_of, fetch_all, fetch_one
from switchyard.store.schema import FINAL_STATES, jobs
from switchyard.store.schema_cache import cache_reservations, cache_waits
from switchyard.store.schema_executions import (
    AWAITED_EXECUTION,
    DUE_EXECUTION,
    LIVE_ATTEMPT,
    WAKING_NODE,
    execution_attempts,
    execution_nodes,
    executions,
)
from switchyard.store.schema_maps import LIVE_MAP, execution_maps
from switchyard.workflow.list_query import ListFilter, ListOrder


class ExecutionKey(StoredRow, frozen=True):
    """How users name an execution."""

    project: str
    domain: str
    name: str

    def __str__(self) -> str:
        return f"{self.project}:{self.domain}:{self.name}"


class ExecutionRow(StoredRow, frozen=True):
    id: str
    project: str
    domain: str
    name: str
    owner: str
    owner_id: str
    digest: bytes
    spec: bytes
    inputs: bytes
    outputs: bytes | None
    error: bytes | None
    phase: str
    is_archived: bool
    is_due: bool
    is_stopping: bool
    steps: int
    entity_kind: str
    entity_project: str
    entity_domain: str
    entity_name: str
    entity_version: str
    workflow_project: str
    workflow_domain: str
    workflow_name: str
    workflow_version: str
    abort_cause: str
    abort_by: str
    created_us: int
    updated_us: int
    started_us: int | None
    ended_us: int | None
    parent_id: str | None = None
    parent_node: str | None = None
    root_id: str | None = None
    is_awaited: bool | None = None

    @property
    def key(self) -> ExecutionKey:
        return ExecutionKey(self.project, self.domain, self.name)


class ExecutionUpdate(ColumnUpdate, frozen=True, kw_only=True):
    """The columns of an execution that change. Bytes are set beside it, because JSON has none."""

    phase: str | UnsetType = UNSET
    is_archived: bool | UnsetType = UNSET
    is_due: bool | UnsetType = UNSET
    is_stopping: bool | UnsetType = UNSET
    steps: int | UnsetType = UNSET
    abort_cause: str | UnsetType = UNSET
    abort_by: str | UnsetType = UNSET
    updated_us: int | UnsetType = UNSET
    started_us: int | UnsetType | None = UNSET
    ended_us: int | UnsetType | None = UNSET


def execution_insert(tx: Tx, row: ExecutionRow) -> bool:
    """Insert an execution. Returns False if its name is taken."""
    insert = dialect.insert_statement(tx, executions).values(**asdict(row))
    return tx.execute(insert.on_conflict_do_nothing().returning(executions.c.id)).scalar() is not None


def execution_get(tx: Tx, key: ExecutionKey) -> ExecutionRow | None:
    query = sa.select(*columns_of(ExecutionRow, executions))
    return fetch_one(tx, ExecutionRow, query.where(*_is(key)))


def execution_lock(tx: Tx, key: ExecutionKey) -> ExecutionRow | None:
    """Return an execution, locked until the commit."""
    query = sa.select(*columns_of(ExecutionRow, executions)).where(*_is(key))
    return fetch_one(tx, ExecutionRow, query.with_for_update())


def execution_update(
    tx: Tx, execution_id: str, update: ExecutionUpdate, *, outputs: bytes | None = None, error: bytes | None = None
) -> None:
    """Change an execution. `outputs` and `error` are set once, so None leaves them as they are."""
    columns = update.columns()
    columns |= {"outputs": outputs} if outputs is not None else {}
    columns |= {"error": error} if error is not None else {}
    tx.execute(sa.update(executions).where(executions.c.id == execution_id).values(columns))


def execution_keys_due(tx: Tx, *, now_us: int, limit: int) -> list[ExecutionKey]:
    """Executions that the engine has to look at: marked as due, or with a job that has ended or is gone, or with a node
    whose time has come."""
    columns = columns_of(ExecutionKey, executions)
    marked = sa.select(*columns).where(sa.text(f"executions.{DUE_EXECUTION}"))
    ended = (
        sa.select(*columns)
        .select_from(
            execution_attempts.join(executions, executions.c.id == execution_attempts.c.execution_id).outerjoin(
                jobs, jobs.c.id == execution_attempts.c.job_id
            )
        )
        .where(
            sa.text(f"execution_attempts.{LIVE_ATTEMPT}"),
            sa.or_(jobs.c.id.is_(None), jobs.c.state.in_(FINAL_STATES)),
        )
    )
    woken = (
        sa.select(*columns)
        .select_from(execution_nodes.join(executions, executions.c.id == execution_nodes.c.execution_id))
        .where(sa.text(f"execution_nodes.{WAKING_NODE}"), execution_nodes.c.wake_us <= now_us)
    )
    # Maps that have to start an array, or have elements whose end is not stored.
    has_ended_tasks = jobs.c.tasks_ok + jobs.c.tasks_failed + jobs.c.tasks_cancelled > execution_maps.c.seen
    mapped = (
        sa.select(*columns)
        .select_from(
            execution_maps.join(executions, executions.c.id == execution_maps.c.execution_id).outerjoin(
                jobs, jobs.c.id == execution_maps.c.job_id
            )
        )
        .where(
            sa.text(f"execution_maps.{LIVE_MAP}"),
            sa.or_(
                jobs.c.id.is_(None),
                jobs.c.state.in_(FINAL_STATES),
                has_ended_tasks,
                execution_maps.c.phase.in_(("STARTING", "DONE")),
            ),
        )
    )
    child = executions.alias("child")
    parents = (
        sa.select(*columns)
        .join(child, child.c.parent_id == executions.c.id)
        .where(sa.text(f"child.{AWAITED_EXECUTION}"), child.c.ended_us.is_not(None))
    )
    freed = (
        sa.select(*columns)
        .join(cache_waits, cache_waits.c.execution_id == executions.c.id)
        .where(~sa.exists().where(cache_reservations.c.key == cache_waits.c.key))
    )
    keys: dict[ExecutionKey, None] = {}
    for query in (marked, ended.distinct(), mapped.distinct(), woken.distinct(), parents.distinct(), freed.distinct()):
        keys |= dict.fromkeys(fetch_all(tx, ExecutionKey, query.limit(limit)))
    return list(keys)[:limit]


def execution_list(
    tx: Tx,
    *,
    project: str,
    domain: str,
    filters: Sequence[ListFilter],
    order: ListOrder,
    offset: int,
    limit: int,
    with_archived: bool,
) -> list[ExecutionRow]:
    query = sa.select(*columns_of(ExecutionRow, executions)).where(
        executions.c.project == project, executions.c.domain == domain
    )
    if not with_archived:
        query = query.where(sa.not_(executions.c.is_archived))
    query = query.where(*(condition(tx, one, _column) for one in filters))
    column = _column(order.column)
    by = [column.desc() if order.is_descending else column.asc(), executions.c.name]
    return fetch_all(tx, ExecutionRow, query.order_by(*by).offset(offset).limit(limit))


def _column(name: str) -> sa.ColumnElement[object]:
    """The column of this name. Names come from the grammar's table, never from a request."""
    if name == "state":
        return sa.case((executions.c.is_archived, 1), else_=0)
    if name == "duration_us":
        return executions.c.ended_us - executions.c.started_us
    return executions.c[name]


def _is(key: ExecutionKey) -> list[sa.ColumnElement[bool]]:
    return [executions.c[word] == getattr(key, word) for word in ExecutionKey.__struct_fields__]
