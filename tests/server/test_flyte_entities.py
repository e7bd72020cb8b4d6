"""Tasks, workflows and launch plans at both of Flyte's doors: the whole corpus there and back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from flyteidl.service import admin_pb2_grpc

from tests.programs import call
from tests.server.flyte_doors import CALL_S, Doors, ask_both, opened, plain_request
from tests.workflow.corpus import DOMAIN, PROJECT, compiled_by_flyte, sent_by_flytekit, with_names_only

pytestmark = pytest.mark.xdist_group("flyte-entities")
REFERRED = ("30_reference.triple", "30_reference.plus")


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    with opened(tmp_path_factory.mktemp("doors"), workflows={"nodes": 10_000}) as made:
        yield made


@pytest.fixture(scope="module")
def corpus(doors: Doors) -> Doors:
    """The whole corpus, registered as flytekit does: first the version that 30_reference refers to."""
    doors.v1("POST", "/v1/projects", {"name": PROJECT})
    with grpc.insecure_channel(doors.grpc) as line:
        stub = admin_pb2_grpc.AdminServiceStub(line)
        base = [sent for sent in sent_by_flytekit(version="base") if sent.id.name in REFERRED]
        for sent in (*base, *sent_by_flytekit()):
            name, request = sent.request
            getattr(stub, name)(request, timeout=CALL_S, wait_for_ready=True)
    return doors


def test_every_workflow_comes_back_as_flyte_compiles_it_with_its_tasks(corpus: Doors) -> None:
    for name, wanted in compiled_by_flyte().items():
        version_id = {"project": PROJECT, "domain": DOMAIN, "name": name, "version": "v1"}
        answer = ask_both(corpus, "GetWorkflow", {"id": version_id}).answer
        assert answer["id"]["resource_type"] == "WORKFLOW"
        closure = answer["closure"]["compiled_workflow"]
        tasks = {task["template"]["id"]["name"]: task["template"] for task in closure.pop("tasks", [])}
        assert with_names_only(closure) == wanted
        named = set(_references(closure))
        assert set(tasks) == named
        assert all("container" in task or "k8s_pod" in task or "sql" in task for task in tasks.values())


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "reference_id" in value:
            yield value["reference_id"]["name"]
        for inner in value.values():
            yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)


def test_every_task_comes_back_as_it_was_sent(corpus: Doors) -> None:
    for sent in sent_by_flytekit():
        if sent.kind == "TaskSpec":
            wanted = {"id": plain_request(sent.id)}
            answer = corpus.by_grpc("GetTask", wanted).answer
            assert answer["closure"]["compiled_task"]["template"] == plain_request(sent.message.template)


def test_every_plan_comes_back_with_all_its_inputs(corpus: Doors) -> None:
    plan = {"id": {"project": PROJECT, "domain": DOMAIN, "name": "08_launch_plan.dear", "version": "v1"}}
    answer = ask_both(corpus, "GetLaunchPlan", plan).answer
    parameters = answer["closure"]["expected_inputs"]["parameters"]
    assert {name: "default" in parameter for name, parameter in parameters.items()} == {"n": False, "rate": True}
    assert answer["spec"]["default_inputs"] == answer["closure"]["expected_inputs"]
    assert list(answer["spec"]["fixed_inputs"]["literals"]) == ["currency"]
    assert answer["closure"]["expected_outputs"]["variables"]["o0"]["type"] == {"simple": "STRING"}
    assert "state" not in answer["closure"], "it is inactive, the first of the enum"
    nightly = {"id": {"project": PROJECT, "domain": DOMAIN}, "limit": 9, "filters": "eq(schedule_type,CRON)"}
    plans = ask_both(corpus, "ListLaunchPlans", nightly).answer["launch_plans"]
    assert [plan["id"]["name"] for plan in plans] == ["29_schedule.nightly"]


def test_all_of_it_again_is_there_already(corpus: Doors) -> None:
    with grpc.insecure_channel(corpus.grpc) as line:
        stub = admin_pb2_grpc.AdminServiceStub(line)
        codes = set()
        for sent in sent_by_flytekit():
            name, request = sent.request
            with pytest.raises(grpc.RpcError) as refused:
                getattr(stub, name)(request, timeout=CALL_S)
            codes.add(refused.value.code())
    assert codes == {grpc.StatusCode.ALREADY_EXISTS}


def test_lists_leave_the_nodes_of_workflows_out(corpus: Doors) -> None:
    asked = {
        "id": {"project": PROJECT, "domain": DOMAIN},
        "limit": 1000,
        "sort_by": {"key": "name", "direction": "ASCENDING"},
    }
    workflows = ask_both(corpus, "ListWorkflows", asked).answer["workflows"]
    assert len(workflows) == 48
    assert [one["id"]["name"] for one in workflows] == sorted(one["id"]["name"] for one in workflows)
    assert set(workflows[0]["closure"]["compiled_workflow"]["primary"]["template"]) == {"id", "interface"}
    names = ask_both(corpus, "ListWorkflowIds", {"project": PROJECT, "domain": DOMAIN, "limit": 1000}).answer[
        "entities"
    ]
    assert len(names) == 47
    url = f"{corpus.url}/api/v1/workflows/{PROJECT}/{DOMAIN}/30_reference.plus?limit=10"
    assert [one["id"]["version"] for one in call("GET", url).json["workflows"]] == ["v1", "base"]


def test_the_answer_in_json_has_flytes_names(corpus: Doors) -> None:
    order = "sort_by.key=name&sort_by.direction=ASCENDING"
    url = f"{corpus.url}/api/v1/named_entities/WORKFLOW/{PROJECT}/{DOMAIN}?limit=1&{order}"
    answer = call("GET", url, headers={"Accept": "application/json"}).json
    assert answer == {
        "entities": [
            {
                "resource_type": "WORKFLOW",
                "id": {"project": PROJECT, "domain": DOMAIN, "name": "01_scalars.wf", "org": ""},
                "metadata": {"description": "", "state": "NAMED_ENTITY_ACTIVE"},
            }
        ],
        "token": "1",
    }
    assert json.dumps(answer)
