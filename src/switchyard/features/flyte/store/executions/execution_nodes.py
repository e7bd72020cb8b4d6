"""Queries about the nodes of executions, and about the jobs that run them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from msgspec.structs import asdict

from switchyard.features.flyte.store.entities.entity_filters import condition
from switchyard.features.flyte.store.page_bytes import keys_within, size_of, without_content
from switchyard.features.flyte.store.tables.executions_tables import LIVE_ATTEMPT, execution_attempts, execution_nodes
from switchyard.features.flyte.workflow.lists.list_query import ListFilter
from switchyard.store.engine import dialect
from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, columns_of, fetch_all, fetch_one
from switchyard.store.tables.clusters_tables import clusters
from switchyard.store.tables.files_tables import file_outputs
from switchyard.store.tables.schema import jobs

IDS_MAX = 500  # of one query


class NodeRow(StoredRow, frozen=True):
    """One node of one execution."""

    execution_id: str
    node_id: str
    parent_id: str
    spec_id: str
    is_parent: bool
    is_array: bool | None
    cache_status: str | None
    cache_key: bytes | None
    cache_source: str | None
    phase: str
    attempts: int
    user_failures: int
    system_failures: int
    inputs: bytes | None
    outputs: bytes | None
    error: bytes | None
    created_us: int
    updated_us: int
    ended_us: int | None
    wake_us: int | None = None
    signal_id: str = ""


class NodeAttemptRow(StoredRow, frozen=True):
    """One job of one node."""

    execution_id: str
    node_id: str
    attempt: int
    job_id: str
    task_project: str
    task_domain: str
    task_name: str
    task_version: str
    phase: str
    reason: str
    cluster: str
    error: bytes | None
    created_us: int
    started_us: int | None
    ended_us: int | None


class LiveAttemptRow(StoredRow, frozen=True):
    """An attempt that the engine has not seen the end of, with its job and the output files of that.

    `state` is None if the job is gone.
    """

    node_id: str
    attempt: int
    job_id: str
    task_project: str
    task_domain: str
    task_name: str
    task_version: str
    state: str | None
    reason: str | None
    exit_code: int | None
    signal: int | None
    started_us: int | None
    ended_us: int | None
    cluster: str | None
    output_state: str | None
    output_root: bytes | None
    output_error: str | None


class AttemptJobRow(StoredRow, frozen=True):
    """The job of an attempt, the fence that it had last, and the output files that it left."""

    job_id: str
    fence: int
    output_root: bytes | None


def node_list(tx: Tx, execution_id: str) -> list[NodeRow]:
    """All nodes of an execution, in the order of their creation."""
    query = sa.select(*columns_of(NodeRow, execution_nodes)).where(execution_nodes.c.execution_id == execution_id)
    return fetch_all(tx, NodeRow, query.order_by(execution_nodes.c.created_us, execution_nodes.c.node_id))


def node_page(
    tx: Tx,
    execution_id: str,
    *,
    parent: NodeRow | None,
    filters: Sequence[ListFilter] = (),
    is_descending: bool,
    offset: int,
    limit: int,
    bytes_max: int,
) -> tuple[list[NodeRow], bool]:
    """The nodes inside a node, of its last attempt; without `parent`, at the top. In the order of their creation.

    Without what their inputs and outputs hold, and with whether more may follow. `bytes_max`: of the rest.
    """
    nodes = execution_nodes.c
    query = sa.select(nodes.node_id, size_of(nodes.error)).where(
        nodes.execution_id == execution_id, nodes.parent_id == (parent.node_id if parent is not None else "")
    )
    if parent is not None and parent.attempts > 1:
        prefix = f"{parent.node_id}-{parent.attempts - 1}-"
        query = query.where(sa.func.substr(nodes.node_id, 1, len(prefix)) == prefix)
    query = query.where(*(condition(tx, one, _list_column) for one in filters))
    by = [nodes.created_us.desc(), nodes.node_id.desc()] if is_descending else [nodes.created_us, nodes.node_id]
    sizes = tx.execute(query.order_by(*by).offset(offset).limit(limit)).all()
    ids = keys_within(sizes, bytes_max)
    shown = columns_of(
        NodeRow, execution_nodes, inputs=without_content(nodes.inputs), outputs=without_content(nodes.outputs)
    )
    of_page = sa.select(*shown).where(nodes.execution_id == execution_id, nodes.node_id.in_(ids))
    rows = {row.node_id: row for row in fetch_all(tx, NodeRow, of_page)}
    return [rows[one] for one in ids if one in rows], len(sizes) == limit or len(ids) < len(sizes)


def _list_column(name: str) -> sa.ColumnElement[Any]:
    """The column of this name. Names come from the grammar's table, never from a request."""
    if name == "duration_us":
        return execution_nodes.c.ended_us - execution_nodes.c.created_us
    return execution_nodes.c[name]


