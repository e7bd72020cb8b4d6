"""What the driver reads before a step: the execution, its nodes, its live attempts, and the ends of these.

The nodes of an execution are kept in memory between steps, because a step changes few of them. They count only if no
other step was stored since: the number of steps says so.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from flyteidl.core import compiler_pb2, literals_pb2

from switchyard.features.flyte.service.executions.calls.graphs import GraphCache
from switchyard.features.flyte.service.executions.maps.map_driver import map_end
from switchyard.features.flyte.service.executions.nodes.attempt_ends import end_of_attempt
from switchyard.features.flyte.service.executions.nodes.attempt_files import is_over
from switchyard.features.flyte.service.executions.nodes.child_executions import ENDS_MAX, child_end
from switchyard.features.flyte.service.executions.nodes.dynamics import with_dynamic
from switchyard.features.flyte.service.executions.nodes.node_jobs import read_spec
from switchyard.features.flyte.service.executions.nodes.node_rows import QUEUED, node_state, read_error, task_of
from switchyard.features.flyte.store.executions import (
    child_executions,
    execution_dynamics,
    execution_maps,
    execution_nodes,
    execution_signals,
    executions,
    task_cache,
)
from switchyard.features.flyte.store.executions.execution_dynamics import DynamicRow
from switchyard.features.flyte.store.executions.execution_maps import MapRow
from switchyard.features.flyte.store.executions.execution_nodes import LiveAttemptRow, NodeRow
from switchyard.features.flyte.store.executions.executions import ExecutionKey, ExecutionRow
from switchyard.features.flyte.workflow.engine.execution_graph import ExecutionGraph, count_nodes_to_run, read_graph
from switchyard.features.flyte.workflow.engine.execution_state import (
    AttemptEnd,
    AttemptFailure,
    EngineStep,
    ExecutionPhase,
    ExecutionState,
    NodeProgress,
    NodeTable,
)
from switchyard.features.flyte.workflow.values.limits import BYTES_FULL, WorkflowLimits
from switchyard.service.core.context import Context
from switchyard.service.core.snapshots.snapshots import owner_of

CACHE_BYTES_MAX = 64 * 2**20  # inputs and outputs of the nodes that are kept
EXPANSIONS_MAX = 20  # dynamic workflows that one step begins with
NODE_BYTES = 500  # of a node in memory, without these
# Ends of attempts of one step. What is left is read by the next one, after the turns of other owners.
ATTEMPT_ENDS_MAX = 200
READ_BYTES_MAX = 32 * 2**20  # of outputs
READ_S_MAX = 1.0


@dataclass(slots=True)
class CachedNodes:
    """The nodes of an execution after a number of steps."""

    steps: int
    table: NodeTable
    size: int = 0
    dynamics: dict[tuple[str, int], ExecutionGraph] = field(default_factory=dict)  # by node and attempt
    rows: int = 0  # of nodes and attempts

    def put(self, state: NodeProgress) -> None:
        old = self.table.get(state.node_id)
        self.table.put(state)
        self.size += _size(state) - (_size(old) if old is not None else 0)
        self.rows += state.attempts - old.attempts if old is not None else 1 + state.attempts


@dataclass(slots=True)
class LoadedExecution:
    """An execution with its nodes and live attempts, as of one moment. `has_more_ends`: not all ends were read."""

    row: ExecutionRow
    spec: Any
    graph: ExecutionGraph
    state: ExecutionState
    nodes: CachedNodes
    live: list[LiveAttemptRow]
    job_ends: dict[tuple[str, int], AttemptEnd] = field(default_factory=dict)
    has_more_ends: bool = False
    expansions: int = 0  # dynamic workflows that were read for this step
    promised: int = 0  # nodes of the execution, with those of these workflows
    ended_maps: list[AttemptEnd] = field(default_factory=list)
    ended_children: list[ExecutionRow] = field(default_factory=list)
    child_ends: list[AttemptEnd] = field(default_factory=list)  # of these
    room: int | None = None  # bytes that the nodes of the execution may still have; None: no bound
    waits_over: list[str] = field(default_factory=list)  # nodes that need not wait for the cache any more

    def graph_around(self, node_id: str) -> tuple[ExecutionGraph, int]:
        """The graph that a node is of, and the number of dynamic workflows around it."""
        found, depth = self.graph, 0
        state = self.nodes.table.get(node_id)
        while state is not None and state.parent_id:
            state = self.nodes.table.get(state.parent_id)
            graph = self.nodes.dynamics.get((state.node_id, state.attempts - 1)) if state is not None else None
            if graph is not None:
                found, depth = (graph if depth == 0 else found), depth + 1
        return found, depth

    @property
    def is_due(self) -> bool:
        """Whether a step has something to do besides the attempts that have ended."""
        state = self.state
        woken = (one for one in state.nodes.waiting() if one.wake_us is not None and one.wake_us <= state.now_us)
        return state.is_due or bool(state.signals) or any(woken)


class ExecutionLoader:
    """Reads executions for the driver, which has one thread."""

    def __init__(self) -> None:
        self._graphs = GraphCache()
        self._cache: OrderedDict[str, CachedNodes] = OrderedDict()  # by the id of the execution
        self._size = 0

    def load(
        self, context: Context, key: ExecutionKey, *, has_maps: bool = True, has_news: bool = True
    ) -> LoadedExecution | None:
        """Read an execution. `has_maps`: it may have maps that have not ended. `has_news`: children may have ended, or
        keys of the cache may be free."""
        with context.database.read() as tx:
            row = executions.execution_get(tx, key)
            if row is None:
                return None
            cached = self._current(row)
            rows = execution_nodes.node_list(tx, row.id) if cached is None else []
            dynamics = execution_dynamics.dynamic_live(tx, row.id) if cached is None else []
            live = execution_nodes.live_attempts(tx, row.id)
            done = execution_maps.maps_done(tx, row.id) if has_maps else []
            children = (
                child_executions.children_ended(tx, row.id, limit=ENDS_MAX, bytes_max=READ_BYTES_MAX)
                if has_news
                else []
            )
            waits_over = task_cache.waits_over(tx, row.id) if has_news else []
            signals = execution_signals.signal_values(tx, row.id, _awaited_signals(cached, rows))
        # Ten thousand nodes take long to parse. PostgreSQL would end a transaction that is idle for so long.
        nodes = cached or _read_nodes(row.steps, rows, dynamics)
        now_us = context.now_us()
        graph, spec = self._graphs.graph_of(context, row), read_spec(row)
        bytes_max = context.setting(WorkflowLimits).execution_bytes
        room = bytes_max - nodes.size if bytes_max else None
        state = ExecutionState(
            phase=ExecutionPhase(row.phase),
            inputs=literals_pb2.LiteralMap.FromString(row.inputs),
            nodes=nodes.table,
            is_stopping=bool(row.is_stopping),
            error=read_error(row.error),
            max_parallelism=spec.max_parallelism,
            is_due=bool(row.is_due or children or waits_over),  # others may wait for room in the family
            now_us=now_us,
            signals={name: literals_pb2.Literal.FromString(body) for name, body in signals.items()},
            dynamics=nodes.dynamics,
            bytes_left=room,
        )
        loaded = LoadedExecution(row=row, spec=spec, graph=graph, state=state, nodes=nodes, live=live, room=room)
        loaded.ended_children, loaded.waits_over = children, waits_over
        loaded.ended_maps = [_within(loaded, end) for end in _map_ends(context, done)]
        loaded.child_ends = [_within(loaded, child_end(child)) for child in children]
        _read_ends(context, loaded)
        return loaded

    def keep(self, loaded: LoadedExecution, engine_step: EngineStep, changed: Sequence[NodeProgress]) -> None:
        """Keep the nodes of an execution after a step that was stored and was not the last one.

        `changed`: the nodes of the step that were stored.
        """
        self.forget(loaded.row.id)
        nodes = loaded.nodes
        for node_id, attempt, dynamic in engine_step.dynamics:
            nodes.dynamics[node_id, attempt] = dynamic.graph
            nodes.size += int(dynamic.closure.ByteSize())
        nodes.steps = loaded.row.steps + 1
        for state in changed:
            nodes.put(state)
        self._cache[loaded.row.id] = nodes
        self._size += nodes.size
        while self._size > CACHE_BYTES_MAX:
            self._size -= self._cache.popitem(last=False)[1].size

    def forget(self, execution_id: str) -> None:
        cached = self._cache.pop(execution_id, None)
        self._size -= cached.size if cached is not None else 0

    def _current(self, row: ExecutionRow) -> CachedNodes | None:
        """The nodes that are kept of an execution, if no other step was stored since."""
        cached = self._cache.get(row.id)
        return cached if cached is not None and cached.steps == row.steps else None


def _within(loaded: LoadedExecution, end: AttemptEnd) -> AttemptEnd:
    """The end of an attempt, or its failure if the execution would have more bytes than it may."""
    size = _end_bytes(end)
    if loaded.room is None or not size:
        return end
    if size > loaded.room:
        return AttemptEnd(end.node_id, end.attempt, failure=AttemptFailure("ExecutionTooLarge", BYTES_FULL))
    loaded.room -= size
    return end


def _end_bytes(end: AttemptEnd) -> int:
    """What an attempt left: its outputs, or the workflow that it made."""
    left = end.outputs if end.dynamic is None else end.dynamic.closure
    return int(left.ByteSize()) if left is not None else 0


def _map_ends(context: Context, done: Sequence[MapRow]) -> list[AttemptEnd]:
    """The ends of maps, within the bounds of one step. The others are still done when the next step reads them."""
    ends, size = list[AttemptEnd](), 0
    for row in done:
        size += row.output_bytes
        if ends and size > READ_BYTES_MAX:
            break
        ends.append(map_end(context, row))
    return ends


def _read_ends(context: Context, loaded: LoadedExecution) -> None:
    """Read what ended attempts left, within the bounds of one step."""
    until, size = monotonic() + READ_S_MAX, 0
    for attempt in loaded.live:
        node = loaded.nodes.table.get(attempt.node_id)
        if (node is not None and node.is_array) or not is_over(attempt, loaded.state.now_us):
            continue  # MapDriver stores the end of a map
        if (
            len(loaded.job_ends) >= ATTEMPT_ENDS_MAX
            or size > READ_BYTES_MAX
            or (loaded.job_ends and monotonic() > until)
        ):
            loaded.has_more_ends = True
            return
        end = _end(context, loaded, attempt)
        if end is None:
            loaded.has_more_ends = True
            continue
        size += _end_bytes(end)
        loaded.job_ends[attempt.node_id, attempt.attempt] = _within(loaded, end)


def _end(context: Context, loaded: LoadedExecution, attempt: LiveAttemptRow) -> AttemptEnd | None:
    """The end of an attempt. None: the next step takes it, because this one has enough dynamic workflows."""
    graph, depth = loaded.graph_around(attempt.node_id)
    task = task_of(attempt)
    template = graph.tasks[task]
    end = end_of_attempt(context, loaded.row, attempt, template, loaded.state.nodes.get(attempt.node_id))
    if end.futures is None:
        return end
    if loaded.expansions >= EXPANSIONS_MAX:
        return None
    if not loaded.expansions:
        loaded.promised = promised_nodes(loaded.nodes)
    loaded.expansions += 1
    owner = owner_of(context.snapshots.access, loaded.row.owner_id, loaded.row.owner)
    end = with_dynamic(context, owner, end, task, template, nodes=loaded.promised, depth=depth)
    loaded.promised += count_nodes_to_run(end.dynamic.graph) if end.dynamic is not None else 0
    return end


def promised_nodes(nodes: CachedNodes) -> int:
    """How many nodes an execution has, with those that its dynamic workflows have not begun yet. Looks at each once."""
    running = {
        node_id: graph
        for (node_id, attempt), graph in nodes.dynamics.items()
        if (state := nodes.table.get(node_id)) is not None and state.phase.is_live and state.attempts == attempt + 1
    }
    nearest = {"": ""}  # the dynamic workflow that the nodes inside a node are of
    begun: Counter[str] = Counter()
    for state in nodes.table.values():
        path, outer = [], state.parent_id
        while outer not in nearest:
            path.append(outer)
            around = nodes.table.get(outer)
            outer = around.parent_id if around is not None and outer not in running else ""
        for node_id in reversed(path):
            nearest[node_id] = node_id if node_id in running else nearest[outer]
            outer = node_id
        begun[nearest[state.parent_id]] += 1
    left = sum(max(0, count_nodes_to_run(graph) - begun[node_id]) for node_id, graph in running.items())
    return len(nodes.table) + left


def _awaited_signals(cached: CachedNodes | None, rows: Sequence[NodeRow]) -> set[str]:
    """The signals that nodes wait for. Reads nothing of the messages in the rows."""
    if cached is not None:
        return {state.signal_id for state in cached.table.waiting() if state.signal_id}
    return {row.signal_id for row in rows if row.signal_id and row.ended_us is None}


def _read_nodes(steps: int, rows: Sequence[NodeRow], dynamics: Sequence[DynamicRow]) -> CachedNodes:
    graphs = {
        (row.node_id, row.attempt): read_graph(compiler_pb2.CompiledWorkflowClosure.FromString(row.closure))
        for row in dynamics
    }
    nodes = CachedNodes(steps, NodeTable(), sum(len(row.closure) for row in dynamics), graphs)
    for row in rows:
        if row.phase != QUEUED:  # it waits for room under a limit, and is stored for its readers alone
            nodes.put(node_state(row))
    return nodes


def _size(state: NodeProgress) -> int:
    return NODE_BYTES + sum(int(values.ByteSize()) for values in (state.inputs, state.outputs) if values is not None)
