"""What the driver reads before a step: the execution, its nodes, its live attempts, and the ends of these.

The nodes of an execution are kept in memory between steps, because a step changes few of them. They count only if no
other step was stored since: the number of steps says so.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from flyteidl.core import execution_pb2, literals_pb2

from switchyard.service.core.context import Context
from switchyard.service.executions.attempt_files import is_over, read_end
from switchyard.service.executions.graphs import GraphCache
from switchyard.service.executions.node_jobs import read_spec
from switchyard.store import execution_nodes, executions
from switchyard.store.execution_nodes import LiveAttemptRow, NodeRow
from switchyard.store.executions import ExecutionKey, ExecutionRow
from switchyard.workflow.attempt_result import judge_attempt
from switchyard.workflow.entity_id import EntityId, EntityKind
from switchyard.workflow.execution_graph import ExecutionGraph
from switchyard.workflow.execution_state import (
    AttemptEnd,
    ExecutionPhase,
    ExecutionState,
    NodePhase,
    NodeProgress,
    NodeTable,
)

KEPT_BYTES_MAX = 64 * 2**20  # inputs and outputs of the nodes that are kept
NODE_BYTES = 500  # of a node in memory, without these


@dataclass(slots=True)
class KeptNodes:
    """The nodes of an execution after a number of steps."""

    steps: int
    table: NodeTable
    size: int


@dataclass(slots=True)
class LoadedExecution:
    """An execution with its nodes and live attempts, as of one moment."""

    row: ExecutionRow
    spec: Any
    graph: ExecutionGraph
    state: ExecutionState
    nodes: KeptNodes
    live: list[LiveAttemptRow]
    ended: dict[tuple[str, int], AttemptEnd] = field(default_factory=dict)


class ExecutionLoader:
    """Reads executions for the driver, which has one thread."""

    def __init__(self) -> None:
        self._graphs = GraphCache()
        self._kept: OrderedDict[str, KeptNodes] = OrderedDict()  # by the id of the execution
        self._size = 0

    def load(self, context: Context, key: ExecutionKey) -> LoadedExecution | None:
        with context.database.read() as tx:
            row = executions.execution_get(tx, key)
            if row is None:
                return None
            kept = self._current(row)
            rows = execution_nodes.node_list(tx, row.id) if kept is None else []
            live = execution_nodes.live_attempts(tx, row.id)
        nodes = kept or _read_nodes(row.steps, rows)
        graph, spec = self._graphs.graph_of(context, row), read_spec(row)
        state = ExecutionState(
            phase=ExecutionPhase(row.phase),
            inputs=literals_pb2.LiteralMap.FromString(row.inputs),
            nodes=nodes.table,
            is_stopping=bool(row.is_stopping),
            error=_error(row.error),
            max_parallelism=spec.max_parallelism,
            is_due=bool(row.is_due),
        )
        loaded = LoadedExecution(row, spec, graph, state, nodes, live)
        now_us = context.now_us()
        for attempt in live:
            if is_over(attempt, now_us):
                end = judge_attempt(
                    attempt.node_id,
                    attempt.attempt,
                    read_end(context, attempt),
                    has_outputs=bool(graph.tasks[_task_of(attempt)].interface.outputs.variables),
                )
                loaded.ended[attempt.node_id, attempt.attempt] = end
        return loaded

    def keep(self, loaded: LoadedExecution, changed: Sequence[NodeProgress]) -> None:
        """Keep the nodes of an execution after a step that was stored and was not the last one."""
        self.forget(loaded.row.id)
        nodes = loaded.nodes
        nodes.steps = loaded.row.steps + 1
        for state in changed:
            nodes.table.put(state)
            nodes.size += _size(state)
        self._kept[loaded.row.id] = nodes
        self._size += nodes.size
        while self._size > KEPT_BYTES_MAX:
            self._size -= self._kept.popitem(last=False)[1].size

    def forget(self, execution_id: str) -> None:
        kept = self._kept.pop(execution_id, None)
        self._size -= kept.size if kept is not None else 0

    def _current(self, row: ExecutionRow) -> KeptNodes | None:
        """The nodes that are kept of an execution, if no other step was stored since."""
        kept = self._kept.get(row.id)
        return kept if kept is not None and kept.steps == row.steps else None


def _read_nodes(steps: int, rows: Sequence[NodeRow]) -> KeptNodes:
    states = [_node_state(row) for row in rows]
    return KeptNodes(steps, NodeTable(states), sum(_size(state) for state in states))


def _size(state: NodeProgress) -> int:
    return NODE_BYTES + sum(int(values.ByteSize()) for values in (state.inputs, state.outputs) if values is not None)


def _task_of(row: LiveAttemptRow) -> EntityId:
    return EntityId(EntityKind.TASK, row.task_project, row.task_domain, row.task_name, row.task_version)


def _node_state(row: NodeRow) -> NodeProgress:
    return NodeProgress(
        node_id=row.node_id,
        parent_id=row.parent_id,
        spec_id=row.spec_id,
        phase=NodePhase(row.phase),
        is_parent=bool(row.is_parent),
        attempts=row.attempts,
        user_failures=row.user_failures,
        system_failures=row.system_failures,
        inputs=_literals(row.inputs),
        outputs=_literals(row.outputs),
        error=_error(row.error),
    )


def _literals(body: bytes | None) -> Any:
    return None if body is None else literals_pb2.LiteralMap.FromString(body)


def _error(body: bytes | None) -> Any:
    return None if body is None else execution_pb2.ExecutionError.FromString(body)
