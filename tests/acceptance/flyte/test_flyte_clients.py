"""What unmodified clients see of executions: recovered, relaunched, stopped, archived, listed and signalled ones.

One site for all. flytekit's client does its part in one process; flytectl's calls are those that it was recorded with.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.flyte.flyte_site import DEV, PROJECT, RUNS_S, FlyteSite, flyte_site
from tests.acceptance.flyte.shell_flows import (
    HERE,
    INT,
    an_error,
    an_id,
    closure,
    constant,
    ended,
    good,
    jobs_of,
    nodes_of,
    outputs_of,
    task,
    task_node,
    tasks_of,
    workflow,
)
from tests.processes import PATIENCE_S, until
from tests.programs import isolated_env
from tests.warm_programs import FLYTEKIT_MODULES, run_script

pytestmark = [pytest.mark.xdist_group("flyte-clients"), pytest.mark.timeout(RUNS_S)]
CLIENT = Path(__file__).with_name("flytekit_operations.py")
NO_SLEEP_S = PATIENCE_S * 10  # nobody waits for it
OPS = """
import functools
import os

from flytekit import WorkflowFailurePolicy, current_context, dynamic, map_task, task, workflow


def write(file: str, word: str) -> None:
    with open(file, "a") as out:
        out.write(word + "\\n")


@task
def note(file: str, word: str) -> int:
    write(file, word)
    return 1


@task
def element(n: int, file: str) -> int:
    write(file, f"element-{n}")
    return n


@task
def fragile(file: str, n: int) -> int:
    write(file, "fragile")
    before = current_context().checkpoint.read()
    current_context().checkpoint.write(b"1")
    if not os.path.exists(file + ".well"):
        raise ValueError("not well")
    return n + int(before or b"100")


@task
def last(file: str, n: int, ns: list[int], made: int) -> int:
    write(file, "last")
    return n + sum(ns) + made


@workflow
def inner(file: str) -> int:
    return fragile(file=file, n=note(file=file, word="inner"))


@dynamic
def made(file: str) -> int:
    write(file, "made")
    return note(file=file, word="inside")


@workflow(failure_policy=WorkflowFailurePolicy.FAIL_AFTER_EXECUTABLE_NODES_COMPLETE)
def chain(file: str) -> int:
    first = note(file=file, word="first")
    ns = map_task(functools.partial(element, file=file))(n=[5, 6])
    return last(file=file, n=inner(file=file), ns=ns, made=made(file=file))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlyteSite]:
    folder = tmp_path_factory.mktemp("clients")
    config = {"namespace_mapping": {"template": "yard-{{ project }}-{{ domain }}"}}
    with flyte_site(folder, config=config) as made:
        (folder / "flows/ops.py").write_text(OPS)
        made.register()
        task(made, "sleeps", f"sleep {NO_SLEEP_S}", inputs={})
        good(workflow(made, "long", [task_node(f"n{number}", "sleeps") for number in range(3)]))
        task(made, "gives", "give 4", inputs={})
        good(workflow(made, "small", [task_node("n0", "gives")], outputs={"o": (INT, "n0", "o0")}))
        gates = [a_gate("n0", approve={"signal_id": "go"}), a_gate("n1", signal=NUMBER, upstream_node_ids=["n0"])]
        good(workflow(made, "asks", gates, outputs={"o": (INT, "n1", "o0")}))
        yield made


NUMBER = {"signal_id": "number", "type": INT, "output_variable_name": "o0"}


def a_gate(node_id: str, *, upstream_node_ids: list[str] | None = None, **gate: Any) -> dict[str, Any]:
    return {"id": node_id, "metadata": {}, "gate_node": gate, "upstream_node_ids": upstream_node_ids or []}


