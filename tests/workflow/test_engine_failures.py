"""Failures in the engine: how they go up through nodes with others inside, and the node that cleans up after them."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard.features.flyte.workflow.engine.execution_graph import ExecutionGraph
from switchyard.features.flyte.workflow.engine.execution_state import ExecutionPhase
from tests.workflow.builders import INT, a_template, sub_node, task_node
from tests.workflow.engine_runs import AGAIN, PATIENT, SYSTEM, USER, Run, graph_of, literals


def cleaned(template: Any, failure: Any = None) -> Any:
    template.failure_node.CopyFrom(failure if failure is not None else task_node("fn0", "tidy", x="@.x", err=None))
    return template


def two_tasks(on_failure: int = 0, **options: Any) -> ExecutionGraph:
    template = cleaned(a_template(task_node("n0", "one"), task_node("n1", "one"), x=INT))
    template.metadata.on_failure = on_failure
    return graph_of(template, **options)


def test_a_failure_node_runs_once_all_others_have_stopped_and_learns_the_error() -> None:
    run = Run(two_tasks(), literals(x=5))
    assert run.step() == ["n0#0", "n1#0"]
    assert run.fail("n0") == []
    assert (run.phase, run.is_stopping) == (ExecutionPhase.FAILING, True)
    assert run.stop("n1") == ["fn0#0"]
    inputs = run.nodes["fn0"].inputs.literals
    assert inputs["x"].scalar.primitive.integer == 5
    error = inputs["err"].scalar.union.value.scalar.error
    assert (error.failed_node_id, error.message) == ("n0", "bad")
    assert run.phase is ExecutionPhase.FAILING
    assert run.end("fn0") == []
    assert (run.phase, run.error.message) == (ExecutionPhase.FAILED, "bad")
    assert run.phases() == {"n0": "FAILED", "n1": "ABORTED", "fn0": "SUCCEEDED"}


def test_a_failure_node_does_not_run_after_a_success() -> None:
    run = Run(two_tasks(), literals(x=5))
    run.step()
    run.end("n0")
    run.end("n1")
    assert (run.phase, "fn0" in run.nodes) == (ExecutionPhase.SUCCEEDED, False)


def test_the_error_of_a_failure_node_hides_the_first_one() -> None:
    run = Run(two_tasks(retries=1), literals(x=5))
    run.step()
    run.fail("n0")
    assert run.stop("n1") == ["fn0#0"]
    assert run.fail("fn0", AGAIN) == ["fn0#1"], "it has retries of its own"
    assert run.fail("fn0", SYSTEM) == ["fn0#2"]
    assert run.fail("fn0", AGAIN) == []
    assert (run.phase, run.error.code) == (ExecutionPhase.FAILED, "RetriesExhausted|USER:Recoverable")


def test_an_execution_that_is_stopped_runs_no_failure_node() -> None:
    run = Run(two_tasks(), literals(x=5))
    run.step()
    run.phase, run.is_due = ExecutionPhase.ABORTING, True
    run.step()
    run.stop("n0")
    run.fail("n1")
    assert (run.phase, "fn0" in run.nodes) == (ExecutionPhase.ABORTED, False)


def test_a_failure_node_is_stopped_with_its_execution() -> None:
    run = Run(two_tasks(), literals(x=5))
    run.step()
    run.fail("n0")
    run.stop("n1")
    run.phase, run.is_due = ExecutionPhase.ABORTING, True
    assert run.step() == []
    assert run.phase is ExecutionPhase.ABORTING
    run.stop("fn0")
    assert (run.phase, run.phases()["fn0"]) == (ExecutionPhase.ABORTED, "ABORTED")


def test_the_patient_policy_runs_the_failure_node_last() -> None:
    run = Run(two_tasks(PATIENT), literals(x=5))
    run.step()
    assert run.fail("n0") == []
    assert run.phase is ExecutionPhase.RUNNING
    assert run.end("n1") == ["fn0#0"]
    assert run.phase is ExecutionPhase.FAILING
    run.end("fn0")
    assert run.phase is ExecutionPhase.FAILED


def test_a_sub_workflow_runs_its_own_failure_node_and_then_the_outer_one_runs() -> None:
    inner = cleaned(a_template(task_node("n0", "one"), name="inner", x=INT))
    outer = cleaned(a_template(sub_node("n0", "inner", x=1), task_node("n1", "one"), x=INT))
    run = Run(graph_of(outer, inner), literals(x=5))
    assert run.step() == ["n1#0", "n0-0-n0#0"]
    assert run.fail("n0-0-n0") == ["n0-0-fn0#0"]
    assert (run.phases()["n0"], run.phase, run.is_stopping) == ("FAILING", ExecutionPhase.FAILING, True)
    assert run.stop("n1") == []
    assert run.end("n0-0-fn0") == ["fn0#0"]
    assert run.phases()["n0"] == "FAILED"
    assert run.nodes["fn0"].inputs.literals["err"].scalar.union.value.scalar.error.failed_node_id == "n0"
    run.end("fn0")
    assert run.phase is ExecutionPhase.FAILED


def test_a_sub_workflow_as_failure_node_runs_all_of_its_nodes() -> None:
    clean = a_template(task_node("n0", "one"), task_node("n1", "add", a="@n0.o0", b=1), name="clean")
    outer = cleaned(a_template(task_node("n0", "one"), x=INT), sub_node("fn0", "clean"))
    run = Run(graph_of(outer, clean), literals(x=5))
    run.step()
    assert run.fail("n0") == ["fn0-0-n0#0"]
    assert run.end("fn0-0-n0") == ["fn0-0-n1#0"]
    run.end("fn0-0-n1")
    assert (run.phase, run.error.message) == (ExecutionPhase.FAILED, "bad")


def test_outputs_that_cannot_be_had_run_the_failure_node() -> None:
    graph = graph_of(cleaned(a_template(task_node("n0", "one"), gives={"o": (INT, "@n0.o0")}, x=INT)))
    graph.primary.outputs[0].binding.promise.attr_path.add(string_value="nothing")
    run = Run(graph, literals(x=5))
    run.step()
    assert run.end("n0") == ["fn0#0"]
    run.end("fn0")
    assert (run.phase, run.error.code) == (ExecutionPhase.FAILED, "BindingFailed")


@pytest.mark.parametrize("on_failure", [0, PATIENT])
def test_a_parent_is_failing_until_nothing_inside_runs(on_failure: int) -> None:
    inner = a_template(task_node("n0", "one"), task_node("n1", "one"), name="inner")
    outer = a_template(sub_node("n0", "inner"))
    outer.metadata.on_failure = on_failure
    run = Run(graph_of(outer, inner))
    run.step()
    run.fail("n0-0-n0", USER)
    assert (run.phases()["n0"], run.nodes["n0"].error.message) == ("FAILING", "bad")
    assert run.phase is (ExecutionPhase.RUNNING if on_failure else ExecutionPhase.FAILING)
    run.end("n0-0-n1")
    assert (run.phases()["n0"], run.phase) == ("FAILED", ExecutionPhase.FAILED)


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_sub_workflow_as_failure_node_goes_on_after_nodes_were_left_out(is_stopped: bool) -> None:
    clean = a_template(task_node("n0", "one"), task_node("n1", "one"), name="clean")
    outer = cleaned(a_template(task_node("n0", "one"), x=INT), sub_node("fn0", "clean"))
    run = Run(graph_of(outer, clean), literals(x=5), parallel=1)
    run.step()
    assert run.fail("n0") == ["fn0-0-n0#0"]
    if is_stopped:
        run.phase = ExecutionPhase.ABORTING
        run.step()
        run.stop("fn0-0-n0")
        assert run.phase is ExecutionPhase.ABORTED
    else:
        assert run.end("fn0-0-n0") == ["fn0-0-n1#0"]
        run.end("fn0-0-n1")
        assert run.phase is ExecutionPhase.FAILED
