"""When the parts of an execution began and ended: itself, its nodes and the attempts of their tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from switchyard.features.flyte.service.executions.calls.reads import find_execution
from switchyard.features.flyte.store.executions import execution_pages
from switchyard.features.flyte.store.executions.execution_nodes import NodeAttemptRow
from switchyard.features.flyte.store.executions.execution_pages import NodeStateRow
from switchyard.features.flyte.store.executions.executions import ExecutionKey, ExecutionRow
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor

NODES_MAX = 3000  # their spans are about 2 MiB; gRPC clients take 4 MiB unless told otherwise


@dataclass(frozen=True, slots=True)
class ExecutionTimes:
    """`nodes`: by the node that they are in; empty: at the top. `attempts`: by node."""

    row: ExecutionRow
    nodes: dict[str, list[NodeStateRow]]
    attempts: dict[str, list[NodeAttemptRow]]


def execution_times(context: Context, actor: Actor, key: ExecutionKey) -> ExecutionTimes:
    """The times of the first NODES_MAX nodes that began."""
    with context.database.read() as tx:
        row = find_execution(tx, actor, key)
        states = sorted(execution_pages.node_states(tx, row.id), key=lambda state: (state.created_us, state.node_id))
        states = states[:NODES_MAX]
        attempts = execution_pages.attempts_of(tx, row.id, [state.node_id for state in states])
    nodes: dict[str, list[NodeStateRow]] = {}
    for state in states:
        nodes.setdefault(state.parent_id, []).append(state)
    return ExecutionTimes(row, nodes, _by_node(attempts))


def _by_node(attempts: Sequence[NodeAttemptRow]) -> dict[str, list[NodeAttemptRow]]:
    found: dict[str, list[NodeAttemptRow]] = {}
    for attempt in attempts:
        found.setdefault(attempt.node_id, []).append(attempt)
    return found
