"""From an admitted job back to what its user asked for: a retry is admitted anew, by the rules of then."""

from __future__ import annotations

import msgspec

from switchyard.model.attributes import JobPolicy, UsedValue
from switchyard.model.execution import ExecutionConfig, QualityOfService
from switchyard.model.job import JobRequest
from switchyard.model.scope import Level
from switchyard.policy.kinds import Kinds
from switchyard.policy.kinds.cluster_assignment import ClusterAssignmentKind
from switchyard.policy.kinds.execution_cluster_label import ExecutionClusterLabelKind
from switchyard.policy.kinds.execution_queue import ExecutionQueueKind
from switchyard.policy.kinds.quality_of_service import QualityOfServiceKind
from switchyard.policy.kinds.task_resources import JOB_FIELDS, TaskResourcesKind
from switchyard.policy.kinds.workflow_execution_config import WorkflowExecutionConfigKind


def restore_request(request: JobRequest, used: JobPolicy, kinds: Kinds) -> JobRequest:
    """The request without what the rules filled in, and with what it said itself."""
    for kind in kinds:
        given = {value.field: value.value for value in used.values if value.kind == kind.name and _is_ruled(value)}
        if given:
            request = kind.take_back(request, given)
    own = {(value.kind, value.field): value.value for value in used.values if value.level is Level.REQUEST}
    by_rule = [value for value in used.values if _is_ruled(value)]
    service = {name: own.get((QualityOfServiceKind.name, name)) for name in ("tier", "queueing_budget")}
    spec = msgspec.structs.replace(
        request.spec,
        resources=_resources(request, by_rule),
        execution=_execution(own),
    )
    return msgspec.structs.replace(
        request,
        spec=spec,
        labels={} if _is_by_rule(by_rule, "labels") else request.labels,
        pool=own.get((ClusterAssignmentKind.name, "cluster_pool_name")),
        cluster_label=own.get((ExecutionClusterLabelKind.name, "value")),
        tags=own.get((ExecutionQueueKind.name, "tags"), []),
        spill=own.get((ClusterAssignmentKind.name, "spill"), []),
        quality_of_service=msgspec.convert(service, QualityOfService) if any(service.values()) else None,
    )


def _is_ruled(value: UsedValue) -> bool:
    return value.level is not Level.REQUEST


def _resources(request: JobRequest, by_rule: list[UsedValue]) -> object:
    filled = [
        JOB_FIELDS[value.field.removeprefix("defaults.")]
        for value in by_rule
        if value.kind == TaskResourcesKind.name and value.field.removeprefix("defaults.") in JOB_FIELDS
    ]
    if not filled:
        return request.spec.resources
    nothing = dict.fromkeys(filled)
    limits = msgspec.structs.replace(request.spec.resources.limits, **nothing)
    return msgspec.structs.replace(request.spec.resources, **nothing, limits=limits)


def _execution(own: dict[tuple[str, str], object]) -> ExecutionConfig | None:
    said = {
        path: value
        for (kind, path), value in own.items()
        if kind == WorkflowExecutionConfigKind.name and path != "labels"
    }
    return msgspec.convert(said, ExecutionConfig) if said else None


def _is_by_rule(by_rule: list[UsedValue], path: str) -> bool:
    return any(value.kind == WorkflowExecutionConfigKind.name and value.field == path for value in by_rule)