@pytest.fixture(scope="module")
def told(site: FlyteSite) -> dict[str, Any]:
    """What flytekit's user saw."""
    notes = site.folder / "notes"
    words = [str(CLIENT), site.config, PROJECT, str(notes)]
    env = isolated_env(site.folder)
    done = run_script(words, env=env, cwd=site.folder, timeout_s=RUNS_S, modules=FLYTEKIT_MODULES)
    assert done.returncode == 0, done.stderr[-4000:] + site.server.tail() + site.agent.tail()
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_recovered_execution_runs_the_failed_task_and_what_follows(told: dict[str, Any]) -> None:
    found = told["recover"]
    assert found["before"] == ["element-5", "element-6", "first", "fragile", "inner", "inside", "made"]
    assert (found["phase"], found["ran"]) == ("SUCCEEDED", ["fragile", "last"])
    assert found["nodes"] == {
        **{"n0": "RECOVERED", "n1": "RECOVERED", "n3": "RECOVERED"},
        **{"n2": "SUCCEEDED", "n4": "SUCCEEDED"},
    }
    # The recovered task goes on from its checkpoint: else it would be 113.
    assert set(found["synced"]) >= set(found["nodes"]), "flytekit's client follows all of them"
    assert (found["outputs"], found["mode"], found["same again"]) == ({"o0": 14}, 5, "mended")
    assert found["of none"][:2] == ["FlyteEntityNotExistException", "NOT_FOUND"]


def test_an_execution_is_stopped_while_its_nodes_run_and_while_they_start(site: FlyteSite, told: Any) -> None:
    found = told["stop"]
    assert (found["phase"], found["cause"]) == ("ABORTED", ["enough", "local-admin"])
    assert set(found["nodes"].values()) == {"ABORTED"}
    assert found["early"] == ["ABORTED"] * 4
    assert found["again"][1] == "FAILED_PRECONDITION"
    assert (found["recover"][1], "is not over" in found["recover"][2]) == ("FAILED_PRECONDITION", True)
    for name in ("stopped", *(f"early-{number}" for number in range(4))):
        assert {job["state"] for job in jobs_of(site, name)} <= {"CANCELLED"}, "no job is left, and none began later"


def test_archived_executions_are_hidden_from_lists(told: dict[str, Any]) -> None:
    found = told["archive"]
    assert found.pop("none")[1] == "NOT_FOUND"
    assert found == {"hidden": True, "shown": True, "back": True}


def test_lists_with_filters_of_flytekit(told: dict[str, Any]) -> None:
    found = told["lists"]
    assert found.pop("bad field")[1] == "INVALID_ARGUMENT"
    assert "CHILD_WORKFLOW" in found.pop("bad mode")[2]
    assert found == {
        "failed": ["broken"],
        "recovered": ["mended"],
        "of a plan": ["broken", "mended"],
        "of a task": [],
        "of a workflow": ["small"],
        "on the cluster": ["small"],
        "short": ["small"],
        "long": [],
        "pages": True,
        "recent": ["small"],
    }


def test_signals_at_the_wrong_time_and_of_the_wrong_type(told: dict[str, Any]) -> None:
    found = told["signal"]
    assert found["early"][1] == "NOT_FOUND"
    assert (found["wrong"][1], "wrong type" in found["wrong"][2]) == ("INVALID_ARGUMENT", True)
    assert found["twice"][1] in ("", "FAILED_PRECONDITION")
    assert (found["phase"], found["outputs"]["o"] in (3, 4)) == ("SUCCEEDED", True)
    assert found["late"][1] == "FAILED_PRECONDITION"


def test_data_by_flytes_addresses(told: dict[str, Any]) -> None:
    found = told["fetch"]
    assert found.pop("odd")[1] == "INVALID_ARGUMENT"
    assert found == {"all": ["o0"], "one": 1, "input": "first", "none": None}


