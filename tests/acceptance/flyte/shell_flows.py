"""Flyte's tasks that are lines of shell: they start in milliseconds, where flytekit takes seconds."""

from __future__ import annotations

from typing import Any

from flyteidl.core import errors_pb2, literals_pb2
from google.protobuf import json_format

from tests.acceptance.flyte.flyte_site import DEV, PROJECT, FlyteSite
from tests.processes import PATIENCE_S, until
from tests.server.flyte_doors import Said

HERE = {"project": PROJECT, "domain": DEV}
IMAGE = "team/shell:1"
INT = {"simple": "INTEGER"}
INTS = {"collection_type": INT}
DONE = ("SUCCEEDED", "FAILED", "ABORTED", "TIMED_OUT")
SMALL_MAX = 127  # a number of one byte


def task(
    site: FlyteSite, name: str, script: str, *, inputs: dict[str, Any], output: Any = INT, **metadata: Any
) -> None:
    """Register a task. In the script, `$1` is the folder of outputs, and `give N` writes a small number as `o0`."""
    container = {
        "image": IMAGE,
        "args": ["sh", "-c", f"{GIVE}\n{script}", "task", "{{.outputPrefix}}"],
        "resources": {"requests": [{"name": "CPU", "value": "100m"}]},
    }
    template = {
        "id": an_id("TASK", name),
        "type": "python-task",
        "metadata": {"runtime": {"type": "FLYTE_SDK", "version": "1"}, **metadata},
        "interface": an_interface(inputs, {} if output is None else {"o0": output}),
        "container": container,
    }
    good(site.doors.by_grpc("CreateTask", {"id": template["id"], "spec": {"template": template}}))


def workflow(site: FlyteSite, name: str, nodes: list[Any], *, inputs: Any = None, outputs: Any = None) -> Said:
    """Register a workflow and its launch plan. `outputs`: type, node and variable of each. Returns the first answer."""
    template = {
        "id": an_id("WORKFLOW", name),
        "metadata": {},
        "interface": an_interface(inputs or {}, {out: kind for out, (kind, _, _) in (outputs or {}).items()}),
        "nodes": nodes,
        "outputs": [bound(out, node, var) for out, (_, node, var) in (outputs or {}).items()],
    }
    said = site.doors.by_grpc("CreateWorkflow", {"id": template["id"], "spec": {"template": template}})
    if said.code == "OK":
        plan(site, name, name)
    return said


def plan(site: FlyteSite, name: str, workflow_name: str, **fields: Any) -> None:
    spec = {"workflow_id": an_id("WORKFLOW", workflow_name), **fields}
    good(site.doors.by_grpc("CreateLaunchPlan", {"id": an_id("LAUNCH_PLAN", name), "spec": spec}))


def task_node(node_id: str, task_name: str, inputs: list[Any] | None = None, **fields: Any) -> dict[str, Any]:
    reference = {"reference_id": an_id("TASK", task_name)}
    return {"id": node_id, "inputs": inputs or [], "task_node": reference, "metadata": {}, **fields}


def map_node(node_id: str, task_name: str, inputs: list[Any], *, inner: Any = None, **array: Any) -> dict[str, Any]:
    """`inner`: the metadata of the node that each element runs."""
    node = {"task_node": {"reference_id": an_id("TASK", task_name)}, "metadata": inner or {}}
    return {"id": node_id, "inputs": inputs, "metadata": {}, "array_node": {"node": node, **array}}


def plan_node(node_id: str, plan_name: str, inputs: list[Any] | None = None) -> dict[str, Any]:
    reference = {"launchplan_ref": an_id("LAUNCH_PLAN", plan_name)}
    return {"id": node_id, "inputs": inputs or [], "workflow_node": reference, "metadata": {}}


def bound(var: str, node_id: str, name: str) -> dict[str, Any]:
    return {"var": var, "binding": {"promise": {"node_id": node_id, "var": name}}}


def constant(var: str, number: int) -> dict[str, Any]:
    return {"var": var, "binding": {"scalar": {"primitive": {"integer": str(number)}}}}


