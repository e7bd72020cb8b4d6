"""Nodes that run another workflow in the same execution."""

from __future__ import annotations

from dataclasses import replace

from switchyard.features.flyte.workflow.engine.engine_run import EngineRun, NodePlace, RunScope
from switchyard.features.flyte.workflow.engine.execution_state import NodeProgress
from switchyard.features.flyte.workflow.node_kinds.kind import EngineNodeKind


class SubWorkflowKind(EngineNodeKind):
    def begin(self, run: EngineRun, place: NodePlace, state: NodeProgress) -> None:
        state = replace(state, attempts=1, is_parent=True)
        run.put(place, state)
        run.open(self.inner_scope(run, place, state))

    def advance(self, run: EngineRun, place: NodePlace, state: NodeProgress) -> None:
        run.end_with(self.inner_scope(run, place, state), place, state)

    def inner_scope(self, run: EngineRun, place: NodePlace, state: NodeProgress) -> RunScope:
        graph = place.scope.graph
        prefix = f"{state.node_id}-{state.attempts - 1}-"
        return RunScope(graph, graph.sub_of(place.node), state.inputs, prefix, state.node_id, place.scope)
