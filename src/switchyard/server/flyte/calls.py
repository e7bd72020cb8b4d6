"""The calls of Flyte's AdminService that we serve, by name. REST and gRPC use this table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from switchyard.server.flyte import attributes, entities, named_entities, projects
from switchyard.server.flyte.attributes import PROJECT, PROJECT_DOMAIN, WORKFLOW
from switchyard.workflow.entity_id import EntityKind

HEAVY_BYTES_MIN = 16 * 1024  # of a request that is compiled: nearly all workflows are smaller


@dataclass(frozen=True)
class FlyteCall:
    """`serve(context, actor, request)` returns a message or raises a YardError. `is_open`: needs no credential.

    `is_entity`: its request has a whole entity, and takes time that grows with it.
    """

    serve: Callable[..., Any]
    is_open: bool = False
    is_entity: bool = False

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
    "GetVersion": FlyteCall(projects.version, is_open=True),
}
