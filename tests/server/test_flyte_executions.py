"""Executions at both of Flyte's doors: what is created, what is refused and why, and how one is stopped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus, urlsplit

import grpc
import pytest
from flyteidl.service import admin_pb2_grpc, auth_pb2, auth_pb2_grpc

from tests.processes import PATIENCE_S, until
from tests.programs import Answer, call
from tests.server.flyte_doors import CALL_S, Doors, opened
from tests.workflow.corpus import DOMAIN, PROJECT, sent_by_flytekit

pytestmark = pytest.mark.xdist_group("flyte-executions")
HERE = {"project": PROJECT, "domain": DOMAIN}
NODE = {"node_id": "n0", "execution_id": {**HERE, "name": "other"}}
NO_RECIPIENTS = {"notifications": [{"phases": ["FAILED"], "email": {}}]}
REFERRED = ("30_reference.triple", "30_reference.plus")


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    """A server with one cluster that no agent has joined: jobs wait for it. The corpus is registered."""
    with opened(tmp_path_factory.mktemp("doors")) as made:
        made.v1("POST", "/v1/projects", {"name": PROJECT})
        with grpc.insecure_channel(made.grpc) as line:
            stub = admin_pb2_grpc.AdminServiceStub(line)
            base = [sent for sent in sent_by_flytekit(version="base") if sent.id.name in REFERRED]
            for sent in (*base, *sent_by_flytekit()):
                name, request = sent.request
                getattr(stub, name)(request, timeout=CALL_S, wait_for_ready=True)
        yield made


def a_request(plan: str, name: str = "", kind: str = "LAUNCH_PLAN", **more: Any) -> dict[str, Any]:
    launched = {**HERE, "resource_type": kind, "name": plan, "version": "v1"}
    inputs = more.pop("inputs", {})
    literals = {word: {"scalar": {"primitive": value}} for word, value in inputs.items()}
    return {**HERE, "name": name, "spec": {"launch_plan": launched, **more}, "inputs": {"literals": literals}}


def data_at(prefix: str) -> dict[str, Any]:
    return {"raw_output_data_config": {"output_location_prefix": prefix}}


def number(value: int) -> dict[str, str]:
    return {"integer": str(value)}


def phase_of(doors: Doors, name: str) -> str:
    return str(doors.by_grpc("GetExecution", {"id": {**HERE, "name": name}}).answer["closure"]["phase"])


def test_a_server_runs_no_executions_if_its_config_says_so(tmp_path: Path) -> None:
    with opened(tmp_path, workflows={"executions": False}) as off:
        off.v1("POST", "/v1/projects", {"name": PROJECT})
        for door in off.ways().values():
            refused = door("CreateExecution", a_request("29_schedule.wf"))
            assert (refused.code, "`workflows.executions` is off" in refused.message) == ("UNIMPLEMENTED", True)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (a_request("29_schedule.wf", "Nein/x"), "invalid name"),
        (a_request("29_schedule.wf", "x" * 64), "invalid name"),
        (a_request("29_schedule.wf", inputs={"m": number(1)}), "invalid input m"),
        (a_request("29_schedule.nightly", inputs={"n": number(1)}), "its value is fixed"),
        (a_request("29_schedule.wf", inputs={"n": {"string_value": "x"}}), "invalid n input wrong type"),
        (a_request("13_retries.wf"), "expected_inputs n missing"),
        (a_request("29_schedule.wf", kind="WORKFLOW"), "must name a launch plan or a task"),
        (a_request("29_schedule.wf", cluster_assignment={"cluster_pool_name": "nowhere"}), "no pool 'nowhere'"),
        (a_request("29_schedule.wf", execution_cluster_label={"value": "nowhere"}), "no label 'nowhere'"),
        (a_request("29_schedule.wf", labels={"values": {"a b": "x"}}), "invalid label key"),
        (a_request("29_schedule.wf", labels={"values": {"flyte/execution": "x"}}), "only the server sets labels"),
        (a_request("29_schedule.wf", max_parallelism=-1), "max_parallelism is below 0"),
        (a_request("29_schedule.wf", notifications=NO_RECIPIENTS), "notification"),
        (a_request("29_schedule.wf", metadata={"parent_node_execution": NODE}), "set by the server alone"),
        (a_request("21_files.wf", inputs={"text": {"string_value": "x"}}), "there is no place for such data"),
        (a_request("21_files.wf", inputs={"text": {"string_value": "x"}}), "`data: {folder: DIR}`"),
        (a_request("29_schedule.wf", **data_at("/shared")), "No cluster has /shared"),
        (a_request("29_schedule.wf", **data_at("file:///shared")), "cannot use file://"),
        (a_request("29_schedule.wf", **data_at("https://x/y")), "neither an absolute path nor an address"),
        (a_request("29_schedule.wf", **data_at("/a/../b")), "neither an absolute path nor an address"),
        (a_request("29_schedule.wf", **data_at("/" + 600 * "a")), "neither an absolute path nor an address"),
    ],
)
def test_bad_requests_are_refused_with_the_reason(doors: Doors, request_: dict[str, Any], words: str) -> None:
    for door in doors.ways().values():
        refused = door("CreateExecution", request_)
        assert (refused.code, words in refused.message) == ("INVALID_ARGUMENT", True), refused


def test_a_workflow_that_doubles_at_each_level_is_refused_before_it_begins(doors: Doors) -> None:
    """Few nodes are registered; 2^20 would run."""

    def an_id(name: str, kind: str = "WORKFLOW") -> dict[str, str]:
        return {**HERE, "resource_type": kind, "name": name, "version": "v1"}

    def a_level(number: int) -> dict[str, Any]:
        below = {"sub_workflow_ref": an_id(f"doubles.l{number - 1}")}
        task = {"reference_id": an_id("29_schedule.tick", "TASK")}
        inputs = [{"var": "n", "binding": {"scalar": {"primitive": {"integer": "1"}}}}]
        nodes = [{"id": f"n{index}", "metadata": {}, "workflow_node": below} for index in range(2)]
        lowest = [{"id": "n0", "metadata": {}, "inputs": inputs, "task_node": task}]
        return {"id": an_id(f"doubles.l{number}"), "interface": {}, "nodes": nodes if number else lowest}

    spec = {"template": a_level(20), "sub_workflows": [a_level(number) for number in range(20)]}
    made = doors.by_grpc("CreateWorkflow", {"id": an_id("doubles.l20"), "spec": spec})
    assert made.code == "OK", made
    plan = {"workflow_id": an_id("doubles.l20"), "default_inputs": {}, "fixed_inputs": {}}
    planned = doors.by_grpc("CreateLaunchPlan", {"id": an_id("doubles.l20", "LAUNCH_PLAN"), "spec": plan})
    assert planned.code == "OK", planned
    refused = doors.by_grpc("CreateExecution", a_request("doubles.l20"))
    assert (refused.code, "`workflows.nodes`" in refused.message) == ("INVALID_ARGUMENT", True), refused


def test_what_is_not_there_is_not_found(doors: Doors) -> None:
    for door in doors.ways().values():
        assert door("CreateExecution", a_request("nothing.wf")).code == "NOT_FOUND"
        assert door("GetExecution", {"id": {**HERE, "name": "nothing"}}).code == "NOT_FOUND"


def test_the_same_request_is_the_same_execution_and_another_one_a_conflict(doors: Doors) -> None:
    request = a_request("29_schedule.wf", "twice", inputs={"n": number(3)})
    for door in doors.ways().values():
        assert door("CreateExecution", request).answer["id"]["name"] == "twice"
        other = door("CreateExecution", a_request("29_schedule.wf", "twice", inputs={"n": number(4)}))
        assert other.code == "FAILED_PRECONDITION", "clients take ALREADY_EXISTS for success"
    assert len(jobs_of(doors, "twice")) == 1


def jobs_of(doors: Doors, name: str) -> list[dict[str, Any]]:
    def found() -> list[dict[str, Any]]:
        jobs: list[dict[str, Any]] = doors.v1("GET", f"/v1/jobs?label=flyte/execution%3D{name}")["items"]
        return jobs

    return until(found, PATIENCE_S, f"a job of {name}")


def test_a_node_is_a_job_of_the_scope_pool_and_label_of_its_execution(doors: Doors) -> None:
    request = a_request(
        "29_schedule.often",
        "placed",
        cluster_assignment={"cluster_pool_name": "gpu"},
        execution_cluster_label={"value": "P"},
        envs={"values": [{"key": "COLOUR", "value": "red"}]},
    )
    assert doors.by_grpc("CreateExecution", request).code == "OK"
    (listed,) = jobs_of(doors, "placed")
    job = doors.v1("GET", f"/v1/jobs/{listed['id']}")
    assert (job["workflow"], job["launch_plan"], job["pool"], job["cluster_label"]) == (
        *("29_schedule.wf", "29_schedule.often"),
        *("gpu", "P"),
    )
    assert job["labels"] == {"team": "yard", "flyte/execution": "placed", "flyte/node": "n0"}
    assert (job["spec"]["env"]["COLOUR"], job["spec"]["env"]["FLYTE_ATTEMPT_NUMBER"]) == ("red", "0")
    node = {"execution_id": {**HERE, "name": "placed"}, "node_id": "n0"}
    (attempt,) = doors.by_rest("ListTaskExecutions", {"node_execution_id": node, "limit": 9}).answer["task_executions"]
    closure = attempt["closure"]
    assert (closure["phase"], closure["metadata"]["generated_name"]) == ("WAITING_FOR_RESOURCES", job["id"])
    assert closure["reason"] == job["reason"]
    (shown,) = doors.by_rest("ListNodeExecutions", {"workflow_execution_id": node["execution_id"], "limit": 9}).answer[
        "node_executions"
    ]
    assert (shown["id"]["node_id"], shown["closure"]["phase"]) == ("n0", "RUNNING")


def test_only_nodes_of_an_execution_have_the_labels_of_one(doors: Doors) -> None:
    """Agents give the folder of an execution's data to the account of the first job with its label."""
    ours = {"flyte/execution": "labelled"}
    plain: dict[str, Any] = {"spec": {"command": ["true"]}, **HERE}
    rule = f"/v1/attributes/workflow-execution-config?project={PROJECT}&domain={DOMAIN}"
    for method, path, body in (
        ("POST", "/v1/jobs", {**plain, "labels": ours}),
        ("POST", "/v1/jobs", {"spec": {**plain["spec"], "execution": {"labels": ours}}, **HERE}),
        ("POST", "/v1/jobs/bulk", {"jobs": [{**plain, "labels": ours}]}),
        ("POST", "/v1/plan", {**plain, "labels": ours}),
        ("POST", "/v1/projects", {"name": "with-labels", "labels": ours}),
        ("PATCH", f"/v1/projects/{PROJECT}", {"labels": ours}),
        ("PUT", rule, {"labels": ours}),
    ):
        refused = call(method, doors.url + path, body, headers={"If-None-Match": "*"})
        assert refused.status in (400, 422), (path, refused)
        assert "only the server sets labels that begin with flyte/" in refused.body.decode(), (path, refused)
    doors.by_grpc("CreateExecution", a_request("29_schedule.wf", "labelled"))
    (job,) = jobs_of(doors, "labelled")
    doors.v1("POST", f"/v1/jobs/{job['id']}/cancel")
    again = doors.v1("POST", f"/v1/jobs/{job['id']}/retry", {})
    labels = doors.v1("GET", f"/v1/jobs/{again['id']}")["labels"]
    assert labels == {"flyte/execution": "labelled", "flyte/node": "n0"}, "a node that somebody tries again"


