"""Nodes that start another execution, of a launch plan, and end with it."""

from __future__ import annotations

from dataclasses import replace

from switchyard.features.flyte.workflow.compile.entity_id import EntityId, EntityKind, read_id
from switchyard.features.flyte.workflow.engine.engine_run import EngineRun, NodePlace
from switchyard.features.flyte.workflow.engine.execution_state import AttemptFailure, NodeProgress, TaskStart
from switchyard.features.flyte.workflow.node_kinds.single_attempt import SingleAttemptKind, fail_node

# Somebody stopped the child, and not because its parent stops.
CHILD_ABORTED = AttemptFailure("RemoteChildWorkflowExecutionFailed", "the execution that the node started was aborted")


class LaunchPlanKind(SingleAttemptKind):
    stopped = CHILD_ABORTED

    def is_held(self, run: EngineRun, place: NodePlace) -> bool:
        """A node of a full launch plan begins when an execution of the plan has ended."""
        return bool(run.full_plans) and _plan_of(place) in run.full_plans and (place.node_id, 0) not in run.refused

    def begin(self, run: EngineRun, place: NodePlace, state: NodeProgress) -> None:
        state = replace(state, attempts=1)
        run.put(place, state)
        if (failure := run.refused.get((state.node_id, 0))) is not None:
            fail_node(run, place, state, failure)
            return
        run.start(place, TaskStart(state.node_id, 0, _plan_of(place), place.node, state.inputs))


def _plan_of(place: NodePlace) -> EntityId:
    return read_id(place.node.workflow_node.launchplan_ref, EntityKind.LAUNCH_PLAN)
