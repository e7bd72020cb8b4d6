"""Queries for readers of executions: pages of the newest ones, counts of live ones, and their nodes without data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from switchyard.features.flyte.store.executions.execution_nodes import NodeAttemptRow
from switchyard.features.flyte.store.page_bytes import without_content
from switchyard.features.flyte.store.tables.executions_tables import (
    LIVE_EXECUTION,
    cache_waits,
    execution_attempts,
    execution_maps,
    execution_nodes,
    executions,
)
from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, columns_of, fetch_all
from switchyard.store.tables.clusters_tables import clusters
from switchyard.store.tables.schema import jobs

IDS_MAX = 500  # of one query


class ExecutionListRow(StoredRow, frozen=True):
    """An execution in a list: without its inputs, its outputs and its spec."""

    id: str
    project: str
    domain: str
    name: str
    owner: str
    owner_id: str
    phase: str
    is_archived: bool
    entity_kind: str
    entity_name: str
    entity_version: str
    workflow_name: str
    mode: str
    cluster: str
    pool: str
    label: str
    abort_cause: str
    created_us: int
    started_us: int | None
    ended_us: int | None


class NodeStateRow(StoredRow, frozen=True):
    """A node that has begun or was skipped, without its inputs and outputs."""

    node_id: str
    parent_id: str
    spec_id: str
    is_parent: bool
    is_array: bool | None
    cache_status: str | None
    phase: str
    attempts: int
    error: bytes | None
    created_us: int
    ended_us: int | None
    wake_us: int | None
    signal_id: str


class MapCountRow(StoredRow, frozen=True):
    node_id: str
    size: int
    succeeded: int
    failed: int


class LiveCount(StoredRow, frozen=True):
    pool: str
    label: str
    cluster: str
    phase: str
    count: int


@dataclass(frozen=True, slots=True)
class ExecutionFilter:
    """What a list asks for. `projects`: those whose executions the reader may see; None: all."""

    project: str | None = None
    domain: str | None = None
    phases: Sequence[str] = ()
    cluster: str | None = None
    pool: str | None = None
    label: str | None = None
    owner: str | None = None
    owner_id: str | None = None
    launched: str | None = None
    with_archived: bool = False
    projects: Sequence[str] | None = None


def execution_page(
    tx: Tx, wanted: ExecutionFilter, *, before: str | None, limit: int, budget: int
) -> tuple[list[ExecutionListRow], str | None]:
    """List executions, newest first. Reads at most `budget` rows; if there may be more, also returns the last id.

    As with jobs, filters apply to a window of the primary key, so that a page takes a bounded time.
    """
    window = sa.select(executions.c.id).order_by(executions.c.id.desc()).limit(budget)
    if before is not None:
        window = window.where(executions.c.id < before)
    lowest, read_count = tx.execute(sa.select(sa.func.min(window.subquery().c.id), sa.func.count())).one()
    if lowest is None:
        return [], None
    query = sa.select(*columns_of(ExecutionListRow, executions)).where(executions.c.id >= lowest, *_conditions(wanted))
    if before is not None:
        query = query.where(executions.c.id < before)
    rows = fetch_all(tx, ExecutionListRow, query.order_by(executions.c.id.desc()).limit(limit + 1))
    if len(rows) > limit:
        return rows[:limit], rows[limit - 1].id
    return rows, lowest if read_count == budget else None


def _conditions(wanted: ExecutionFilter) -> Iterator[sa.ColumnElement[bool]]:
    columns = executions.c
    yield sa.not_(columns.is_removed)
    if not wanted.with_archived:
        yield sa.not_(columns.is_archived)
    if wanted.phases:
        yield columns.phase.in_(wanted.phases)
    if wanted.projects is not None:
        yield columns.project.in_(wanted.projects)
    if wanted.cluster is not None:
        yield sa.or_(columns.cluster == wanted.cluster, sa.and_(columns.cluster == "", _has_job_on(wanted.cluster)))
    for column, value in (
        (columns.project, wanted.project),
        (columns.domain, wanted.domain),
        (columns.pool, wanted.pool),
        (columns.label, wanted.label),
        (columns.owner, wanted.owner),
        (columns.owner_id, wanted.owner_id),
        (columns.entity_name, wanted.launched),
    ):
        if value is not None:
            yield column == value


def _has_job_on(cluster: str) -> sa.ColumnElement[bool]:
    """Whether a job of the execution ran on a cluster, or is there: of one whose nodes are routed by themselves."""
    source = execution_attempts.outerjoin(jobs, jobs.c.id == execution_attempts.c.job_id).outerjoin(
        clusters, clusters.c.id == jobs.c.cluster_id
    )
    name = sa.func.coalesce(clusters.c.name, execution_attempts.c.cluster)
    is_there = sa.and_(execution_attempts.c.execution_id == executions.c.id, name == cluster)
    return sa.select(sa.literal(1)).select_from(source).where(is_there).correlate(executions).exists()


def live_counts(tx: Tx, *, limit: int) -> list[LiveCount]:
    """Live executions by pool, label, cluster and phase, the largest counts first."""
    columns, count = executions.c, sa.func.count()
    by = (columns.pool, columns.label, columns.cluster, columns.phase)
    query = sa.select(*by, count.label("count")).where(sa.text(f"executions.{LIVE_EXECUTION}")).group_by(*by)
    return fetch_all(tx, LiveCount, query.order_by(count.desc(), *by).limit(limit))


def node_states(tx: Tx, execution_id: str) -> list[NodeStateRow]:
    """All nodes of an execution that have begun or were skipped, without what their errors hold."""
    query = sa.select(*columns_of(NodeStateRow, execution_nodes, error=without_content(execution_nodes.c.error)))
    return fetch_all(tx, NodeStateRow, query.where(execution_nodes.c.execution_id == execution_id))


def node_errors(tx: Tx, execution_id: str, node_ids: Sequence[str]) -> dict[str, bytes]:
    """The errors of those of these nodes that have failed."""
    nodes, found = execution_nodes.c, dict[str, bytes]()
    for first in range(0, len(node_ids), IDS_MAX):
        of_page = nodes.execution_id == execution_id, nodes.node_id.in_(node_ids[first : first + IDS_MAX])
        query = sa.select(nodes.node_id, nodes.error).where(*of_page, nodes.error.is_not(None))
        found |= {row.node_id: bytes(row.error) for row in tx.execute(query)}
    return found


def phase_counts(tx: Tx, execution_id: str) -> dict[str, int]:
    """How many nodes of an execution are in each phase."""
    query = sa.select(execution_nodes.c.phase, sa.func.count()).where(execution_nodes.c.execution_id == execution_id)
    return {str(row[0]): int(row[1]) for row in tx.execute(query.group_by(execution_nodes.c.phase)).all()}


def attempts_of(tx: Tx, execution_id: str, node_ids: Sequence[str]) -> list[NodeAttemptRow]:
    """The attempts of these nodes, in the order of their numbers."""
    attempts, found = execution_attempts.c, list[NodeAttemptRow]()
    for first in range(0, len(node_ids), IDS_MAX):
        query = sa.select(*columns_of(NodeAttemptRow, execution_attempts)).where(
            attempts.execution_id == execution_id, attempts.node_id.in_(node_ids[first : first + IDS_MAX])
        )
        found += fetch_all(tx, NodeAttemptRow, query.order_by(attempts.node_id, attempts.attempt))
    return found


def map_counts(tx: Tx, execution_id: str) -> list[MapCountRow]:
    query = sa.select(*columns_of(MapCountRow, execution_maps))
    return fetch_all(tx, MapCountRow, query.where(execution_maps.c.execution_id == execution_id))


def cache_waiters(tx: Tx, execution_id: str) -> set[str]:
    """The nodes that wait for an equal task to end, whose outputs they will take."""
    query = sa.select(cache_waits.c.node_id).where(cache_waits.c.execution_id == execution_id)
    return set(tx.execute(query).scalars())