def test_a_task_by_itself_and_its_inputs(doors: Doors) -> None:
    request = a_request("13_retries.never", "alone", "TASK", inputs={"n": number(7)})
    assert doors.by_rest("CreateExecution", request).code == "OK"
    (job,) = jobs_of(doors, "alone")
    assert job["labels"]["flyte/node"] == "13retriesnever"
    data = doors.by_rest("GetExecutionData", {"id": {**HERE, "name": "alone"}}).answer
    assert data["full_inputs"]["literals"]["n"]["scalar"]["primitive"]["integer"] == "7"


def test_a_stopped_execution_ends_its_jobs_and_is_aborted(doors: Doors) -> None:
    doors.by_grpc("CreateExecution", a_request("29_schedule.wf", "stopped"))
    (job,) = jobs_of(doors, "stopped")
    identifier = {**HERE, "name": "stopped"}
    assert doors.by_rest("TerminateExecution", {"id": identifier, "cause": "no more"}).code == "OK"
    until(lambda: phase_of(doors, "stopped") == "ABORTED", PATIENCE_S, "it is aborted")
    closure = doors.by_grpc("GetExecution", {"id": identifier}).answer["closure"]
    assert closure["abort_metadata"] == {"cause": "no more", "principal": "local-admin"}
    assert doors.v1("GET", f"/v1/jobs/{job['id']}")["state"] == "CANCELLED"
    assert doors.by_rest("TerminateExecution", {"id": identifier}).code == "FAILED_PRECONDITION"