def node_get(tx: Tx, execution_id: str, node_id: str) -> NodeRow | None:
    query = sa.select(*columns_of(NodeRow, execution_nodes)).where(
        execution_nodes.c.execution_id == execution_id, execution_nodes.c.node_id == node_id
    )
    return fetch_one(tx, NodeRow, query)


def node_put(tx: Tx, rows: Iterable[NodeRow]) -> None:
    """Insert nodes, or replace what is stored of them. When a node was created does not change."""
    values = [asdict(row) for row in rows]
    if values:
        put = dialect.insert_statement(tx, execution_nodes)
        kept = ("execution_id", "node_id", "created_us")
        changes: dict[str, Any] = {name: put.excluded[name] for name in values[0] if name not in kept}
        tx.execute(put.on_conflict_do_update(index_elements=["execution_id", "node_id"], set_=changes), values)


def attempt_insert(tx: Tx, rows: Sequence[NodeAttemptRow]) -> None:
    if rows:
        tx.execute(sa.insert(execution_attempts), [asdict(row) for row in rows])


def waiting_put(tx: Tx, row: NodeAttemptRow) -> None:
    """Store an attempt that waits and has no job, or the reason why it still waits."""
    put = dialect.insert_statement(tx, execution_attempts).values(**asdict(row))
    keys = ["execution_id", "node_id", "attempt"]
    tx.execute(
        put.on_conflict_do_update(
            index_elements=keys, set_={"reason": row.reason}, where=execution_attempts.c.job_id == ""
        )
    )


def waiting_delete(tx: Tx, execution_id: str, node_ids: Sequence[str]) -> None:
    """Delete attempts that waited without a job: they begin now."""
    attempts = execution_attempts.c
    if node_ids:
        is_waiting = sa.and_(attempts.execution_id == execution_id, attempts.job_id == "")
        tx.execute(sa.delete(execution_attempts).where(is_waiting, attempts.node_id.in_(node_ids)))


def waiting_end(tx: Tx, execution_id: str, *, now_us: int) -> None:
    """The execution is over: what waits will never begin."""
    attempts, nodes = execution_attempts.c, execution_nodes.c
    is_waiting = sa.and_(attempts.execution_id == execution_id, attempts.job_id == "")
    tx.execute(sa.update(execution_attempts).where(is_waiting).values(phase="ABORTED"))
    is_queued = sa.and_(nodes.execution_id == execution_id, nodes.phase == "QUEUED")
    tx.execute(sa.update(execution_nodes).where(is_queued).values(phase="ABORTED", ended_us=now_us, updated_us=now_us))


def live_end(tx: Tx, execution_id: str, *, reason: str, now_us: int) -> None:
    """The execution was given up: its nodes and attempts end, whatever their jobs do."""
    ended = {"phase": "ABORTED", "ended_us": now_us}
    attempts, nodes = execution_attempts.c, execution_nodes.c
    is_live = sa.and_(attempts.execution_id == execution_id, sa.text(f"execution_attempts.{LIVE_ATTEMPT}"))
    tx.execute(sa.update(execution_attempts).where(is_live).values(**ended, reason=reason))
    is_begun = sa.and_(nodes.execution_id == execution_id, nodes.ended_us.is_(None))
    tx.execute(sa.update(execution_nodes).where(is_begun).values(**ended, updated_us=now_us, wake_us=None))


def attempt_end(
    tx: Tx, row: LiveAttemptRow, *, execution_id: str, phase: str, reason: str, error: bytes | None, at_us: int
) -> None:
    attempts = execution_attempts.c
    tx.execute(
        sa.update(execution_attempts)
        .where(attempts.execution_id == execution_id, attempts.node_id == row.node_id, attempts.attempt == row.attempt)
        .values(
            phase=phase,
            reason=reason,
            error=error,
            cluster=row.cluster or "",
            started_us=row.started_us,
            ended_us=row.ended_us or at_us,
        )
    )


