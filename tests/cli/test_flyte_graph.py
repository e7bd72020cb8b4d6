"""Drawings of the nodes of an execution: lanes beside the nodes, and DOT."""

from __future__ import annotations

from typing import Any

from switchyard.features.flyte.cli.flyte_graph import draw_nodes, format_dot
from switchyard.features.flyte.model.workflow_execution import ExecutionNode, MapElements, WorkflowNodeKind


def a_node(node_id: str, *after: str, **fields: Any) -> ExecutionNode:
    return ExecutionNode(node_id, **{"kind": WorkflowNodeKind.TASK, "runs": "add", "after": list(after), **fields})


def drawing(*nodes: ExecutionNode, width: int | None = None) -> list[str]:
    return list(draw_nodes(nodes, width=width, coloured=False))


def test_a_chain_is_one_lane() -> None:
    lines = drawing(a_node("n0", phase="SUCCEEDED"), a_node("n1", "n0", phase="RUNNING"), a_node("n2", "n1"))
    assert lines == ["✔ n0  add  SUCCEEDED", "● n1  add  RUNNING", "○ n2  add  not begun"]


def test_a_diamond_opens_a_lane_and_joins_it() -> None:
    lines = drawing(a_node("n0"), a_node("n1", "n0"), a_node("n2", "n0"), a_node("n3", "n1", "n2"))
    assert [line.partition("  ")[0] for line in lines] == ["○ n0", "├─╮", "○ │ n1", "│ ○ n2", "├─╯", "○ n3"]


def test_an_edge_that_passes_others_crosses_them() -> None:
    lines = drawing(
        a_node("a"), a_node("b", "a"), a_node("c", "a"), a_node("d", "b"), a_node("e", "b", "c"), a_node("f", "d", "e")
    )
    assert all(line.isprintable() for line in lines)
    assert [line.split("  ")[0].split()[-1] for line in lines if "add" in line] == ["a", "b", "c", "d", "e", "f"]
    drawn = "".join(lines)
    opened, joined = (sum(drawn.count(sign) for sign in signs) for signs in ("╮┬", "╯┴"))
    assert opened == joined == 2, "seven edges, six nodes"


def test_nodes_inside_a_node_are_indented_below_it() -> None:
    inner = [a_node("n0-0-n0", parent="n0", phase="SUCCEEDED"), a_node("n0-0-n1", "n0-0-n0", parent="n0")]
    outer = a_node("n0", kind=WorkflowNodeKind.WORKFLOW, runs="sub", phase="RUNNING")
    lines = drawing(outer, *inner, a_node("n1", "n0"))
    assert lines == [
        "● n0  sub  RUNNING",
        "│   ✔ n0  add  SUCCEEDED",
        "│   ○ n1  add  not begun",
        "○ n1  add  not begun",
    ]


def test_a_map_is_a_count_and_a_branch_shows_the_arm_that_was_taken() -> None:
    a_map = a_node("n0", kind=WorkflowNodeKind.MAP, phase="RUNNING", elements=MapElements(10, 3, 1))
    branch = a_node("n1", "n0", kind=WorkflowNodeKind.BRANCH, runs="", phase="RUNNING")
    arms = [a_node("n1-0-n1-n0", parent="n1", phase="SKIPPED"), a_node("n1-0-n1-n1", parent="n1", phase="RUNNING")]
    lines = drawing(a_map, branch, *arms)
    assert "3 of 10 elements succeeded, 1 failed" in lines[0]
    assert [line.strip()[0] for line in lines[1:]] == ["●", "⊘", "●"]


def test_very_many_edges_are_named_in_words() -> None:
    many = [a_node(f"m{number}", "n0") for number in range(30)]
    lines = drawing(a_node("n0"), *many, a_node("z", *(node.id for node in many)))
    assert lines[1] == "○ m0  add  not begun  after n0"
    assert len(lines) == 32


def test_lines_fit_the_screen_and_control_characters_do_not_pass() -> None:
    nodes = [a_node("n0", runs="x" * 300, waits="\x1b[2J" + "why " * 100), a_node("n1", "n0")]
    for line in drawing(*nodes, width=60):
        assert len(line) <= 60
        assert line.isprintable()


def test_dot_has_boxes_for_nodes_with_nodes_inside_and_quotes_names() -> None:
    nodes = [a_node("n0", runs='a"b\\c'), a_node("n0-0-n1", parent="n0", phase="FAILED"), a_node("n2", "n0")]
    text = format_dot(nodes, title='t"')
    assert text.startswith('digraph "t\\"" {')
    assert 'subgraph "cluster_n0" {' in text
    assert '"n0" [label="n0\\na\\"b\\\\c\\nnot begun", fillcolor=white];' in text
    assert '"n0" -> "n2";' in text
    assert text.count("{") == text.count("}")
