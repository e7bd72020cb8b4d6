"""Tables of executions and their nodes: they fit a terminal, and say what matters of a node."""

from __future__ import annotations

import re
from typing import Any

import pytest

from switchyard.cli.jobs import verdicts
from switchyard.cli.terminal import table
from switchyard.features.flyte.cli.flyte_view import node_note, print_details, print_executions, print_nodes, short_id
from switchyard.features.flyte.model.workflow_execution import (
    ExecutionDetails,
    ExecutionNode,
    MapElements,
    NodeAttempt,
    WorkflowExecution,
    WorkflowNodeKind,
)

WIDTH = 80
JOB = "01M7NGR57S86GARWBRX4VPDACW"


def an_execution(name: str = "a0123456789abcdefghi", **fields: Any) -> WorkflowExecution:
    wide = {"pool": "production-gpu", "label": "near-the-data", "clusters": ["alpha-large", "beta-large"]}
    scope = {"project": "computer-vision", "domain": "production", "owner": "somebody", "created_us": 1}
    what = {"kind": "launch_plan", "launched": "flows.training.everything", "version": "v1", "workflow": "flows.wf"}
    given = {"name": name, "phase": "SUCCEEDED", "mode": "MANUAL", **scope, **what, **wide, **fields}
    return WorkflowExecution(**given)


def a_node(node_id: str, **fields: Any) -> ExecutionNode:
    return ExecutionNode(node_id, **{"kind": WorkflowNodeKind.TASK, "runs": "add", **fields})


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (table, verdicts):
        monkeypatch.setattr(module, "screen_width", lambda: WIDTH)


@pytest.mark.parametrize("name", ["a0123456789abcdefghi", "x" * 63])
@pytest.mark.usefixtures("narrow")
def test_the_list_fits_and_names_of_flytes_length_are_whole(capsys: pytest.CaptureFixture[str], name: str) -> None:
    print_executions([an_execution(name), an_execution("short")])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= WIDTH, lines
    assert (name in lines[1]) == (len(name) <= 20)


@pytest.mark.usefixtures("narrow")
def test_nodes_fit_with_their_whole_reasons_and_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    reason = "waits: 3 jobs of workflow flows.x run, and no more may (max_parallelism)"
    attempts = [NodeAttempt(0, "FAILED", JOB, "alpha"), NodeAttempt(1, "QUEUED", JOB, "alpha")]
    nodes = [
        a_node("n0", kind=WorkflowNodeKind.WORKFLOW, phase="RUNNING", created_us=1),
        a_node("n0-0-n1", parent="n0", phase="RUNNING", attempts=attempts, waits=reason, created_us=1),
    ]
    print_nodes(nodes)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= WIDTH, shown
    assert JOB in shown
    assert reason.rsplit(maxsplit=1)[-1] in shown
    assert "\n  n1 " in shown


def test_details_say_whether_a_rule_gave_the_pool_and_leave_out_what_is_empty(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_details(ExecutionDetails(an_execution(), "computer-vision-production", inputs={"text": "x" * 1000}))
    shown = capsys.readouterr().out
    assert re.search(r"^pool +production-gpu \(by a rule or the domain's default\)$", shown, re.MULTILINE)
    assert "terminated" not in shown
    assert "x" * 201 not in shown
    print_details(ExecutionDetails(an_execution(), "n", asked_pool="production-gpu"))
    assert "by a rule" not in capsys.readouterr().out.partition("label")[0]


def test_ids_of_nodes_inside_others_are_shown_without_those_around() -> None:
    assert short_id(a_node("n0")) == "n0"
    assert short_id(a_node("n0-0-n1", parent="n0")) == "n1"
    assert short_id(a_node("n0-1-n0-0-n2", parent="n0-1-n0")) == "n2"
    assert short_id(a_node("other", parent="n0")) == "other"


def test_a_note_has_counts_the_cache_errors_and_waits() -> None:
    node = a_node("n0", elements=MapElements(10, 3, 1), cache="CACHE_HIT", error="E: bad", waits="waits for n1")
    expected = "3 of 10 elements succeeded, 1 failed; from the cache; E: bad; waits for n1"
    assert node_note(node) == expected