def attempt_list(tx: Tx, execution_id: str, node_id: str) -> list[NodeAttemptRow]:
    attempts = execution_attempts.c
    query = sa.select(*columns_of(NodeAttemptRow, execution_attempts)).where(
        attempts.execution_id == execution_id, attempts.node_id == node_id
    )
    return fetch_all(tx, NodeAttemptRow, query.order_by(attempts.attempt))


def job_of_attempt(tx: Tx, execution_id: str, node_id: str, attempt: int) -> AttemptJobRow | None:
    attempts = execution_attempts.c
    source = execution_attempts.join(jobs, jobs.c.id == attempts.job_id).outerjoin(
        file_outputs, sa.and_(file_outputs.c.job_id == jobs.c.id, file_outputs.c.fence == jobs.c.fence)
    )
    columns = columns_of(AttemptJobRow, jobs, job_id=jobs.c.id, output_root=file_outputs.c.root)
    query = sa.select(*columns).select_from(source)
    return fetch_one(
        tx,
        AttemptJobRow,
        query.where(attempts.execution_id == execution_id, attempts.node_id == node_id, attempts.attempt == attempt),
    )


def output_roots(tx: Tx, execution_id: str, node_ids: Sequence[str]) -> dict[str, bytes]:
    """The output files that the last attempt of each node left, by node. Nodes without such files are left out."""
    attempts = execution_attempts.c
    source = execution_attempts.join(jobs, jobs.c.id == attempts.job_id).join(
        file_outputs, sa.and_(file_outputs.c.job_id == jobs.c.id, file_outputs.c.fence == jobs.c.fence)
    )
    found: dict[str, bytes] = {}
    for begin in range(0, len(node_ids), IDS_MAX):
        query = sa.select(attempts.node_id, file_outputs.c.root).select_from(source)
        some = attempts.node_id.in_(node_ids[begin : begin + IDS_MAX])
        query = query.where(attempts.execution_id == execution_id, some, file_outputs.c.root.is_not(None))
        found |= {node_id: bytes(root) for node_id, root in tx.execute(query.order_by(attempts.attempt))}
    return found


def cluster_names(tx: Tx, execution_id: str) -> list[str]:
    """The clusters that ran jobs of an execution or have some now, by name."""
    attempts, name = execution_attempts.c, sa.func.coalesce(clusters.c.name, execution_attempts.c.cluster)
    query = sa.select(name).select_from(_WITH_JOBS).where(attempts.execution_id == execution_id, name != "")
    return sorted(set(tx.execute(query.distinct()).scalars()))


def live_attempts(tx: Tx, execution_id: str) -> list[LiveAttemptRow]:
    return fetch_all(tx, LiveAttemptRow, _LIVE_ATTEMPTS, {"execution": execution_id})


_WITH_JOBS = execution_attempts.outerjoin(jobs, jobs.c.id == execution_attempts.c.job_id).outerjoin(
    clusters, clusters.c.id == jobs.c.cluster_id
)
# Built once: each step of an execution runs it.
_LIVE_ATTEMPTS = (
    sa.select(
        *columns_of(
            LiveAttemptRow,
            execution_attempts,
            state=jobs.c.state,
            reason=jobs.c.reason,
            exit_code=jobs.c.exit_code,
            signal=jobs.c.signal,
            started_us=jobs.c.started_us,
            ended_us=jobs.c.ended_us,
            cluster=clusters.c.name,
            output_state=file_outputs.c.state,
            output_root=file_outputs.c.root,
            output_error=file_outputs.c.error,
        )
    )
    .select_from(
        _WITH_JOBS.outerjoin(
            file_outputs, sa.and_(file_outputs.c.job_id == jobs.c.id, file_outputs.c.fence == jobs.c.fence)
        )
    )
    .where(
        execution_attempts.c.execution_id == sa.bindparam("execution"),
        sa.text(f"execution_attempts.{LIVE_ATTEMPT}"),
    )
    .order_by(execution_attempts.c.node_id)
)