def test_an_execution_whose_job_is_cancelled_by_hand_fails(doors: Doors) -> None:
    doors.by_grpc("CreateExecution", a_request("29_schedule.wf", "by-hand"))
    (job,) = jobs_of(doors, "by-hand")
    doors.v1("POST", f"/v1/jobs/{job['id']}/cancel")
    until(lambda: phase_of(doors, "by-hand") in ("FAILED", "SUCCEEDED"), PATIENCE_S, "it is over")
    closure = doors.by_grpc("GetExecution", {"id": {**HERE, "name": "by-hand"}}).answer["closure"]
    assert (closure["phase"], closure["error"]["message"]) == ("FAILED", "the job was cancelled")


def test_lists_have_filters_and_hide_what_is_archived(doors: Doors) -> None:
    for name in ("listed-a", "listed-b"):
        doors.by_grpc("CreateExecution", a_request("29_schedule.wf", name, tags=["night", name]))
        jobs_of(doors, name)  # then it stands still, and both doors tell the same
    doors.by_rest("UpdateExecution", {"id": {**HERE, "name": "listed-b"}, "state": "EXECUTION_ARCHIVED"})

    def names(filters: str) -> list[str]:
        asked = {"id": HERE, "limit": 100, "filters": filters, "sort_by": {"key": "name", "direction": "ASCENDING"}}
        answers = [door("ListExecutions", asked) for door in doors.ways().values()]
        assert answers[0] == answers[1]
        return [found["id"]["name"] for found in answers[0].answer.get("executions", [])]

    assert names("contains(name,listed)") == ["listed-a"]
    assert names("contains(execution.name,listed)+value_in(execution.state,0;1)") == ["listed-a", "listed-b"]
    assert names("contains(name,listed)+eq(workflow.name,29_schedule.wf)+eq(launch_plan.version,v1)") == ["listed-a"]
    assert names("contains(name,listed)+eq(phase,SUCCEEDED)") == []
    assert names("contains(name,listed)+eq(mode,0)+value_in(cluster,c1;c2)+eq(duration,0)") == []
    assert names("contains(name,listed)+eq(mode,MANUAL)+eq(launch_plan.name,29_schedule.wf)") == ["listed-a"]
    assert names("contains(name,listed)+eq(task.name,29_schedule.wf)") == [], "a launch plan is no task"
    assert names("eq(admin_tag.name,night)") == ["listed-a"]
    assert names("eq(admin_tag.name,night)+eq(error_kind,USER)") == []
    nodes = {"workflow_execution_id": {**HERE, "name": "listed-a"}, "limit": 9}
    for phase, count in (("RUNNING", 1), ("SUCCEEDED", 0)):
        answers = [
            door("ListNodeExecutions", nodes | {"filters": f"eq(phase,{phase})"}) for door in doors.ways().values()
        ]
        assert [len(one.answer.get("node_executions", [])) for one in answers] == [count, count], answers
    for bad, words in (
        ("eq(colour,red)", "is invalid filter"),
        ("eq(mode,9)", "is one of MANUAL"),
        ("gt(duration,long)", "is a number of seconds"),
        ("contains(cluster,c)", "takes the filters eq and value_in"),
        ("contains(duration,1)", "is for text"),
        ("ne(admin_tag.name,night)", "ne is not served"),
    ):
        refused = doors.by_grpc("ListExecutions", {"id": HERE, "limit": 9, "filters": bad})
        assert (refused.code, words in refused.message) == ("INVALID_ARGUMENT", True), refused
    by_cluster = {"id": HERE, "limit": 9, "sort_by": {"key": "cluster"}}
    assert doors.by_grpc("ListExecutions", by_cluster).code == "INVALID_ARGUMENT"


