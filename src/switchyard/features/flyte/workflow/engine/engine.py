"""The engine: one step of an execution, from its state and what has happened to what to start and to store. Pure.

    step(graph, state, events) → EngineStep

A step looks at the nodes that something has happened to, at those behind and around them, and, if the state says so, at
all. The same state and events give the same step. How each kind of node runs is in `node_kinds/`; what a step is made
of is in `engine_run.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from switchyard.features.flyte.workflow.compile.entity_id import EntityId
from switchyard.features.flyte.workflow.engine.engine_run import AttemptKey, EngineRun
from switchyard.features.flyte.workflow.engine.execution_graph import ExecutionGraph
from switchyard.features.flyte.workflow.engine.execution_state import (
    AttemptEnd,
    AttemptFailure,
    EngineStep,
    ExecutionPhase,
    ExecutionState,
    NodePhase,
    execution_error,
)
from switchyard.features.flyte.workflow.node_kinds.table import kind_of
from switchyard.features.flyte.workflow.tasks.task_cache import CacheAnswer
from switchyard.features.flyte.workflow.values.binding_values import BindingFailed

_NO_REFUSALS: Mapping[AttemptKey, AttemptFailure] = MappingProxyType({})
_NO_ANSWERS: Mapping[AttemptKey, CacheAnswer] = MappingProxyType({})


def step(
    graph: ExecutionGraph,
    state: ExecutionState,
    events: Iterable[AttemptEnd] = (),
    refusals: Mapping[AttemptKey, AttemptFailure] = _NO_REFUSALS,
    answers: Mapping[AttemptKey, CacheAnswer] = _NO_ANSWERS,
    *,
    full_plans: Collection[EntityId] = (),
) -> EngineStep:
    """`refusals`: attempts that cannot be started. They fail at once. `answers`: what the cache says of first ones.

    `full_plans`: launch plans that may have no more live executions now. Their nodes do not begin, and take no room.
    """
    if state.phase.is_final:
        return EngineStep(state.phase, is_stopping=state.is_stopping)
    run = EngineRun(graph, state, refusals, kind_of, answers, full_plans=full_plans)
    for event in events:
        _end_attempt(run, event)
    run.look_at_waiting()
    if state.is_due or state.max_parallelism:
        run.look_at_all()
    run.run_out()
    return _settled(run, state)


def _end_attempt(run: EngineRun, event: AttemptEnd) -> None:
    state = run.nodes.get(event.node_id)
    if state is None or state.phase is not NodePhase.RUNNING or event.attempt != state.attempts - 1:
        return  # told twice, or of an attempt that was given up
    place = run.place_of(state)
    kind_of(place.node).end_attempt(run, place, state, event)


def _settled(run: EngineRun, state: ExecutionState) -> EngineStep:
    """The step, with the phase of the execution after it."""
    is_stopping = run.is_halting(run.top)
    phase, outputs = _ended(run, state) if run.is_over(run.top) else (ExecutionPhase.RUNNING, None)
    if phase is ExecutionPhase.RUNNING and state.phase is ExecutionPhase.ABORTING:
        phase = ExecutionPhase.ABORTING
    elif phase is ExecutionPhase.RUNNING and (is_stopping or (run.error is not None and run.is_over(run.top))):
        phase = ExecutionPhase.FAILING
    return EngineStep(
        phase=phase,
        nodes=tuple(run.nodes.changes()),
        starts=run.starts,
        is_stopping=state.is_stopping or is_stopping,
        outputs=outputs,
        error=run.error if phase is not ExecutionPhase.ABORTED else None,
        stopped_scopes=tuple(run.stopped_scopes),
        is_due=(run.is_cut or bool(run.signal_requests))
        and not phase.is_final,  # the next step knows values that were given before
        signals=tuple(run.signal_requests),
        dynamics=tuple((*key, dynamic) for key, dynamic in run.dynamics.items()),
    )


def _ended(run: EngineRun, state: ExecutionState) -> tuple[ExecutionPhase, Any]:
    """The phase and the outputs of an execution that nothing runs in any more, but its failure node perhaps."""
    if state.phase is ExecutionPhase.ABORTING:
        return (ExecutionPhase.RUNNING, None) if _is_cleaning(run) else (ExecutionPhase.ABORTED, None)
    if run.error is None:
        try:
            return ExecutionPhase.SUCCEEDED, run.outputs_of(run.top)
        except BindingFailed as exc:
            run.error = execution_error("BindingFailed", f"outputs: {exc}")
    error = run.clean_up(run.top, run.error)
    run.run_out()  # a failure node may have ended at once
    if error is None:
        error = run.clean_up(run.top, run.error)
    if error is None:
        return ExecutionPhase.RUNNING, None
    run.error = error
    return ExecutionPhase.FAILED, None


def _is_cleaning(run: EngineRun) -> bool:
    """Whether the failure node of the execution runs."""
    failure = run.top.workflow.failure_node
    phase = run.phase(run.top, failure.id) if failure is not None else None
    return phase is not None and phase.is_live
