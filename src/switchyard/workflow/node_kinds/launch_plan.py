"""Nodes that start another execution, of a launch plan, and end with it."""

from __future__ import annotations

from dataclasses import replace

from switchyard.workflow.engine_run import EngineRun, NodePlace
from switchyard.workflow.entity_id import EntityKind, read_id
from switchyard.workflow.execution_state import (
    SYSTEM,
    USER,
    AttemptEnd,
    AttemptFailure,
    NodePhase,
    NodeProgress,
    TaskStart,
    execution_error,
)
from switchyard.workflow.node_kinds.kind import EngineNodeKind

# Somebody stopped the child, and not because its parent stops.
CHILD_ABORTED = AttemptFailure("RemoteChildWorkflowExecutionFailed", "the execution that the node started was aborted")


class LaunchPlanKind(EngineNodeKind):
    takes_room = True

    def begin(self, run: EngineRun, place: NodePlace, state: NodeProgress) -> None:
        state = replace(state, attempts=1)
        run.put(place, state)
        if (failure := run.refused.get((state.node_id, 0))) is not None:
            _fail(run, place, state, failure)
            return
        plan = read_id(place.node.workflow_node.launchplan_ref, EntityKind.LAUNCH_PLAN)
        run.start(place, TaskStart(state.node_id, 0, plan, place.node, state.inputs))

    def end_attempt(self, run: EngineRun, place: NodePlace, state: NodeProgress, event: AttemptEnd) -> None:
        if event.outputs is not None:
            run.put(place, replace(state, phase=NodePhase.SUCCEEDED, outputs=event.outputs))
        elif event.failure is not None:
            _fail(run, place, state, event.failure)
        elif run.is_halting(place.scope):
            run.put(place, replace(state, phase=NodePhase.ABORTED))
        else:
            _fail(run, place, state, CHILD_ABORTED)


def _fail(run: EngineRun, place: NodePlace, state: NodeProgress, failure: AttemptFailure) -> None:
    kind = SYSTEM if failure.is_system else USER
    run.fail(place, state, execution_error(failure.code, failure.message, kind=kind))