def test_pyflyte_relaunches_an_execution(site: FlyteSite) -> None:
    start_by_flytectl(site, "original", "small")
    assert ended(site, "original")["phase"] == "SUCCEEDED"
    where = ["-p", PROJECT, "-d", DEV, "--execution-id", "original"]
    done = site.pyflyte("execution", *where, "relaunch")
    assert done.returncode == 0, done.stdout + done.stderr
    listed = good(site.doors.by_grpc("ListExecutions", {"id": HERE, "limit": 9, "filters": "eq(mode,RELAUNCH)"}))
    (execution,) = listed.answer["executions"]
    assert execution["spec"]["metadata"]["reference_execution"] == {**HERE, "name": "original"}
    assert ended(site, execution["id"]["name"])["phase"] == "SUCCEEDED"
    assert outputs_of(site, execution["id"]["name"]) == {"o": 4}


# --- flytectl: the calls of its commands, with the fields that it sends


def start_by_flytectl(site: FlyteSite, name: str, plan: str, **more: Any) -> Any:
    """`flytectl create execution --execFile f --clusterPool P NAME`."""
    launched = good(site.doors.by_grpc("GetLaunchPlan", {"id": an_id("LAUNCH_PLAN", plan)})).answer["id"]
    spec = {"launch_plan": launched, "metadata": {"principal": "sdk"}, "envs": {}, **more}
    return good(site.doors.by_grpc("CreateExecution", {**HERE, "name": name, "spec": spec, "inputs": {}}))


def test_flytectl_creates_shows_and_deletes_executions(site: FlyteSite) -> None:
    site.doors.v1("PUT", "/v1/pools/pool_1", {"members": [{"id": "c1", "weight": 1}]}, **{"If-None-Match": "*"})
    start_by_flytectl(site, "by-ctl", "long", cluster_assignment={"cluster_pool_name": "pool_1"})
    until(lambda: set(jobs_states(site, "by-ctl")) == {"RUNNING"}, PATIENCE_S, "its tasks run")
    newest = {"id": HERE, "limit": 100, "sort_by": {"key": "created_at"}}
    shown = good(site.doors.by_grpc("ListExecutions", newest)).answer["executions"][0]
    assert shown["id"]["name"] == "by-ctl"
    system = shown["spec"]["metadata"]["system_metadata"]
    assert (system["execution_cluster"], system["namespace"]) == ("c1", f"yard-{PROJECT}-{DEV}")
    fields = "value_in(execution.phase,RUNNING;QUEUED)+eq(execution.name,by-ctl)"
    assert len(good(site.doors.by_grpc("ListExecutions", {**newest, "filters": fields})).answer["executions"]) == 1
    for node_id, node in nodes_of(site, "by-ctl").items():  # `get execution --details`
        assert "is_parent_node" not in node["metadata"]
        good(site.doors.by_grpc("GetNodeExecutionData", {"id": node["id"]}))
        (attempt,) = tasks_of(site, "by-ctl", node_id)
        assert attempt["closure"]["task_type"] == "python-task"
        (link,) = attempt["closure"]["logs"]
        assert link["uri"] == f"{site.server.url}/v1/jobs/{attempt['closure']['metadata']['generated_name']}/logs"
    good(site.doors.by_rest("TerminateExecution", {"id": {**HERE, "name": "by-ctl"}}))
    assert ended(site, "by-ctl")["abort_metadata"]["principal"] == "local-admin"


def jobs_states(site: FlyteSite, name: str) -> list[str]:
    return [job["state"] for job in jobs_of(site, name)]