def test_what_the_launch_plan_says_holds_where_the_request_says_nothing(tmp_path: Path) -> None:
    with opened(tmp_path, namespace_mapping={"template": "yard-{{ domain }}"}) as made:
        made.v1("POST", "/v1/projects", {"name": PROJECT})
        mail = {"phases": ["FAILED"], "email": {"recipients_email": ["ann@example.org"]}}
        plan_spec = {
            "workflow_id": plain_id("gate", "WORKFLOW"),
            "cluster_assignment": {"cluster_pool_name": "gpu"},
            "auth_role": {"kubernetes_service_account": "robot"},
            "entity_metadata": {"notifications": [mail]},
        }
        nodes = [{"id": "n0", "metadata": {}, "gate_node": {"sleep": {"duration": "1s"}}}]
        template = {"id": plain_id("gate", "WORKFLOW"), "interface": {}, "nodes": nodes}
        for name, body in (
            ("CreateWorkflow", {"id": template["id"], "spec": {"template": template}}),
            ("CreateLaunchPlan", {"id": plain_id("gate", "LAUNCH_PLAN"), "spec": plan_spec}),
            ("CreateExecution", a_request("gate", "said-nothing", auth_role={}, disable_all=False)),
            ("CreateExecution", a_request("gate", "said-no", disable_all=True, auth_role={"assumable_iam_role": "r"})),
        ):
            said = made.by_rest(name, body)
            assert said.code == "OK", said
        first, second = (
            made.by_grpc("GetExecution", {"id": {**HERE, "name": name}}).answer for name in ("said-nothing", "said-no")
        )
        run_as = first["spec"]["security_context"]["run_as"]
        assert (first["spec"]["cluster_assignment"], run_as["k8s_service_account"]) == (
            {"cluster_pool_name": "gpu"},
            "robot",
        )
        assert (first["closure"]["notifications"], "notifications" in second["closure"]) == ([mail], False)
        assert second["spec"]["security_context"]["run_as"] == {"iam_role": "r"}
        assert first["spec"]["metadata"]["system_metadata"]["namespace"] == f"yard-{DOMAIN}"


