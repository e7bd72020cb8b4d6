"""Nodes that start an execution of a launch plan, in the engine."""

from __future__ import annotations

from switchyard.features.flyte.workflow.compile.entity_id import EntityKind, read_id
from switchyard.features.flyte.workflow.engine.execution_state import AttemptEnd, AttemptFailure, ExecutionPhase
from tests.workflow.builders import INT, a_template, plan_node, task_node
from tests.workflow.engine_runs import PATIENT, USER, Run, graph_of, literals, number


def a_run(parallel: int = 0) -> Run:
    template = a_template(
        plan_node("n0", "plan", a=1),
        plan_node("n1", "plan", a="@n0.o0", b=2),
        task_node("n2", "one"),
        gives={"o": (INT, "@n1.o0")},
    )
    return Run(graph_of(template), parallel=parallel)


def test_a_child_feeds_the_outputs_of_its_node() -> None:
    run = a_run()
    assert run.step() == ["n0#0", "n2#0"]
    assert run.step(AttemptEnd("n0", 0, literals(o0=7))) == ["n1#0"]
    assert number(run.nodes["n1"].inputs, "a") == 7
    run.end("n2")
    run.step(AttemptEnd("n1", 0, literals(o0=9)))
    assert (run.phase, number(run.outputs, "o")) == (ExecutionPhase.SUCCEEDED, 9)


def test_a_child_takes_room() -> None:
    run = a_run(parallel=1)
    assert run.step() == ["n0#0"]


def test_nodes_of_a_full_launch_plan_do_not_begin_and_take_no_room() -> None:
    run = a_run(parallel=1)
    full = {read_id(plan_node("n0", "plan").workflow_node.launchplan_ref, EntityKind.LAUNCH_PLAN)}
    assert run.step(full_plans=full) == ["n2#0"]
    assert run.end("n2") == ["n0#0"]


def test_a_node_of_a_full_launch_plan_behind_a_failed_one_is_skipped() -> None:
    template = a_template(task_node("n0", "one"), plan_node("n1", "plan", a="@n0.o0"))
    template.metadata.on_failure = PATIENT
    run = Run(graph_of(template))
    run.step()
    full = {read_id(plan_node("n1", "plan").workflow_node.launchplan_ref, EntityKind.LAUNCH_PLAN)}
    run.step(AttemptEnd("n0", 0, failure=USER), full_plans=full)
    assert (run.phase, run.phases()["n1"]) == (ExecutionPhase.FAILED, "SKIPPED")


def test_a_child_that_fails_fails_its_node_with_its_error_and_is_not_tried_again() -> None:
    run = a_run()
    run.step()
    run.end("n2")
    run.step(AttemptEnd("n0", 0, failure=AttemptFailure("USER:ValueError", "bad", is_recoverable=True)))
    assert (run.phase, run.error.code, run.error.message) == (ExecutionPhase.FAILED, "USER:ValueError", "bad")


def test_a_child_that_somebody_aborts_fails_its_node() -> None:
    run = a_run()
    run.step()
    run.end("n2")
    run.step(AttemptEnd("n0", 0))
    assert (run.phase, run.error.code) == (ExecutionPhase.FAILED, "RemoteChildWorkflowExecutionFailed")


def test_a_parent_that_stops_waits_for_its_child() -> None:
    run = a_run()
    run.step()
    run.phase = ExecutionPhase.ABORTING
    run.step()
    run.stop("n2")
    assert run.phase is ExecutionPhase.ABORTING
    run.step(AttemptEnd("n0", 0))
    assert (run.phase, run.phases()["n0"]) == (ExecutionPhase.ABORTED, "ABORTED")


def test_a_child_that_is_refused_fails_its_node() -> None:
    run = a_run()
    run.step(refusals={("n0", 0): AttemptFailure("Refused", "no such launch plan")})
    assert (run.phase, run.error.message) == (ExecutionPhase.FAILED, "no such launch plan")
