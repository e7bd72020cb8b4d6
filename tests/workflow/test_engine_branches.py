"""Branches in the engine: which arm runs, what it waits for, and what becomes of the others."""

from __future__ import annotations

from typing import Any

import pytest
from flyteidl.core import condition_pb2, literals_pb2, workflow_pb2
from google.protobuf import duration_pb2, timestamp_pb2

from switchyard.features.flyte.workflow.engine.branch_conditions import NoArm, choose_arm
from switchyard.features.flyte.workflow.engine.execution_graph import ExecutionGraph, count_nodes_to_run
from switchyard.features.flyte.workflow.engine.execution_state import ExecutionPhase
from switchyard.features.flyte.workflow.node_kinds.branch import SKIPPED_ROWS_MAX
from tests.workflow.builders import INT, a_template, branch_node, scalar, sub_node, task_node
from tests.workflow.engine_runs import PATIENT, Run, graph_of, literals, number

WORDS = {"==": 0, "!=": 1, ">": 2, ">=": 3, "<": 4, "<=": 5}


def a_value(value: Any) -> Any:
    """A literal. Times and durations by their own messages; None is none."""
    if isinstance(value, timestamp_pb2.Timestamp):
        primitive = literals_pb2.Primitive(datetime=value)
    elif isinstance(value, duration_pb2.Duration):
        primitive = literals_pb2.Primitive(duration=value)
    else:
        return literals_pb2.Literal(scalar=scalar(value))
    return literals_pb2.Literal(scalar=literals_pb2.Scalar(primitive=primitive))


def compared(left: str, word: str, right: str) -> Any:
    comparison = condition_pb2.ComparisonExpression(operator=WORDS[word])
    comparison.left_value.var, comparison.right_value.var = left, right
    return condition_pb2.BooleanExpression(comparison=comparison)


def joined(left: Any, word: str, right: Any) -> Any:
    both = condition_pb2.ConjunctionExpression(operator=0 if word == "and" else 1)
    both.left_expression.CopyFrom(left)
    both.right_expression.CopyFrom(right)
    return condition_pb2.BooleanExpression(conjunction=both)


def chosen(condition: Any, **values: Any) -> bool:
    """Whether the first case is taken."""
    block = workflow_pb2.IfElseBlock(else_node=workflow_pb2.Node(id="no"))
    block.case.condition.CopyFrom(condition)
    block.case.then_node.id = "yes"
    inputs = literals_pb2.LiteralMap(literals={name: a_value(value) for name, value in values.items()})
    return bool(choose_arm(block, inputs).id == "yes")


def moment(seconds: int, nanos: int = 0) -> Any:
    return timestamp_pb2.Timestamp(seconds=seconds, nanos=nanos)


def span(seconds: int, nanos: int = 0) -> Any:
    return duration_pb2.Duration(seconds=seconds, nanos=nanos)


@pytest.mark.parametrize(
    ("small", "large"),
    [(1, 2), (-0.5, 0.25), ("a", "b"), (moment(5), moment(5, 1)), (moment(-7), moment(3)), (span(2), span(2, 5))],
    ids=["integers", "floats", "texts", "times within a second", "times", "durations"],
)
def test_primitive_values_compare(small: Any, large: Any) -> None:
    values = {"a": small, "b": large}
    found = {word: chosen(compared("a", word, "b"), **values) for word in WORDS}
    assert found == {"==": False, "!=": True, ">": False, ">=": False, "<": True, "<=": True}
    same = {word: chosen(compared("a", word, "a"), **values) for word in WORDS}
    assert same == {"==": True, "!=": False, ">": False, ">=": True, "<": False, "<=": True}


@pytest.mark.parametrize(
    ("left", "word", "right", "code"),
    [
        (True, "==", True, ""),
        (True, "!=", True, "no"),
        (True, "<", False, "MalformedBranch"),
        (1, "==", 1.0, "MalformedBranch"),
        ("1", "==", 1, "MalformedBranch"),
        (None, "==", 1, "MalformedBranch"),
        (float("nan"), "==", float("nan"), "no"),
    ],
)
def test_what_has_no_order_is_refused(left: Any, word: str, right: Any, code: str) -> None:
    if code in ("", "no"):
        assert chosen(compared("a", word, "b"), a=left, b=right) is not bool(code)
        return
    with pytest.raises(NoArm) as refused:
        chosen(compared("a", word, "b"), a=left, b=right)
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("left", "word", "right", "result"),
    [
        ("<", "and", "<", True),
        ("<", "and", ">", False),
        (">", "or", "<", True),
        (">", "or", ">", False),
        ("<", "or", "?", True),
        (">", "and", "?", False),
    ],
)
def test_conditions_are_joined_and_the_second_one_only_counts_if_it_must(
    left: str, word: str, right: str, result: bool
) -> None:
    second = compared("nothing", "==", "a") if right == "?" else compared("a", right, "b")
    assert chosen(joined(compared("a", left, "b"), word, second), a=1, b=2) is result


def branched(otherwise: Any = None, on_failure: int = 0, *arms: Any) -> ExecutionGraph:
    """n0 gives the number that is compared (> 1, else > 1, …), n9 is what the first arm waits for."""
    first = task_node("n2", "add", a="@n9.o0", b=1)
    branch = branch_node("n1", first, *arms, otherwise=otherwise, x="@n0.o0")
    if otherwise is None:
        branch.branch_node.if_else.error.message = "out of range"
    template = a_template(
        task_node("n0", "one"),
        task_node("n9", "one"),
        branch,
        task_node("n3", "add", a="@n1.o0", b=1),
        gives={"o": (INT, "@n3.o0")},
    )
    template.metadata.on_failure = on_failure
    return graph_of(template)


