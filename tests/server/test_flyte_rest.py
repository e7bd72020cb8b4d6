"""Flyte's REST as grpc-gateway speaks it: spellings, media types, numbers and names, error bodies, bad input."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from flyteidl.admin import project_domain_attributes_pb2 as pda
from flyteidl.service import admin_pb2

from tests.programs import Answer, call
from tests.server.flyte_doors import PATHS as SERVED
from tests.server.flyte_doors import Doors, Said, opened

pytestmark = pytest.mark.xdist_group("flyte-rest")
DEV = "development"
MIB = 2**20


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    with opened(tmp_path_factory.mktemp("doors")) as made:
        yield made


def ask(doors: Doors, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return call(method, f"{doors.url}/api/v1{path}", body, headers=named)


def refused(answer: Answer, status: int, code: int) -> str:
    """An error as the gateway says it; its words."""
    assert answer.status == status, answer
    assert answer.headers["content-type"] == "application/json"
    assert answer.json == {"code": code, "message": answer.json["message"], "details": []}
    assert answer.json["message"]
    return str(answer.json["message"])


SNAKE = {
    "attributes": {"matching_attributes": {"cluster_resource_attributes": {"attributes": {"projectQuotaCpu": "1000"}}}}
}
CAMEL = {
    "attributes": {"matchingAttributes": {"clusterResourceAttributes": {"attributes": {"projectQuotaCpu": "1000"}}}}
}


@pytest.mark.parametrize("body", [SNAKE, CAMEL], ids=["snake", "camel"])
def test_the_seeds_request_in_either_spelling_and_the_type_as_number_or_name(
    doors: Doors, body: dict[str, Any]
) -> None:
    path = f"/project_domain_attributes/{doors.fresh()}/{DEV}"
    put = ask(doors, "PUT", path, body)
    assert (put.status, put.json) == (200, {})
    answers = [ask(doors, "GET", f"{path}?{query}") for query in ("resource_type=1", "resourceType=CLUSTER_RESOURCE")]
    wanted = {"attributes": {"projectQuotaCpu": "1000"}}
    assert [answer.json["attributes"]["matching_attributes"]["cluster_resource_attributes"] for answer in answers] == [
        wanted,
        wanted,
    ]


def test_an_answer_is_spelt_as_it_is_asked_for_with_the_fields_that_are_not_set(doors: Doors) -> None:
    project = doors.fresh()
    path = f"/project_domain_attributes/{project}/{DEV}"
    body = {"attributes": {"matching_attributes": {"task_resource_attributes": {"limits": {"cpu": "1"}}}}}
    assert ask(doors, "PUT", path, body).status == 200
    limits = {"cpu": "1", "gpu": "", "memory": "", "storage": ""}
    snake = ask(doors, "GET", path, Accept="application/json").json["attributes"]
    assert snake == {
        **{"project": project, "domain": DEV, "org": ""},
        "matching_attributes": {"task_resource_attributes": {"limits": limits | {"ephemeral_storage": ""}}},
    }
    camel = ask(doors, "GET", path, Accept="*/*", Content_Type="text/plain").json["attributes"]
    assert camel["matchingAttributes"] == {"taskResourceAttributes": {"limits": limits | {"ephemeralStorage": ""}}}
    proto = ask(doors, "GET", path, Accept="application/octet-stream")
    assert proto.headers["content-type"] == "application/octet-stream"
    reply = pda.ProjectDomainAttributesGetResponse.FromString(proto.body)
    assert reply.attributes.matching_attributes.task_resource_attributes.limits.cpu == "1"


def test_a_body_in_protobuf(doors: Doors) -> None:
    project = doors.fresh()
    sent = pda.ProjectDomainAttributesUpdateRequest()
    sent.attributes.matching_attributes.execution_cluster_label.value = "PD"
    path = f"/project_domain_attributes/{project}/{DEV}"
    binary = {"Content_Type": "application/octet-stream"}
    put = ask(doors, "PUT", path, sent.SerializeToString(), **binary)
    assert (put.status, put.body) == (200, b"")
    assert ask(doors, "PUT", path, b"\xff\xff\xff", **binary).status == 400
    reply = doors.by_rest("GetProjectDomainAttributes", {"project": project, "domain": DEV, "resource_type": 3})
    assert reply.answer["attributes"]["matching_attributes"] == {"execution_cluster_label": {"value": "PD"}}


def test_the_path_wins_over_the_body_and_its_words_may_be_escaped(doors: Doors) -> None:
    project, other = doors.fresh(), doors.fresh()
    label = {"execution_cluster_label": {"value": "W"}}
    body = {"attributes": {"project": other, "workflow": "x", "matching_attributes": label}}
    assert ask(doors, "PUT", f"/workflow_attributes/{project}/{DEV}/app%2Eflows.wf", body).status == 200
    asked = {"project": project, "domain": DEV, "workflow": "app.flows.wf", "resource_type": 3}
    reply = doors.by_rest("GetWorkflowAttributes", asked).answer["attributes"]
    assert (reply["project"], reply["workflow"]) == (project, "app.flows.wf")
    assert ask(doors, "PUT", f"/workflow_attributes/{project}/{DEV}/a%2Fb", body).status == 400, (
        "no name, not two words"
    )


@pytest.mark.parametrize("is_in_query", [True, False])
def test_attr_del_05_a_delete_takes_its_type_from_the_body_or_the_query(doors: Doors, is_in_query: bool) -> None:
    """Flyte ignores the query, and so deletes another kind."""
    project = doors.fresh()
    path = f"/project_domain_attributes/{project}/{DEV}"
    for kind in ({"execution_cluster_label": {"value": "P"}}, {"task_resource_attributes": {"limits": {"cpu": "1"}}}):
        assert ask(doors, "PUT", path, {"attributes": {"matching_attributes": kind}}).status == 200
    if is_in_query:
        gone = ask(doors, "DELETE", f"{path}?resource_type=3", b"")
    else:
        gone = ask(doors, "DELETE", path, {"resource_type": "EXECUTION_CLUSTER_LABEL"})
    assert (gone.status, gone.json) == (200, {})
    assert ask(doors, "GET", f"{path}?resource_type=3").status == 404
    assert ask(doors, "GET", f"{path}?resource_type=0").status == 200
    both = ask(doors, "DELETE", f"{path}?resource_type=3", {"resource_type": 0})
    assert "not in both" in refused(both, 400, 3)
    refused(ask(doors, "DELETE", path, []), 400, 3)  # no message, so not an empty one either
    assert ask(doors, "DELETE", path, b"").status == 200, "no type at all is the first"
    assert ask(doors, "GET", f"{path}?resource_type=0").status == 404


PATHS: list[tuple[str, str, str, int, int]] = [
    ("nowhere", "GET", "/nothing", 404, 5),
    ("too deep", "GET", "/domains/x/y", 404, 5),
    ("the root", "GET", "/", 404, 5),
    ("another method", "POST", "/domains", 501, 12),
    ("a relaunch of nothing", "POST", "/executions/relaunch", 400, 3),
    ("executions without a limit", "GET", "/executions/default/development", 400, 3),
    ("an execution that is not there", "GET", "/executions/default/development/x", 404, 5),
    ("a task that is not there", "GET", "/tasks/default/development/n/v", 404, 5),
    ("tasks without a limit", "GET", "/tasks/default/development", 400, 3),
    ("names of an unknown kind", "GET", "/named_entities/9/default/development?limit=9", 400, 3),
    ("descriptions", "GET", "/description_entities/TASK/p/d/n/v", 501, 12),
    ("an unknown type, by name", "GET", "/matchable_attributes?resource_type=COLOUR", 400, 3),
    ("an unknown type, by number", "GET", "/matchable_attributes?resource_type=44", 400, 3),
    ("a negative type", "GET", "/matchable_attributes?resource_type=-1", 400, 3),
    ("a type beyond numbers", "GET", f"/matchable_attributes?resource_type={'9' * 5000}", 400, 3),
    ("an unknown parameter", "GET", "/matchable_attributes?colour=red", 400, 3),
    ("a parameter twice", "GET", "/matchable_attributes?resource_type=1&resource_type=2", 400, 3),
    ("a field of a field that has none", "GET", "/projects?limit.x=1", 400, 3),
    ("a limit that is none", "GET", "/projects?limit=many", 400, 3),
    ("a negative limit", "GET", "/projects?limit=-1", 400, 3),
    ("a token that is none", "GET", "/projects?token=abc", 400, 3),
    ("a token beyond numbers", "GET", f"/projects?token={'9' * 5000}", 400, 3),
    ("a filter that is none", "GET", "/projects?filters=state", 400, 3),
    ("a filter by what is no field", "GET", "/projects?filters=eq(colour,red)", 400, 3),
    ("a filter by an unknown function", "GET", "/projects?filters=like(name,red)", 400, 3),
    ("a sort key that is none", "GET", "/projects?sort_by.key=colour", 400, 3),
    ("an unknown project", "GET", "/projects/nowhere", 404, 5),
]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"), [row[1:] for row in PATHS], ids=[row[0] for row in PATHS]
)
def test_an_address_that_means_nothing(doors: Doors, method: str, path: str, status: int, code: int) -> None:
    refused(ask(doors, method, path), status, code)


BODIES: list[tuple[str, Any]] = [
    ("no JSON", b"{not json"),
    ("cut off", b'{"attributes":{'),
    ("no UTF-8", b'{"attributes":{"org":"\xff\xfe"}}'),
    ("half a surrogate", b'{"attributes":{"org":"\\ud800"}}'),
    ("a list", []),
    ("a number", 7),
    ("null", None),
    ("attributes as a list", {"attributes": []}),
    ("attributes as a text", {"attributes": "x"}),
    ("a number for a text", {"attributes": {"matching_attributes": {"execution_cluster_label": {"value": 7}}}}),
    ("a text for a list", {"attributes": {"matching_attributes": {"execution_queue_attributes": {"tags": "bar"}}}}),
    ("a text for a map", {"attributes": {"matching_attributes": {"cluster_resource_attributes": {"attributes": "x"}}}}),
    (
        "a text for a number",
        {"attributes": {"matching_attributes": {"workflow_execution_config": {"max_parallelism": "many"}}}},
    ),
    (
        "a number beyond 32 bits",
        {"attributes": {"matching_attributes": {"workflow_execution_config": {"max_parallelism": 2**40}}}},
    ),
    (
        "a number for a truth",
        {"attributes": {"matching_attributes": {"workflow_execution_config": {"overwrite_cache": 1}}}},
    ),
    ("an unknown field", {"attributes": {"colour": "red"}}),
    (
        "two kinds at once",
        {
            "attributes": {
                "matching_attributes": {
                    "execution_cluster_label": {"value": "P"},
                    "cluster_assignment": {"cluster_pool_name": "gpu"},
                }
            }
        },
    ),
    ("a field twice", b'{"attributes":{"org":"a","org":"b"}}'),
    ("a field in both spellings", {"attributes": {"matching_attributes": {}, "matchingAttributes": {}}}),
    ("ten thousand levels", b'{"attributes":' * 10_000 + b"{}" + b"}" * 10_000),
    ("a hundred thousand lists", b"[" * 100_000),
    ("a number of 5,000 digits", b'{"attributes":{"org":' + b"9" * 5000 + b"}}"),
]


@pytest.mark.parametrize("body", [row[1] for row in BODIES], ids=[row[0] for row in BODIES])
def test_a_bad_body_is_refused_and_nothing_stored(doors: Doors, body: Any) -> None:
    project = doors.fresh()
    body = b"null" if body is None else body
    refused(ask(doors, "PUT", f"/project_domain_attributes/{project}/{DEV}", body), 400, 3)
    view = doors.v1("GET", f"/v1/policy?project={project}&domain={DEV}")
    assert "project" not in json.dumps(
        [field["level"] for attribute in view["attributes"] for field in attribute["fields"]]
    )


@pytest.mark.long
def test_a_huge_body_is_refused_at_either_door(doors: Doors) -> None:
    project = doors.fresh()
    huge = {"cluster_resource_attributes": {"attributes": {"a": "x" * (2 * MIB)}}}
    body: dict[str, Any] = {"attributes": {"matching_attributes": huge}}
    refused(ask(doors, "PUT", f"/project_domain_attributes/{project}/{DEV}", body), 413, 8)
    body["attributes"] |= {"project": project, "domain": DEV}
    assert doors.by_grpc("UpdateProjectDomainAttributes", body).code == "INVALID_ARGUMENT", "within the port's bound"
    huge["cluster_resource_attributes"]["attributes"]["a"] = "x" * (5 * MIB)
    assert doors.by_grpc("UpdateProjectDomainAttributes", body).code == "RESOURCE_EXHAUSTED"
    asked = {"project": project, "domain": DEV, "resource_type": 1}
    assert doors.by_grpc("GetProjectDomainAttributes", asked).code == "NOT_FOUND"


def test_a_name_of_a_megabyte_is_refused_in_few_words(doors: Doors) -> None:
    name = "🚂" * (MIB // 2)
    for asked in ({"project": name, "domain": DEV}, {"project": doors.fresh(), "domain": name}):
        reply = doors.by_grpc("GetProjectDomainAttributes", asked)
        assert reply.code == "INVALID_ARGUMENT"
        assert len(reply.message) < 2000
    asked = {"project": doors.fresh(), "domain": DEV, "workflow": name}
    assert doors.by_grpc("GetWorkflowAttributes", asked).code == "INVALID_ARGUMENT"


def test_what_is_not_served_is_unimplemented_at_the_grpc_door_too(doors: Doors) -> None:
    names = {method.name for method in admin_pb2.DESCRIPTOR.services_by_name["AdminService"].methods}
    assert {name: doors.by_grpc(name, {}).code for name in names - set(SERVED)} == dict.fromkeys(
        names - set(SERVED), "UNIMPLEMENTED"
    )
    assert set(SERVED) - {"ListSignals", "SetSignal", "GetData", "CreateDownloadLink"} <= names  # of other services


def test_sdk_01_an_execution_of_a_task_that_is_not_there_is_refused(doors: Doors) -> None:
    task = {"resource_type": "TASK", "project": "default", "domain": DEV, "name": "hello", "version": "v1"}
    spec = {"launch_plan": task, "cluster_assignment": {"cluster_pool_name": "gpu"}, "metadata": {"principal": "x"}}
    asked = {"project": "default", "domain": DEV, "name": "exec-1", "spec": spec, "inputs": {}}
    assert doors.by_grpc("CreateExecution", asked).code == "NOT_FOUND"
    assert "missing entity of type TASK" in refused(ask(doors, "POST", "/executions", asked), 404, 5)


def test_bytes_that_are_no_message_are_refused(doors: Doors) -> None:
    with grpc.insecure_channel(doors.grpc) as line:
        nonsense = line.unary_unary("/flyteidl.service.AdminService/ListMatchableAttributes")
        with pytest.raises(grpc.RpcError, match="no message of this call") as refused:
            nonsense(b"\xff\xff\xff", timeout=10)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert doors.by_grpc("GetVersion", {}).code == "OK"


def test_projects_domains_and_the_version(doors: Doors) -> None:
    for number, (way, door) in enumerate(doors.ways().items()):
        name = f"{way}-{number}"
        project = {"id": name, "name": f"A {way} project", "description": "of tests", "labels": {"values": {"a": "b"}}}
        assert door("RegisterProject", {"project": project}) == Said("OK")
        again = door("RegisterProject", {"project": project})
        assert again.code == "ALREADY_EXISTS"
        domains = [{"id": domain, "name": domain} for domain in (DEV, "staging", "production")]
        answer = door("GetProject", {"id": name}).answer
        assert answer == project | {"domains": domains}
        assert door("GetDomains", {}).answer == {"domains": domains}
        assert door("GetVersion", {}).answer["control_plane_version"]["Version"]

        def names(door: Any = door, **asked: Any) -> list[str]:
            return [listed["id"] for listed in door("ListProjects", asked).answer.get("projects", [])]

        assert name in names()
        # flytekit archives with nothing but the state; the rest stays.
        assert door("UpdateProject", {"id": name, "state": "ARCHIVED"}) == Said("OK")
        assert door("GetProject", {"id": name}).answer == project | {"domains": domains, "state": "ARCHIVED"}
        assert name not in names()
        assert names(filters=f"eq(state,1)+eq(identifier,{name})") == [name]
        assert names(filters=f"value_in(project.identifier,{name};nowhere)") == [name]
        assert names(filters="contains(name,A " + way + ")") == [name]
        changed = {"id": name, "name": "Other", "description": "new", "labels": {"values": {}}}
        assert door("UpdateProject", changed) == Said("OK")
        assert door("GetProject", {"id": name}).answer | {"labels": {}} == changed | {"domains": domains, "labels": {}}
        assert name in names()


def test_the_default_project_is_not_archived(doors: Doors) -> None:
    for door in doors.ways().values():
        assert door("UpdateProject", {"id": "default", "state": "ARCHIVED"}).code == "FAILED_PRECONDITION"


def test_pages_of_projects(doors: Doors) -> None:
    made = sorted(doors.fresh(title=f"page {number}") for number in range(5))
    for door in doors.ways().values():
        seen: list[str] = []
        token = ""
        while True:
            page = door("ListProjects", {"limit": 2, "token": token, "filters": "contains(name,page)"}).answer
            assert len(page["projects"]) <= 2
            seen += [listed["id"] for listed in page["projects"]]
            token = page.get("token", "")
            if not token:
                break
        assert seen == made
    backwards = ask(
        doors, "GET", "/projects?sort_by.key=identifier&sort_by.direction=DESCENDING&filters=contains(name,page)"
    )
    assert [listed["id"] for listed in backwards.json["projects"]] == made[::-1]


BAD_PROJECTS: list[tuple[str, str, dict[str, Any], str]] = [
    ("nothing", "RegisterProject", {}, "missing project"),
    ("no name", "RegisterProject", {"project": {"id": "x"}}, "missing project_name"),
    ("no id", "RegisterProject", {"project": {"name": "x"}}, "missing project_id"),
    ("a bad id", "RegisterProject", {"project": {"id": "Big_One", "name": "x"}}, "invalid project id [Big_One]"),
    ("a long id", "RegisterProject", {"project": {"id": "x" * 64, "name": "x"}}, "invalid project id"),
    ("domains", "RegisterProject", {"project": {"id": "x", "name": "x", "domains": [{"id": "d"}]}}, "Domains"),
    ("a long name", "RegisterProject", {"project": {"id": "x", "name": "x" * 65}}, "title"),
    ("a long text", "RegisterProject", {"project": {"id": "x", "name": "x", "description": "x" * 301}}, "description"),
    ("archived at once", "RegisterProject", {"project": {"id": "x", "name": "x", "state": "ARCHIVED"}}, "active"),
    ("an unknown state", "UpdateProject", {"id": "default", "state": "SYSTEM_ARCHIVED"}, "ACTIVE or ARCHIVED"),
    (
        "too many labels",
        "RegisterProject",
        {"project": {"id": "x", "name": "x", "labels": {"values": {f"l{n}": "" for n in range(17)}}}},
        "labels",
    ),
]


@pytest.mark.parametrize(
    ("name", "asked", "said"), [row[1:] for row in BAD_PROJECTS], ids=[row[0] for row in BAD_PROJECTS]
)
def test_a_bad_project_is_refused(doors: Doors, name: str, asked: dict[str, Any], said: str) -> None:
    for door in doors.ways().values():
        reply = door(name, asked)
        assert (reply.code, said in reply.message) == ("INVALID_ARGUMENT", True), reply
    assert doors.by_grpc("GetProject", {"id": "x"}).code == "NOT_FOUND"
    assert doors.by_grpc("UpdateProject", {"id": "nowhere"}) == Said("NOT_FOUND", "project [nowhere] not found")


def test_a_page_of_another_origin_does_not_speak_through_an_open_server(doors: Doors) -> None:
    refused(ask(doors, "GET", "/domains", Origin="http://evil.example"), 403, 7)
