"""Nodes that start another execution, of a launch plan, and end with it."""

from __future__ import annotations

from dataclasses import replace

from switchyard.workflow.engine_run import EngineRun, NodePlace
from switchyard.workflow.entity_id import EntityKind, read_id
from switchyard.workflow.execution_state import AttemptFailure, NodeProgress, TaskStart
from switchyard.workflow.node_kinds.single_attempt import SingleAttemptKind, fail_node

# Somebody stopped the child, and not because its parent stops.
CHILD_ABORTED = AttemptFailure("RemoteChildWorkflowExecutionFailed", "the execution that the node started was aborted")


class LaunchPlanKind(SingleAttemptKind):
    stopped = CHILD_ABORTED

    def begin(self, run: EngineRun, place: NodePlace, state: NodeProgress) -> None:
        state = replace(state, attempts=1)
        run.put(place, state)
        if (failure := run.refused.get((state.node_id, 0))) is not None:
            fail_node(run, place, state, failure)
            return
        plan = read_id(place.node.workflow_node.launchplan_ref, EntityKind.LAUNCH_PLAN)
        run.start(place, TaskStart(state.node_id, 0, plan, place.node, state.inputs))
