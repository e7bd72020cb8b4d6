"""The compiled graph of an execution, read from the registered entities and kept for the next step."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from switchyard.errors import NotFound
from switchyard.features.flyte.service.entities.entity_reads import StoredEntity, get_workflow_closure, read_task
from switchyard.features.flyte.service.entities.scope import missing_entity, stored_key
from switchyard.features.flyte.store.entities import entities
from switchyard.features.flyte.store.executions.executions import ExecutionRow
from switchyard.features.flyte.workflow.compile.entity_id import EntityId, EntityKind
from switchyard.features.flyte.workflow.engine.execution_graph import ExecutionGraph, read_graph, task_closure
from switchyard.service.core.context import Context

GRAPHS_MAX = 200  # most are some kilobytes, the largest 16 MiB
GRAPH_BYTES_MAX = 64 * 2**20


class GraphCache:
    """The graphs that were used last. Entities never change, so nothing in it gets old."""

    def __init__(self) -> None:
        self._graphs: OrderedDict[EntityId, tuple[ExecutionGraph, int]] = OrderedDict()
        self._lock = threading.Lock()

    def graph_of(self, context: Context, row: ExecutionRow) -> ExecutionGraph:
        entity = launched_entity(row)
        with self._lock:
            if entity in self._graphs:
                self._graphs.move_to_end(entity)
                return self._graphs[entity][0]
        closure = closure_of(context, row)
        graph = read_graph(closure)
        with self._lock:
            self._graphs[entity] = (graph, closure.ByteSize())
            while len(self._graphs) > GRAPHS_MAX or (
                len(self._graphs) > 1 and sum(size for _, size in self._graphs.values()) > GRAPH_BYTES_MAX
            ):
                self._graphs.popitem(last=False)
        return graph


def closure_of(context: Context, row: ExecutionRow) -> Any:
    entity = launched_entity(row)
    return task_closure_of(context, entity) if entity.kind is EntityKind.TASK else workflow_closure_of(context, entity)


def task_closure_of(context: Context, task: EntityId) -> Any:
    return task_closure(task, read_task(find_entity(context, task).body, task))


def workflow_closure_of(context: Context, workflow: EntityId) -> Any:
    return get_workflow_closure(context, find_entity(context, workflow))


def find_entity(context: Context, entity: EntityId) -> StoredEntity:
    """An entity, whoever may read it: the caller has checked that, or it was checked when the execution began."""
    with context.database.read() as tx:
        row = entities.entity_get(tx, stored_key(entity))
        if row is None:
            raise missing_entity(entity)
        return StoredEntity(row, entities.content_bodies(tx, [bytes(row.digest)])[bytes(row.digest)])


def launched_entity(row: ExecutionRow) -> EntityId:
    """What runs: the workflow, or the task that was launched by itself."""
    if row.entity_kind == EntityKind.TASK:
        return EntityId(EntityKind.TASK, row.entity_project, row.entity_domain, row.entity_name, row.entity_version)
    return EntityId(
        EntityKind.WORKFLOW, row.workflow_project, row.workflow_domain, row.workflow_name, row.workflow_version
    )


def missing_execution(key: object) -> NotFound:
    return NotFound(f"missing entity of type execution with identifier {str(key)[:300]}")
