"""Nodes that run a task for each element of lists. The elements are beside the engine: a map ends as one attempt."""

from __future__ import annotations

from dataclasses import replace

from switchyard.workflow.engine_run import EngineRun, NodePlace
from switchyard.workflow.execution_state import (
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
from switchyard.workflow.map_elements import MapRefused, gather_outputs, map_shape
from switchyard.workflow.node_kinds.kind import EngineNodeKind


class MapKind(EngineNodeKind):
    takes_room = True

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
        if (failure := run.refused.get((state.node_id, 0))) is not None:
            _fail(run, place, state, failure)
            return
        run.start(place, TaskStart(state.node_id, 0, task, array.node, state.inputs, template, shape))

    def end_attempt(self, run: EngineRun, place: NodePlace, state: NodeProgress, event: AttemptEnd) -> None:
        if event.outputs is not None:
            run.put(place, replace(state, phase=NodePhase.SUCCEEDED, outputs=event.outputs))
        elif event.failure is not None:
            _fail(run, place, state, event.failure)
        elif run.is_halting(place.scope):
            run.put(place, replace(state, phase=NodePhase.ABORTED))
        else:
            _fail(run, place, state, CANCELLED)


def _fail(run: EngineRun, place: NodePlace, state: NodeProgress, failure: AttemptFailure) -> None:
    kind = SYSTEM if failure.is_system else USER
    run.fail(place, state, execution_error(failure.code, failure.message, kind=kind))
