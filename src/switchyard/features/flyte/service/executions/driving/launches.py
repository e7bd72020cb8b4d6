"""Create an execution from a request with plain inputs, as our own API takes it; or run another one again."""

from __future__ import annotations

from typing import Any

from flyteidl.admin import execution_pb2, launch_plan_pb2

from switchyard.errors import BadRequest, BadValue, Malformed, MethodNotAllowed, NotFound
from switchyard.features.flyte.model.workflow_execution import CreatedExecution, LaunchRequest
from switchyard.features.flyte.service.entities.entity_reads import (
    EntityQuery,
    StoredEntity,
    get_active,
    get_entity,
    list_entities,
    read_task,
)
from switchyard.features.flyte.service.entities.scope import require_write
from switchyard.features.flyte.service.executions.calls.creation import create_execution
from switchyard.features.flyte.service.executions.calls.relaunch import create_again
from switchyard.features.flyte.workflow.compile.entity_id import EntityId, EntityKind, to_message
from switchyard.features.flyte.workflow.engine.execution_checks import task_parameters
from switchyard.features.flyte.workflow.values.plain_values import literals_of
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor

MISTAKES_SHOWN = 20
Mode = execution_pb2.ExecutionMetadata.ExecutionMode


def launch(context: Context, actor: Actor, request: LaunchRequest) -> CreatedExecution:
    """Create what the request asks for. The same request under the same name again is the same execution."""
    try:
        return _launch(context, actor, request)
    except MethodNotAllowed as exc:  # of Flyte's doors: the call as such is served here
        raise BadRequest(exc.detail, next_step=exc.next_step) from exc
    except Malformed as exc:  # the form of the request is right
        raise BadValue(exc.detail, next_step=exc.next_step) from exc


def _launch(context: Context, actor: Actor, request: LaunchRequest) -> CreatedExecution:
    require_write(context, actor, request.project, request.domain)
    execution = execution_pb2.ExecutionCreateRequest(
        project=request.project, domain=request.domain, name=request.name or "", spec=_spec(request)
    )
    if request.relaunch is not None or request.recover is not None:
        _refer(execution, request)
        key = create_again(context, actor, execution)
    else:
        entity = _find_entity(context, actor, request)
        execution.spec.launch_plan.CopyFrom(to_message(entity.id))
        literals, mistakes = literals_of(request.inputs or {}, _expected(entity))
        if mistakes:
            more = ["and more"] if len(mistakes) > MISTAKES_SHOWN else []
            raise BadValue("; ".join([*mistakes[:MISTAKES_SHOWN], *more]) + ".", next_step="Correct the inputs.")
        execution.inputs.CopyFrom(literals)
        key = create_execution(context, actor, execution)
    return CreatedExecution(key.project, key.domain, key.name)


def _spec(request: LaunchRequest) -> Any:
    spec = execution_pb2.ExecutionSpec(overwrite_cache=request.overwrite_cache, max_parallelism=request.max_parallelism)
    if request.pool is not None:
        spec.cluster_assignment.cluster_pool_name = request.pool
    if request.label is not None:
        spec.execution_cluster_label.value = request.label
    for field in ("labels", "annotations"):
        if values := getattr(request, field):
            getattr(spec, field).values.update(values)
    for name, value in sorted((request.envs or {}).items()):
        spec.envs.values.add(key=name, value=value)
    if request.service_account is not None:
        spec.security_context.run_as.k8s_service_account = request.service_account
    if request.iam_role is not None:
        spec.security_context.run_as.iam_role = request.iam_role
    return spec


def _refer(execution: Any, request: LaunchRequest) -> None:
    metadata = execution.spec.metadata
    metadata.mode = Mode.Value("RELAUNCH" if request.relaunch is not None else "RECOVERED")
    before = metadata.reference_execution
    before.project, before.domain = request.project, request.domain
    before.name = request.relaunch or request.recover or ""


def _find_entity(context: Context, actor: Actor, request: LaunchRequest) -> StoredEntity:
    """The launch plan or the task. Without a version: the active launch plan, else the newest version."""
    kind = EntityKind.TASK if request.task is not None else EntityKind.LAUNCH_PLAN
    project, domain = request.entity_project or request.project, request.entity_domain or request.domain
    name = request.task or request.launch_plan or ""
    if request.version is not None:
        return get_entity(context, actor, EntityId(kind, project, domain, name, request.version))
    if kind is EntityKind.LAUNCH_PLAN:
        try:
            return get_active(context, actor, project, domain, name)
        except NotFound:
            pass
    newest = list_entities(context, actor, EntityQuery(kind, project, domain, name=name, limit=1), with_content=True)
    if not newest.items:
        raise NotFound(
            f"There is no {kind.words} {name} in project {project}, domain {domain}.",
            next_step="Register it first: `pyflyte register`. The name has the module in front: flows.twice.",
        )
    return newest.items[0]


def _expected(entity: StoredEntity) -> Any:
    """What the entity takes, by name: parameters with their types."""
    if entity.id.kind is EntityKind.TASK:
        interface = read_task(entity.body, entity.id).interface
        return task_parameters(interface, frozenset()).parameters
    return launch_plan_pb2.LaunchPlanClosure.FromString(entity.row.signature).expected_inputs.parameters