def start(site: FlyteSite, name: str, plan_name: str, inputs: dict[str, Any] | None = None, **spec: Any) -> Said:
    launched = an_id("LAUNCH_PLAN", plan_name)
    literals = {word: literal(value) for word, value in (inputs or {}).items()}
    body = {**HERE, "name": name, "spec": {"launch_plan": launched, **spec}, "inputs": {"literals": literals}}
    return site.doors.by_grpc("CreateExecution", body)


def literal(value: Any) -> dict[str, Any]:
    if isinstance(value, list):
        return {"collection": {"literals": [literal(one) for one in value]}}
    return {"scalar": {"primitive": {"string_value" if isinstance(value, str) else "integer": str(value)}}}


def ended(site: FlyteSite, name: str, within_s: float = PATIENCE_S) -> dict[str, Any]:
    """The closure of an execution once it is over."""
    until(lambda: closure(site, name).get("phase") in DONE, within_s, f"{name} has ended")
    return closure(site, name)


def closure(site: FlyteSite, name: str) -> dict[str, Any]:
    found: dict[str, Any] = good(site.doors.by_grpc("GetExecution", {"id": {**HERE, "name": name}})).answer["closure"]
    return found


def outputs_of(site: FlyteSite, name: str) -> dict[str, Any]:
    data = good(site.doors.by_grpc("GetExecutionData", {"id": {**HERE, "name": name}})).answer
    values = literals_pb2.LiteralMap()
    json_format.ParseDict(data.get("full_outputs", {}), values)
    return {word: plain(value) for word, value in values.literals.items()}


def plain(value: Any) -> Any:
    if value.HasField("collection"):
        return [plain(one) for one in value.collection.literals]
    return None if value.scalar.HasField("none_type") else value.scalar.primitive.integer


def nodes_of(site: FlyteSite, name: str) -> dict[str, dict[str, Any]]:
    asked = {"workflow_execution_id": {**HERE, "name": name}, "limit": 100}
    found = good(site.doors.by_grpc("ListNodeExecutions", asked)).answer.get("node_executions", [])
    return {one["id"]["node_id"]: one for one in found}


def tasks_of(site: FlyteSite, name: str, node_id: str) -> list[dict[str, Any]]:
    node = {"node_id": node_id, "execution_id": {**HERE, "name": name}}
    answer = good(site.doors.by_grpc("ListTaskExecutions", {"node_execution_id": node, "limit": 100})).answer
    return list(answer.get("task_executions", []))


def jobs_of(site: FlyteSite, name: str) -> list[dict[str, Any]]:
    return list(site.doors.v1("GET", f"/v1/jobs?label=flyte/execution%3D{name}")["items"])


def good(said: Said) -> Said:
    assert said.code == "OK", said
    return said


def an_id(kind: str, name: str) -> dict[str, str]:
    return {"resource_type": kind, **HERE, "name": name, "version": "v1"}


def an_interface(inputs: dict[str, Any], outputs: dict[str, Any]) -> dict[str, Any]:
    return {
        word: {"variables": {name: {"type": kind} for name, kind in kinds.items()}}
        for word, kinds in (("inputs", inputs), ("outputs", outputs))
    }


def escaped(body: bytes) -> str:
    return "".join(f"\\{byte:03o}" for byte in body)


def an_error(message: str, *, is_recoverable: bool) -> str:
    """A line of shell that leaves this error."""
    kind = errors_pb2.ContainerError.RECOVERABLE if is_recoverable else errors_pb2.ContainerError.NON_RECOVERABLE
    document = errors_pb2.ErrorDocument(error=errors_pb2.ContainerError(code="USER:Error", message=message, kind=kind))
    return f"mkdir -p $1; printf '{escaped(document.SerializeToString())}' > $1/error.pb; exit 0"


def _give() -> str:
    values = literals_pb2.LiteralMap()
    values.literals["o0"].scalar.primitive.integer = SMALL_MAX
    head, tail = (escaped(part) for part in values.SerializeToString().split(bytes([SMALL_MAX])))
    word = "\\\\$(printf %03o $1)"
    head = head.replace("\\", "\\\\")
    return f'out=$1; give() {{ mkdir -p $out; printf "{head}{word}{tail}" > $out/outputs.pb; }}'


GIVE = _give()
