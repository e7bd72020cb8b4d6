"""Read executions, their nodes and the attempts of these. Whoever may view the project may read them.

Secrets of others and names of hidden clusters are removed, as from jobs (`visible.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from switchyard.errors import BadRequest, NotFound
from switchyard.features.flyte.service.entities.scope import require_read
from switchyard.features.flyte.service.executions.calls.decks import nodes_with_deck
from switchyard.features.flyte.service.executions.calls.graphs import missing_execution
from switchyard.features.flyte.service.executions.calls.visible import ExecutionSight
from switchyard.features.flyte.service.executions.maps.map_views import ElementView, read_elements
from switchyard.features.flyte.service.executions.nodes.child_executions import child_name
from switchyard.features.flyte.store.entities import entities
from switchyard.features.flyte.store.entities.entities import EntityKey
from switchyard.features.flyte.store.executions import execution_dynamics, execution_nodes
from switchyard.features.flyte.store.executions import executions as store
from switchyard.features.flyte.store.executions.child_executions import names_taken
from switchyard.features.flyte.store.executions.execution_nodes import LiveAttemptRow, NodeAttemptRow, NodeRow
from switchyard.features.flyte.store.executions.executions import ExecutionKey, ExecutionRow
from switchyard.features.flyte.workflow.compile.entity_id import EntityKind
from switchyard.features.flyte.workflow.lists.filters import CLUSTER_COLUMN
from switchyard.features.flyte.workflow.lists.list_query import ListFilter, ListOrder
from switchyard.model.job.job import State
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.lifecycle.visibility import Visibility
from switchyard.store.engine.database import Tx

PAGE_ROWS_MAX = 1000
PAGE_BYTES_MAX = 3 * 2**20  # gRPC clients take 4 MiB unless told otherwise
NO_CLUSTER = "-"  # no cluster has this name
NEWEST_FIRST = ListOrder("created_us", is_descending=True)
LIVE_PHASES = {
    State.PENDING: "WAITING_FOR_RESOURCES",
    State.ASSIGNED: "QUEUED",
    State.SUBMITTED: "INITIALIZING",
    State.RUNNING: "RUNNING",
}


@dataclass(frozen=True, slots=True)
class ExecutionView:
    """An execution, and the clusters that its jobs run or ran on, as the reader may see them."""

    row: ExecutionRow
    clusters: list[str]


@dataclass(frozen=True, slots=True)
class ExecutionQuery:
    project: str
    domain: str
    filters: Sequence[ListFilter] = ()
    order: ListOrder | None = None
    offset: int = 0
    limit: int = 100


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node. `is_dynamic`: its task made the workflow that runs inside it.

    `child`: the name of the execution that it started; empty: none. `has_deck`: its last attempt left a deck.
    """

    row: NodeRow
    is_dynamic: bool
    child: str
    has_deck: bool


@dataclass(frozen=True, slots=True)
class AttemptView:
    """An attempt as it is now. `phase`: Flyte's word. `elements`: of a map, in its last attempt, the first ones.

    `task_type`: empty if the task is not registered but part of a dynamic workflow.
    """

    row: NodeAttemptRow
    phase: str
    reason: str
    started_us: int | None
    cluster: str
    elements: Sequence[ElementView] = ()
    task_type: str = ""


def get_execution(context: Context, actor: Actor, key: ExecutionKey) -> ExecutionView:
    with context.database.read() as tx:
        row = find_execution(tx, actor, key)
        clusters = execution_nodes.cluster_names(tx, row.id)
    return _execution_view(Visibility(context, actor), row, clusters)


def list_executions(context: Context, actor: Actor, query: ExecutionQuery) -> tuple[list[ExecutionView], str]:
    """A page of executions, and the token of the next page. Archived ones only if a filter names their state."""
    require_read(actor, query.project, query.domain)
    limit = min(query.limit, PAGE_ROWS_MAX)
    visibility = Visibility(context, actor)
    filters = _filters_of_reader(visibility, query)
    with context.database.read() as tx:
        rows, has_more = store.execution_list(
            tx,
            project=query.project,
            domain=query.domain,
            filters=filters,
            order=query.order or NEWEST_FIRST,
            offset=query.offset,
            limit=limit,
            bytes_max=PAGE_BYTES_MAX,
            with_archived=any(one.column == "state" for one in query.filters),
        )
        found = [(row, execution_nodes.cluster_names(tx, row.id)) for row in rows]
    views = [_execution_view(visibility, row, clusters) for row, clusters in found]
    return views, str(query.offset + len(rows)) if has_more else ""


def _filters_of_reader(visibility: Visibility, query: ExecutionQuery) -> list[ListFilter]:
    """The filters, of which none finds out the name of a hidden cluster."""
    if query.order is not None and query.order.column == CLUSTER_COLUMN:
        raise BadRequest("invalid sort key 'cluster'")
    filters = []
    for one in query.filters:
        if one.column != CLUSTER_COLUMN:
            filters.append(one)
            continue
        if one.function not in ("eq", "value_in"):
            raise BadRequest("'cluster' takes the filters eq and value_in")
        values = tuple(value if visibility.sees_name(str(value)) else NO_CLUSTER for value in one.values)
        filters.append(replace(one, values=values))
    return filters


