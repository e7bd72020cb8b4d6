"""Nodes with one attempt, which is not tried again here: a map, and the execution of a launch plan."""

from __future__ import annotations

from dataclasses import replace

from switchyard.features.flyte.workflow.engine.engine_run import EngineRun, NodePlace
from switchyard.features.flyte.workflow.engine.execution_state import (
    SYSTEM,
    USER,
    AttemptEnd,
    AttemptFailure,
    NodePhase,
    NodeProgress,
    execution_error,
)
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