def plain_id(name: str, kind: str) -> dict[str, str]:
    return {**HERE, "resource_type": kind, "name": name, "version": "v1"}


@pytest.mark.parametrize(
    ("url", "code", "words"),
    [
        ("start-node/i/n", "OK", ""),
        ("start-node/i", "OK", ""),
        ("end-node/o", "OK", ""),
        ("start-node/i/absent", "NOT_FOUND", "has no input 'absent'"),
        ("n9/o", "NOT_FOUND", "missing entity of type node execution"),
        ("n0/7/o", "NOT_FOUND", "missing entity of type"),
        ("n0/d", "NOT_FOUND", "missing entity of type deck"),
        ("n0/d/x", "INVALID_ARGUMENT", "is no address of data"),
        ("n0/x", "INVALID_ARGUMENT", "is no address of data"),
        ("n0\u0000/o", "INVALID_ARGUMENT", "is no address of data"),
        ("n" * 3000 + "/o", "INVALID_ARGUMENT", "is no address of data"),
    ],
)
def test_data_by_flytes_addresses(doors: Doors, url: str, code: str, words: str) -> None:
    doors.by_grpc("CreateExecution", a_request("29_schedule.wf", "data", inputs={"n": number(3)}))
    jobs_of(doors, "data")
    for door in doors.ways().values():
        said = door("GetData", {"flyte_url": f"flyte://v1/{PROJECT}/{DOMAIN}/data/{url}"})
        assert (said.code, words in said.message) == (code, True), said


def opened_in_a_browser(doors: Doors, path: str) -> Answer:
    sent = call("GET", f"{doors.url}{path}", headers={"Accept": "text/html"})
    assert sent.status == 303, sent
    return call("GET", f"{doors.url}{sent.headers['location']}", headers={"Accept": "text/html"})


def test_addresses_of_flytes_console_lead_to_the_page_of_the_execution(doors: Doors) -> None:
    doors.by_grpc("CreateExecution", a_request("29_schedule.wf", "seen"))
    page = opened_in_a_browser(doors, f"/console/projects/{PROJECT}/domains/{DOMAIN}/executions/seen")
    assert (page.status, b"seen" in page.body, b"29_schedule.wf" in page.body) == (200, True, True)
    for path in ("", "/", "/select-project", f"/projects/{PROJECT}/domains/{DOMAIN}/workflows", "/projects/%2f%2fx/y"):
        assert opened_in_a_browser(doors, f"/console{path}").status == 200, path


def test_clients_learn_the_address_of_http_and_that_no_browser_signs_in(doors: Doors) -> None:
    with grpc.insecure_channel(doors.grpc) as line:
        stub = auth_pb2_grpc.AuthMetadataServiceStub(line)
        public = stub.GetPublicClientConfig(auth_pb2.PublicClientAuthConfigRequest(), timeout=CALL_S)
        oauth2 = stub.GetOAuth2Metadata(auth_pb2.OAuth2MetadataRequest(), timeout=CALL_S)
    assert (public.service_http_endpoint, oauth2.issuer) == (doors.url, doors.url)
    back = urlsplit(public.redirect_uri)
    assert (back.scheme, back.hostname, bool(back.port), bool(public.client_id)) == ("http", "localhost", True, True)
    assert back.path.startswith("/"), "flytectl panics at an address without a path"
    sent = call("GET", f"{oauth2.authorization_endpoint}?redirect_uri=http://evil.example/&state=s")
    target = unquote_plus(sent.headers["location"])
    assert (sent.status, target.startswith(f"{public.redirect_uri}?error=")) == (303, True)
    assert ("authType: ExternalCommand" in target, "evil" in target) == (True, False)
