"""The nodes of an execution in drawing order, with the ids that the engine gives them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from switchyard.features.flyte.workflow.engine.execution_graph import ExecutionGraph, read_graph
from switchyard.features.flyte.workflow.engine.execution_outline import OutlinedNode, outline
from tests.workflow.builders import INT, a_template, branch_node, compiled, gate_node, plan_node, sub_node, task_node


@dataclass(frozen=True)
class Begun:
    attempts: int = 1
    is_parent: bool = False


def graph_of(template: Any, *subs: Any) -> ExecutionGraph:
    closure, mistakes = compiled(template, *subs)
    assert closure is not None, mistakes.as_text()
    return read_graph(closure)


def drawn(graph: ExecutionGraph, begun: dict[str, Begun] | None = None, **dynamics: ExecutionGraph) -> list[str]:
    """`id kind runs < after`, one line each."""
    made = {(node, 0): inner for node, inner in dynamics.items()}
    return [line(one) for one in outline(graph, begun or {}, made)]


def line(one: OutlinedNode) -> str:
    words = [one.id, one.kind.value, one.runs, f"in {one.parent_id}" if one.parent_id else "", *one.after]
    return " ".join(filter(None, words)) + (" (failure)" if one.is_failure_node else "")


SUB = a_template(
    task_node("n0", a="@.x", b=1),
    task_node("n1", a="@n0.o0", b=1),
    name="sub",
    x=INT,
    gives={"o0": (INT, "@n1.o0")},
)


def test_nodes_that_have_not_begun_are_there_with_what_they_wait_for() -> None:
    graph = graph_of(a_template(task_node("n0", a=1, b=1), plan_node("n1", "plan", a="@n0.o0")))
    assert drawn(graph) == ["n0 task add", "n1 launch plan plan n0"]


def test_nodes_of_a_sub_workflow_stand_behind_it_with_its_id_in_front() -> None:
    graph = graph_of(a_template(sub_node("n0", "sub", x=1), task_node("n1", a="@n0.o0", b=1)), SUB)
    assert drawn(graph) == [
        "n0 workflow sub",
        "n0-0-n0 task add in n0",
        "n0-0-n1 task add in n0 n0-0-n0",
        "n1 task add n0",
    ]


def test_arms_of_a_branch_wait_for_nodes_around_it() -> None:
    branch = branch_node("n1", task_node("n0", a="@n2.o0", b=1), otherwise=task_node("n1", a=1, b=1), x="@n0.o0")
    graph = graph_of(a_template(task_node("n0", a=1, b=1), task_node("n2", a=1, b=1), branch))
    lines = drawn(graph)
    assert "n1 branch n0" in lines
    assert "n1-0-n1-n0 task add in n1 n2" in lines
    assert "n1-0-n1-n1 task add in n1" in lines


def test_a_dynamic_task_has_the_workflow_that_its_last_attempt_made() -> None:
    graph, inner = graph_of(a_template(task_node("n0", a=1, b=1))), graph_of(SUB)
    assert drawn(graph, {"n0": Begun()}, n0=inner) == ["n0 task add"], "it has made none yet"
    lines = drawn(graph, {"n0": Begun(is_parent=True)}, n0=inner)
    assert lines == ["n0 dynamic add", "n0-0-n0 task add in n0", "n0-0-n1 task add in n0 n0-0-n0"]
    assert drawn(graph, {"n0": Begun(attempts=2, is_parent=True)}, n0=inner) == ["n0 task add"], "that was attempt 0"


def test_a_failure_node_is_shown_once_it_has_begun() -> None:
    template = a_template(task_node("n0", a="@.x", b=1), x=INT)
    template.failure_node.CopyFrom(task_node("fn", "one"))
    graph = graph_of(template)
    assert drawn(graph) == ["n0 task add"]
    assert drawn(graph, {"fn": Begun()}) == ["n0 task add", "fn task one (failure)"]


def test_a_gate_says_what_it_waits_for() -> None:
    gate: Any = {"sleep": {"duration": {"seconds": 90}}}
    graph = graph_of(a_template(gate_node("n0", gate)))
    assert drawn(graph) == ["n0 gate sleep 90s"]