def test_the_arm_that_is_taken_waits_for_nodes_of_its_own_and_gives_the_outputs() -> None:
    run = Run(branched(task_node("n8", "one")))
    assert run.step() == ["n0#0", "n9#0"]
    assert run.end("n0", 5) == [], "the arm waits for n9"
    assert (run.phases()["n1"], run.nodes["n1"].is_parent) == ("RUNNING", True)
    assert run.end("n9", 7) == ["n1-0-n1-n2#0"]
    assert (run.nodes["n1-0-n1-n2"].parent_id, run.nodes["n1-0-n1-n2"].spec_id) == ("n1", "n1-n2")
    assert number(run.nodes["n1-0-n1-n2"].inputs, "a") == 7
    assert run.end("n1-0-n1-n2", 8) == ["n3#0"]
    assert number(run.nodes["n3"].inputs, "a") == 8
    run.end("n3", 9)
    assert (run.phase, number(run.outputs, "o")) == (ExecutionPhase.SUCCEEDED, 9)


def test_an_else_that_fails_fails_the_node_with_its_message() -> None:
    run = Run(branched())
    run.step()
    run.end("n9")
    assert run.end("n0", 0) == []
    assert (run.phase, run.error.code) == (ExecutionPhase.FAILED, "UserProvidedError")
    assert "out of range" in run.error.message


def test_an_arm_behind_a_failed_node_never_runs() -> None:
    run = Run(branched(task_node("n8", "one"), PATIENT))
    run.step()
    run.end("n0", 5)
    run.fail("n9")
    skipped = {node_id for node_id, phase in run.phases().items() if phase == "SKIPPED"}
    assert (skipped, run.phase) == ({"n1-0-n1-n2", "n1-0-n1-n8", "n1", "n3"}, ExecutionPhase.FAILED)


def test_a_branch_whose_arm_waits_is_stopped_with_its_execution() -> None:
    run = Run(branched(task_node("n8", "one")))
    run.step()
    run.end("n0", 5)
    run.phase, run.is_due = ExecutionPhase.ABORTING, True
    run.step()
    run.stop("n9")
    assert (run.phase, run.phases()["n1"]) == (ExecutionPhase.ABORTED, "ABORTED")


def test_a_failed_arm_fails_its_branch() -> None:
    run = Run(branched(task_node("n8", "one")))
    run.step()
    run.end("n9")
    assert run.end("n0", 0) == ["n1-0-n1-n8#0"]
    run.fail("n1-0-n1-n8")
    assert (run.phase, run.phases()["n1"], run.error.message) == (ExecutionPhase.FAILED, "FAILED", "bad")


def test_branches_nest_and_arms_may_be_sub_workflows() -> None:
    inner = a_template(task_node("n0", "add", a="@.a", b=1), name="inner", gives={"o0": (INT, "@n0.o0")}, a=INT)
    deep = branch_node("n4", sub_node("n5", "inner", a="@n0.o0"), otherwise=task_node("n6", "one"), x="@n0.o0")
    branch = branch_node("n1", deep, otherwise=task_node("n7", "one"), x="@n0.o0")
    run = Run(graph_of(a_template(task_node("n0", "one"), branch, gives={"o": (INT, "@n1.o0")}), inner))
    run.step()
    deepest = "n1-0-n1-n4-0-n1-n4-n5"
    assert run.end("n0", 5) == [f"{deepest}-0-n0#0"]
    assert number(run.nodes[deepest].inputs, "a") == 5
    run.end(f"{deepest}-0-n0", 6)
    assert (run.phase, number(run.outputs, "o")) == (ExecutionPhase.SUCCEEDED, 6)
    assert {node_id for node_id, phase in run.phases().items() if phase == "SKIPPED"} == {
        "n1-0-n1-n7",
        "n1-0-n1-n4-0-n1-n4-n6",
    }


def test_a_branch_of_many_arms_records_a_bounded_number_of_those_not_taken() -> None:
    arms = [task_node(f"m{one}", "one") for one in range(SKIPPED_ROWS_MAX + 50)]
    graph = branched(None, 0, *arms)
    assert count_nodes_to_run(graph) == 4 + 1 + len(arms)
    run = Run(graph)
    run.step()
    run.end("n9")
    run.end("n0", 5)
    assert sum(phase == "SKIPPED" for phase in run.phases().values()) == SKIPPED_ROWS_MAX
    run.is_due = True
    assert run.step() == [], "arms that are not recorded do not run either"


def test_the_bound_of_parallel_jobs_holds_for_arms() -> None:
    run = Run(branched(task_node("n8", "one")), literals(), parallel=1)
    assert run.step() == ["n0#0"]
    assert run.end("n0", 5) == ["n9#0"]
    assert run.end("n9", 7) == ["n1-0-n1-n2#0"]


def test_a_branch_in_a_branch_goes_on_when_the_node_has_ended_that_its_arm_waits_for() -> None:
    inner = branch_node("n5", task_node("n2", "add", a="@n9.o0", b=1), otherwise=task_node("n6", "one"), x="@n0.o0")
    outer = branch_node("n1", inner, otherwise=task_node("n8", "one"), x="@n0.o0")
    run = Run(graph_of(a_template(task_node("n0", "one"), task_node("n9", "one"), outer)))
    assert run.step() == ["n0#0", "n9#0"]
    assert run.end("n0", 5) == []
    (started,) = run.end("n9", 7)
    run.end(started.partition("#")[0])
    assert run.phase is ExecutionPhase.SUCCEEDED
