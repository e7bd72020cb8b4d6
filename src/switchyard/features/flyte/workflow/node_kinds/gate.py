"""Nodes that wait for a time (sleep), for an approval, or for a value from a person. They use no cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flyteidl.core import literals_pb2, types_pb2

from switchyard.features.flyte.workflow.engine.engine_run import EngineRun, NodePlace
from switchyard.features.flyte.workflow.engine.execution_checks import value_mistake
from switchyard.features.flyte.workflow.engine.execution_state import (
    NodePhase,
    NodeProgress,
    SignalRequest,
    execution_error,
)
from switchyard.features.flyte.workflow.node_kinds.kind import EngineNodeKind
from switchyard.features.flyte.workflow.values.casting import Caster

BOOLEAN = types_pb2.LiteralType(simple=types_pb2.BOOLEAN)


class GateKind(EngineNodeKind):
    def begin(self, run: EngineRun, place: NodePlace, state: NodeProgress) -> None:
        gate = place.node.gate_node
        span = gate.sleep.duration if gate.HasField("sleep") else place.node.metadata.timeout
        span_us = max(0, span.ToMicroseconds())
        has_end = gate.HasField("sleep") or span_us > 0
        state = replace(state, wake_us=run.now_us + span_us if has_end else None, signal_id=_signal_id(gate))
        run.put(place, state)
        if state.signal_id:
            run.signal_requests.append(SignalRequest(state.signal_id, _signal_type(gate)))
        self.advance(run, place, state)

    def advance(self, run: EngineRun, place: NodePlace, state: NodeProgress) -> None:
        value = run.signals.get(state.signal_id) if state.signal_id else None
        is_late = state.wake_us is not None and run.now_us >= state.wake_us
        if run.is_halting(place.scope):
            run.put(place, replace(state, phase=NodePhase.ABORTED))
        elif value is not None:
            self._take(run, place, state, value)
        elif is_late and not state.signal_id:
            run.put(place, replace(state, phase=NodePhase.SUCCEEDED, outputs=literals_pb2.LiteralMap()))
        elif is_late:
            words = f"[1/1] currentAttempt done. Last Error: USER::nobody set the signal {state.signal_id} in time"
            run.fail(place, state, execution_error("RetriesExhausted|TimeoutExpired", words))

    def _take(self, run: EngineRun, place: NodePlace, state: NodeProgress, value: Any) -> None:
        """Go on with the value of the signal."""
        gate = place.node.gate_node
        mistake = value_mistake(state.signal_id, value, _signal_type(gate), Caster())
        if mistake:
            run.fail(place, state, execution_error("InvalidSignalValue", f"node {state.node_id}: {mistake}"))
        elif gate.HasField("signal"):
            outputs = literals_pb2.LiteralMap(literals={gate.signal.output_variable_name: value})
            run.put(place, replace(state, phase=NodePhase.SUCCEEDED, outputs=outputs))
        elif value.scalar.primitive.boolean:
            run.put(place, replace(state, phase=NodePhase.SUCCEEDED, outputs=state.inputs))
        else:
            words = f"node {state.node_id}: the signal {state.signal_id} was rejected"
            run.fail(place, state, execution_error("ReceivedRejectSignal", words))


def _signal_id(gate: Any) -> str:
    return str(gate.approve.signal_id if gate.HasField("approve") else gate.signal.signal_id)


def _signal_type(gate: Any) -> Any:
    return BOOLEAN if gate.HasField("approve") else gate.signal.type
