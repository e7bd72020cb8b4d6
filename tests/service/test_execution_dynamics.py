"""What a dynamic task left is checked as if the owner of the execution registered it: a forged file gets nowhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flyteidl.core import dynamic_job_pb2, identifier_pb2, tasks_pb2

from switchyard.features.flyte.service.entities.registration import create_task
from switchyard.features.flyte.service.executions.nodes.dynamics import with_dynamic
from switchyard.features.flyte.workflow.compile.dynamic_workflow import DYNAMIC_DEPTH_MAX
from switchyard.features.flyte.workflow.compile.entity_id import EntityId, EntityKind
from switchyard.features.flyte.workflow.engine.execution_state import AttemptEnd
from switchyard.features.flyte.workflow.engine.run_ids import NODE_ID_BYTES_MAX
from switchyard.features.flyte.workflow.values.limits import WorkflowLimits
from switchyard.model.rules.access import GrantTarget, Role
from switchyard.service.core.rights import Actor
from tests.service.entities.requests import DOMAIN, PROJECT, an_id, placed, task_request
from tests.service.rig import ADMIN, Rig
from tests.workflow.builders import INT, approval, bindings, gate_node, interface, task_node

PARENT = EntityId(EntityKind.TASK, PROJECT, DOMAIN, "dyn", "v1")
BUNDLE = f"yard://data/{PROJECT}/{DOMAIN}/abc/scriptmode.tar.gz"
LOCAL = "/scratch/jobs/17/flyte-io/scriptmode.tar.gz"


def brought(name: str = "add", project: str = PROJECT, **more: Any) -> Any:
    """A task that the file brings along."""
    template = task_request(name, **more).spec.template
    template.id.CopyFrom(an_id(identifier_pb2.TASK, name, project=project))
    return template


def futures(nodes: list[Any], *tasks: Any, gives: Any = "@dn0.o0") -> bytes:
    spec = dynamic_job_pb2.DynamicJobSpec(nodes=nodes, tasks=tasks, outputs=bindings({"o0": gives}))
    return spec.SerializeToString()


def a_node(node_id: str = "dn0", project: str = PROJECT, **values: Any) -> Any:
    return placed(task_node(node_id, "add", **{"a": 1, "b": 2, **values}), project)


def ended(rig: Rig, body: bytes, *, owner: Actor = ADMIN, **more: Any) -> AttemptEnd:
    template = tasks_pb2.TaskTemplate(interface=interface({}, {"o0": INT}))
    template.container.args.extend(["pyflyte-fast-execute", "--additional-distribution", BUNDLE])
    end = AttemptEnd(more.pop("node_id", "n0"), 0, futures=body)
    return with_dynamic(rig.context, owner, end, PARENT, template, **{"nodes": 1, "depth": 0, **more})


def refusal(end: AttemptEnd) -> str:
    assert (end.dynamic, end.outputs, end.futures) == (None, None, None)
    assert end.failure is not None
    assert (end.failure.code, end.failure.is_recoverable) == ("DynamicWorkflowBuildFailed", False)
    return end.failure.message


def test_a_workflow_with_tasks_of_its_own_is_compiled_with_the_code_of_the_dynamic_task(rig: Rig) -> None:
    task = brought(args=["pyflyte-fast-execute", "--additional-distribution", LOCAL, "--dest-dir", "/scratch/jobs/17"])
    end = ended(rig, futures([a_node()], task))
    assert end.failure is None
    assert end.dynamic is not None
    (template,) = end.dynamic.graph.tasks.values()
    assert list(template.container.args)[2] == BUNDLE, "the address, and not a file of a job that is over"
    assert [node.id for node in end.dynamic.graph.primary.nodes] == ["dn0"]


def test_a_registered_task_is_found_by_its_id(rig: Rig) -> None:
    create_task(rig.context, ADMIN, task_request())
    end = ended(rig, futures([a_node()]))
    assert end.dynamic is not None
    assert [template.container.image for template in end.dynamic.graph.tasks.values()] == ["i"]


def test_a_workflow_without_nodes_has_constant_outputs(rig: Rig) -> None:
    end = ended(rig, futures([], gives=7))
    assert end.outputs.literals["o0"].scalar.primitive.integer == 7
    assert "not constants" in refusal(ended(rig, futures([])))


BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "garbage": (lambda: b"\xff\xff\xff", "no message of a workflow"),
    "a cycle": (
        lambda: futures([a_node(a="@dn1.o0"), a_node("dn1", a="@dn0.o0")], brought()),
        "does not compile",
    ),
    "an unknown task": (lambda: futures([a_node()]), "not found"),
    "a task without an image": (lambda: futures([a_node()], brought(image="")), "missing image"),
    "a task without a type": (lambda: futures([a_node()], brought(type="")), "missing type"),
    "a task with a NUL": (lambda: futures([a_node()], brought("a\0b")), "bad id"),
    "a node id with a NUL": (lambda: futures([a_node("d\0")], brought(), gives="@d\0.o0"), "cannot be printed"),
    "two ids that join to one": (
        lambda: futures([a_node(), a_node("dn0-0-n1")], brought()),
        "could be that of a node inside",
    ),
    "a signal id with a line": (
        lambda: futures([a_node(), gate_node("dn1", approval("a\nb"), x=1)], brought()),
        "cannot be printed",
    ),
    "the wrong output": (lambda: futures([a_node()], brought(), gives="text"), "does not compile"),
    "a task of no project": (lambda: futures([a_node(project="")], brought(project="")), "bad id"),
    "an eager task": (lambda: futures([a_node()], _eager()), "is eager"),
}


def _eager() -> Any:
    task = brought()
    task.metadata.is_eager = True
    return task


@pytest.mark.parametrize(("body", "words"), BAD.values(), ids=BAD)
def test_bad_files_fail_the_node_with_the_reason(rig: Rig, body: Callable[[], bytes], words: str) -> None:
    assert words in refusal(ended(rig, body()))


def test_nothing_of_a_project_that_the_owner_may_not_see_is_named_or_brought(rig: Rig) -> None:
    rig.project("secret")
    create_task(rig.context, ADMIN, task_request(project="secret"))
    mate = rig.user("mate", (Role.SUBMIT, GrantTarget.PROJECT, PROJECT))
    named, forged = futures([a_node(project="secret")]), futures([a_node(project="secret")], brought(project="secret"))
    assert ended(rig, named).dynamic is not None, "the administrator may"
    assert "not found" in refusal(ended(rig, named, owner=mate))
    assert "secret" in refusal(ended(rig, forged, owner=mate)), "its code could be any upload of that project"
    reader = rig.user("reader", (Role.VIEW, GrantTarget.PROJECT, "secret"))
    assert ended(rig, named, owner=reader).dynamic is not None
    assert refusal(ended(rig, forged, owner=reader))
    assert ended(rig, futures([a_node()], brought()), owner=reader).dynamic is not None, "of the task's own project"


def test_nodes_and_depth_are_bounded_over_the_whole_execution(rig: Rig) -> None:
    body = futures([a_node()], brought())
    most = rig.context.setting(WorkflowLimits).nodes
    assert ended(rig, body, nodes=most - 1).dynamic is not None
    assert "`workflows.nodes`" in refusal(ended(rig, body, nodes=most))
    assert ended(rig, body, depth=DYNAMIC_DEPTH_MAX - 1).dynamic is not None
    assert "inside each other" in refusal(ended(rig, body, depth=DYNAMIC_DEPTH_MAX))
    assert "too long" in refusal(ended(rig, body, node_id="n" * NODE_ID_BYTES_MAX))
