"""One step of an execution while it is decided: the nodes, what has changed, what to start. For the kinds of nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from flyteidl.core import workflow_pb2

from switchyard.workflow.binding_values import BindingFailed, resolve_bindings
from switchyard.workflow.connections import START
from switchyard.workflow.execution_graph import ExecutionGraph, GraphWorkflow
from switchyard.workflow.execution_state import (
    AttemptFailure,
    ExecutionPhase,
    ExecutionState,
    NodePhase,
    NodeProgress,
    TaskStart,
    execution_error,
)

AttemptKey = tuple[str, int]  # a node's id, and the number of the attempt
_AFTER_OTHERS = workflow_pb2.WorkflowMetadata.FAIL_AFTER_EXECUTABLE_NODES_COMPLETE


@dataclass(frozen=True, slots=True)
class RunScope:
    """One workflow as it runs: the execution's own, or one inside a node. `prefix`: of the ids of its nodes."""

    graph: ExecutionGraph
    workflow: GraphWorkflow
    inputs: Any
    prefix: str = ""
    parent_id: str = ""


@dataclass(frozen=True, slots=True)
class NodePlace:
    """A node of the graph, in the scope that it runs in."""

    scope: RunScope
    node: Any

    @property
    def node_id(self) -> str:
        return f"{self.scope.prefix}{self.node.id}"


class EngineRun:
    """The state of an execution during a step. `look`: looks at one node, and begins it or goes on with it."""

    def __init__(
        self,
        state: ExecutionState,
        refused: Mapping[AttemptKey, AttemptFailure],
        look: Callable[[EngineRun, NodePlace], None],
        *,
        on_failure: int,
    ) -> None:
        self.refused = refused
        self.starts: list[TaskStart] = []
        self.error = state.error
        self.nodes = dict(state.nodes)
        self.changed: dict[str, None] = {}
        self._state = state
        self._look = look
        self._is_patient = on_failure == _AFTER_OTHERS

    @property
    def is_halting(self) -> bool:
        """Whether nothing may start any more."""
        return self._state.phase is ExecutionPhase.ABORTING or (self.error is not None and not self._is_patient)

    def put(self, state: NodeProgress) -> None:
        self.nodes[state.node_id] = state
        self.changed[state.node_id] = None

    def fail(self, state: NodeProgress, error: Any) -> None:
        self.put(replace(state, phase=NodePhase.FAILED, error=error))
        if self.error is None:
            self.error = error

    def advance(self, scope: RunScope) -> None:
        """Look at all nodes of a scope, each after the nodes that it waits for."""
        for node in scope.workflow.nodes:
            self._look(self, NodePlace(scope, node))

    def end_with(self, scope: RunScope, state: NodeProgress) -> None:
        """End a node together with the workflow inside it, once that is over."""
        if not self.is_over(scope):
            return
        if (error := self._first_error(scope)) is not None:
            self.fail(state, error)
        elif any(self.phase(scope, one.id) is not NodePhase.SUCCEEDED for one in scope.workflow.nodes):
            self.put(replace(state, phase=NodePhase.ABORTED))
        else:
            try:
                outputs = self.outputs_of(scope)
                self.put(replace(state, phase=NodePhase.SUCCEEDED, outputs=outputs))
            except BindingFailed as exc:
                self.fail(state, execution_error("BindingFailed", f"outputs of node {state.node_id}: {exc}"))

    def is_over(self, scope: RunScope) -> bool:
        """Whether nothing runs in it, and nothing will."""
        phases = [self.phase(scope, node.id) for node in scope.workflow.nodes]
        return NodePhase.RUNNING not in phases and (self.is_halting or None not in phases)

    def phase(self, scope: RunScope, node_id: str) -> NodePhase | None:
        state = self.nodes.get(scope.prefix + node_id)
        return state.phase if state is not None else None

    def inputs_of(self, place: NodePlace) -> Any:
        """The values that are bound to a node. Raises BindingFailed."""
        return resolve_bindings(place.node.inputs, partial(self._output, place.scope))

    def outputs_of(self, scope: RunScope) -> Any:
        """The outputs of a workflow. Raises BindingFailed."""
        return resolve_bindings(scope.workflow.outputs, partial(self._output, scope))

    def has_room(self) -> bool:
        most = self._state.max_parallelism
        return not most or sum(1 for _ in self._running_jobs()) < most

    def take_back(self) -> None:
        """Do not start the jobs that this step decided on before a node failed."""
        for start in self.starts:
            state = self.nodes[start.node_id]
            self.put(replace(state, phase=NodePhase.ABORTED, attempts=state.attempts - 1))
        self.starts.clear()

    def _running_jobs(self) -> Iterator[NodeProgress]:
        return (one for one in self.nodes.values() if one.phase is NodePhase.RUNNING and not one.is_parent)

    def _output(self, scope: RunScope, node_id: str, name: str) -> Any | None:
        if node_id in ("", START):
            values = scope.inputs
        else:
            state = self.nodes.get(scope.prefix + node_id)
            values = state.outputs if state is not None else None
        return values.literals[name] if values is not None and name in values.literals else None

    def _first_error(self, scope: RunScope) -> Any | None:
        states = (self.nodes.get(scope.prefix + node.id) for node in scope.workflow.nodes)
        return next((state.error for state in states if state is not None and state.phase is NodePhase.FAILED), None)
