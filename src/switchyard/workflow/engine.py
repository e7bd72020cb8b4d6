"""The engine: one step of an execution, from its state and what has happened to what to start and to store. Pure.

    step(graph, state, events) → EngineStep

A step looks at all nodes once, each after the nodes that it waits for. A job never ends within a step, so one look is
enough. The same state and events give the same step. How each kind of node runs is in `node_kinds/`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from switchyard.workflow.binding_values import BindingFailed
from switchyard.workflow.engine_run import AttemptKey, EngineRun, NodePlace, RunScope
from switchyard.workflow.execution_graph import ExecutionGraph
from switchyard.workflow.execution_state import (
    AttemptEnd,
    AttemptFailure,
    EngineStep,
    ExecutionPhase,
    ExecutionState,
    NodePhase,
    NodeProgress,
    execution_error,
)
from switchyard.workflow.node_kinds.table import kind_of

_NONE_REFUSED: Mapping[AttemptKey, AttemptFailure] = MappingProxyType({})
_ENDED_BADLY = (NodePhase.FAILED, NodePhase.SKIPPED, NodePhase.ABORTED)


def step(
    graph: ExecutionGraph,
    state: ExecutionState,
    events: Iterable[AttemptEnd] = (),
    refused: Mapping[AttemptKey, AttemptFailure] = _NONE_REFUSED,
) -> EngineStep:
    """`refused`: attempts that cannot be started. They fail at once."""
    if state.phase.is_final:
        return EngineStep(state.phase, is_stopping=state.is_stopping)
    run = EngineRun(state, refused, _look, on_failure=graph.primary.template.metadata.on_failure)
    top = RunScope(graph, graph.primary, state.inputs)
    _end_attempts(run, top, events)
    run.advance(top)
    if run.is_halting:
        run.take_back()
        run.advance(top)  # nodes with others inside end with the last of them
    return _settled(run, top, state)


def _end_attempts(run: EngineRun, top: RunScope, events: Iterable[AttemptEnd]) -> None:
    places = {place.node_id: place for place in _places(run, top)}
    for event in events:
        state = run.nodes.get(event.node_id)
        if state is None or state.phase is not NodePhase.RUNNING or event.attempt != state.attempts - 1:
            continue  # told twice, or of an attempt that was given up
        place = places[event.node_id]
        kind_of(place.node).end_attempt(run, place, state, event)


def _places(run: EngineRun, scope: RunScope) -> Iterator[NodePlace]:
    """All nodes of a scope, and those inside the nodes that have begun."""
    for node in scope.workflow.nodes:
        place = NodePlace(scope, node)
        yield place
        state = run.nodes.get(place.node_id)
        inner = kind_of(node).inner_scope(place, state) if state is not None and state.is_parent else None
        if inner is not None:
            yield from _places(run, inner)


def _look(run: EngineRun, place: NodePlace) -> None:
    """Begin a node that can begin, or go on with one that runs."""
    state = run.nodes.get(place.node_id)
    if state is None:
        _begin(run, place)
    elif state.phase is NodePhase.RUNNING:
        kind_of(place.node).advance(run, place, state)


def _begin(run: EngineRun, place: NodePlace) -> None:
    if run.is_halting:
        return
    kind = kind_of(place.node)
    phases = [run.phase(place.scope, one) for one in kind.waits_for(place)]
    fresh = NodeProgress(place.node_id, place.scope.parent_id, place.node.id, NodePhase.RUNNING)
    if any(phase in _ENDED_BADLY for phase in phases):
        run.put(replace(fresh, phase=NodePhase.SKIPPED))
        return
    if any(phase is not NodePhase.SUCCEEDED for phase in phases) or (kind.takes_room and not run.has_room()):
        return
    try:
        inputs = run.inputs_of(place)
    except BindingFailed as exc:
        run.fail(fresh, execution_error("BindingFailed", f"node {fresh.node_id}: {exc}"))
        return
    kind.begin(run, place, replace(fresh, inputs=inputs))


def _settled(run: EngineRun, top: RunScope, state: ExecutionState) -> EngineStep:
    """The step, with the phase of the execution after it."""
    is_over = run.is_over(top)
    phase, outputs = ExecutionPhase.RUNNING, None
    if state.phase is ExecutionPhase.ABORTING:
        phase = ExecutionPhase.ABORTED if is_over else ExecutionPhase.ABORTING
    elif is_over and run.error is None:
        try:
            outputs = run.outputs_of(top)
            phase = ExecutionPhase.SUCCEEDED
        except BindingFailed as exc:
            run.error, phase = execution_error("BindingFailed", f"outputs: {exc}"), ExecutionPhase.FAILED
    elif is_over:
        phase = ExecutionPhase.FAILED
    elif run.is_halting:
        phase = ExecutionPhase.FAILING
    return EngineStep(
        phase,
        tuple(run.nodes[node_id] for node_id in run.changed),
        tuple(run.starts),
        state.is_stopping or run.is_halting,
        outputs,
        run.error if phase is not ExecutionPhase.ABORTED else None,
    )
