"""The engine: one step of an execution, from its state and what has happened to what to start and to store. Pure.

    step(graph, state, events) → EngineStep

A step looks at all nodes once, each after the nodes that it waits for. A job never ends within a step, so one look is
enough. The same state and events give the same step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from flyteidl.core import workflow_pb2

from switchyard.workflow.binding_values import BindingFailed, resolve_bindings
from switchyard.workflow.connections import START
from switchyard.workflow.execution_graph import ExecutionGraph, GraphWorkflow
from switchyard.workflow.execution_state import (
    SYSTEM,
    USER,
    AttemptEnd,
    AttemptFailure,
    EngineStep,
    ExecutionPhase,
    ExecutionState,
    NodePhase,
    NodeProgress,
    TaskStart,
    execution_error,
)

SYSTEM_RETRIES = 3  # as in Flyte: for failures that are not the user's
_AFTER_OTHERS = workflow_pb2.WorkflowMetadata.FAIL_AFTER_EXECUTABLE_NODES_COMPLETE
AttemptKey = tuple[str, int]  # a node's id, and the number of the attempt
_NONE_REFUSED: Mapping[AttemptKey, AttemptFailure] = MappingProxyType({})
_CANCELLED = AttemptFailure("Cancelled", "the job was cancelled")  # by hand, and not because the execution stops
_ENDED_BADLY = (NodePhase.FAILED, NodePhase.SKIPPED, NodePhase.ABORTED)


def step(
    graph: ExecutionGraph,
    state: ExecutionState,
    events: Iterable[AttemptEnd] = (),
    refused: Mapping[AttemptKey, AttemptFailure] = _NONE_REFUSED,
) -> EngineStep:
    """`refused`: attempts that cannot be started. They fail at once."""
    if state.phase.is_final:
        return EngineStep(state.phase, is_stopping=state.is_stopping)
    return _Stepper(graph, state, refused).run(events)


@dataclass(frozen=True, slots=True)
class _Scope:
    """One workflow as it runs: the execution's own, or one inside a node. `prefix`: of the ids of its nodes."""

    workflow: GraphWorkflow
    inputs: Any
    prefix: str = ""
    parent_id: str = ""


