"""Queries about map nodes of executions and their elements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from switchyard.features.flyte.store.tables.executions_tables import LIVE_MAP, execution_map_parts, execution_maps
from switchyard.store.engine.column_update import ColumnUpdate
from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, columns_of, fetch_all, fetch_one
from switchyard.store.tables.clusters_tables import clusters
from switchyard.store.tables.files_tables import file_outputs
from switchyard.store.tables.schema import FINAL_STATES, jobs

# Whether a map has something to do. Its array is joined to it, if it has one.
MAP_HAS_NEWS = sa.or_(
    jobs.c.id.is_(None),
    jobs.c.state.in_(FINAL_STATES),
    jobs.c.tasks_ok + jobs.c.tasks_failed + jobs.c.tasks_cancelled > execution_maps.c.seen,
    execution_maps.c.phase.in_(("STARTING", "DONE")),
)


class MapRow(StoredRow, frozen=True):
    """One map node."""

    execution_id: str
    node_id: str
    phase: str
    size: int
    minimum: int
    parallelism: int
    runs_all: bool
    is_stopped: bool
    node: bytes
    template: bytes
    attempt: int
    job_id: str | None
    indexes: str
    seen: int
    succeeded: int
    failed: int
    output_bytes: int
    error: bytes | None
    changes: int
    updated_us: int
    bound: str | None = None


class MapUpdate(ColumnUpdate, frozen=True, kw_only=True):
    """The columns of a map that change. The error is set beside it, because JSON has no bytes."""

    phase: str | UnsetType = UNSET
    attempt: int | UnsetType = UNSET
    job_id: str | UnsetType | None = UNSET
    indexes: str | UnsetType = UNSET
    seen: int | UnsetType = UNSET
    succeeded: int | UnsetType = UNSET
    failed: int | UnsetType = UNSET
    output_bytes: int | UnsetType = UNSET
    changes: int | UnsetType = UNSET
    updated_us: int | UnsetType = UNSET


class MapJob(StoredRow, frozen=True):
    """The array of a map as it is now."""

    id: str
    state: str
    reason: str
    ended_us: int | None
    started_us: int | None
    ended_tasks: int
    cluster: str | None


class TaskOutput(StoredRow, frozen=True):
    """The output files of one task of an array."""

    fence: int
    task: int
    state: str
    root: bytes | None
    error: str


class MapPart(StoredRow, frozen=True):
    """The states of consecutive elements, and what they left."""

    part: int
    states: bytes
    results: bytes


def map_insert(tx: Tx, row: MapRow, parts: Iterable[MapPart]) -> None:
    tx.execute(sa.insert(execution_maps), [asdict(row)])
    key = {"execution_id": row.execution_id, "node_id": row.node_id}
    tx.execute(sa.insert(execution_map_parts), [key | asdict(part) for part in parts])


def maps_live(tx: Tx, execution_id: str, *, limit: int) -> list[MapRow]:
    """The maps of an execution with something to do. Those come first that were not looked at for longest."""
    maps = execution_maps.c
    query = (
        sa.select(*columns_of(MapRow, execution_maps))
        .select_from(execution_maps.outerjoin(jobs, jobs.c.id == maps.job_id))
        .where(
            maps.execution_id == execution_id,
            sa.text(f"execution_maps.{LIVE_MAP}"),
            maps.phase != "DONE",
            MAP_HAS_NEWS,
        )
    )
    return fetch_all(tx, MapRow, query.order_by(maps.updated_us, maps.node_id).limit(limit))


def maps_done(tx: Tx, execution_id: str) -> list[MapRow]:
    """The maps of an execution that are over, and whose nodes do not know it yet."""
    maps = execution_maps.c
    query = sa.select(*columns_of(MapRow, execution_maps)).where(
        maps.execution_id == execution_id, sa.text(f"execution_maps.{LIVE_MAP}"), maps.phase == "DONE"
    )
    return fetch_all(tx, MapRow, query.order_by(maps.node_id))


def maps_stop(tx: Tx, execution_id: str, prefixes: Iterable[str]) -> None:
    """Have the maps whose node ids begin so start no array any more."""
    maps = execution_maps.c
    of_scopes = [sa.func.substr(maps.node_id, 1, len(prefix)) == prefix for prefix in prefixes]
    of_execution = maps.execution_id == execution_id, sa.text(f"execution_maps.{LIVE_MAP}")
    tx.execute(sa.update(execution_maps).where(*of_execution, sa.or_(*of_scopes)).values(is_stopped=True))


def maps_close(tx: Tx, execution_id: str, *, now_us: int) -> None:
    """The execution was given up: nothing looks at its maps any more."""
    is_live = execution_maps.c.execution_id == execution_id, sa.text(f"execution_maps.{LIVE_MAP}")
    tx.execute(sa.update(execution_maps).where(*is_live).values(phase="CLOSED", is_stopped=True, updated_us=now_us))


def map_get(tx: Tx, execution_id: str, node_id: str) -> MapRow | None:
    return fetch_one(tx, MapRow, sa.select(*columns_of(MapRow, execution_maps)).where(*_is(execution_id, node_id)))


def map_update(tx: Tx, row: MapRow, update: MapUpdate, *, error: bytes | None = None) -> bool:
    """Change a map. Returns False if it has changed since it was read."""
    columns = {**update.columns(), "changes": row.changes + 1}
    columns |= {"error": error} if error is not None else {}
    statement = sa.update(execution_maps).where(
        *_is(row.execution_id, row.node_id), execution_maps.c.changes == row.changes
    )
    return tx.execute(statement.values(columns)).rowcount == 1


def map_states(tx: Tx, execution_id: str, node_id: str) -> dict[int, bytes]:
    """The states of all elements, by part."""
    parts = execution_map_parts.c
    query = sa.select(parts.part, parts.states).where(parts.execution_id == execution_id, parts.node_id == node_id)
    return {row.part: bytes(row.states) for row in tx.execute(query.order_by(parts.part))}


def map_parts(tx: Tx, execution_id: str, node_id: str, numbers: Iterable[int] | None = None) -> dict[int, MapPart]:
    parts = execution_map_parts.c
    query = sa.select(*columns_of(MapPart, execution_map_parts)).where(
        parts.execution_id == execution_id, parts.node_id == node_id
    )
    if numbers is not None:
        query = query.where(parts.part.in_(sorted(numbers)))
    return {row.part: row for row in fetch_all(tx, MapPart, query)}


def parts_put(tx: Tx, execution_id: str, node_id: str, parts: Iterable[MapPart]) -> None:
    """Replace parts that are stored."""
    for part in parts:
        _change_part(tx, execution_id, node_id, part.part, {"states": part.states, "results": part.results})


def states_put(tx: Tx, execution_id: str, node_id: str, states: Mapping[int, bytes]) -> None:
    for part, body in states.items():
        _change_part(tx, execution_id, node_id, part, {"states": body})


def map_job(tx: Tx, job_id: str) -> MapJob | None:
    ended = jobs.c.tasks_ok + jobs.c.tasks_failed + jobs.c.tasks_cancelled
    columns = columns_of(MapJob, jobs, ended_tasks=sa.func.coalesce(ended, 0), cluster=clusters.c.name)
    source = jobs.outerjoin(clusters, clusters.c.id == jobs.c.cluster_id)
    return fetch_one(tx, MapJob, sa.select(*columns).select_from(source).where(jobs.c.id == job_id))


def task_outputs(
    tx: Tx, job_id: str, *, fences: Iterable[int] | None = None, after: int | None = None, limit: int | None = None
) -> list[TaskOutput]:
    """The output files of tasks that ran under these fences, or under fences above `after`. By fence."""
    query = sa.select(*columns_of(TaskOutput, file_outputs)).where(
        file_outputs.c.job_id == job_id, file_outputs.c.task.is_not(None)
    )
    if fences is not None:
        query = query.where(file_outputs.c.fence.in_(sorted(fences)))
    if after is not None:
        query = query.where(file_outputs.c.fence > after)
    return fetch_all(tx, TaskOutput, query.order_by(file_outputs.c.fence).limit(limit))


def _change_part(tx: Tx, execution_id: str, node_id: str, part: int, values: dict[str, Any]) -> None:
    parts = execution_map_parts.c
    of_part = parts.execution_id == execution_id, parts.node_id == node_id, parts.part == part
    tx.execute(sa.update(execution_map_parts).where(*of_part).values(values))


def _is(execution_id: str, node_id: str) -> list[sa.ColumnElement[bool]]:
    return [execution_maps.c.execution_id == execution_id, execution_maps.c.node_id == node_id]
