"""The workflow that a dynamic task made (`futures.pb`): read, with the code of the task that made it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flyteidl.core import dynamic_job_pb2, literals_pb2, workflow_pb2
from google.protobuf.message import DecodeError

from switchyard.features.flyte.workflow.compile.entity_id import EntityId, EntityKind, id_mistakes, read_id, to_message
from switchyard.features.flyte.workflow.engine.execution_state import AttemptFailure
from switchyard.features.flyte.workflow.tasks.pod_task import container_of
from switchyard.features.flyte.workflow.tasks.task_command import FOLDER, bundle_addresses
from switchyard.features.flyte.workflow.values.binding_values import BindingFailed, resolve_bindings

BUILD_FAILED = "DynamicWorkflowBuildFailed"
DYNAMIC_DEPTH_MAX = 50  # dynamic workflows inside each other


class BadFutures(Exception):
    """What a dynamic task left cannot run; the text says why."""


@dataclass(frozen=True)
class FuturesFile:
    """What a dynamic task left. `tasks`: templates of tasks that need not be registered, by id."""

    template: Any
    sub_workflows: tuple[Any, ...]
    tasks: Mapping[EntityId, Any] = field(default_factory=dict)


def read_futures(body: bytes, task: EntityId, parent: Any, node_id: str) -> FuturesFile:
    """`task`, `parent`: the dynamic task and its template. Raises BadFutures."""
    try:
        spec: Any = dynamic_job_pb2.DynamicJobSpec.FromString(body)
    except DecodeError as exc:
        raise BadFutures("futures.pb is no message of a workflow") from exc
    name = f"{task.name}.{node_id}"[:250]
    template = workflow_pb2.WorkflowTemplate(
        id=to_message(EntityId(EntityKind.WORKFLOW, task.project, task.domain, name, task.version))
    )
    template.metadata.SetInParent()
    template.interface.outputs.CopyFrom(parent.interface.outputs)
    template.interface.inputs.SetInParent()
    template.nodes.extend(spec.nodes)
    template.outputs.extend(spec.outputs)
    return FuturesFile(template, tuple(spec.subworkflows), _tasks(spec, parent))


def constant_outputs(futures: FuturesFile) -> Any:
    """The outputs of a dynamic workflow without nodes. Raises BadFutures."""
    try:
        return resolve_bindings(futures.template.outputs, lambda _node, _name: None)
    except BindingFailed as exc:
        raise BadFutures(f"the workflow has no nodes, and its outputs are not constants: {exc}") from exc


def build_failure(why: str) -> AttemptFailure:
    return AttemptFailure(BUILD_FAILED, why)


def no_inputs() -> Any:
    """A dynamic workflow takes nothing: values are constants in its bindings."""
    return literals_pb2.LiteralMap()


def _tasks(spec: Any, parent: Any) -> dict[EntityId, Any]:
    tasks: dict[EntityId, Any] = {}
    own = {address.rpartition("/")[2]: address for address in bundle_addresses(container_of(parent))}
    for given in spec.tasks:
        mistakes = list(id_mistakes(given.id, EntityKind.TASK))
        if mistakes:
            raise BadFutures(f"a task has a bad id: {'; '.join(mistakes[:5])}")
        template = type(given)()
        template.CopyFrom(given)
        _name_bundle(template.container.args, own)
        tasks[read_id(template.id, EntityKind.TASK)] = template
    return tasks


def _name_bundle(args: Any, own: Mapping[str, str]) -> None:
    """Put the address of the code back: the dynamic task knew it as a file in the folder of its job."""
    for at in range(1, len(args)):
        folder, _, name = args[at].rpartition("/")
        if args[at - 1] == "--additional-distribution" and folder.endswith(f"/{FOLDER}") and name in own:
            args[at] = own[name]
