"""Gates in the engine: sleeps, approvals and values from people, with their time limits."""

from __future__ import annotations

from typing import Any

import pytest
from flyteidl.core import literals_pb2, workflow_pb2

from switchyard.features.flyte.workflow.engine.execution_state import ExecutionPhase, NodePhase
from tests.workflow.builders import INT, TEXT, a_template, approval, gate_node, scalar, sub_node, task_node, wish
from tests.workflow.engine_runs import PATIENT, Run, graph_of, number


def sleep(seconds: int) -> Any:
    gate = workflow_pb2.GateNode()
    gate.sleep.duration.seconds = seconds
    return gate


def within(node: Any, seconds: int) -> Any:
    node.metadata.timeout.seconds = seconds
    return node


def literal(value: Any) -> Any:
    return literals_pb2.Literal(scalar=scalar(value))


def gated(*nodes: Any, **more: Any) -> Run:
    return Run(graph_of(a_template(*nodes, **more)))


def test_a_sleep_ends_when_its_time_has_come_and_takes_no_room() -> None:
    run = gated(gate_node("n0", sleep(5)), task_node("n1", "one", upstream=("n0",)), task_node("n2", "one"))
    run.parallel = 1
    assert run.step() == ["n2#0"]
    assert run.nodes["n0"].wake_us == 5_000_000
    run.end("n2")
    run.now_s = 4
    assert run.step() == []
    run.now_s = 5
    assert run.step() == ["n1#0"]
    assert run.nodes["n0"].phase is NodePhase.SUCCEEDED


def test_an_approval_hands_its_inputs_on() -> None:
    run = gated(task_node("n0", "one"), gate_node("n1", approval(), o0="@n0.o0"), gives={"o": (INT, "@n1.o0")})
    run.step()
    run.end("n0", 7)
    assert (run.asked, run.phases()["n1"]) == (["ok"], "RUNNING")
    run.signals["ok"] = literal(True)
    run.step()
    assert (run.phase, number(run.outputs, "o")) == (ExecutionPhase.SUCCEEDED, 7)


def test_a_value_is_handed_on_under_the_name_of_the_gate() -> None:
    run = gated(gate_node("n0", wish()), gives={"o": (INT, "@n0.o0")})
    run.step()
    run.signals["value"] = literal(9)
    run.step()
    assert (run.phase, number(run.outputs, "o")) == (ExecutionPhase.SUCCEEDED, 9)


@pytest.mark.parametrize(
    ("gate", "value", "code"),
    [
        (approval(), literal(False), "ReceivedRejectSignal"),
        (wish(), None, "RetriesExhausted|TimeoutExpired"),
        (approval(), None, "RetriesExhausted|TimeoutExpired"),
        (wish(TEXT), literal(3), "InvalidSignalValue"),
        (approval("value"), literal(3), "InvalidSignalValue"),
    ],
    ids=["rejected", "no value in time", "no approval in time", "a value of another type", "no boolean"],
)
def test_gates_fail(gate: Any, value: Any, code: str) -> None:
    run = gated(within(gate_node("n0", gate), 10), task_node("n1", "one", upstream=("n0",)))
    run.step()
    signal_id = run.nodes["n0"].signal_id
    run.signals, run.now_s = {signal_id: value} if value is not None else {}, 10
    assert run.step() == []
    assert (run.phase, run.error.code) == (ExecutionPhase.FAILED, code)


def test_a_value_that_is_there_counts_though_the_time_is_over() -> None:
    run = gated(within(gate_node("n0", wish()), 10))
    run.step()
    run.signals["value"], run.now_s = literal(1), 99
    run.step()
    assert run.phase is ExecutionPhase.SUCCEEDED


def test_a_gate_without_a_time_limit_waits_for_ever() -> None:
    run = gated(gate_node("n0", wish()))
    run.step()
    run.now_s = 10**9
    run.step()
    assert (run.phases()["n0"], run.nodes["n0"].wake_us) == ("RUNNING", None)


def test_two_gates_may_wait_for_one_signal_inside_and_outside_of_a_sub_workflow() -> None:
    inner = a_template(gate_node("n0", wish()), name="inner")
    run = Run(graph_of(a_template(gate_node("n0", wish()), sub_node("n1", "inner")), inner))
    run.step()
    run.signals["value"] = literal(1)
    run.step()
    assert run.phase is ExecutionPhase.SUCCEEDED


def test_gates_end_at_once_when_the_execution_stops_or_fails() -> None:
    nodes = (gate_node("n0", wish()), gate_node("n1", sleep(50)), task_node("n2", "one"))
    run = gated(*nodes)
    run.step()
    run.phase, run.is_due = ExecutionPhase.ABORTING, True
    run.step()
    assert (run.phases()["n0"], run.phases()["n1"]) == ("ABORTED", "ABORTED")
    run.stop("n2")
    assert run.phase is ExecutionPhase.ABORTED
    run = gated(*nodes)
    run.step()
    run.fail("n2")
    assert (run.phase, run.phases()["n0"]) == (ExecutionPhase.FAILED, "ABORTED")


def test_a_patient_workflow_still_waits_for_its_gates() -> None:
    template = a_template(gate_node("n0", wish()), task_node("n1", "one"))
    template.metadata.on_failure = PATIENT
    run = Run(graph_of(template))
    run.step()
    run.fail("n1")
    assert run.phase is ExecutionPhase.RUNNING
    run.signals["value"] = literal(1)
    run.step()
    assert run.phase is ExecutionPhase.FAILED


def test_a_sleep_of_less_than_nothing_ends_at_once() -> None:
    run = gated(gate_node("n0", sleep(-5)), gate_node("n1", approval("x"), o0=1))
    run.signals["x"] = literal(True)
    run.step()
    assert run.phase is ExecutionPhase.SUCCEEDED


def test_a_step_that_asks_for_a_signal_is_followed_by_one_that_knows_its_value() -> None:
    """The value may have been given before the gate, or for another gate with the same signal."""
    run = gated(gate_node("n0", wish()))
    run.step()
    assert (run.asked, run.is_due) == (["value"], True)
    run.signals["value"] = literal(1)
    run.step()
    assert (run.phase, run.is_due) == (ExecutionPhase.SUCCEEDED, False)
