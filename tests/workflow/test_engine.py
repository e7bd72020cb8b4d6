"""The engine: a table of workflows and what happens to their jobs, with what is started and how the execution ends."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard.features.flyte.workflow.engine.execution_graph import ExecutionGraph, count_nodes_to_run
from switchyard.features.flyte.workflow.engine.execution_state import (
    AttemptEnd,
    AttemptFailure,
    ExecutionPhase,
    NodePhase,
)
from tests.workflow.builders import INT, a_template, list_of, sub_node, task_node
from tests.workflow.engine_runs import (
    AGAIN,
    DEEPEST,
    PATIENT,
    SYSTEM,
    USER,
    Run,
    diamond,
    graph_of,
    literals,
    nested,
    number,
)


def test_a_diamond_starts_what_is_ready_and_ends_with_its_outputs() -> None:
    run = Run(diamond(), literals(x=5))
    assert run.step() == ["n0#0"]
    assert run.phase is ExecutionPhase.RUNNING
    assert run.end("n0", 3) == ["n1#0", "n2#0"]
    assert [number(run.nodes["n2"].inputs, name) for name in "ab"] == [3, 5]
    assert run.end("n2", 8) == []
    assert run.end("n1", 13) == ["n3#0"]
    assert run.end("n3", 21) == []
    assert (run.phase, number(run.outputs, "o"), number(run.outputs, "x")) == (ExecutionPhase.SUCCEEDED, 21, 5)


def test_what_is_told_twice_or_late_changes_nothing() -> None:
    run = Run(diamond(retries=1), literals(x=5))
    run.step()
    assert run.fail("n0", AGAIN) == ["n0#1"]
    before = dict(run.nodes)
    assert run.step(AttemptEnd("n0", 0, literals(o0=9))) == []
    assert run.step(AttemptEnd("nowhere", 0, literals(o0=9))) == []
    assert run.nodes == before
    assert run.end("n0") == ["n1#0", "n2#0"]
    assert run.step(AttemptEnd("n0", 1, failure=USER)) == []
    assert run.phase is ExecutionPhase.RUNNING


def test_a_failure_stops_what_runs_and_the_execution_fails_when_all_is_over() -> None:
    run = Run(diamond(), literals(x=5))
    run.step()
    run.end("n0")
    assert run.fail("n1") == []
    assert (run.phase, run.is_stopping) == (ExecutionPhase.FAILING, True)
    assert run.stop("n2") == []
    assert run.phase is ExecutionPhase.FAILED
    assert run.phases() == {"n0": "SUCCEEDED", "n1": "FAILED", "n2": "ABORTED"}
    assert (run.error.code, run.error.message) == ("USER:ValueError", "bad")


def test_the_patient_policy_runs_what_does_not_depend_on_the_failed_node() -> None:
    run = Run(diamond(on_failure=PATIENT), literals(x=5))
    run.step()
    run.end("n0")
    run.fail("n1")
    assert (run.phase, run.is_stopping) == (ExecutionPhase.RUNNING, False)
    assert run.phases()["n3"] == "SKIPPED"
    assert run.end("n2") == []
    assert (run.phase, run.phases()["n2"]) == (ExecutionPhase.FAILED, "SUCCEEDED")


@pytest.mark.parametrize(
    ("failures", "retries", "code"),
    [
        ([USER], 3, "USER:ValueError"),
        ([AGAIN], 0, "RetriesExhausted|USER:Recoverable"),
        ([AGAIN, AGAIN, AGAIN], 2, "RetriesExhausted|USER:Recoverable"),
        ([SYSTEM] * 4, 0, "RetriesExhausted|Interrupted"),
        ([SYSTEM, AGAIN, SYSTEM, AGAIN], 1, "RetriesExhausted|USER:Recoverable"),
        ([AGAIN, USER], 5, "USER:ValueError"),
    ],
)
def test_retries_of_users_and_of_the_system_are_counted_apart(
    failures: list[AttemptFailure], retries: int, code: str
) -> None:
    run = Run(graph_of(a_template(task_node("n0", "one")), retries=retries))
    assert run.step() == ["n0#0"]
    for attempt, failure in enumerate(failures, start=1):
        is_last = attempt == len(failures)
        assert run.fail("n0", failure) == ([] if is_last else [f"n0#{attempt}"])
    assert (run.phase, run.error.code) == (ExecutionPhase.FAILED, code)


def test_a_nodes_own_retries_count_if_they_are_above_zero() -> None:
    node = task_node("n0", "one")
    node.metadata.retries.retries = 1
    run = Run(graph_of(a_template(node), retries=0))
    run.step()
    assert run.fail("n0", AGAIN) == ["n0#1"]
    assert run.end("n0") == []
    assert run.phase is ExecutionPhase.SUCCEEDED


def test_sub_workflows_run_under_the_id_of_their_node() -> None:
    inner = a_template(
        task_node("n0", "add", a="@.a", b=1),
        task_node("n1", "add", a="@n0.o0", b=2),
        name="inner",
        gives={"o": (INT, "@n1.o0")},
        a=INT,
    )
    outer = a_template(sub_node("n0", "inner", a=1), sub_node("n1", "inner", a="@n0.o"), gives={"o": (INT, "@n1.o")})
    run = Run(graph_of(outer, inner))
    assert run.step() == ["n0-0-n0#0"]
    assert run.nodes["n0-0-n0"].parent_id == "n0"
    assert run.end("n0-0-n0", 2) == ["n0-0-n1#0"]
    assert run.end("n0-0-n1", 4) == ["n1-0-n0#0"]
    assert run.nodes["n0"].phase is NodePhase.SUCCEEDED
    assert number(run.nodes["n1-0-n0"].inputs, "a") == 4
    run.end("n1-0-n0", 5)
    run.end("n1-0-n1", 7)
    assert (run.phase, number(run.outputs, "o")) == (ExecutionPhase.SUCCEEDED, 7)


def test_nodes_of_sub_workflows_count_for_each_node_that_runs_them() -> None:
    inner = a_template(task_node("n0", "one"), task_node("n1", "one"), name="inner")
    assert count_nodes_to_run(graph_of(a_template(sub_node("n0", "inner"), sub_node("n1", "inner")), inner)) == 6
    levels = [a_template(task_node("n0", "one"), name="l0")]
    for level in range(1, 31):
        below = f"l{level - 1}"
        levels.append(a_template(sub_node("n0", below), sub_node("n1", below), name=f"l{level}"))
    assert count_nodes_to_run(graph_of(a_template(sub_node("n0", "l30")), *levels)) == 3 * 2**30 - 1


def test_a_failure_in_a_sub_workflow_fails_its_node_and_the_rest_is_aborted() -> None:
    inner = a_template(task_node("n0", "one"), task_node("n1", "one"), name="inner")
    run = Run(graph_of(a_template(sub_node("n0", "inner"), sub_node("n1", "inner")), inner))
    assert run.step() == ["n0-0-n0#0", "n0-0-n1#0", "n1-0-n0#0", "n1-0-n1#0"]
    run.fail("n0-0-n1")
    assert run.phase is ExecutionPhase.FAILING
    for node_id in ("n0-0-n0", "n1-0-n0"):
        run.stop(node_id)
    assert run.end("n1-0-n1") == []
    assert run.phase is ExecutionPhase.FAILED
    assert [run.phases()[node_id] for node_id in ("n0", "n1", "n1-0-n1")] == ["FAILED", "ABORTED", "SUCCEEDED"]


def test_an_execution_that_is_stopped_is_aborted_when_its_jobs_are_over() -> None:
    run = Run(diamond(), literals(x=5))
    run.step()
    run.end("n0")
    run.phase, run.is_due = ExecutionPhase.ABORTING, True
    assert run.step() == []
    assert (run.phase, run.is_stopping) == (ExecutionPhase.ABORTING, True)
    assert run.stop("n1") == []
    assert run.fail("n2", AGAIN) == []
    assert run.phase is ExecutionPhase.ABORTED


@pytest.mark.parametrize("on_failure", [0, PATIENT])
def test_a_job_that_is_cancelled_by_hand_fails_its_node_and_the_execution(on_failure: int) -> None:
    template = a_template(task_node("n0", "one"), task_node("n1", "one"))
    template.metadata.on_failure = on_failure
    run = Run(graph_of(template, retries=2))
    assert run.step() == ["n0#0", "n1#0"]
    assert run.stop("n0") == []
    run.end("n1")
    assert run.phases() == {"n0": "FAILED", "n1": "SUCCEEDED"}
    assert (run.phase, run.error.code, run.error.message) == (
        *(ExecutionPhase.FAILED, "Cancelled"),
        "the job was cancelled",
    )


def test_an_execution_that_is_stopped_before_it_began_is_aborted_at_once() -> None:
    run = Run(diamond(), literals(x=5), phase=ExecutionPhase.ABORTING)
    assert run.step() == []
    assert (run.phase, run.nodes) == (ExecutionPhase.ABORTED, {})


def test_max_parallelism_bounds_the_jobs_that_run_at_once() -> None:
    run = Run(graph_of(a_template(*(task_node(f"n{number}", "one") for number in range(4)))), parallel=2)
    assert run.step() == ["n0#0", "n1#0"]
    assert run.end("n1") == ["n2#0"]
    assert run.end("n0") == ["n3#0"]
    run.end("n2")
    run.end("n3")
    assert run.phase is ExecutionPhase.SUCCEEDED


def test_a_job_that_is_refused_fails_its_node_in_the_same_step() -> None:
    run = Run(diamond(), literals(x=5))
    refusal = AttemptFailure("Refused", "no right to submit")
    assert run.step(refusals={("n0", 0): refusal}) == []
    assert (run.phase, run.error.message) == (ExecutionPhase.FAILED, "no right to submit")


def test_what_would_start_beside_a_refused_job_does_not_start() -> None:
    run = Run(graph_of(a_template(task_node("n0", "one"), task_node("n1", "one"))))
    assert run.step(refusals={("n1", 0): AttemptFailure("Refused", "no")}) == []
    assert run.phase is ExecutionPhase.FAILED
    assert run.phases() == {"n0": "ABORTED", "n1": "FAILED"}


def test_missing_outputs_and_missing_parts_of_values_fail_the_node() -> None:
    run = Run(diamond(retries=1), literals(x=5))
    run.step()
    assert run.step(AttemptEnd("n0", 0, literals())) == ["n0#1"]
    run.step(AttemptEnd("n0", 1, literals()))
    assert (run.phase, run.error.code) == (ExecutionPhase.FAILED, "RetriesExhausted|OutputsNotFound")
    node = task_node("n1", "add", a="@n0.o0", b=1)
    node.inputs[0].binding.promise.attr_path.add(string_value="nothing")
    graph = graph_of(a_template(task_node("n0", "one")))
    broken = ExecutionGraph(
        type(graph.primary)(graph.primary.template, (*graph.primary.nodes, node), {"n1": ("n0",)}, ()),
        {},
        {**graph.tasks, **diamond().tasks},
    )
    run = Run(broken)
    run.step()
    run.end("n0")
    assert (run.phase, run.error.code) == (ExecutionPhase.FAILED, "BindingFailed")
    assert "has no 'nothing'" in run.error.message


def with_path(binding: Any, *path: str | int) -> None:
    for step_ in path:
        binding.promise.attr_path.add(**{"int_value" if isinstance(step_, int) else "string_value": step_})


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b"\xc1", ("x",)),
        (b"\x91" * 5000 + b"\x01", (0,)),
        (b"\xa1\xff", (0,)),
        (b"\x81\xa1x\xcf" + b"\xff" * 8, ("x",)),
    ],
    ids=["no MessagePack", "too deep", "no text", "too large a number"],
)
def test_garbage_as_an_output_fails_the_node_that_takes_a_part_of_it(body: bytes, path: tuple[str | int, ...]) -> None:
    run = Run(diamond(), literals(x=5))
    node = next(node for node in run.graph.primary.nodes if node.id == "n1")
    with_path(next(one for one in node.inputs if one.var == "a").binding, *path)
    run.step()
    outputs = literals()
    outputs.literals["o0"].scalar.binary.value = body
    outputs.literals["o0"].scalar.binary.tag = "msgpack"
    assert run.step(AttemptEnd("n0", 0, outputs)) == []
    assert (run.phase, run.error.code, run.phases()["n1"]) == (ExecutionPhase.FAILED, "BindingFailed", "FAILED")
    assert "the value for a cannot be read" in run.error.message


def test_a_number_that_no_dictionary_takes_fails_the_node() -> None:
    run = Run(diamond(), literals(x=5))
    node = next(node for node in run.graph.primary.nodes if node.id == "n1")
    with_path(next(one for one in node.inputs if one.var == "a").binding, "x")
    run.step()
    outputs = literals()
    outputs.literals["o0"].scalar.generic.fields["x"].number_value = float("nan")
    run.step(AttemptEnd("n0", 0, outputs))
    assert (run.phase, run.error.code) == (ExecutionPhase.FAILED, "BindingFailed")


@pytest.mark.parametrize("many", [["@n0.o0"], [[["@n0.o0"]]]], ids=["to read back", "to copy"])
def test_values_that_become_too_deep_in_a_list_fail_the_node(many: Any) -> None:
    run = Run(graph_of(a_template(task_node("n0", "one"), task_node("n1", "total", many=["@n0.o0"]))))
    node = next(node for node in run.graph.primary.nodes if node.id == "n1")
    node.inputs[0].CopyFrom(task_node("n1", "total", many=many).inputs[0])
    run.step()
    assert run.step(AttemptEnd("n0", 0, nested(DEEPEST))) == []
    assert (run.phase, run.error.code) == (ExecutionPhase.FAILED, "BindingFailed")


def test_nothing_happens_to_an_execution_that_is_over() -> None:
    run = Run(diamond(), literals(x=5), phase=ExecutionPhase.SUCCEEDED)
    assert run.step() == []
    assert run.nodes == {}


def test_values_that_bindings_multiply_are_bounded() -> None:
    """Each of six workflows gives a list of 50 times what the next one gives."""
    many, templates = INT, []
    for depth in range(6, 0, -1):
        inner = sub_node("n0", f"deep{depth + 1}") if depth < 6 else task_node("n0", "one")
        many = list_of(many)
        templates.append(a_template(inner, name=f"deep{depth}", gives={"o0": (many, ["@n0.o0"] * 50)}))
    top = a_template(sub_node("n0", "deep1"))
    run = Run(graph_of(top, *templates))
    (started,) = run.step()
    run.end(started.partition("#")[0])
    assert (run.phase, run.error.code) == (ExecutionPhase.FAILED, "BindingFailed")
    assert "over 8 MiB" in run.error.message
