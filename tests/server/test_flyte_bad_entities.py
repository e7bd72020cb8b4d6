"""What is refused of tasks, workflows and launch plans at both of Flyte's doors, and what is too large."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from flyteidl.admin import common_pb2, workflow_pb2
from flyteidl.service import admin_pb2_grpc
from google.protobuf import any_pb2

from tests.programs import call
from tests.server.flyte_doors import CALL_S, Doors, ask_both, opened, plain_request
from tests.service.entities.requests import plan_request, task_request, workflow_request
from tests.workflow.builders import task_node
from tests.workflow.corpus import DOMAIN

pytestmark = pytest.mark.xdist_group("flyte-bad-entities")
MIB = 2**20
HERE = {"project": "default", "domain": DOMAIN}


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    with opened(tmp_path_factory.mktemp("doors"), workflows={"nodes": 10_000}) as made:
        yield made


def plain_ids(request: Any, **fields: str) -> dict[str, Any]:
    plain = plain_request(request)
    plain["id"] |= fields
    return plain


def compiled_with(*nodes: Any) -> dict[str, Any]:
    return plain_request(workflow_request(nodes=list(nodes)))


# The call, its request, and what is said.
BAD: list[tuple[str, str, dict[str, Any], str, str]] = [
    ("no id", "CreateTask", {"spec": {}}, "INVALID_ARGUMENT", "missing id"),
    ("no spec", "CreateTask", {"id": plain_request(task_request().id)}, "INVALID_ARGUMENT", "missing spec"),
    (
        "no template",
        "CreateTask",
        {"id": plain_request(task_request().id), "spec": {}},
        "INVALID_ARGUMENT",
        "missing template",
    ),
    ("no project", "CreateTask", plain_ids(task_request(), project=""), "INVALID_ARGUMENT", "missing project"),
    ("an unknown project", "CreateTask", plain_ids(task_request(), project="nowhere"), "INVALID_ARGUMENT", "not found"),
    ("an unknown domain", "CreateTask", plain_ids(task_request(), domain="mars"), "INVALID_ARGUMENT", "domain [mars]"),
    ("no name", "CreateTask", plain_ids(task_request(), name=""), "INVALID_ARGUMENT", "missing name"),
    ("a bad name", "CreateTask", plain_ids(task_request(), name="a\nb"), "INVALID_ARGUMENT", "control characters"),
    ("no version", "CreateTask", plain_ids(task_request(), version=""), "INVALID_ARGUMENT", "missing version"),
    ("a bad version", "CreateTask", plain_ids(task_request(), version="a/b"), "INVALID_ARGUMENT", "url safe"),
    (
        "another kind",
        "CreateTask",
        plain_ids(task_request(), resource_type="WORKFLOW"),
        "INVALID_ARGUMENT",
        "resource type",
    ),
    ("a project with NUL", "CreateTask", plain_ids(task_request(), project="a\0"), "INVALID_ARGUMENT", "NUL"),
    ("no image", "CreateTask", plain_request(task_request(image="")), "INVALID_ARGUMENT", "missing image"),
    (
        "no nodes",
        "CreateWorkflow",
        {"id": plain_request(workflow_request().id), "spec": {"template": {}}},
        "INVALID_ARGUMENT",
        "NoNodesFound",
    ),
    (
        "a cycle",
        "CreateWorkflow",
        compiled_with(task_node("n0", a="@n1.o0", b=1), task_node("n1", a="@n0.o0", b=1)),
        "INVALID_ARGUMENT",
        "UnreachableNodes",
    ),
    (
        "an unbound input",
        "CreateWorkflow",
        compiled_with(task_node("n0", a=1)),
        "INVALID_ARGUMENT",
        "ParameterNotBound",
    ),
    (
        "an unknown task",
        "CreateWorkflow",
        compiled_with(task_node("n0", "nobody")),
        "INVALID_ARGUMENT",
        "TaskReferenceNotFound",
    ),
    (
        "a task with NUL",
        "CreateWorkflow",
        compiled_with(task_node("n0", "no\0body")),
        "INVALID_ARGUMENT",
        "TaskReferenceNotFound",
    ),
    (
        "a text for a number",
        "CreateWorkflow",
        compiled_with(task_node("n0", a="x", b=1)),
        "INVALID_ARGUMENT",
        "MismatchingTypes",
    ),
    (
        "a promise into nothing",
        "CreateWorkflow",
        compiled_with(task_node("n0", a="@n9.o0", b=1)),
        "INVALID_ARGUMENT",
        "NodeReferenceNotFound",
    ),
    (
        "an unknown upstream",
        "CreateWorkflow",
        compiled_with(task_node("n0", a=1, b=1, upstream=("n7",))),
        "INVALID_ARGUMENT",
        "upstream node [n7]",
    ),
    (
        "two nodes with one id",
        "CreateWorkflow",
        compiled_with(task_node("n0", a=1, b=1), task_node("n0", a=1, b=1)),
        "INVALID_ARGUMENT",
        "DuplicateNodeId",
    ),
    (
        "an unknown workflow",
        "CreateLaunchPlan",
        plain_request(plan_request(workflow="nobody")),
        "NOT_FOUND",
        "missing entity of type WORKFLOW",
    ),
    (
        "no workflow",
        "CreateLaunchPlan",
        {"id": plain_request(plan_request().id), "spec": {}},
        "INVALID_ARGUMENT",
        "workflow_id: missing project",
    ),
    ("a get without a version", "GetTask", {"id": HERE | {"name": "a"}}, "INVALID_ARGUMENT", "missing version"),
    (
        "a get of nothing",
        "GetWorkflow",
        {"id": HERE | {"name": "a", "version": "b"}},
        "NOT_FOUND",
        "missing entity of type WORKFLOW",
    ),
    ("no active plan", "GetActiveLaunchPlan", {"id": HERE | {"name": "a"}}, "NOT_FOUND", "No active launch plan"),
    ("a list without a limit", "ListTasks", {"id": HERE}, "INVALID_ARGUMENT", "limit"),
    ("a list with a bad token", "ListTasks", {"id": HERE, "limit": 1, "token": "x"}, "INVALID_ARGUMENT", "token"),
    (
        "a list by a bad filter",
        "ListTasks",
        {"id": HERE, "limit": 1, "filters": "eq(colour,red)"},
        "INVALID_ARGUMENT",
        "'colour'",
    ),
    (
        "a list in a bad order",
        "ListTasks",
        {"id": HERE, "limit": 1, "sort_by": {"key": "body"}},
        "INVALID_ARGUMENT",
        "sort key",
    ),
    ("a list of all projects", "ListTasks", {"id": {}, "limit": 1}, "INVALID_ARGUMENT", "missing project"),
    (
        "names of executions",
        "ListNamedEntities",
        {**HERE, "resource_type": 9, "limit": 1},
        "INVALID_ARGUMENT",
        "resource_type",
    ),
    (
        "no metadata",
        "UpdateNamedEntity",
        {"resource_type": "TASK", "id": HERE | {"name": "a"}},
        "INVALID_ARGUMENT",
        "missing metadata",
    ),
    (
        "a name of nothing",
        "GetNamedEntity",
        {"resource_type": "TASK", "id": HERE | {"name": "zz"}},
        "NOT_FOUND",
        "missing entity",
    ),
    (
        "a plan of nothing",
        "UpdateLaunchPlan",
        {"id": HERE | {"name": "a", "version": "v"}, "state": "ACTIVE"},
        "NOT_FOUND",
        "missing entity",
    ),
    (
        "a state of nothing",
        "UpdateLaunchPlan",
        {"id": HERE | {"name": "a", "version": "v"}, "state": 7},
        "INVALID_ARGUMENT",
        "no state",
    ),
]


@pytest.fixture(scope="module")
def add(doors: Doors) -> Doors:
    assert doors.by_grpc("CreateTask", plain_request(task_request())).code == "OK"
    return doors


# A path of REST cannot leave a part of an id out.
GRPC_ONLY = {"a get without a version", "a list of all projects"}
WAYS = [(way, row) for row in BAD for way in ("rest", "grpc") if way == "grpc" or row[0] not in GRPC_ONLY]


@pytest.mark.parametrize(("way", "row"), WAYS, ids=[f"{way}: {row[0]}" for way, row in WAYS])
def test_bad_requests(add: Doors, way: str, row: tuple[str, str, dict[str, Any], str, str]) -> None:
    _, name, asked, code, words = row
    said = add.ways()[way](name, asked)
    assert (said.code, words in said.message) == (code, True), said


def test_all_mistakes_of_a_workflow_come_in_one_answer(add: Doors) -> None:
    nodes = [task_node("n0", a="x", b="@n9.o0"), task_node("n1", "nobody"), task_node("n2", a=1)]
    said = ask_both(add, "CreateWorkflow", compiled_with(*nodes))
    assert said.code == "INVALID_ARGUMENT"
    for code in ("MismatchingTypes", "NodeReferenceNotFound", "TaskReferenceNotFound", "ParameterNotBound"):
        assert code in said.message


def test_garbage_is_refused(doors: Doors) -> None:
    with grpc.insecure_channel(doors.grpc) as line:
        for name in ("CreateTask", "CreateWorkflow", "CreateLaunchPlan", "GetTask"):
            ask = line.unary_unary(f"/flyteidl.service.AdminService/{name}")
            with pytest.raises(grpc.RpcError) as refused:
                ask(b"\xff" * 100, timeout=CALL_S, wait_for_ready=True)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    for body in (b"\xff" * 100, b"null", b"[]", b'{"id":' * 5000, b'{"spec":{"template":{"nodes":{}}}}'):
        assert call("POST", f"{doors.url}/api/v1/workflows", body).status == 400


@pytest.mark.parametrize(("levels", "code"), [(88, 200), (92, 400), (150, 400), (5000, 400)])
def test_what_is_nested_too_deeply_is_refused(doors: Doors, levels: int, code: int) -> None:
    """Also what protobuf itself can read: an answer has more levels than the request."""
    kind = '{"collection_type":' * levels + '{"simple":"INTEGER"}' + "}" * levels
    asked = plain_request(task_request("deep", f"v{levels}"))
    asked["spec"]["template"]["interface"] = {"inputs": {"variables": {"x": {"type": "KIND"}}}}
    body = json.dumps(asked).replace('"KIND"', kind).encode()
    assert call("POST", f"{doors.url}/api/v1/tasks", body).status == code
    if code == 200:
        said = doors.by_grpc("GetTask", {"id": plain_request(task_request("deep", f"v{levels}").id)})
        assert said.code == "OK"


def chain(count: int) -> bytes:
    """A request for a workflow of so many nodes, each of which waits for the one before."""
    nodes = [task_node("n0", a=1, b=2)]
    nodes += [task_node(f"n{number}", a=f"@n{number - 1}.o0", b=2) for number in range(1, count)]
    return bytes(workflow_request(f"chain{count}", nodes=nodes).SerializeToString())


@pytest.mark.long
def test_ten_thousand_nodes_are_registered_and_one_more_is_refused(add: Doors) -> None:
    with grpc.insecure_channel(add.grpc, options=[("grpc.max_receive_message_length", 20 * MIB)]) as line:
        ask = line.unary_unary("/flyteidl.service.AdminService/CreateWorkflow")
        ask(chain(10_000), timeout=10 * CALL_S, wait_for_ready=True)
        with pytest.raises(grpc.RpcError) as refused:
            ask(chain(10_001), timeout=10 * CALL_S)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "`workflows.nodes`" in refused.value.details()
        get = line.unary_unary(
            "/flyteidl.service.AdminService/GetWorkflow", response_deserializer=workflow_pb2.Workflow.FromString
        )
        asked = common_pb2.ObjectGetRequest(id=workflow_request("chain10000").id)
        answer = get(asked.SerializeToString(), timeout=10 * CALL_S)
        assert len(answer.closure.compiled_workflow.primary.template.nodes) == 10_002


@pytest.mark.long
def test_an_entity_over_its_bound_is_refused_at_either_door(doors: Doors) -> None:
    small = plain_request(task_request("large", args=["x" * (3 * MIB)]))
    assert doors.by_rest("CreateTask", small).code == "OK"
    large = plain_request(task_request("large", "v2", args=["x" * (5 * MIB)]))
    assert doors.by_grpc("CreateTask", large).code == "RESOURCE_EXHAUSTED"
    assert doors.rest("CreateTask", large).status == 413
    large["spec"]["template"]["container"]["args"] = ["x" * (9 * MIB)]
    assert doors.rest("CreateTask", large).status == 413


def test_limits_of_task_resources_hold_at_registration(doors: Doors) -> None:
    project = doors.fresh()
    doors.put("task-resource-attribute", {"limits": {"cpu": "500m"}}, project=project)
    asked = plain_ids(task_request(), project=project)
    asked["spec"]["template"]["container"]["resources"] = {"requests": [{"name": "CPU", "value": "900m"}]}
    said = ask_both(doors, "CreateTask", asked)
    assert (said.code, "cpu request [900m] is greater than the limit [500m]" in said.message) == (
        "INVALID_ARGUMENT",
        True,
    )


def test_what_json_has_not_is_read_over_grpc(add: Doors) -> None:
    """A plan with a condition of a type that only the client knows."""
    assert add.by_grpc("CreateWorkflow", plain_request(workflow_request("strange"))).code == "OK"
    condition = any_pb2.Any(type_url="example/Nobody", value=b"\x01")
    requests = [plan_request("strange", workflow="strange", max_parallelism=number) for number in (1, 2)]
    for request in requests:
        request.spec.entity_metadata.launch_conditions.CopyFrom(condition)
    asked = common_pb2.ObjectGetRequest(id=requests[0].id)
    with grpc.insecure_channel(add.grpc) as line:
        stub = admin_pb2_grpc.AdminServiceStub(line)
        stub.CreateLaunchPlan(requests[0], timeout=CALL_S, wait_for_ready=True)
        with pytest.raises(grpc.RpcError) as refused:
            stub.CreateLaunchPlan(requests[1], timeout=CALL_S)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "values that JSON has not" in refused.value.details()
        assert stub.GetLaunchPlan(asked, timeout=CALL_S).spec.entity_metadata.launch_conditions == condition
    url = f"{add.url}/api/v1/launch_plans/default/{DOMAIN}/strange/v1"
    assert call("GET", url).status == 400
    assert call("GET", url, headers={"Accept": "application/octet-stream"}).status == 200