def list_nodes(
    context: Context,
    actor: Actor,
    key: ExecutionKey,
    *,
    parent_id: str,
    filters: Sequence[ListFilter] = (),
    is_descending: bool,
    offset: int,
    limit: int,
) -> tuple[list[NodeView], str]:
    """Nodes at the top or inside another node, and the token of the next page."""
    limit = min(limit, PAGE_ROWS_MAX)
    with context.database.read() as tx:
        execution = find_execution(tx, actor, key)
        parent = _find_node(tx, execution, parent_id) if parent_id else None
        rows, has_more = execution_nodes.node_page(
            tx,
            execution.id,
            parent=parent,
            filters=filters,
            is_descending=is_descending,
            offset=offset,
            limit=limit,
            bytes_max=PAGE_BYTES_MAX,
        )
        dynamic = execution_dynamics.dynamic_nodes(tx, execution.id, [row.node_id for row in rows if row.is_parent])
        children = children_of(tx, execution, [row.node_id for row in rows])
    sight = ExecutionSight(Visibility(context, actor), execution)
    decks = nodes_with_deck(context, execution.id, [row.node_id for row in rows])
    views = [
        NodeView(sight.node(row), row.node_id in dynamic, children.get(row.node_id, ""), row.node_id in decks)
        for row in rows
    ]
    return views, str(offset + len(rows)) if has_more else ""


def get_node(context: Context, actor: Actor, key: ExecutionKey, node_id: str) -> NodeView:
    with context.database.read() as tx:
        execution = find_execution(tx, actor, key)
        row = _find_node(tx, execution, node_id)
        dynamic = execution_dynamics.dynamic_nodes(tx, execution.id, [node_id] if row.is_parent else [])
        children = children_of(tx, execution, [node_id])
    shown = ExecutionSight(Visibility(context, actor), execution).node(row)
    decks = nodes_with_deck(context, execution.id, [node_id])
    return NodeView(shown, bool(dynamic), children.get(node_id, ""), node_id in decks)


def get_dynamic_workflow(context: Context, actor: Actor, key: ExecutionKey, node_id: str) -> bytes | None:
    """The workflow that a dynamic task made last, compiled. None: it made none."""
    with context.database.read() as tx:
        execution = find_execution(tx, actor, key)
        row = _find_node(tx, execution, node_id)
        dynamic = execution_dynamics.dynamic_last(tx, execution.id, row.node_id)
    return bytes(dynamic.closure) if dynamic is not None else None


def children_of(tx: Tx, execution: ExecutionRow, node_ids: Iterable[str]) -> dict[str, str]:
    """The names of the executions that these nodes started."""
    names = {node_id: child_name(execution.id, node_id) for node_id in node_ids}
    taken = names_taken(tx, execution.project, execution.domain, list(names.values()))
    return {node_id: name for node_id, name in names.items() if name in taken}


def list_attempts(context: Context, actor: Actor, key: ExecutionKey, node_id: str) -> list[AttemptView]:
    with context.database.read() as tx:
        execution = find_execution(tx, actor, key)
        node = _find_node(tx, execution, node_id)
        rows = execution_nodes.attempt_list(tx, execution.id, node_id)
        elements = read_elements(tx, execution.id, node_id) if node.is_array else []
        is_live = any(row.ended_us is None for row in rows)
        live = execution_nodes.live_attempts(tx, execution.id) if is_live else []
        types = {row.key: row.type for row in entities.entity_get_many(tx, {_task_key(row) for row in rows})}
    views = attempt_views(ExecutionSight(Visibility(context, actor), execution), rows, live)
    views = [replace(view, task_type=types.get(_task_key(view.row), "")) for view in views]
    return [*views[:-1], replace(views[-1], elements=elements)] if elements and views else views


def _task_key(row: NodeAttemptRow) -> EntityKey:
    return EntityKey(EntityKind.TASK.value, row.task_project, row.task_domain, row.task_name, row.task_version)


def attempt_views(
    sight: ExecutionSight, rows: Sequence[NodeAttemptRow], live: Sequence[LiveAttemptRow]
) -> list[AttemptView]:
    """Attempts as they are now. `live`: those of the execution that have not ended, with their jobs."""
    jobs = {(one.node_id, one.attempt): one for one in live}
    return [_attempt_view(sight, row, jobs.get((row.node_id, row.attempt))) for row in rows]


def get_attempt(context: Context, actor: Actor, key: ExecutionKey, node_id: str, number: int) -> AttemptView:
    for view in list_attempts(context, actor, key, node_id):
        if view.row.attempt == number:
            return view
    raise NotFound(f"missing entity of type task execution with identifier {key}:{node_id[:200]}:{number}")


def find_execution(tx: Tx, actor: Actor, key: ExecutionKey) -> ExecutionRow:
    require_read(actor, key.project, key.domain)
    if not key.name or "\0" in key.name:
        raise BadRequest("missing name")
    row = store.execution_get(tx, key)
    if row is None:
        raise missing_execution(key)
    return row


def read_key(message: Any) -> ExecutionKey:
    """The key in an identifier of Flyte's."""
    return ExecutionKey(message.project, message.domain, message.name)


def _find_node(tx: Tx, execution: ExecutionRow, node_id: str) -> NodeRow:
    row = execution_nodes.node_get(tx, execution.id, node_id) if "\0" not in node_id else None
    if row is None:
        raise NotFound(f"missing entity of type node execution with identifier {execution.key}:{node_id[:200]}")
    return row


def _execution_view(visibility: Visibility, row: ExecutionRow, clusters: list[str]) -> ExecutionView:
    sight = ExecutionSight(visibility, row)
    clusters = [row.cluster] if row.cluster else clusters
    return ExecutionView(sight.execution(row), sight.clusters(clusters))


def _attempt_view(sight: ExecutionSight, row: NodeAttemptRow, job: LiveAttemptRow | None) -> AttemptView:
    row = sight.attempt(row)
    if job is None:
        return AttemptView(row, row.phase, row.reason, row.started_us, row.cluster)
    state = State(job.state) if job.state is not None else None
    phase = LIVE_PHASES.get(state, "RUNNING") if state is not None else "UNDEFINED"
    return AttemptView(row, phase, sight.text(job.reason or ""), job.started_us, sight.cluster(job.cluster or ""))
