"""Requests to register, built in few words."""

from __future__ import annotations

from typing import Any

from flyteidl.admin import launch_plan_pb2, task_pb2, workflow_pb2
from flyteidl.core import identifier_pb2, tasks_pb2

from tests.workflow.builders import INT, a_template, interface, list_of, task_node

PROJECT, DOMAIN = "default", "development"


def an_id(kind: int, name: str, version: str = "v1", project: str = PROJECT, domain: str = DOMAIN) -> Any:
    return identifier_pb2.Identifier(resource_type=kind, project=project, domain=domain, name=name, version=version)


def task_request(
    name: str = "add", version: str = "v1", *, image: str = "i", project: str = PROJECT, **more: Any
) -> Any:
    template = tasks_pb2.TaskTemplate(
        type=more.get("type", "python-task"),
        metadata=tasks_pb2.TaskMetadata(runtime=tasks_pb2.RuntimeMetadata(version="1")),
        interface=more.get("interface", interface({"a": INT, "b": INT}, {"o0": INT})),
        container=tasks_pb2.Container(image=image, args=more.get("args", [])),
    )
    spec = task_pb2.TaskSpec(template=template)
    spec.description.short_description = more.get("description", "")
    return task_pb2.TaskCreateRequest(id=an_id(identifier_pb2.TASK, name, version, project), spec=spec)


def workflow_request(
    name: str = "wf", version: str = "v1", *, nodes: list[Any] | None = None, project: str = PROJECT, **inputs: Any
) -> Any:
    """A workflow; without nodes, one that adds its input `n` and 1."""
    if nodes is None:
        inputs, nodes = {"n": INT}, [task_node("n0", a="@.n", b=1)]
    kind = list_of(INT) if nodes[0].HasField("array_node") else INT
    gives = {"o0": (kind, f"@{nodes[0].id}.o0")}
    template = a_template(*(placed(node, project) for node in nodes), name=name, gives=gives, **inputs)
    return workflow_pb2.WorkflowCreateRequest(
        id=an_id(identifier_pb2.WORKFLOW, name, version, project), spec=workflow_pb2.WorkflowSpec(template=template)
    )


def placed(node: Any, project: str = PROJECT, domain: str = DOMAIN) -> Any:
    """A node whose task or launch plan, if it has one, is in this project."""
    copy = type(node)()
    copy.CopyFrom(node)
    inner = copy.array_node.node if copy.HasField("array_node") else copy
    if inner.workflow_node.HasField("launchplan_ref"):
        reference = inner.workflow_node.launchplan_ref
    elif inner.HasField("task_node"):
        reference = inner.task_node.reference_id
    else:
        return copy
    reference.project, reference.domain = project, domain
    return copy


def plan_request(
    name: str = "wf", version: str = "v1", *, workflow: str = "wf", workflow_version: str = "v1", **spec: Any
) -> Any:
    made = launch_plan_pb2.LaunchPlanSpec(
        workflow_id=an_id(identifier_pb2.WORKFLOW, workflow, workflow_version), **spec
    )
    return launch_plan_pb2.LaunchPlanCreateRequest(id=an_id(identifier_pb2.LAUNCH_PLAN, name, version), spec=made)
