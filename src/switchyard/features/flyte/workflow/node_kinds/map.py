"""Nodes that run a task for each element of lists. The elements are beside the engine: a map ends as one attempt."""

from __future__ import annotations

from dataclasses import replace

from switchyard.features.flyte.workflow.engine.engine_run import EngineRun, NodePlace
from switchyard.features.flyte.workflow.engine.execution_state import (
    CANCELLED,
    NodePhase,
    NodeProgress,
    TaskStart,
    execution_error,
)
from switchyard.features.flyte.workflow.engine.map_elements import MapRefused, gather_outputs, map_shape
from switchyard.features.flyte.workflow.node_kinds.single_attempt import SingleAttemptKind, fail_node


class MapKind(SingleAttemptKind):
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
        if (failure := run.refused.get((state.node_id, 0))) is not None:
            fail_node(run, place, state, failure)
            return
        run.start(place, TaskStart(state.node_id, 0, task, array.node, state.inputs, template, shape))
