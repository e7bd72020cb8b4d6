"""What an execution launches: a launch plan with its workflow, or a task; and what a launch plan says of the spec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flyteidl.admin import execution_pb2, launch_plan_pb2

from switchyard.errors import BadRequest
from switchyard.features.flyte.service.entities.entity_reads import StoredEntity, get_entity
from switchyard.features.flyte.service.executions.calls.graphs import task_closure_of, workflow_closure_of
from switchyard.features.flyte.workflow.compile.entity_id import (
    KINDS_BY_NUMBER,
    EntityId,
    EntityKind,
    read_id,
    to_message,
)
from switchyard.features.flyte.workflow.compile.signature import of_interface
from switchyard.features.flyte.workflow.engine.execution_checks import task_parameters
from switchyard.features.flyte.workflow.engine.execution_graph import task_workflow_id
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor

INHERITED = ("labels", "annotations", "security_context", "interruptible", "envs", "raw_output_data_config")
BOUNDS = ("cluster_assignment", "execution_cluster_label")  # Flyte forgets the first


@dataclass(frozen=True, slots=True)
class LaunchTarget:
    """What is launched. `workflow`: what then runs. `plan`: the spec of the launch plan, if it is one."""

    entity: EntityId
    workflow: EntityId
    closure: Any
    expected: Any
    plan: Any


def find_target(context: Context, actor: Actor, spec: Any) -> LaunchTarget:
    kind = KINDS_BY_NUMBER.get(spec.launch_plan.resource_type)
    if kind not in (EntityKind.LAUNCH_PLAN, EntityKind.TASK):
        raise BadRequest("launch_plan must name a launch plan or a task, with its resource_type")
    entity = read_id(spec.launch_plan, kind)
    stored = get_entity(context, actor, entity)
    return _task_target(context, entity) if kind is EntityKind.TASK else _plan_target(context, actor, stored)


def _task_target(context: Context, task: EntityId) -> LaunchTarget:
    closure = task_closure_of(context, task)
    interface = closure.tasks[0].template.interface
    optional = frozenset(interface.inputs.variables) - of_interface(interface).required
    return LaunchTarget(
        task, task_workflow_id(task), closure, task_parameters(interface, optional), launch_plan_pb2.LaunchPlanSpec()
    )


def _plan_target(context: Context, actor: Actor, stored: StoredEntity) -> LaunchTarget:
    plan = launch_plan_pb2.LaunchPlanSpec.FromString(stored.body)
    workflow = read_id(plan.workflow_id, EntityKind.WORKFLOW)
    get_entity(context, actor, workflow)  # the caller may read it
    signature = launch_plan_pb2.LaunchPlanClosure.FromString(stored.row.signature)
    return LaunchTarget(stored.id, workflow, workflow_closure_of(context, workflow), signature.expected_inputs, plan)


def inherited_spec(spec: Any, plan: EntityId) -> Any:
    """What an execution says for one that its launch plan node starts. The launch plan fills in the rest."""
    launch_spec = execution_pb2.ExecutionSpec(launch_plan=to_message(plan))
    for field in (*INHERITED, *BOUNDS):
        if spec.HasField(field):
            getattr(launch_spec, field).CopyFrom(getattr(spec, field))
    launch_spec.max_parallelism, launch_spec.overwrite_cache = spec.max_parallelism, spec.overwrite_cache
    return launch_spec


def fill_from_plan(spec: Any, plan: Any) -> None:
    """Take what the launch plan says where the spec says nothing; maps are taken whole."""
    for field in ("labels", "annotations"):
        if not getattr(spec, field).values:
            getattr(spec, field).CopyFrom(getattr(plan, field))
    if not spec.envs.values:
        spec.envs.CopyFrom(plan.envs)
    spec.max_parallelism = spec.max_parallelism or plan.max_parallelism
    spec.overwrite_cache = spec.overwrite_cache or plan.overwrite_cache
    for field in ("interruptible", "security_context"):
        if not spec.HasField(field) and plan.HasField(field):
            getattr(spec, field).CopyFrom(getattr(plan, field))
    if not spec.disable_all and not spec.notifications.notifications:
        spec.notifications.notifications.extend(plan.entity_metadata.notifications)
    if not spec.cluster_assignment.cluster_pool_name:
        spec.cluster_assignment.CopyFrom(plan.cluster_assignment)
    _take_auth_role(spec, plan)


def _take_auth_role(spec: Any, plan: Any) -> None:
    """What the deprecated field says, where no security context says who the tasks run as."""
    if spec.security_context.HasField("run_as"):
        return
    for role in (spec.auth_role, plan.auth_role, plan.auth):
        if role.assumable_iam_role or role.kubernetes_service_account:
            spec.security_context.run_as.iam_role = role.assumable_iam_role
            spec.security_context.run_as.k8s_service_account = role.kubernetes_service_account
            return
