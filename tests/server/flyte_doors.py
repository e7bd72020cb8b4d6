"""Both of Flyte's doors, asked the same way: a call by its name with plain data; a code, words and an answer back."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import grpc
import yaml
from flyteidl.service import (
    admin_pb2,
    admin_pb2_grpc,
    dataproxy_pb2,
    dataproxy_pb2_grpc,
    signal_pb2,
    signal_pb2_grpc,
)
from google.protobuf import json_format, message_factory

from tests.processes import free_port
from tests.programs import Answer, call, start_server

UPLOAD_SCOPE = {"project": "default", "domain": "development"}

CALL_S = 30
ADMIN = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]
SIGNALS = signal_pb2.DESCRIPTOR.services_by_name["SignalService"]
DATA = dataproxy_pb2.DESCRIPTOR.services_by_name["DataProxyService"]
STUBS = (
    (ADMIN, admin_pb2_grpc.AdminServiceStub),
    (SIGNALS, signal_pb2_grpc.SignalServiceStub),
    (DATA, dataproxy_pb2_grpc.DataProxyServiceStub),
)
DOTTED = re.compile(r"\{([\w.]+)\}")


def of(field: str) -> str:
    return f"{{{field}.project}}/{{{field}.domain}}/{{{field}.name}}"


def of_node(field: str) -> str:
    return f"{of(field + '.execution_id')}/{{{field}.node_id}}"


EXECUTION, NODE = of("id"), of_node("id")
ATTEMPT = f"{of_node('id.node_execution_id')}/{of('id.task_id')}/{{id.task_id.version}}/{{id.retry_attempt}}"
# As Flyte documents them; where the path's fields stand in the request comes first.
PATHS = {
    "UpdateProjectAttributes": ("PUT", "attributes", "/api/v1/project_attributes/{project}"),
    "GetProjectAttributes": ("GET", "", "/api/v1/project_attributes/{project}"),
    "DeleteProjectAttributes": ("DELETE", "", "/api/v1/project_attributes/{project}"),
    "UpdateProjectDomainAttributes": ("PUT", "attributes", "/api/v1/project_domain_attributes/{project}/{domain}"),
    "GetProjectDomainAttributes": ("GET", "", "/api/v1/project_domain_attributes/{project}/{domain}"),
    "DeleteProjectDomainAttributes": ("DELETE", "", "/api/v1/project_domain_attributes/{project}/{domain}"),
    "UpdateWorkflowAttributes": ("PUT", "attributes", "/api/v1/workflow_attributes/{project}/{domain}/{workflow}"),
    "GetWorkflowAttributes": ("GET", "", "/api/v1/workflow_attributes/{project}/{domain}/{workflow}"),
    "DeleteWorkflowAttributes": ("DELETE", "", "/api/v1/workflow_attributes/{project}/{domain}/{workflow}"),
    "ListMatchableAttributes": ("GET", "", "/api/v1/matchable_attributes"),
    "RegisterProject": ("POST", "", "/api/v1/projects"),
    "UpdateProject": ("PUT", "", "/api/v1/projects/{id}"),
    "GetProject": ("GET", "", "/api/v1/projects/{id}"),
    "ListProjects": ("GET", "", "/api/v1/projects"),
    "GetDomains": ("GET", "", "/api/v1/domains"),
    "ListSignals": ("GET", "", f"/api/v1/signals/{of('workflow_execution_id')}"),
    "SetSignal": ("POST", "", "/api/v1/signals"),
    "GetVersion": ("GET", "", "/api/v1/version"),
    "GetData": ("GET", "", "/api/v1/data"),
    "CreateDownloadLink": ("POST", "", "/api/v1/dataproxy/artifact_link"),
    "CreateTask": ("POST", "", "/api/v1/tasks"),
    "GetTask": ("GET", "id", "/api/v1/tasks/{project}/{domain}/{name}/{version}"),
    "ListTasks": ("GET", "id", "/api/v1/tasks/{project}/{domain}"),
    "ListTaskIds": ("GET", "", "/api/v1/task_ids/{project}/{domain}"),
    "CreateWorkflow": ("POST", "", "/api/v1/workflows"),
    "GetWorkflow": ("GET", "id", "/api/v1/workflows/{project}/{domain}/{name}/{version}"),
    "ListWorkflows": ("GET", "id", "/api/v1/workflows/{project}/{domain}"),
    "ListWorkflowIds": ("GET", "", "/api/v1/workflow_ids/{project}/{domain}"),
    "CreateLaunchPlan": ("POST", "", "/api/v1/launch_plans"),
    "GetLaunchPlan": ("GET", "id", "/api/v1/launch_plans/{project}/{domain}/{name}/{version}"),
    "GetActiveLaunchPlan": ("GET", "id", "/api/v1/active_launch_plans/{project}/{domain}/{name}"),
    "ListLaunchPlans": ("GET", "id", "/api/v1/launch_plans/{project}/{domain}"),
    "ListActiveLaunchPlans": ("GET", "", "/api/v1/active_launch_plans/{project}/{domain}"),
    "ListLaunchPlanIds": ("GET", "", "/api/v1/launch_plan_ids/{project}/{domain}"),
    "UpdateLaunchPlan": ("PUT", "id", "/api/v1/launch_plans/{project}/{domain}/{name}/{version}"),
    "ListNamedEntities": ("GET", "", "/api/v1/named_entities/{resource_type}/{project}/{domain}"),
    "GetNamedEntity": ("GET", "id", "/api/v1/named_entities/{resource_type}/{project}/{domain}/{name}"),
    "UpdateNamedEntity": ("PUT", "id", "/api/v1/named_entities/{resource_type}/{project}/{domain}/{name}"),
    "CreateExecution": ("POST", "", "/api/v1/executions"),
    "RelaunchExecution": ("POST", "", "/api/v1/executions/relaunch"),
    "RecoverExecution": ("POST", "", "/api/v1/executions/recover"),
    "GetExecution": ("GET", "", f"/api/v1/executions/{EXECUTION}"),
    "UpdateExecution": ("PUT", "", f"/api/v1/executions/{EXECUTION}"),
    "TerminateExecution": ("DELETE", "", f"/api/v1/executions/{EXECUTION}"),
    "GetExecutionData": ("GET", "", f"/api/v1/data/executions/{EXECUTION}"),
    "GetExecutionMetrics": ("GET", "", f"/api/v1/metrics/executions/{EXECUTION}"),
    "ListExecutions": ("GET", "", "/api/v1/executions/{id.project}/{id.domain}"),
    "ListNodeExecutions": ("GET", "", f"/api/v1/node_executions/{of('workflow_execution_id')}"),
    "GetNodeExecution": ("GET", "", f"/api/v1/node_executions/{NODE}"),
    "GetNodeExecutionData": ("GET", "", f"/api/v1/data/node_executions/{NODE}"),
    "GetDynamicNodeWorkflow": ("GET", "", f"/api/v1/node_executions/{NODE}/dynamic_workflow"),
    "ListTaskExecutions": ("GET", "", f"/api/v1/task_executions/{of_node('node_execution_id')}"),
    "GetTaskExecution": ("GET", "", f"/api/v1/task_executions/{ATTEMPT}"),
    "GetTaskExecutionData": ("GET", "", f"/api/v1/data/task_executions/{ATTEMPT}"),
}
WORDS = ("project", "domain", "workflow", "id", "name", "version", "resource_type")
CODES = {code.value[0]: code.name for code in grpc.StatusCode}
HTTP = {
    **{"OK": 200, "INVALID_ARGUMENT": 400, "UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403, "NOT_FOUND": 404},
    **{"ALREADY_EXISTS": 409, "FAILED_PRECONDITION": 400, "UNIMPLEMENTED": 501},
}
LABELS = ("P", "PD", "W", "L", "D")
CONFIG = {
    "clusters": {
        "clusterConfigs": [{"name": "c1", "endpoint": "c1"}],
        "labelClusterMap": {label: [{"id": "c1", "weight": 1}] for label in LABELS},
        "poolNameClusterMap": {"gpu": [{"id": "c1", "weight": 1}]},
    },
    "queues": [{"name": "q", "attributes": ["bar", "baz"]}],
    "quality_of_service": {"tierExecutionValues": {"HIGH": {"queueingBudget": "10m"}}},
    "execution_config": {"max_parallelism": 3, "security_context": {"run_as": {"iam_role": "myrole"}}},
}


@dataclass(frozen=True)
class Said:
    """What a door said. `answer`: proto3's JSON, in Flyte's own spelling, without what is not set."""

    code: str
    message: str = ""
    answer: dict[str, Any] = field(default_factory=dict)


@dataclass
class Doors:
    """A server with both doors open."""

    url: str
    grpc: str
    token: str | None = None
    _number: Any = field(default_factory=itertools.count)

    def fresh(self, **fields: Any) -> str:
        """The name of a project of one's own."""
        name = f"p{next(self._number)}"
        self.v1("POST", "/v1/projects", {"name": name, **fields})
        return name

    def archived(self) -> str:
        name = self.fresh()
        self.v1("PATCH", f"/v1/projects/{name}", {"is_archived": True})
        return name

    def v1(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """Our own API; it has to work."""
        answer = call(method, self.url + path, body, token=self.token, headers=headers)
        assert answer.status in (200, 201), answer
        return answer.json

    def put(self, kind: str, value: Mapping[str, Any], **scope: str) -> None:
        """A row at any of our levels, for Flyte writes three of the five."""
        path = f"/v1/attributes/{kind}?{urlencode(scope)}"
        self.v1("PUT", path, value, **{"If-None-Match": "*"})

    def by_rest(self, name: str, request: Mapping[str, Any]) -> Said:
        answer = self.rest(name, request)
        if answer.status == 200:
            made = json_format.ParseDict(answer.json, answer_class(name)())
            return Said("OK", answer=json_format.MessageToDict(made, preserving_proto_field_name=True))
        code = CODES[answer.json["code"]]
        assert answer.json.keys() == {"code", "message", "details"}
        assert answer.status == HTTP[code], answer
        return Said(code, answer.json["message"])

    def rest(self, name: str, request: Mapping[str, Any]) -> Answer:
        verb, place, path = PATHS[name]
        if "." in path:
            return self._nested_rest(verb, path, request)
        fields = request.get(place, {}) if place else request
        words = {word: quote(str({**request, **fields}.get(word, "")), safe="") for word in WORDS}
        rest = {word: value for word, value in request.items() if "{" + word + "}" not in path and word != place}
        sort = rest.pop("sort_by", {}) if verb == "GET" else {}
        rest |= {f"sort_by.{word}": value for word, value in sort.items()}
        url = self.url + path.format_map(words)
        if verb == "GET":
            return call(verb, f"{url}?{urlencode(rest)}", token=self.token)
        return call(verb, url, dict(request), token=self.token)

    def _nested_rest(self, verb: str, path: str, request: Mapping[str, Any]) -> Answer:
        """A call whose path has fields of fields."""
        used = {field.partition(".")[0] for field in DOTTED.findall(path)}
        url = self.url + DOTTED.sub(lambda match: quote(str(_dotted(request, match[1])), safe=""), path)
        if verb != "GET":
            return call(verb, url, dict(request), token=self.token)
        rest = {word: value for word, value in request.items() if word not in used}
        sort = rest.pop("sort_by", {})
        rest |= {f"sort_by.{word}": value for word, value in sort.items()}
        return call(verb, f"{url}?{urlencode(rest)}", token=self.token)

    def by_grpc(self, name: str, request: Mapping[str, Any]) -> Said:
        message = json_format.ParseDict(dict(request), _class(name, "input_type")())
        with grpc.insecure_channel(self.grpc) as line:
            stub = next(made for service, made in STUBS if name in service.methods_by_name)(line)
            metadata = [("authorization", f"Bearer {self.token}")] if self.token else []
            try:
                answer = getattr(stub, name)(message, timeout=CALL_S, metadata=metadata, wait_for_ready=True)
            except grpc.RpcError as exc:
                return Said(exc.code().name, exc.details())
        return Said("OK", answer=json_format.MessageToDict(answer, preserving_proto_field_name=True))

    def ways(self) -> dict[str, Callable[[str, Mapping[str, Any]], Said]]:
        return {"rest": self.by_rest, "grpc": self.by_grpc}


def _dotted(request: Mapping[str, Any], field: str) -> Any:
    value: Any = request
    for word in field.split("."):
        value = value.get(word, 0 if word == "retry_attempt" else "")
    return value


def answer_class(name: str) -> Any:
    return _class(name, "output_type")


def _class(name: str, which: str) -> Any:
    method = next(service.methods_by_name[name] for service, _ in STUBS if name in service.methods_by_name)
    return message_factory.GetMessageClass(getattr(method, which))


@contextmanager
def opened(folder: Path, *, database: str | None = None, auth: bool = False, **config: Any) -> Iterator[Doors]:
    """A server with both doors, and names for labels, pools, tags and tiers in its config."""
    file, port = folder / "config.yaml", free_port()
    file.write_text(yaml.safe_dump(json.loads(json.dumps(CONFIG | config))))
    extra = ["--grpc", f"127.0.0.1:{port}", "--config", str(file)]
    with start_server(folder, database=database, auth=auth, extra=extra) as server:
        yield Doors(server.url, f"127.0.0.1:{port}", server.admin_token if auth else None)
        wrong = [line for line in server.log.splitlines() if "level=error" in line or "Traceback" in line]
        assert wrong == [], "a defect behind a refusal shows only in the log"


def plain_request(request: Any) -> dict[str, Any]:
    plain: dict[str, Any] = json_format.MessageToDict(request, preserving_proto_field_name=True)
    return plain


def ask_both(doors: Doors, name: str, request: dict[str, Any]) -> Said:
    """What the doors say, which is the same."""
    answers = [door(name, request) for door in doors.ways().values()]
    assert answers[0] == answers[1]
    return answers[0]


def ask_data_proxy(doors: Doors, name: str, request: Any) -> Any:
    """The answer of the data proxy, or the code and the words of its refusal."""
    with grpc.insecure_channel(doors.grpc) as line:
        try:
            return getattr(dataproxy_pb2_grpc.DataProxyServiceStub(line), name)(
                request, timeout=CALL_S, wait_for_ready=True
            )
        except grpc.RpcError as exc:
            return exc.code().name, exc.details()


def upload_location(doors: Doors, name: str, content: bytes = b"", **more: Any) -> Any:
    md5 = hashlib.md5(content, usedforsecurity=False).digest() if content else b""
    more = {**UPLOAD_SCOPE, **more}
    request = dataproxy_pb2.CreateUploadLocationRequest(filename=name, content_md5=md5, **more)
    return ask_data_proxy(doors, "CreateUploadLocation", request)


def put_file(address: Any, content: bytes) -> Answer:
    return call("PUT", address.signed_url, content, headers={"Content-Type": "application/octet-stream"})
