"""Nodes with one attempt, which is not tried again here: a map, and the execution of a launch plan."""

from __future__ import annotations

from dataclasses import replace

from switchyard.features.flyte.workflow.compile.entity_id import EntityId, EntityKind, read_id
from switchyard.features.flyte.workflow.engine.engine_run import EngineRun, NodePlace
from switchyard.features.flyte.workflow.engine.execution_state import (
    CANCELLED,
    SYSTEM,
    USER,
    AttemptEnd,
    AttemptFailure,
    NodePhase,
    NodeProgress,
    TaskStart,
    execution_error,
)
from switchyard.features.flyte.workflow.engine.map_elements import MapRefused, gather_outputs, map_shape
from switchyard.features.flyte.workflow.node_kinds.kind import EngineNodeKind


class SingleAttemptKind(EngineNodeKind):
    """`stopped`: the failure of a node whose attempt somebody stopped while the execution goes on."""

    takes_room = True
    stopped: AttemptFailure

    def end_attempt(self, run: EngineRun, place: NodePlace, state: NodeProgress, event: AttemptEnd) -> None:
        if event.outputs is not None:
            run.put(place, replace(state, phase=NodePhase.SUCCEEDED, outputs=event.outputs))
        elif event.failure is not None:
            fail_node(run, place, state, event.failure)
        elif run.is_halting(place.scope):
            run.put(place, replace(state, phase=NodePhase.ABORTED))
        else:
            fail_node(run, place, state, self.stopped)


def fail_node(run: EngineRun, place: NodePlace, state: NodeProgress, failure: AttemptFailure) -> None:
    kind = SYSTEM if failure.is_system else USER
    run.fail(place, state, execution_error(failure.code, failure.message, kind=kind))


# Somebody stopped the child, and not because its parent stops.
CHILD_ABORTED = AttemptFailure("RemoteChildWorkflowExecutionFailed", "the execution that the node started was aborted")


class LaunchPlanKind(SingleAttemptKind):
    """Nodes that start another execution, of a launch plan, and end with it."""

    stopped = CHILD_ABORTED

    def must_wait(self, run: EngineRun, place: NodePlace) -> bool:
        """A node of a full launch plan begins when an execution of the plan has ended."""
        return bool(run.full_plans) and _plan_of(place) in run.full_plans and (place.node_id, 0) not in run.refusals

    def begin(self, run: EngineRun, place: NodePlace, state: NodeProgress) -> None:
        state = replace(state, attempts=1)
        run.put(place, state)
        if (failure := run.refusals.get((state.node_id, 0))) is not None:
            fail_node(run, place, state, failure)
            return
        run.start(place, TaskStart(state.node_id, 0, _plan_of(place), place.node, state.inputs))


def _plan_of(place: NodePlace) -> EntityId:
    return read_id(place.node.workflow_node.launchplan_ref, EntityKind.LAUNCH_PLAN)


class MapKind(SingleAttemptKind):
    """Nodes that run a task for each element of lists. They are beside the engine: a map ends as one attempt."""

    stopped = CANCELLED

    def begin(self, run: EngineRun, place: NodePlace, state: NodeProgress) -> None:
        array = place.node.array_node
        task, template = place.scope.graph.task_of(array.node)
        state = replace(state, attempts=1, is_array=True)
        try:
            shape = map_shape(array, state.inputs)
        except MapRefused as exc:
            run.fail(place, state, execution_error(exc.code, f"node {state.node_id}: {exc}"))
            return
        if shape.size == 0:
            empty = gather_outputs(sorted(template.interface.outputs.variables), 0, {})
            run.put(place, replace(state, phase=NodePhase.SUCCEEDED, outputs=empty))
            return
        run.put(place, state)
        if (failure := run.refusals.get((state.node_id, 0))) is not None:
            fail_node(run, place, state, failure)
            return
        run.start(
            place,
            TaskStart(
                node_id=state.node_id,
                attempt=0,
                task=task,
                node=array.node,
                inputs=state.inputs,
                template=template,
                shape=shape,
            ),
        )
