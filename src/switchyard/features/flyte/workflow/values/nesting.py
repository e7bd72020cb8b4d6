"""Refuses entities that are nested so deeply that a client could not read them back."""

from __future__ import annotations

from typing import Any

from flyteidl.admin import execution_pb2, launch_plan_pb2, workflow_pb2
from google.protobuf.message import DecodeError, EncodeError

from switchyard.errors import Malformed

TOO_DEEP = "The entity is nested too deeply: its types, values, branches or conditions."


def check_task_depth(template: Any) -> None:
    """Protobuf reads 100 levels. A task stands deepest in the list of workflows that use it."""
    answer = workflow_pb2.WorkflowList()
    answer.workflows.add().closure.compiled_workflow.tasks.add().template.CopyFrom(template)
    _check(answer)


def check_workflow_depth(template: Any, sub_workflows: tuple[Any, ...]) -> None:
    answer = workflow_pb2.WorkflowList()
    compiled = answer.workflows.add().closure.compiled_workflow
    for one in (template, *sub_workflows):
        compiled.sub_workflows.add().template.CopyFrom(one)
    _check(answer)


def check_launch_plan_depth(spec: Any) -> None:
    answer = launch_plan_pb2.LaunchPlanList()
    answer.launch_plans.add().spec.CopyFrom(spec)
    _check(answer)


def check_inputs_depth(inputs: Any) -> None:
    """The inputs of an execution, as a client reads them back."""
    if is_too_deep(inputs):
        raise Malformed(TOO_DEEP)


def is_too_deep(values: Any) -> bool:
    """Whether a client could not read back these inputs or outputs."""
    try:
        answer = execution_pb2.WorkflowExecutionGetDataResponse(full_inputs=values)
    except DecodeError:  # a copy is written and read
        return True
    return not _is_readable(answer)


def _check(answer: Any) -> None:
    if not _is_readable(answer):
        raise Malformed(TOO_DEEP)


def _is_readable(answer: Any) -> bool:
    try:
        type(answer).FromString(answer.SerializeToString())
    except (DecodeError, EncodeError, ValueError):
        return False
    return True
