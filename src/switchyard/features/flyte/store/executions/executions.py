"""Queries about Flyte's executions."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from switchyard.features.flyte.store.entities.entity_filters import condition
from switchyard.features.flyte.store.executions.execution_tags import TAG_COLUMNS, tag_conditions
from switchyard.features.flyte.store.page_bytes import NOTHING, keys_within, size_of, without_content
from switchyard.features.flyte.store.tables.executions_tables import LIVE_EXECUTION, executions
from switchyard.features.flyte.workflow.lists.list_query import ListFilter, ListOrder
from switchyard.store.engine import dialect
from switchyard.store.engine.column_update import ColumnUpdate
from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, columns_of, fetch_all, fetch_one

CHILD_MODE = "CHILD_WORKFLOW"  # of an execution that a node of another one started


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
    mode: str = "MANUAL"
    is_removed: bool = False
    cluster: str = ""
    pool: str = ""
    label: str = ""
    descendants: int = 0
    error_kind: str | None = None
    error_code: str | None = None
    unfinished_steps: int = 0

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
    cluster: str | UnsetType = UNSET
    abort_cause: str | UnsetType = UNSET
    abort_by: str | UnsetType = UNSET
    updated_us: int | UnsetType = UNSET
    started_us: int | UnsetType | None = UNSET
    ended_us: int | UnsetType | None = UNSET
    error_kind: str | UnsetType = UNSET
    error_code: str | UnsetType = UNSET
    unfinished_steps: int | UnsetType = UNSET


def execution_insert(tx: Tx, row: ExecutionRow) -> bool:
    """Insert an execution. Returns False if its name is taken."""
    insert = dialect.insert_statement(tx, executions).values(**asdict(row))
    return tx.execute(insert.on_conflict_do_nothing().returning(executions.c.id)).scalar() is not None


# Built once: each step of an execution runs both.
_OF_KEY = sa.select(*columns_of(ExecutionRow, executions)).where(
    *(executions.c[name] == sa.bindparam(name) for name in ExecutionKey.__struct_fields__),
    sa.not_(executions.c.is_removed),
)
_OF_KEY_LOCKED = _OF_KEY.with_for_update()


def execution_get(tx: Tx, key: ExecutionKey) -> ExecutionRow | None:
    return fetch_one(tx, ExecutionRow, _OF_KEY, asdict(key))


def execution_lock(tx: Tx, key: ExecutionKey) -> ExecutionRow | None:
    """Return an execution, locked until the commit."""
    return fetch_one(tx, ExecutionRow, _OF_KEY_LOCKED, asdict(key))


def execution_update(
    tx: Tx, execution_id: str, update: ExecutionUpdate, *, outputs: bytes | None = None, error: bytes | None = None
) -> None:
    """Change an execution. `outputs` and `error` are set once, so None leaves them as they are."""
    columns = update.columns()
    columns |= {"outputs": outputs} if outputs is not None else {}
    columns |= {"error": error} if error is not None else {}
    tx.execute(sa.update(executions).where(executions.c.id == execution_id).values(columns))


def unfinished_put(tx: Tx, execution_id: str, count: int, *, steps: int) -> None:
    """Store how many steps in a row did not end, unless a step or a stop was stored since the number `steps`."""
    is_same = sa.and_(executions.c.id == execution_id, executions.c.steps == steps)
    tx.execute(sa.update(executions).where(is_same).values(unfinished_steps=count))


def live_count(tx: Tx, *, owner_id: str | None = None, project: str | None = None) -> int:
    """Count live executions of a user or a project, with those that nodes of others started."""
    column, value = ("owner_id", owner_id) if owner_id is not None else ("project", project)
    rows = dialect.rows_by_index(tx, "executions", f"ix_executions_live_{column}")
    query = sa.select(sa.func.count()).select_from(rows)
    return int(tx.execute(query.where(sa.text(LIVE_EXECUTION), sa.column(column) == value)).scalar_one())


def live_count_of_entity(tx: Tx, **entity: str) -> int:
    """Count live executions of a launch plan or a task, given by kind, project, domain, name and version."""
    is_launched = [executions.c[f"entity_{part}"] == value for part, value in entity.items()]
    query = sa.select(sa.func.count()).select_from(executions)
    return int(tx.execute(query.where(sa.text(f"executions.{LIVE_EXECUTION}"), *is_launched)).scalar_one())


def execution_list(
    tx: Tx,
    *,
    project: str,
    domain: str,
    filters: Sequence[ListFilter],
    order: ListOrder,
    offset: int,
    limit: int,
    bytes_max: int,
    with_archived: bool,
) -> tuple[list[ExecutionRow], bool]:
    """Executions without what their inputs and outputs hold, and whether more may follow.

    `bytes_max`: of the rest. At least one comes.
    """
    columns = executions.c
    query = sa.select(columns.id, size_of(columns.spec, columns.error)).where(
        columns.project == project, columns.domain == domain, sa.not_(columns.is_removed)
    )
    if not with_archived:
        query = query.where(sa.not_(executions.c.is_archived))
    of_tags = [one for one in filters if one.column in TAG_COLUMNS]
    query = query.where(*(condition(tx, one, _column) for one in filters if one not in of_tags))
    query = query.where(*tag_conditions(tx, of_tags))
    column = _column(order.column)
    by = [column.desc() if order.is_descending else column.asc(), executions.c.name]
    sizes = tx.execute(query.order_by(*by).offset(offset).limit(limit)).all()
    ids = keys_within(sizes, bytes_max)
    shown = columns_of(ExecutionRow, executions, inputs=NOTHING, outputs=without_content(columns.outputs))
    rows = {row.id: row for row in fetch_all(tx, ExecutionRow, sa.select(*shown).where(columns.id.in_(ids)))}
    return [rows[one] for one in ids if one in rows], len(sizes) == limit or len(ids) < len(sizes)


def _column(name: str) -> sa.ColumnElement[object]:
    """The column of this name. Names come from the grammar's table, never from a request."""
    if name == "state":
        return sa.case((executions.c.is_archived, 1), else_=0)
    if name == "duration_us":
        return executions.c.ended_us - executions.c.started_us
    for kind in ("launch_plan", "task"):
        if name.startswith(f"{kind}_"):  # of an execution that launched something else: NULL, which no filter matches
            return sa.case((executions.c.entity_kind == kind, executions.c[f"entity_{name.removeprefix(f'{kind}_')}"]))
    return executions.c[name]
