"""One step of an execution while it is decided: the nodes, what has changed, what to start. For the kinds of nodes.

A node that ends makes the step look at the nodes behind it, and at the node around it. So a step costs as much as has
changed. Failures go up: a node fails, the node around it is FAILING until nothing inside runs any more, and so on up to
the execution.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from flyteidl.core import literals_pb2, types_pb2, workflow_pb2

from switchyard.features.flyte.workflow.compile.connections import START
from switchyard.features.flyte.workflow.compile.entity_id import EntityId
from switchyard.features.flyte.workflow.engine.execution_graph import ExecutionGraph, GraphWorkflow
from switchyard.features.flyte.workflow.engine.execution_state import (
    LIVE_PHASES,
    AttemptFailure,
    DynamicWorkflow,
    ExecutionPhase,
    ExecutionState,
    NodePhase,
    NodeProgress,
    NodeTable,
    SignalRequest,
    TaskStart,
    execution_error,
)
from switchyard.features.flyte.workflow.tasks.task_cache import CacheAnswer
from switchyard.features.flyte.workflow.values.binding_values import BindingFailed, StepValues, resolve_bindings
from switchyard.features.flyte.workflow.values.limits import BYTES_FULL

AttemptKey = tuple[str, int]  # a node's id, and the number of the attempt
CHANGES_MAX = 1000  # nodes of one step, which is one transaction; the next step begins the rest
_AFTER_OTHERS = workflow_pb2.WorkflowMetadata.FAIL_AFTER_EXECUTABLE_NODES_COMPLETE
_ENDED_BADLY = (NodePhase.FAILED, NodePhase.SKIPPED, NodePhase.ABORTED)


@dataclass(frozen=True, slots=True)
class RunScope:
    """One workflow as it runs: the execution's own, or one inside a node. `prefix`: of the ids of its nodes.

    `outer`: the scope of the node around it. `is_cleanup`: it has only the failure node of a workflow that has failed.
    `bindings_of`: the scope whose nodes its nodes name, if that is another one: the arms of a branch are bound to the
    nodes beside the branch.
    """

    graph: ExecutionGraph
    workflow: GraphWorkflow
    inputs: Any
    prefix: str = ""
    parent_id: str = ""
    outer: RunScope | None = None
    is_cleanup: bool = False
    bindings_of: RunScope | None = None

    @property
    def bound(self) -> RunScope:
        return self.bindings_of if self.bindings_of is not None else self

    def find(self, spec_id: str) -> NodePlace:
        """A node of this scope by its id in the compiled workflow."""
        failure = self.workflow.failure_node
        if failure is not None and failure.id == spec_id:
            return NodePlace(replace(self, is_cleanup=True), failure)
        return NodePlace(self, self.workflow.by_id[spec_id])


@dataclass(frozen=True, slots=True)
class NodePlace:
    """A node of the graph, in the scope that it runs in."""

    scope: RunScope
    node: Any

    @property
    def node_id(self) -> str:
        return f"{self.scope.prefix}{self.node.id}"


class KindInterface(Protocol):
    """What a step asks of the kind of a node. `node_kinds/kind.py` describes it."""

    takes_room: bool

    def waits_for(self, place: NodePlace) -> Any: ...
    def must_wait(self, run: EngineRun, place: NodePlace) -> bool: ...
    def begin(self, run: EngineRun, place: NodePlace, state: NodeProgress) -> None: ...
    def advance(self, run: EngineRun, place: NodePlace, state: NodeProgress) -> None: ...
    def inner_scope(self, run: EngineRun, place: NodePlace, state: NodeProgress) -> RunScope | None: ...
    def is_failure_kept(self, run: EngineRun, place: NodePlace, state: NodeProgress, error: Any) -> bool: ...


class EngineRun:
    """The state of an execution during a step."""

    def __init__(
        self,
        graph: ExecutionGraph,
        state: ExecutionState,
        refusals: Mapping[AttemptKey, AttemptFailure],
        kind_of: Callable[[Any], KindInterface],
        answers: Mapping[AttemptKey, CacheAnswer],
        *,
        full_plans: Collection[EntityId],
    ) -> None:
        self.top = RunScope(graph, graph.primary, state.inputs)
        self.refusals = refusals
        self.answers = answers
        self.full_plans = full_plans
        self.error = state.error
        self.nodes = NodeTable(base=state.nodes)
        self.now_us = state.now_us
        self.signals = state.signals
        self.signal_requests: list[SignalRequest] = []
        self.dynamics: dict[AttemptKey, DynamicWorkflow] = {}  # that this step begins with
        self.stopped_scopes: dict[str, None] = {}
        self.is_cut = False  # nodes were left out
        self._values = StepValues()
        self._bytes_left = state.bytes_left
        self._state = state
        self._kind_of = kind_of
        self._is_patient = graph.primary.template.metadata.on_failure == _AFTER_OTHERS
        self._starts: dict[AttemptKey, tuple[NodePlace, TaskStart]] = {}
        self._ended: deque[NodePlace] = deque()
        self._opened: deque[RunScope] = deque()
        self._inner: dict[tuple[str, int], RunScope] = {}  # by node and attempt
        self._has_new_failure = False

    # What kinds of nodes call.

    def put(self, place: NodePlace, state: NodeProgress) -> None:
        """Store the state of a node. If it has ended, the step looks at the nodes behind it and around it.

        A node fails if its outputs exceed the bytes of the execution: those of a task, of the cache, of nodes inside.
        """
        size = self._new_bytes(state)
        if state.outputs is not None and self._is_beyond(size):
            self.fail(place, replace(state, outputs=None), _too_large(state.node_id))
            return
        if self._bytes_left is not None:
            self._bytes_left -= size
        self.nodes.put(state)
        if not state.phase.is_live:
            self._ended.append(place)

    def skip(self, place: NodePlace) -> None:
        """Record that a node does not run. Nothing waits for it."""
        self.nodes.put(NodeProgress(place.node_id, place.scope.parent_id, place.node.id, NodePhase.SKIPPED))

    def start(self, place: NodePlace, start: TaskStart) -> None:
        self._starts[start.node_id, start.attempt] = (place, start)

    def fail(self, place: NodePlace, state: NodeProgress, error: Any) -> None:
        self.put(place, replace(state, phase=NodePhase.FAILED, error=error))
        self._spread(place.scope, error)

    def open(self, scope: RunScope) -> None:
        """Begin with the nodes of a scope."""
        self._opened.append(scope)

    def end_with(self, scope: RunScope, place: NodePlace, state: NodeProgress) -> None:
        """End a node together with the workflow inside it, once that is over."""
        if not self.is_over(scope):
            return
        if state.phase is NodePhase.FAILING:
            if (error := self.clean_up(scope, state.error)) is not None:
                self.fail(place, state, error)
        elif self.has_succeeded(scope):
            if self._values.is_full:
                self.is_cut = True  # the next step ends it
                return
            try:
                outputs = self.outputs_of(scope)
            except BindingFailed as exc:
                self.fail(place, state, execution_error("BindingFailed", f"outputs of node {state.node_id}: {exc}"))
                return
            self.put(place, replace(state, phase=NodePhase.SUCCEEDED, outputs=outputs))
        else:
            self.put(place, replace(state, phase=NodePhase.ABORTED))

    def dynamic_graph(self, node_id: str, attempt: int) -> ExecutionGraph:
        """The workflow that an attempt of a dynamic task made."""
        new = self.dynamics.get((node_id, attempt))
        return new.graph if new is not None else self._state.dynamics[node_id, attempt]

    def is_halting(self, scope: RunScope) -> bool:
        """Whether nothing may start any more in a scope."""
        if self._state.phase is ExecutionPhase.ABORTING:
            return True
        inner: RunScope | None = None if self._is_patient else scope
        while inner is not None and not inner.is_cleanup:
            around = self.nodes.get(inner.parent_id)
            if around.phase is NodePhase.FAILING if around is not None else self.error is not None:
                return True
            inner = inner.outer
        return False

    def phase(self, scope: RunScope, node_id: str) -> NodePhase | None:
        state = self.nodes.get(scope.prefix + node_id)
        return state.phase if state is not None else None

    def look(self, place: NodePlace) -> None:
        """Begin a node that can begin, or go on with one that runs."""
        state = self.nodes.get(place.node_id)
        if state is None:
            self._begin(place)
        elif state.phase.is_live:
            self._kind_of(place.node).advance(self, place, state)

    # What the engine calls.

    @property
    def starts(self) -> tuple[TaskStart, ...]:
        return tuple(start for _, start in self._starts.values())

    def place_of(self, state: NodeProgress) -> NodePlace:
        """Where a node runs. KeyError: not in this graph."""
        chain = [state]
        while chain[-1].parent_id:
            around = self.nodes.get(chain[-1].parent_id)
            if around is None:
                raise KeyError(chain[-1].parent_id)
            chain.append(around)
        place = self.top.find(chain.pop().spec_id)
        around = self.nodes.get(place.node_id)
        while chain:
            assert around is not None
            place = self.inner_scope(place, around).find(chain[-1].spec_id)
            around = chain.pop()
        return place

    def look_at_all(self) -> None:
        """Look at every node of every scope that is open."""
        scopes = deque([self.top])
        while scopes:
            scope = scopes.popleft()
            for spec_id, node in scope.workflow.by_id.items():
                before = self.nodes.get(scope.prefix + spec_id)
                if before is not None and before.phase not in LIVE_PHASES:
                    continue
                place = NodePlace(scope, node)
                self.look(place)
                if before is not None and before.is_parent:
                    scopes.append(self.inner_scope(place, before))
            failure = self._failure_state(scope)
            if failure is not None and failure.phase.is_live and failure.is_parent:
                place = scope.find(failure.spec_id)
                self.look(place)
                scopes.append(self.inner_scope(place, failure))

    def look_at_waiting(self) -> None:
        """Look at the nodes that wait for a person or a time."""
        for state in self.nodes.waiting():
            self.look(self.place_of(state))

    def run_out(self) -> None:
        """Look at everything that follows from what has changed."""
        while True:
            self._drain()
            if not self._has_new_failure:
                return
            self._has_new_failure = False
            self._take_back()
            self.look_at_all()  # nodes without a job end when nothing may start any more

    def is_over(self, scope: RunScope) -> bool:
        """Whether nothing runs in it, and nothing will; its failure node is left aside."""
        count, failure = self.nodes.count(scope.prefix), self._failure_state(scope)
        live = count.live - (failure is not None and failure.phase.is_live)
        begun = count.begun - (failure is not None)
        return live == 0 and (begun == len(scope.workflow.nodes) or self.is_halting(scope))

    def has_succeeded(self, scope: RunScope) -> bool:
        return self.nodes.count(scope.prefix).succeeded == len(scope.workflow.nodes)

    def clean_up(self, scope: RunScope, error: Any) -> Any | None:
        """Run the failure node of a scope that is over. Returns the error of the scope, or None while the node runs."""
        failure, state = scope.workflow.failure_node, self._failure_state(scope)
        if failure is None or (state is None and self._state.phase is ExecutionPhase.ABORTING):
            return error
        if state is None:
            self._begin(scope.find(failure.id), scope_error=error)
            state = self._failure_state(scope)
        if state is None or state.phase.is_live:
            return None
        return state.error if state.phase is NodePhase.FAILED else error

    def outputs_of(self, scope: RunScope) -> Any:
        """The outputs of a workflow. Raises BindingFailed."""
        return resolve_bindings(scope.workflow.outputs, partial(self._output, scope), self._values, scope=scope.prefix)

    def inner_scope(self, place: NodePlace, state: NodeProgress) -> RunScope:
        """What runs inside a node, found once in a step."""
        key = (state.node_id, state.attempts)
        if key not in self._inner:
            scope = self._kind_of(place.node).inner_scope(self, place, state)
            if scope is None:
                raise KeyError(state.node_id)
            self._inner[key] = scope
        return self._inner[key]

    def _failure_state(self, scope: RunScope) -> NodeProgress | None:
        failure = scope.workflow.failure_node
        return self.nodes.get(scope.prefix + failure.id) if failure is not None else None

    def _drain(self) -> None:
        while self._ended or self._opened:
            if self._ended:
                self._after(self._ended.popleft())
            else:
                scope = self._opened.popleft()
                for node in scope.workflow.nodes:
                    self.look(NodePlace(scope, node))
                self._look_around(scope)

    def _after(self, place: NodePlace) -> None:
        """Look at the nodes behind a node that has ended, and at the node around it."""
        scope = place.scope
        if not scope.is_cleanup:
            for follower in scope.workflow.followers.get(place.node.id, ()):
                self.look(scope.find(follower))
        self._look_around(scope)

    def _look_around(self, scope: RunScope) -> None:
        around = self.nodes.get(scope.parent_id) if scope.parent_id else None
        if around is not None and around.phase.is_live:
            place = self.place_of(around)
            self._kind_of(place.node).advance(self, place, around)

    def _begin(self, place: NodePlace, *, scope_error: Any = None) -> None:
        if self.is_halting(place.scope):
            return
        kind = self._kind_of(place.node)
        if kind.takes_room and self._state.max_parallelism and self.nodes.jobs >= self._state.max_parallelism:
            return
        waits_for = () if place.scope.is_cleanup else kind.waits_for(place)
        phases = [self.phase(place.scope.bound, one) for one in waits_for]
        is_skipped = any(phase in _ENDED_BADLY for phase in phases)
        if not is_skipped and (
            any(phase is not NodePhase.SUCCEEDED for phase in phases) or kind.must_wait(self, place)
        ):
            return
        if len(self.nodes.changes()) >= CHANGES_MAX or self._values.is_full:
            self.is_cut = True
            return
        fresh = NodeProgress(place.node_id, place.scope.parent_id, place.node.id, NodePhase.RUNNING)
        if is_skipped:
            self.put(place, replace(fresh, phase=NodePhase.SKIPPED))
            return
        done = self._values.size
        try:
            bound = place.scope.bound
            find = partial(self._output, bound)
            inputs = resolve_bindings(place.node.inputs, find, self._values, scope=bound.prefix)
            if scope_error is not None:
                variables = place.scope.graph.inputs_of(place.node)
                inputs = with_error(inputs, variables, failed_node=self._failed_node(place.scope), error=scope_error)
        except BindingFailed as exc:
            self.fail(place, fresh, execution_error("BindingFailed", f"node {fresh.node_id}: {exc}"))
            return
        if self._is_beyond(int(inputs.ByteSize())):
            self.fail(place, fresh, _too_large(fresh.node_id))
            return
        kind.begin(self, place, replace(fresh, inputs=inputs))
        if self.nodes.get(place.node_id) is None:
            self._values.size = done  # it waits for the cache: nodes behind it have their turn in this step

    def _new_bytes(self, state: NodeProgress) -> int:
        """By how much the inputs and outputs of a node grow."""
        old = self.nodes.get(state.node_id)
        before = (old.inputs, old.outputs) if old is not None else (None, None)
        pairs = zip((state.inputs, state.outputs), before, strict=True)
        return sum(_size(new) - _size(known) for new, known in pairs if new is not known)

    def _is_beyond(self, size: int) -> bool:
        """Whether so many bytes more are over the limit of the execution. A node without values never is."""
        return self._bytes_left is not None and size > 0 and size > self._bytes_left

    def _spread(self, scope: RunScope, error: Any) -> None:
        """Tell the nodes around a node that has failed, up to one that keeps the failure to itself."""
        inner: RunScope | None = scope
        while inner is not None and not inner.is_cleanup:
            around = self.nodes.get(inner.parent_id)
            if around is None:
                self._has_new_failure |= self.error is None
                self.error = error if self.error is None else self.error
                return
            if around.phase is NodePhase.FAILING:
                return
            self._has_new_failure = True
            place = self.place_of(around)
            is_kept = self._kind_of(place.node).is_failure_kept(self, place, around, error)
            self.nodes.put(replace(around, phase=NodePhase.FAILING, error=error))
            if is_kept:
                if not self._is_patient:
                    self.stopped_scopes[inner.prefix] = None
                return
            inner = inner.outer

    def _failed_node(self, scope: RunScope) -> str:
        states = (self.nodes.get(scope.prefix + node.id) for node in scope.workflow.nodes)
        return next((one.node_id for one in states if one is not None and one.phase is NodePhase.FAILED), "")

    def _take_back(self) -> None:
        """Do not start the jobs that this step decided on before a node failed."""
        doomed = [(key, place) for key, (place, _) in self._starts.items() if self.is_halting(place.scope)]
        for key, place in doomed:
            del self._starts[key]
            state = self.nodes.get(place.node_id)
            assert state is not None
            self.put(place, replace(state, phase=NodePhase.ABORTED, attempts=state.attempts - 1))

    def _output(self, scope: RunScope, node_id: str, name: str) -> Any | None:
        if node_id in ("", START):
            values = scope.inputs
        else:
            state = self.nodes.get(scope.prefix + node_id)
            values = state.outputs if state is not None else None
        return values.literals[name] if values is not None and name in values.literals else None


def _size(values: Any) -> int:
    return int(values.ByteSize()) if values is not None else 0


def _too_large(node_id: str) -> Any:
    return execution_error("ExecutionTooLarge", f"node {node_id}: {BYTES_FULL}")


def with_error(inputs: Any, variables: Mapping[str, Any], *, failed_node: str, error: Any) -> Any:
    """The inputs with the error in each input that takes one. As in Flyte, such an input is a union with ERROR.

    `variables`: what the node takes. The workflow itself binds None to such an input.
    """
    given = literals_pb2.LiteralMap()
    given.CopyFrom(inputs)
    for name, variable in variables.items():
        kind = _error_type(variable.type)
        if kind is not None:
            union = given.literals[name].scalar.union
            union.type.CopyFrom(kind)
            union.value.scalar.error.failed_node_id = failed_node
            union.value.scalar.error.message = error.message
    return given


def _error_type(kind: Any) -> Any | None:
    return next((one for one in kind.union_type.variants if one.simple == types_pb2.ERROR), None)
