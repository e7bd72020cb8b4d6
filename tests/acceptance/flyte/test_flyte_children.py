"""Launch plan nodes: executions that executions start, on a local cluster."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.flyte.flyte_site import DEV, PROJECT, RUNS_S, FlyteSite, difference, flyte_site, sqlite_first
from tests.acceptance.flyte.shell_flows import (
    HERE,
    INT,
    an_error,
    bound,
    closure,
    constant,
    ended,
    good,
    jobs_of,
    nodes_of,
    outputs_of,
    plan,
    plan_node,
    start,
    task,
    task_node,
    workflow,
)
from tests.processes import PATIENCE_S, until
from tests.workflow.corpus import FOLDER

pytestmark = pytest.mark.timeout(340)  # each task starts flytekit
NO_SLEEP_S = PATIENCE_S * 10  # nobody waits for it


@pytest.mark.slow  # flytekit sends no more than the workflows of the next test do
def test_launch_plan_nodes_of_the_corpus_end_as_they_do_in_flyte(tmp_path: Path) -> None:
    with flyte_site(tmp_path) as site:
        shutil.copy(FOLDER / "08_launch_plan.py", tmp_path / "flows")
        text = (FOLDER / "30_reference.py").read_text(encoding="utf-8")
        named = text.replace('"PROJECT"', f'"{PROJECT}"').replace('"DOMAIN"', f'"{DEV}"')
        base = named[: named.index("@reference_task")].replace("reference_launch_plan, reference_task, ", "")
        (tmp_path / "flows/30_reference.py").write_text(base, encoding="utf-8")
        site.register("base", bundle=False)
        (tmp_path / "flows/30_reference.py").write_text(named, encoding="utf-8")
        site.register(bundle=False)
        results = site.run("08_launch_plan", "30_reference")
        assert [wrong for found in results if (wrong := difference(found))] == []
        assert len([one for one in listed(site) if is_child(one)]) == 3


def test_children_on_good_and_bad_days(tmp_path: Path) -> None:
    with flyte_site(tmp_path) as site:
        for case in (an_inheriting_child, a_failing_child, a_stopped_parent, a_stopped_child, a_child_that_cannot_be):
            case(site)


def a_pair(site: FlyteSite, name: str, script: str, **fields: Any) -> None:
    """A workflow of one task, its launch plan, and a workflow that launches it."""
    task(site, name, script, inputs={"n": INT})
    node = task_node("n0", name, [bound("n", "", "n")])
    good(workflow(site, f"{name}-inner", [node], inputs={"n": INT}, outputs={"o": (INT, "n0", "o0")}))
    plan(site, f"{name}-plan", f"{name}-inner", **fields)
    outer = plan_node("n0", f"{name}-plan", [constant("n", 3)])
    good(workflow(site, name, [outer], outputs={"o": (INT, "n0", "o")}))


def an_inheriting_child(site: FlyteSite) -> None:
    site.doors.v1("PUT", "/v1/pools/lab", {"members": [{"id": "c1", "weight": 1}]}, **{"If-None-Match": "*"})
    a_pair(site, "heir", "give 5", envs={"values": [{"key": "FROM", "value": "plan"}]})
    spec: dict[str, Any] = {"cluster_assignment": {"cluster_pool_name": "lab"}, "labels": {"values": {"team": "a"}}}
    good(start(site, "heir", "heir", **spec))
    assert ended(site, "heir")["phase"] == "SUCCEEDED"
    assert outputs_of(site, "heir") == {"o": 5}
    child = child_of(site, "heir")
    made = good(site.doors.by_grpc("GetExecution", {"id": child})).answer["spec"]
    assert made["cluster_assignment"] == spec["cluster_assignment"]
    assert made["labels"] == spec["labels"]
    assert made["envs"]["values"] == [{"key": "FROM", "value": "plan"}]
    assert (made["metadata"]["mode"], made["metadata"]["nesting"]) == ("CHILD_WORKFLOW", 1)
    parent = made["metadata"]["parent_node_execution"]
    assert (parent["node_id"], parent["execution_id"]) == ("n0", {**HERE, "name": "heir"})
    (job,) = jobs_of(site, child["name"])
    assert (job["pool"], job["labels"]["team"]) == ("lab", "a")


def a_failing_child(site: FlyteSite) -> None:
    a_pair(site, "failing", an_error("unlucky", is_recoverable=False))
    good(start(site, "failing", "failing"))
    over = ended(site, "failing")
    assert (over["phase"], over["error"]["code"]) == ("FAILED", "USER:Error")
    assert "unlucky" in over["error"]["message"]


def a_stopped_parent(site: FlyteSite) -> None:
    a_pair(site, "stopped", f"sleep {NO_SLEEP_S}")
    good(start(site, "stopped", "stopped"))
    until(lambda: jobs_of_child(site, "stopped"), PATIENCE_S, "the child has a job")
    good(site.doors.by_grpc("TerminateExecution", {"id": {**HERE, "name": "stopped"}}))
    assert ended(site, "stopped")["phase"] == "ABORTED"
    child = child_of(site, "stopped")
    assert closure(site, child["name"])["phase"] == "ABORTED", "the parent is not over before its child"
    assert jobs_of_child(site, "stopped")[0]["state"] == "CANCELLED"


def a_stopped_child(site: FlyteSite) -> None:
    a_pair(site, "orphan", f"sleep {NO_SLEEP_S}")
    good(start(site, "orphan", "orphan"))
    until(lambda: jobs_of_child(site, "orphan"), PATIENCE_S, "the child has a job")
    good(site.doors.by_grpc("TerminateExecution", {"id": child_of(site, "orphan")}))
    assert ended(site, "orphan")["error"]["code"] == "RemoteChildWorkflowExecutionFailed"


def a_child_that_cannot_be(site: FlyteSite) -> None:
    """A child is checked like an execution that somebody creates."""
    a_pair(site, "large", "give 1")
    task(site, "huge", "give 1", inputs={"n": INT}, output=INT)
    node = task_node("n0", "huge", [bound("n", "", "n")])
    node["task_node"]["overrides"] = {"resources": {"requests": [{"name": "CPU", "value": "4000"}]}}
    good(workflow(site, "huge", [node], inputs={"n": INT}, outputs={"o": (INT, "n0", "o0")}))
    good(workflow(site, "asks", [plan_node("n0", "huge", [constant("n", 1)])], outputs={"o": (INT, "n0", "o")}))
    good(start(site, "asks", "asks"))
    over = ended(site, "asks")
    assert (over["phase"], over["error"]["code"]) == ("FAILED", "Refused")
    assert "fits no cluster" in over["error"]["message"]


@sqlite_first
def test_a_killed_server_starts_no_child_twice(tmp_path: Path, database_url: str) -> None:
    with flyte_site(tmp_path, database=database_url) as site:
        notes = tmp_path / "notes"
        notes.touch()
        task(site, "note", f"echo $FLYTE_INTERNAL_EXECUTION_ID >> {notes}; give 1", inputs={})
        good(workflow(site, "inner", [task_node("n0", "note")], outputs={"o": (INT, "n0", "o0")}))
        nodes = [plan_node("n0", "inner"), plan_node("n1", "inner"), plan_node("n2", "inner")]
        nodes[2]["upstream_node_ids"] = ["n0", "n1"]
        good(workflow(site, "outer", nodes))
        good(start(site, "killed", "outer"))
        for count in (0, 1, 2, 3):
            until(lambda count=count: len(noted(notes)) >= count, RUNS_S, f"{count} children have run")
            site.server.kill()
            site.server.restart()
        assert ended(site, "killed", RUNS_S)["phase"] == "SUCCEEDED"
        assert sorted(Counter(noted(notes)).values()) == [1, 1, 1]
        assert len([one for one in listed(site) if is_child(one)]) == 3


def child_of(site: FlyteSite, name: str) -> dict[str, str]:
    found: dict[str, str] = nodes_of(site, name)["n0"]["closure"]["workflow_node_metadata"]["executionId"]
    return found


def jobs_of_child(site: FlyteSite, name: str) -> list[Any]:
    node = nodes_of(site, name).get("n0", {}).get("closure", {}).get("workflow_node_metadata")
    return jobs_of(site, node["executionId"]["name"]) if node else []


def listed(site: FlyteSite) -> list[Any]:
    return list(good(site.doors.by_grpc("ListExecutions", {"id": HERE, "limit": 99})).answer["executions"])


def is_child(execution: Any) -> bool:
    return bool(execution["spec"]["metadata"].get("mode") == "CHILD_WORKFLOW")


def noted(file: Path) -> list[str]:
    return file.read_text().splitlines()
