"""Dynamic workflows in the engine: they run inside the node whose task made them, and the task may run again."""

from __future__ import annotations

import pytest

from switchyard.features.flyte.workflow.engine.execution_graph import ExecutionGraph
from switchyard.features.flyte.workflow.engine.execution_state import ExecutionPhase
from tests.workflow.builders import INT, a_template, gate_node, sub_node, task_node, wish
from tests.workflow.engine_runs import AGAIN, PATIENT, USER, Run, graph_of, number


def made(*, retries: int = 0) -> ExecutionGraph:
    """What a dynamic task made: two tasks beside each other, and one behind them."""
    nodes = (
        task_node("dn0", "one"),
        task_node("dn1", "one"),
        task_node("dn2", "add", a="@dn0.o0", b="@dn1.o0"),
    )
    return graph_of(a_template(*nodes, name="made", gives={"o0": (INT, "@dn2.o0")}), retries=retries)


def outer(*, retries: int = 0, on_failure: int = 0) -> Run:
    template = a_template(task_node("n0", "one"), task_node("n1", "add", a="@n0.o0", b=1), gives={"o": (INT, "@n1.o0")})
    template.metadata.on_failure = on_failure
    return Run(graph_of(template, retries=retries))


def test_a_dynamic_workflow_runs_inside_its_node_and_gives_its_outputs() -> None:
    run = outer()
    run.step()
    assert run.expand("n0", made()) == ["n0-0-dn0#0", "n0-0-dn1#0"]
    assert (run.phases()["n0"], run.nodes["n0"].is_parent) == ("DYNAMIC_RUNNING", True)
    run.end("n0-0-dn0", 3)
    assert run.end("n0-0-dn1", 4) == ["n0-0-dn2#0"]
    assert number(run.nodes["n0-0-dn2"].inputs, "b") == 4
    assert run.end("n0-0-dn2", 7) == ["n1#0"]
    assert (run.phases()["n0"], number(run.nodes["n1"].inputs, "a")) == ("SUCCEEDED", 7)


def test_dynamic_workflows_nest_and_stand_in_sub_workflows() -> None:
    inner = a_template(task_node("n0", "one"), name="inner", gives={"o0": (INT, "@n0.o0")})
    run = Run(graph_of(a_template(sub_node("n0", "inner"), gives={"o": (INT, "@n0.o0")}), inner))
    assert run.step() == ["n0-0-n0#0"]
    again = graph_of(a_template(task_node("dn0", "one"), name="made", gives={"o0": (INT, "@dn0.o0")}))
    assert run.expand("n0-0-n0", again) == ["n0-0-n0-0-dn0#0"]
    assert run.expand("n0-0-n0-0-dn0", again) == ["n0-0-n0-0-dn0-0-dn0#0"]
    run.end("n0-0-n0-0-dn0-0-dn0", 5)
    assert (run.phase, number(run.outputs, "o")) == (ExecutionPhase.SUCCEEDED, 5)


def test_a_failure_that_allows_it_runs_the_task_again_once_the_rest_has_stopped() -> None:
    run = outer(retries=1)
    run.step()
    run.expand("n0", made())
    assert run.fail("n0-0-dn0", AGAIN) == [], "the tasks inside have no retries"
    assert (run.phases()["n0"], run.phase, run.is_stopping) == ("FAILING", ExecutionPhase.RUNNING, False)
    assert run.stopped == ["n0-0-"]
    assert run.stop("n0-0-dn1") == ["n0#1"]
    assert (run.nodes["n0"].is_parent, run.nodes["n0"].error) == (False, None)
    assert run.expand("n0", made()) == ["n0-1-dn0#0", "n0-1-dn1#0"]
    run.fail("n0-1-dn0", AGAIN)
    assert (run.phase, run.is_stopping) == (ExecutionPhase.FAILING, True), "no retry is left"
    run.stop("n0-1-dn1")
    assert (run.phase, run.error.code) == (ExecutionPhase.FAILED, "RetriesExhausted|USER:Recoverable")
    assert run.phases()["n0"] == "FAILED"


def test_a_failure_that_allows_no_retry_fails_the_execution() -> None:
    run = outer(retries=3)
    run.step()
    run.expand("n0", made())
    run.fail("n0-0-dn0", USER)
    assert (run.phase, run.is_stopping) == (ExecutionPhase.FAILING, True)
    assert run.stop("n0-0-dn1") == []
    assert run.phase is ExecutionPhase.FAILED


def test_a_patient_workflow_lets_the_rest_end_before_the_task_runs_again() -> None:
    run = outer(retries=1, on_failure=PATIENT)
    run.step()
    run.expand("n0", made())
    run.fail("n0-0-dn0", AGAIN)
    assert run.stopped == []
    assert run.end("n0-0-dn1") == ["n0#1"]
    assert run.phases()["n0-0-dn2"] == "SKIPPED"


def test_a_task_that_fails_itself_is_tried_again_as_any_other() -> None:
    run = outer(retries=1)
    run.step()
    assert run.fail("n0", AGAIN) == ["n0#1"]
    assert run.expand("n0", made()) == ["n0-1-dn0#0", "n0-1-dn1#0"]
    run.fail("n0-1-dn1", AGAIN)
    run.stop("n0-1-dn0")
    assert run.phase is ExecutionPhase.FAILED, "the one retry was used"


@pytest.mark.parametrize("is_early", [True, False])
def test_a_dynamic_workflow_is_stopped_with_its_execution(is_early: bool) -> None:
    run = outer(retries=1)
    run.step()
    if not is_early:
        run.expand("n0", made())
    run.phase, run.is_due = ExecutionPhase.ABORTING, True
    run.step()
    if is_early:
        assert run.expand("n0", made()) == []
    else:
        run.stop("n0-0-dn0")
        run.fail("n0-0-dn1", AGAIN)
    assert (run.phase, run.phases()["n0"] in ("ABORTED", "FAILED")) == (ExecutionPhase.ABORTED, True)


def test_gates_inside_a_dynamic_workflow_that_failed_end_before_the_retry() -> None:
    run = outer(retries=1)
    run.step()
    waits = graph_of(a_template(gate_node("dn0", wish()), task_node("dn1", "one"), name="made", gives={}))
    run.expand("n0", waits)
    assert run.fail("n0-0-dn1", AGAIN) == ["n0#1"]
    assert run.phases()["n0-0-dn0"] == "ABORTED"


def test_the_end_of_an_attempt_that_is_told_twice_expands_once() -> None:
    run = outer()
    run.step()
    run.expand("n0", made())
    before = dict(run.nodes)
    assert run.expand("n0", made()) == []
    assert run.nodes == before
