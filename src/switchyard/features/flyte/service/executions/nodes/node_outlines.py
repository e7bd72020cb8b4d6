"""The nodes of an execution with their attempts, those included that have not begun, and why each waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from flyteidl.core import compiler_pb2, execution_pb2

from switchyard.features.flyte.model.workflow_execution import ExecutionNode, MapElements, NodeAttempt, WorkflowNodeKind
from switchyard.features.flyte.service.executions.calls.graphs import closure_of
from switchyard.features.flyte.service.executions.calls.reads import (
    AttemptView,
    attempt_views,
    children_of,
    find_execution,
)
from switchyard.features.flyte.service.executions.calls.visible import ExecutionSight
from switchyard.features.flyte.service.executions.nodes.node_jobs import read_spec
from switchyard.features.flyte.store.executions import execution_dynamics, execution_nodes, execution_pages
from switchyard.features.flyte.store.executions.execution_nodes import LiveAttemptRow
from switchyard.features.flyte.store.executions.execution_pages import NodeStateRow
from switchyard.features.flyte.store.executions.execution_recovery import DONE_PHASES
from switchyard.features.flyte.store.executions.executions import ExecutionKey, ExecutionRow
from switchyard.features.flyte.workflow.engine.execution_graph import ExecutionGraph, read_graph
from switchyard.features.flyte.workflow.engine.execution_outline import OutlinedNode, outline
from switchyard.features.flyte.workflow.engine.execution_state import ExecutionPhase
from switchyard.model.wire.api import Page
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.lifecycle.visibility import Visibility
from switchyard.store.engine.database import Tx

DYNAMIC_BYTES_MAX = 32 * 2**20  # of workflows that tasks made; the rest is not drawn
NAMES_SHOWN = 5
ERROR_CHARS_MAX = 1000
LIVE_PHASES = ("QUEUED", "RUNNING", "DYNAMIC_RUNNING", "FAILING")
# What counts against max_parallelism.
COUNTED_KINDS = (WorkflowNodeKind.TASK, WorkflowNodeKind.MAP, WorkflowNodeKind.LAUNCH_PLAN)
WAITING_PHASES = ("UNDEFINED", "WAITING_FOR_RESOURCES", "QUEUED", "INITIALIZING")  # of an attempt


@dataclass(slots=True)
class NodeStates:
    """What is stored of the nodes of one execution."""

    row: ExecutionRow
    nodes: dict[str, NodeStateRow]
    dynamics: dict[tuple[str, int], ExecutionGraph]
    live: list[LiveAttemptRow]
    maps: dict[str, MapElements]
    cache_waiters: set[str]
    max_parallelism: int
    errors: dict[str, bytes] = field(default_factory=dict)  # of the nodes of the page
    running: int = field(init=False)

    def __post_init__(self) -> None:
        counted = (one for one in self.nodes.values() if not one.is_parent and one.attempts)
        self.running = sum(one.phase == "RUNNING" for one in counted)

    @property
    def is_over(self) -> bool:
        return ExecutionPhase(self.row.phase).is_final

    def phase(self, node_id: str) -> str:
        state = self.nodes.get(node_id)
        return state.phase if state is not None else ""


def node_page(context: Context, actor: Actor, key: ExecutionKey, *, offset: int, limit: int) -> Page[ExecutionNode]:
    """Nodes in drawing order, each before the nodes inside it. `next` is the place of the first one that follows."""
    with context.database.read() as tx:
        states = _read_states(tx, find_execution(tx, actor, key))
    graph = read_graph(closure_of(context, states.row))
    found = list(islice(outline(graph, states.nodes, states.dynamics), offset, offset + limit + 1))
    shown = found[:limit]
    ids = [one.id for one in shown if one.id in states.nodes or _is_begun_soon(states, one)]
    with context.database.read() as tx:
        attempts = execution_pages.attempts_of(tx, states.row.id, ids)
        states.errors = execution_pages.node_errors(tx, states.row.id, ids)
        plans = [one.id for one in shown if one.kind is WorkflowNodeKind.LAUNCH_PLAN]
        children = children_of(tx, states.row, plans) if plans else {}
    sight = ExecutionSight(Visibility(context, actor), states.row)
    by_node: dict[str, list[AttemptView]] = {}
    for view in attempt_views(sight, attempts, states.live):
        by_node.setdefault(view.row.node_id, []).append(view)
    items = [_shown_node(sight, states, one, by_node.get(one.id, []), child=children.get(one.id, "")) for one in shown]
    return Page(items, str(offset + limit) if len(found) > limit else None)


def _read_states(tx: Tx, row: ExecutionRow) -> NodeStates:
    maps = execution_pages.map_counts(tx, row.id)
    rows = execution_dynamics.dynamics_shown(tx, row.id, bytes_max=DYNAMIC_BYTES_MAX)
    return NodeStates(
        row=row,
        nodes={state.node_id: state for state in execution_pages.node_states(tx, row.id)},
        dynamics={(one.node_id, one.attempt): _dynamic_graph(one.closure) for one in rows},
        live=execution_nodes.live_attempts(tx, row.id),
        maps={one.node_id: MapElements(one.size, one.succeeded, one.failed) for one in maps},
        cache_waiters=execution_pages.cache_waiters(tx, row.id),
        max_parallelism=read_spec(row).max_parallelism,
    )


def _dynamic_graph(body: bytes) -> ExecutionGraph:
    closure: Any = compiler_pb2.CompiledWorkflowClosure.FromString(body)
    return read_graph(closure)


def _is_begun_soon(states: NodeStates, node: OutlinedNode) -> bool:
    """Whether a node without a state may have an attempt that waits for room under a limit."""
    return not states.is_over and node.kind in (WorkflowNodeKind.TASK, WorkflowNodeKind.MAP)


def _shown_node(
    sight: ExecutionSight, states: NodeStates, node: OutlinedNode, views: Sequence[AttemptView], *, child: str
) -> ExecutionNode:
    state = states.nodes.get(node.id)
    waits = _wait_reason(states, node, state, views, child=child)
    return ExecutionNode(
        id=node.id,
        kind=node.kind,
        parent=node.parent_id,
        runs=node.runs,
        phase=state.phase if state is not None else "",
        after=list(node.after),
        waits=sight.text(waits),
        is_behind=bool(waits) and state is None and not views and bool(_unfinished(states, node)),
        attempts=[_shown_attempt(view) for view in views],
        elements=states.maps.get(node.id),
        child=child,
        cache=(state.cache_status or "") if state is not None else "",
        error=sight.text(_error_text(states.errors[node.id])) if node.id in states.errors else "",
        is_failure_node=node.is_failure_node,
        created_us=state.created_us if state is not None else None,
        ended_us=state.ended_us if state is not None else None,
    )


def _shown_attempt(view: AttemptView) -> NodeAttempt:
    row = view.row
    return NodeAttempt(
        number=row.attempt,
        phase=view.phase,
        job=row.job_id,
        cluster=view.cluster,
        reason=view.reason,
        created_us=row.created_us,
        started_us=view.started_us,
        ended_us=row.ended_us,
    )


def _error_text(body: bytes) -> str:
    error: Any = execution_pb2.ExecutionError.FromString(body)
    text = f"{error.code}: {error.message}"
    if len(text) <= ERROR_CHARS_MAX:
        return text
    return f"{text[: ERROR_CHARS_MAX // 4]}\n…\n{text[-ERROR_CHARS_MAX // 2 :]}"  # a traceback's last line says most


def _wait_reason(
    states: NodeStates,
    node: OutlinedNode,
    state: NodeStateRow | None,
    views: Sequence[AttemptView],
    *,
    child: str,
) -> str:
    """Why a node does not go on. Empty: it does, or it never will."""
    if states.is_over:
        return ""
    if views and views[-1].phase in WAITING_PHASES:
        return views[-1].reason or WAIT_WORDS[views[-1].phase]
    if state is None:
        return _wait_before_begin(states, node)
    if state.phase not in LIVE_PHASES:
        return ""
    if node.kind is WorkflowNodeKind.GATE:
        until = f" until {_moment(state.wake_us)}" if state.wake_us is not None else ""
        return f"waits for the signal {state.signal_id}{until}" if state.signal_id else f"sleeps{until}"
    return f"waits for the execution {child}" if child else ""


WAIT_WORDS: Mapping[str, str] = {
    "UNDEFINED": "it has no job yet",
    "WAITING_FOR_RESOURCES": "its job waits for a cluster",
    "QUEUED": "its job waits in line at its cluster",
    "INITIALIZING": "its cluster has its job and has not started it yet",
}


def _wait_before_begin(states: NodeStates, node: OutlinedNode) -> str:
    if node.parent_id and states.phase(node.parent_id) not in LIVE_PHASES:
        return ""  # the node around it says why
    if unfinished := _unfinished(states, node):
        more = f" and {len(unfinished) - NAMES_SHOWN} more" if len(unfinished) > NAMES_SHOWN else ""
        return f"waits for {', '.join(unfinished[:NAMES_SHOWN])}{more}"
    if node.id in states.cache_waiters:
        return "waits for an equal task that runs, whose outputs it will take (cache_serialize)"
    if states.row.phase in (ExecutionPhase.FAILING, ExecutionPhase.ABORTING):
        return ""
    if 0 < states.max_parallelism <= states.running and node.kind in COUNTED_KINDS:
        return f"{states.running} nodes run, and no more may (max_parallelism)"
    return "begins with the next step of the execution"


def _unfinished(states: NodeStates, node: OutlinedNode) -> list[str]:
    return [one for one in node.after if states.phase(one) not in DONE_PHASES]


def _moment(us: int) -> str:
    return datetime.fromtimestamp(us / 1_000_000, tz=UTC).isoformat(timespec="seconds")
