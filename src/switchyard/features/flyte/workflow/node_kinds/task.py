"""Nodes that run a task: one job for each attempt, and further attempts after failures that allow it.

A task may leave a workflow in place of its outputs (a dynamic task). The workflow then runs inside the node. If it
fails and the failure allows it, the task runs again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from switchyard.features.flyte.workflow.compile.dynamic_workflow import no_inputs
from switchyard.features.flyte.workflow.engine.engine_run import EngineRun, NodePlace, RunScope
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
from switchyard.features.flyte.workflow.node_kinds.kind import EngineNodeKind

SYSTEM_RETRIES = 3  # as in Flyte: for failures that are not the user's
EXHAUSTED = "RetriesExhausted|"  # before the code of a failure after which no retry was left


class TaskKind(EngineNodeKind):
    takes_room = True

    def begin(self, run: EngineRun, place: NodePlace, state: NodeProgress) -> None:
        answer = run.answers.get((state.node_id, 0))
        if answer is not None and answer.must_wait:
            return  # it begins when the node that runs the same has ended
        if answer is not None:
            state = replace(state, cache_status=answer.status, cache_key=answer.key, cache_source=answer.source)
            if answer.outputs is not None:
                run.put(place, replace(state, phase=NodePhase.SUCCEEDED, outputs=answer.outputs))
                return
        self._start_job(run, place, replace(state, attempts=1))

    def end_attempt(self, run: EngineRun, place: NodePlace, state: NodeProgress, event: AttemptEnd) -> None:
        if event.dynamic is not None and not run.is_halting(place.scope):
            state = replace(state, phase=NodePhase.DYNAMIC_RUNNING, is_parent=True)
            run.dynamics[state.node_id, event.attempt] = event.dynamic
            run.put(place, state)
            run.open(self.inner_scope(run, place, state))
            return
        failure = event.failure
        if event.outputs is not None:
            failure = _output_failure(place, event.outputs)
            if failure is None:
                run.put(place, replace(state, phase=NodePhase.SUCCEEDED, outputs=event.outputs))
                return
        if failure is not None:
            self._fail_attempt(run, place, state, failure)
        elif run.is_halting(place.scope):
            run.put(place, replace(state, phase=NodePhase.ABORTED))
        else:
            self._fail_attempt(run, place, state, CANCELLED)

    def advance(self, run: EngineRun, place: NodePlace, state: NodeProgress) -> None:
        if not state.is_parent:
            return
        scope = self.inner_scope(run, place, state)
        if state.phase is NodePhase.FAILING and run.is_over(scope):
            if self.is_failure_kept(run, place, state, state.error):
                again = replace(state, is_parent=False, error=None, user_failures=state.user_failures + 1)
                self._start_job(run, place, replace(again, attempts=state.attempts + 1))
            else:
                run.fail(place, state, state.error)
        else:
            run.end_with(scope, place, state)

    def inner_scope(self, run: EngineRun, place: NodePlace, state: NodeProgress) -> RunScope:
        graph = run.dynamic_graph(state.node_id, state.attempts - 1)
        prefix = f"{state.node_id}-{state.attempts - 1}-"
        return RunScope(
            graph=graph,
            workflow=graph.primary,
            inputs=no_inputs(),
            prefix=prefix,
            parent_id=state.node_id,
            outer=place.scope,
        )

    def is_failure_kept(self, run: EngineRun, place: NodePlace, state: NodeProgress, error: Any) -> bool:
        """A failure inside a dynamic workflow that had retries of its own counts as a failure of the task's user."""
        is_recoverable = error.code.startswith(EXHAUSTED)
        return is_recoverable and state.user_failures < _retries(place) and not run.is_halting(place.scope)

    def _start_job(self, run: EngineRun, place: NodePlace, state: NodeProgress) -> None:
        run.put(place, replace(state, phase=NodePhase.RUNNING))
        attempt = state.attempts - 1
        if (failure := run.refusals.get((state.node_id, attempt))) is not None:
            self._fail_attempt(run, place, state, failure)
            return
        task, template = place.scope.graph.task_of(place.node)
        run.start(
            place,
            TaskStart(
                node_id=state.node_id,
                attempt=attempt,
                task=task,
                node=place.node,
                inputs=state.inputs,
                template=template,
            ),
        )

    def _fail_attempt(self, run: EngineRun, place: NodePlace, state: NodeProgress, failure: AttemptFailure) -> None:
        """Try again if the failure allows it; else the node has failed."""
        state = replace(
            state,
            user_failures=state.user_failures + (not failure.is_system),
            system_failures=state.system_failures + failure.is_system,
        )
        tries, most = (
            (state.system_failures, SYSTEM_RETRIES + 1)
            if failure.is_system
            else (state.user_failures, _retries(place) + 1)
        )
        if failure.is_recoverable and tries < most and not run.is_halting(place.scope):
            self._start_job(run, place, replace(state, attempts=state.attempts + 1))
            return
        run.fail(place, state, _final_error(failure, tries, most))


def _final_error(failure: AttemptFailure, tries: int, most: int) -> Any:
    kind = SYSTEM if failure.is_system else USER
    if not failure.is_recoverable:
        return execution_error(failure.code, failure.message, kind=kind)
    word = "SYSTEM" if failure.is_system else "USER"
    message = f"[{tries}/{most}] currentAttempt done. Last Error: {word}::{failure.message}"
    return execution_error(f"{EXHAUSTED}{failure.code}", message, kind=kind)


def _retries(place: NodePlace) -> int:
    """A node's own number, if it is above 0; else the task's."""
    task = place.scope.graph.task_of(place.node)[1]
    return int(place.node.metadata.retries.retries or task.metadata.retries.retries)


def _output_failure(place: NodePlace, outputs: Any) -> AttemptFailure | None:
    declared = place.scope.graph.task_of(place.node)[1].interface.outputs.variables
    absent = sorted(set(declared) - set(outputs.literals))
    if not absent:
        return None
    return AttemptFailure("OutputsNotFound", f"the task left no value for {', '.join(absent[:20])}", True)
