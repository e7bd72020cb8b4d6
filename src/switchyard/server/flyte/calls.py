"""The calls of Flyte's services for entities, executions, data and signals that we serve, by name, for both doors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from switchyard.server.flyte import (
    attributes,
    data_proxy,
    entities,
    executions,
    named_entities,
    node_executions,
    projects,
    signals,
)
from switchyard.server.flyte.attributes import PROJECT, PROJECT_DOMAIN, WORKFLOW
from switchyard.workflow.compile.entity_id import EntityKind

HEAVY_BYTES_MIN = 16 * 1024  # of a request that is compiled: nearly all workflows are smaller


@dataclass(frozen=True)
class FlyteCall:
    """`serve(context, actor, request)` returns a message or raises a YardError. `is_open`: needs no credential.

    `is_entity`: its request has a whole entity, and takes time that grows with it. `needs_url`: `serve` takes the
    address of this server first.
    """

    serve: Callable[..., Any]
    is_open: bool = False
    is_entity: bool = False
    needs_url: bool = False

    def bound(self, url: str) -> Callable[..., Any]:
        """`serve(context, actor, request)` at a server with this address."""
        return partial(self.serve, url) if self.needs_url else self.serve

    def is_heavy(self, request: Any) -> bool:
        """Whether a request belongs on the threads for long work, of which one user has one at a time."""
        return self.is_entity and request.ByteSize() > HEAVY_BYTES_MIN


CALLS: dict[str, FlyteCall] = {
    "UpdateProjectAttributes": FlyteCall(partial(attributes.update, PROJECT)),
    "GetProjectAttributes": FlyteCall(partial(attributes.get, PROJECT)),
    "DeleteProjectAttributes": FlyteCall(partial(attributes.delete, PROJECT)),
    "UpdateProjectDomainAttributes": FlyteCall(partial(attributes.update, PROJECT_DOMAIN)),
    "GetProjectDomainAttributes": FlyteCall(partial(attributes.get, PROJECT_DOMAIN)),
    "DeleteProjectDomainAttributes": FlyteCall(partial(attributes.delete, PROJECT_DOMAIN)),
    "UpdateWorkflowAttributes": FlyteCall(partial(attributes.update, WORKFLOW)),
    "GetWorkflowAttributes": FlyteCall(partial(attributes.get, WORKFLOW)),
    "DeleteWorkflowAttributes": FlyteCall(partial(attributes.delete, WORKFLOW)),
    "ListMatchableAttributes": FlyteCall(attributes.list_all),
    "RegisterProject": FlyteCall(projects.register),
    "UpdateProject": FlyteCall(projects.update),
    "GetProject": FlyteCall(projects.get),
    "ListProjects": FlyteCall(projects.list_matching),
    "GetDomains": FlyteCall(projects.domains),
    "CreateTask": FlyteCall(entities.create_task, is_entity=True),
    "GetTask": FlyteCall(entities.get_task),
    "ListTasks": FlyteCall(entities.list_tasks),
    "ListTaskIds": FlyteCall(partial(named_entities.list_ids, EntityKind.TASK)),
    "CreateWorkflow": FlyteCall(entities.create_workflow, is_entity=True),
    "GetWorkflow": FlyteCall(entities.get_workflow),
    "ListWorkflows": FlyteCall(entities.list_workflows),
    "ListWorkflowIds": FlyteCall(partial(named_entities.list_ids, EntityKind.WORKFLOW)),
    "CreateLaunchPlan": FlyteCall(entities.create_launch_plan, is_entity=True),
    "GetLaunchPlan": FlyteCall(entities.get_launch_plan),
    "GetActiveLaunchPlan": FlyteCall(entities.get_active_launch_plan),
    "ListLaunchPlans": FlyteCall(entities.list_launch_plans),
    "ListActiveLaunchPlans": FlyteCall(entities.list_active_launch_plans),
    "ListLaunchPlanIds": FlyteCall(partial(named_entities.list_ids, EntityKind.LAUNCH_PLAN)),
    "UpdateLaunchPlan": FlyteCall(entities.update_launch_plan),
    "ListNamedEntities": FlyteCall(named_entities.list_named),
    "GetNamedEntity": FlyteCall(named_entities.get_named),
    "UpdateNamedEntity": FlyteCall(named_entities.update_named),
    "CreateExecution": FlyteCall(executions.create, is_entity=True),
    "RelaunchExecution": FlyteCall(executions.relaunch_execution),
    "RecoverExecution": FlyteCall(executions.recover_execution),
    "GetExecution": FlyteCall(executions.get),
    "GetExecutionData": FlyteCall(executions.get_data),
    "GetExecutionMetrics": FlyteCall(executions.get_metrics),
    "ListExecutions": FlyteCall(executions.list_matching),
    "TerminateExecution": FlyteCall(executions.terminate),
    "UpdateExecution": FlyteCall(executions.update),
    "ListNodeExecutions": FlyteCall(node_executions.list_nodes),
    "GetNodeExecution": FlyteCall(node_executions.get_node),
    "GetNodeExecutionData": FlyteCall(node_executions.get_node_data),
    "GetDynamicNodeWorkflow": FlyteCall(node_executions.get_dynamic_workflow),
    "ListTaskExecutions": FlyteCall(node_executions.list_tasks, needs_url=True),
    "GetTaskExecution": FlyteCall(node_executions.get_task, needs_url=True),
    "GetTaskExecutionData": FlyteCall(node_executions.get_task_data),
    "GetOrCreateSignal": FlyteCall(signals.get_or_create),
    "ListSignals": FlyteCall(signals.list_matching),
    "SetSignal": FlyteCall(signals.set_value),
    "CreateUploadLocation": FlyteCall(data_proxy.create_upload_location, needs_url=True),
    "CreateDownloadLocation": FlyteCall(data_proxy.create_download_location, needs_url=True),
    "CreateDownloadLink": FlyteCall(data_proxy.create_download_link, needs_url=True),
    "GetData": FlyteCall(data_proxy.get_data, needs_url=True),
    "GetVersion": FlyteCall(projects.version, is_open=True),
}