class _Stepper:
    def __init__(
        self, graph: ExecutionGraph, state: ExecutionState, refused: Mapping[AttemptKey, AttemptFailure]
    ) -> None:
        self._graph = graph
        self._refused = refused
        self._state = state
        self._nodes = dict(state.nodes)
        self._changed: dict[str, None] = {}
        self._starts: list[TaskStart] = []
        self._error = state.error
        self._is_patient = graph.primary.template.metadata.on_failure == _AFTER_OTHERS
        self._specs: dict[str, Any] = {}  # nodes of the graph by their full ids

    def run(self, events: Iterable[AttemptEnd]) -> EngineStep:
        top = _Scope(self._graph.primary, self._state.inputs)
        self._index(top)
        for event in events:
            self._end_attempt(event)
        self._advance(top)
        if self._is_halting:
            self._take_back()
            self._advance(top)  # nodes with others inside end with the last of them
        return self._settled(top)

    @property
    def _is_halting(self) -> bool:
        """Whether nothing may start any more."""
        return self._state.phase is ExecutionPhase.ABORTING or (self._error is not None and not self._is_patient)

    def _index(self, scope: _Scope) -> None:
        for node in scope.workflow.nodes:
            node_id = scope.prefix + node.id
            self._specs[node_id] = node
            state = self._nodes.get(node_id)
            if state is not None and state.is_parent:
                self._index(self._inner_scope(state, node))

    def _end_attempt(self, event: AttemptEnd) -> None:
        state = self._nodes.get(event.node_id)
        if state is None or state.phase is not NodePhase.RUNNING or event.attempt != state.attempts - 1:
            return  # told twice, or of an attempt that was given up
        node = self._specs[event.node_id]
        failure = event.failure
        if event.outputs is not None:
            failure = self._output_failure(node, event.outputs)
            if failure is None:
                self._put(replace(state, phase=NodePhase.SUCCEEDED, outputs=event.outputs))
                return
        if failure is not None:
            self._fail_attempt(state, node, failure)
        elif self._is_halting:
            self._put(replace(state, phase=NodePhase.ABORTED))
        else:
            self._fail_attempt(state, node, _CANCELLED)

    def _fail_attempt(self, state: NodeProgress, node: Any, failure: AttemptFailure) -> None:
        """Try again if the failure allows it; else the node has failed."""
        retries = self._retries(node)
        state = replace(
            state,
            user_failures=state.user_failures + (not failure.is_system),
            system_failures=state.system_failures + failure.is_system,
        )
        tries, most = (
            (state.system_failures, SYSTEM_RETRIES + 1) if failure.is_system else (state.user_failures, retries + 1)
        )
        if failure.is_recoverable and tries < most and not self._is_halting:
            self._start_job(replace(state, attempts=state.attempts + 1), node)
            return
        kind = SYSTEM if failure.is_system else USER
        code, message = failure.code, failure.message
        if failure.is_recoverable:
            word = "SYSTEM" if failure.is_system else "USER"
            code = f"RetriesExhausted|{code}"
            message = f"[{tries}/{most}] currentAttempt done. Last Error: {word}::{message}"
        self._fail(state, execution_error(code, message, kind=kind))

    def _fail(self, state: NodeProgress, error: Any) -> None:
        self._put(replace(state, phase=NodePhase.FAILED, error=error))
        if self._error is None:
            self._error = error

    def _retries(self, node: Any) -> int:
        """A node's own number, if it is above 0; else the task's."""
        task = self._graph.task_of(node)[1]
        return int(node.metadata.retries.retries or task.metadata.retries.retries)

    def _output_failure(self, node: Any, outputs: Any) -> AttemptFailure | None:
        declared = self._graph.task_of(node)[1].interface.outputs.variables
        absent = sorted(set(declared) - set(outputs.literals))
        if not absent:
            return None
        return AttemptFailure("OutputsNotFound", f"the task left no value for {', '.join(absent[:20])}", True)

    def _advance(self, scope: _Scope) -> None:
        """Start what can start, and go on with nodes that have others inside."""
        for node in scope.workflow.nodes:
            state = self._nodes.get(scope.prefix + node.id)
            if state is None:
                self._begin(scope, node)
            elif state.phase is NodePhase.RUNNING and state.is_parent:
                self._advance_inner(state, node)

    def _begin(self, scope: _Scope, node: Any) -> None:
        if self._is_halting:
            return
        phases = [self._phase(scope, one) for one in scope.workflow.upstream.get(node.id, ())]
        fresh = NodeProgress(scope.prefix + node.id, scope.parent_id, node.id, NodePhase.RUNNING)
        if any(phase in _ENDED_BADLY for phase in phases):
            self._put(replace(fresh, phase=NodePhase.SKIPPED))
            return
        is_task = node.WhichOneof("target") == "task_node"
        if any(phase is not NodePhase.SUCCEEDED for phase in phases) or (is_task and not self._has_room()):
            return
        try:
            inputs = resolve_bindings(node.inputs, partial(self._output, scope))
        except BindingFailed as exc:
            self._fail(fresh, execution_error("BindingFailed", f"node {fresh.node_id}: {exc}"))
            return
        if is_task:
            self._start_job(replace(fresh, inputs=inputs, attempts=1), node)
        else:
            state = replace(fresh, inputs=inputs, attempts=1, is_parent=True)
            self._put(state)
            self._index(self._inner_scope(state, node))
            self._advance_inner(state, node)

    def _start_job(self, state: NodeProgress, node: Any) -> None:
        self._put(replace(state, phase=NodePhase.RUNNING))
        attempt = state.attempts - 1
        if (failure := self._refused.get((state.node_id, attempt))) is not None:
            self._fail_attempt(state, node, failure)
            return
        task, _ = self._graph.task_of(node)
        self._starts.append(TaskStart(state.node_id, attempt, task, node, state.inputs))

    def _has_room(self) -> bool:
        most = self._state.max_parallelism
        return not most or sum(1 for _ in self._running_tasks()) < most

    def _running_tasks(self) -> Iterator[NodeProgress]:
        return (one for one in self._nodes.values() if one.phase is NodePhase.RUNNING and not one.is_parent)

    def _phase(self, scope: _Scope, node_id: str) -> NodePhase | None:
        state = self._nodes.get(scope.prefix + node_id)
        return state.phase if state is not None else None

    def _output(self, scope: _Scope, node_id: str, name: str) -> Any | None:
        if node_id in ("", START):
            values = scope.inputs
        else:
            state = self._nodes.get(scope.prefix + node_id)
            values = state.outputs if state is not None else None
        return values.literals[name] if values is not None and name in values.literals else None

    def _inner_scope(self, state: NodeProgress, node: Any) -> _Scope:
        prefix = f"{state.node_id}-{state.attempts - 1}-"
        return _Scope(self._graph.sub_of(node), state.inputs, prefix, state.node_id)

    def _advance_inner(self, state: NodeProgress, node: Any) -> None:
        scope = self._inner_scope(state, node)
        self._advance(scope)
        if not self._is_over(scope):
            return
        if (error := self._first_error(scope)) is not None:
            self._fail(state, error)
        elif any(self._phase(scope, one.id) is not NodePhase.SUCCEEDED for one in scope.workflow.nodes):
            self._put(replace(state, phase=NodePhase.ABORTED))
        else:
            try:
                outputs = resolve_bindings(scope.workflow.outputs, partial(self._output, scope))
                self._put(replace(state, phase=NodePhase.SUCCEEDED, outputs=outputs))
            except BindingFailed as exc:
                self._fail(state, execution_error("BindingFailed", f"outputs of node {state.node_id}: {exc}"))

    def _is_over(self, scope: _Scope) -> bool:
        """Whether nothing runs in it, and nothing will."""
        phases = [self._phase(scope, node.id) for node in scope.workflow.nodes]
        return NodePhase.RUNNING not in phases and (self._is_halting or None not in phases)

    def _first_error(self, scope: _Scope) -> Any | None:
        states = (self._nodes.get(scope.prefix + node.id) for node in scope.workflow.nodes)
        return next((state.error for state in states if state is not None and state.phase is NodePhase.FAILED), None)

    def _put(self, state: NodeProgress) -> None:
        self._nodes[state.node_id] = state
        self._changed[state.node_id] = None

    def _settled(self, top: _Scope) -> EngineStep:
        """The step, with the phase of the execution after it."""
        is_over = self._is_over(top)
        phase, outputs = ExecutionPhase.RUNNING, None
        if self._state.phase is ExecutionPhase.ABORTING:
            phase = ExecutionPhase.ABORTED if is_over else ExecutionPhase.ABORTING
        elif is_over and self._error is None:
            try:
                outputs = resolve_bindings(top.workflow.outputs, partial(self._output, top))
                phase = ExecutionPhase.SUCCEEDED
            except BindingFailed as exc:
                self._error, phase = execution_error("BindingFailed", f"outputs: {exc}"), ExecutionPhase.FAILED
        elif is_over:
            phase = ExecutionPhase.FAILED
        elif self._is_halting:
            phase = ExecutionPhase.FAILING
        return EngineStep(
            phase,
            tuple(self._nodes[node_id] for node_id in self._changed),
            tuple(self._starts),
            self._state.is_stopping or self._is_halting,
            outputs,
            self._error if phase is not ExecutionPhase.ABORTED else None,
        )

    def _take_back(self) -> None:
        """Do not start the jobs that this step decided on before a node failed."""
        for start in self._starts:
            state = self._nodes[start.node_id]
            self._put(replace(state, phase=NodePhase.ABORTED, attempts=state.attempts - 1))
        self._starts.clear()
