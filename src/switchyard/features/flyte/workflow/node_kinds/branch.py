"""Nodes that run other nodes of the execution: one of their arms (conditional), or another workflow.

The arm waits for nodes of its own, which may still run. The conditions are evaluated again in each step: the inputs of
a node never change, so the arm is always the same.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

from flyteidl.core import workflow_pb2

from switchyard.features.flyte.workflow.compile.references import branch_arms
from switchyard.features.flyte.workflow.engine.branch_conditions import NoArm, choose_arm
from switchyard.features.flyte.workflow.engine.engine_run import EngineRun, NodePlace, RunScope
from switchyard.features.flyte.workflow.engine.execution_graph import GraphWorkflow
from switchyard.features.flyte.workflow.engine.execution_state import NodePhase, NodeProgress, execution_error
from switchyard.features.flyte.workflow.node_kinds.kind import EngineNodeKind

SKIPPED_ROWS_MAX = 100  # arms of one branch that are recorded as not taken
_NO_TEMPLATE = workflow_pb2.WorkflowTemplate()


class BranchKind(EngineNodeKind):
    """Nodes that run one of their arms."""

    def begin(self, run: EngineRun, place: NodePlace, state: NodeProgress) -> None:
        state = replace(state, attempts=1, is_parent=True)
        try:
            scope = self.inner_scope(run, place, state)
        except NoArm as exc:
            run.fail(place, state, execution_error(exc.code, f"node {state.node_id}: {exc}"))
            return
        run.put(place, state)
        (taken,) = scope.workflow.nodes
        others = (arm for arm in branch_arms(place.node.branch_node) if arm.id != taken.id)
        for arm in islice(others, SKIPPED_ROWS_MAX):
            run.skip(NodePlace(scope, arm))
        run.open(scope)

    def advance(self, run: EngineRun, place: NodePlace, state: NodeProgress) -> None:
        scope = run.inner_scope(place, state)
        arm = NodePlace(scope, scope.workflow.nodes[0])
        inner = run.nodes.get(arm.node_id)
        if inner is None:
            run.look(arm)
            if run.nodes.get(arm.node_id) is None and run.is_halting(scope):
                run.put(place, replace(state, phase=NodePhase.ABORTED))
        elif inner.phase is NodePhase.FAILED:
            run.fail(place, state, inner.error)
        elif not inner.phase.is_live:
            run.put(place, replace(state, phase=inner.phase, outputs=inner.outputs))
        elif arm.node.HasField("branch_node"):
            run.look(arm)  # a node has ended that the arm of a branch in this arm may wait for

    def inner_scope(self, run: EngineRun, place: NodePlace, state: NodeProgress) -> RunScope:
        """The arm that is taken. Raises NoArm."""
        arm: Any = choose_arm(place.node.branch_node.if_else, state.inputs)
        outer = place.scope
        upstream = {arm.id: outer.bound.workflow.upstream.get(arm.id, ())}
        return RunScope(
            graph=outer.graph,
            workflow=GraphWorkflow(_NO_TEMPLATE, (arm,), upstream, ()),
            inputs=outer.inputs,
            prefix=f"{state.node_id}-{state.attempts - 1}-",
            parent_id=state.node_id,
            outer=outer,
            bindings_of=outer.bound,
        )


class SubWorkflowKind(EngineNodeKind):
    """Nodes that run another workflow in the same execution."""

    def begin(self, run: EngineRun, place: NodePlace, state: NodeProgress) -> None:
        state = replace(state, attempts=1, is_parent=True)
        run.put(place, state)
        run.open(self.inner_scope(run, place, state))

    def advance(self, run: EngineRun, place: NodePlace, state: NodeProgress) -> None:
        run.end_with(self.inner_scope(run, place, state), place, state)

    def inner_scope(self, run: EngineRun, place: NodePlace, state: NodeProgress) -> RunScope:
        graph = place.scope.graph
        prefix = f"{state.node_id}-{state.attempts - 1}-"
        return RunScope(
            graph=graph,
            workflow=graph.sub_of(place.node),
            inputs=state.inputs,
            prefix=prefix,
            parent_id=state.node_id,
            outer=place.scope,
        )
