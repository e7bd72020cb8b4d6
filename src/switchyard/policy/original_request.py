"""Restore the request as the user sent it, without values that rules filled in. Pure.

A retry is admitted again, under the current rules.
"""

from __future__ import annotations

import msgspec

from switchyard.model.executions.execution import ExecutionConfig, QualityOfService
from switchyard.model.job.job import JobRequest
from switchyard.model.rules.attributes import JobPolicy, UsedValue
from switchyard.model.rules.scope import Level
from switchyard.policy.kinds import Kinds
from switchyard.policy.kinds.cluster_assignment import ClusterAssignmentKind
from switchyard.policy.kinds.execution_cluster_label import ExecutionClusterLabelKind
from switchyard.policy.kinds.execution_queue import ExecutionQueueKind
from switchyard.policy.kinds.quality_of_service import QualityOfServiceKind
from switchyard.policy.kinds.task_resources import JOB_FIELDS, TaskResourcesKind
from switchyard.policy.kinds.workflow_execution_config import WorkflowExecutionConfigKind


def restore_request(request: JobRequest, used: JobPolicy, kinds: Kinds) -> JobRequest:
    """Return the request without the rules' values and with the user's own."""
    for kind in kinds:
        by_rules = {value.field: value.value for value in used.values if value.kind == kind.name and _is_ruled(value)}
        if by_rules:
            request = kind.take_back(request, by_rules)
    by_request = {(value.kind, value.field): value.value for value in used.values if value.level is Level.REQUEST}
    by_rule = [value for value in used.values if _is_ruled(value)]
    service = {name: by_request.get((QualityOfServiceKind.name, name)) for name in ("tier", "queueing_budget")}
    spec = msgspec.structs.replace(
        request.spec,
        resources=_resources(request, by_rule),
        execution=_execution(by_request),
    )
    return msgspec.structs.replace(
        request,
        spec=spec,
        labels={} if _is_by_rule(by_rule, "labels") else request.labels,
        pool=by_request.get((ClusterAssignmentKind.name, "cluster_pool_name")),
        cluster_label=by_request.get((ExecutionClusterLabelKind.name, "value")),
        tags=by_request.get((ExecutionQueueKind.name, "tags"), []),
        spill=by_request.get((ClusterAssignmentKind.name, "spill"), []),
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
    if not filled or request.spec.alternatives:  # of several sets it is not known which of them were filled
        return request.spec.resources
    nothing = dict.fromkeys(filled)
    limits = msgspec.structs.replace(request.spec.resources.limits, **nothing)
    return msgspec.structs.replace(request.spec.resources, **nothing, limits=limits)


def _execution(by_request: dict[tuple[str, str], object]) -> ExecutionConfig | None:
    fields = {
        path: value
        for (kind, path), value in by_request.items()
        if kind == WorkflowExecutionConfigKind.name and path != "labels"
    }
    return msgspec.convert(fields, ExecutionConfig) if fields else None


def _is_by_rule(by_rule: list[UsedValue], path: str) -> bool:
    return any(value.kind == WorkflowExecutionConfigKind.name and value.field == path for value in by_rule)