def test_flytectl_relaunches_and_recovers_and_the_pool_can_change(site: FlyteSite) -> None:
    task(site, "unlucky", an_error("unlucky", is_recoverable=False), inputs={"n": INT})
    after = task_node("n1", "unlucky", [constant("n", 1)], upstream_node_ids=["n0"])
    good(workflow(site, "unlucky", [task_node("n0", "gives"), after]))
    start_by_flytectl(site, "unlucky", "unlucky")
    assert ended(site, "unlucky")["phase"] == "FAILED"
    for call, name in (("RelaunchExecution", "relaunched"), ("RecoverExecution", "recovered")):
        good(site.doors.by_grpc(call, {"id": {**HERE, "name": "unlucky"}, "name": name}))
        assert ended(site, name)["phase"] == "FAILED"
    assert nodes_of(site, "recovered")["n0"]["closure"]["phase"] == "RECOVERED"
    site.doors.v1("PUT", "/v1/pools/other", {"members": [{"id": "c1", "weight": 1}]}, **{"If-None-Match": "*"})
    metadata = {"mode": "RECOVERED", "reference_execution": {**HERE, "name": "unlucky"}}
    spec = {"metadata": metadata, "cluster_assignment": {"cluster_pool_name": "other"}}
    good(site.doors.by_grpc("CreateExecution", {**HERE, "name": "elsewhere", "spec": spec}))
    ended(site, "elsewhere")
    assert {job["pool"] for job in jobs_of(site, "elsewhere")} == {"other"}


def test_flytectl_sends_an_environment_in_any_order(site: FlyteSite) -> None:
    pairs = [{"key": word, "value": "1"} for word in ("A", "B", "C")]
    for order in (pairs, pairs[::-1]):
        start_by_flytectl(site, "ordered", "small", envs={"values": order})
    other = {"launch_plan": an_id("LAUNCH_PLAN", "small"), "envs": {"values": pairs[1:]}}
    said = site.doors.by_grpc("CreateExecution", {**HERE, "name": "ordered", "spec": other, "inputs": {}})
    assert said.code == "FAILED_PRECONDITION"


def test_flytectl_archives_and_reads_entities(site: FlyteSite) -> None:
    start_by_flytectl(site, "old", "small")
    ended(site, "old")
    good(site.doors.by_grpc("GetExecution", {"id": {**HERE, "name": "old"}}))
    good(site.doors.by_grpc("UpdateExecution", {"id": {**HERE, "name": "old"}, "state": "EXECUTION_ARCHIVED"}))
    archived = good(site.doors.by_grpc("GetExecution", {"id": {**HERE, "name": "old"}})).answer
    assert archived["closure"]["state_change_details"]["state"] == "EXECUTION_ARCHIVED"
    newest = {"sort_by": {"key": "created_at"}}
    for call in ("ListTasks", "ListLaunchPlans", "ListWorkflows"):
        good(site.doors.by_grpc(call, {"id": HERE, "limit": 100, **newest}))
        assert good(site.doors.by_grpc(call, {"id": {**HERE, "name": "small"}, "limit": 1, **newest})).code == "OK"
    plan = an_id("LAUNCH_PLAN", "small")
    for state in ("ACTIVE", "INACTIVE"):  # `update launchplan --activate`
        good(site.doors.by_grpc("GetLaunchPlan", {"id": plan}))
        good(site.doors.by_grpc("UpdateLaunchPlan", {"id": plan, "state": state}))
    names = {"resource_type": "WORKFLOW", **HERE, "limit": 100}
    found = good(site.doors.by_grpc("ListNamedEntities", names)).answer["entities"]
    assert "ops.chain" in {one["id"]["name"] for one in found}
    for prefix in ("workflow.", "named_entity.", ""):  # `get workflow --filter.fieldSelector=workflow.name=small`
        filtered = good(site.doors.by_grpc("ListNamedEntities", {**names, "filters": f"eq({prefix}name,small)"})).answer
        assert [one["id"]["name"] for one in filtered["entities"]] == ["small"]
    assert site.doors.by_grpc("ListNamedEntities", {**names, "filters": "eq(task.name,small)"}).code != "OK"
    entity = {"resource_type": "WORKFLOW", "id": {**HERE, "name": "small"}}
    good(site.doors.by_grpc("UpdateNamedEntity", {**entity, "metadata": {"description": "small"}}))
    assert good(site.doors.by_grpc("GetNamedEntity", entity)).answer["metadata"]["description"] == "small"
    assert good(site.doors.by_grpc("GetVersion", {})).answer
    assert closure(site, "old")["phase"] == "SUCCEEDED"
