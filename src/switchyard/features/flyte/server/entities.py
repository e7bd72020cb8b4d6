"""Flyte's calls about tasks, workflows and launch plans: create, get and list versions; which plan is active."""

from __future__ import annotations

from typing import Any

from flyteidl.admin import common_pb2, launch_plan_pb2, task_pb2, workflow_pb2
from flyteidl.core import interface_pb2

from switchyard.features.flyte.server.grpc_status import FlyteInvalid
from switchyard.features.flyte.service.entities import entity_changes, entity_reads, registration
from switchyard.features.flyte.service.entities.entity_changes import NameQuery
from switchyard.features.flyte.service.entities.entity_reads import EntityPage, EntityQuery, StoredEntity
from switchyard.features.flyte.store.entities.entity_names import EntityNameKey, EntityNameRow
from switchyard.features.flyte.workflow.compile.entity_id import (
    KINDS_BY_NUMBER,
    EntityId,
    EntityKind,
    id_mistakes,
    read_id,
    to_message,
)
from switchyard.features.flyte.workflow.lists.filters import (
    ENTITY_COLUMNS,
    NAME_COLUMNS,
    read_filters,
    read_order,
    read_page,
)
from switchyard.features.flyte.workflow.lists.list_query import ListOrder
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor


def create_task(context: Context, actor: Actor, request: Any) -> Any:
    registration.create_task(context, actor, request)
    return task_pb2.TaskCreateResponse()


def create_workflow(context: Context, actor: Actor, request: Any) -> Any:
    registration.create_workflow(context, actor, request)
    return workflow_pb2.WorkflowCreateResponse()


def create_launch_plan(context: Context, actor: Actor, request: Any) -> Any:
    registration.create_launch_plan(context, actor, request)
    return launch_plan_pb2.LaunchPlanCreateResponse()


def get_task(context: Context, actor: Actor, request: Any) -> Any:
    return _task(entity_reads.get_entity(context, actor, _id(request.id, EntityKind.TASK)))


def get_workflow(context: Context, actor: Actor, request: Any) -> Any:
    entity = entity_reads.get_entity(context, actor, _id(request.id, EntityKind.WORKFLOW))
    answer = workflow_pb2.Workflow(id=to_message(entity.id), short_description=entity.row.description)
    answer.closure.created_at.FromMicroseconds(entity.row.created_us)
    answer.closure.compiled_workflow.CopyFrom(entity_reads.get_workflow_closure(context, entity))
    return answer


def get_launch_plan(context: Context, actor: Actor, request: Any) -> Any:
    return _launch_plan(entity_reads.get_entity(context, actor, _id(request.id, EntityKind.LAUNCH_PLAN)))


def get_active_launch_plan(context: Context, actor: Actor, request: Any) -> Any:
    named = request.id
    return _launch_plan(entity_reads.get_active(context, actor, named.project, named.domain, named.name))


def update_launch_plan(context: Context, actor: Actor, request: Any) -> Any:
    """Make a version active, in place of the one that is, or inactive."""
    if mistakes := list(id_mistakes(request.id, EntityKind.LAUNCH_PLAN)):
        raise FlyteInvalid("; ".join(mistakes))
    if request.state not in launch_plan_pb2.LaunchPlanState.values():
        raise FlyteInvalid(f"{request.state} is no state of a launch plan")
    is_active = request.state == launch_plan_pb2.ACTIVE
    entity_changes.set_active(context, actor, _id(request.id, EntityKind.LAUNCH_PLAN), is_active=is_active)
    return launch_plan_pb2.LaunchPlanUpdateResponse()


def list_tasks(context: Context, actor: Actor, request: Any) -> Any:
    page = _page(context, actor, request, EntityKind.TASK)
    return task_pb2.TaskList(tasks=[_task(entity) for entity in page.items], token=page.token)


def list_workflows(context: Context, actor: Actor, request: Any) -> Any:
    """Lists have the interfaces of workflows, and leave the nodes out, as in Flyte."""
    page = _page(context, actor, request, EntityKind.WORKFLOW, with_content=False)
    return workflow_pb2.WorkflowList(workflows=[_listed_workflow(entity) for entity in page.items], token=page.token)


def list_launch_plans(context: Context, actor: Actor, request: Any) -> Any:
    page = _page(context, actor, request, EntityKind.LAUNCH_PLAN)
    return launch_plan_pb2.LaunchPlanList(
        launch_plans=[_launch_plan(entity) for entity in page.items], token=page.token
    )


def list_active_launch_plans(context: Context, actor: Actor, request: Any) -> Any:
    limit, offset = read_page(request.limit, request.token)
    query = EntityQuery(
        EntityKind.LAUNCH_PLAN,
        request.project,
        request.domain,
        only_active=True,
        order=order_of(request.sort_by, EntityKind.LAUNCH_PLAN),
        offset=offset,
        limit=limit,
    )
    page = entity_reads.list_entities(context, actor, query, with_content=True)
    return launch_plan_pb2.LaunchPlanList(
        launch_plans=[_launch_plan(entity) for entity in page.items], token=page.token
    )


def order_of(sort_by: Any, kind: EntityKind) -> ListOrder | None:
    is_descending = sort_by.direction == common_pb2.Sort.DESCENDING
    return read_order(sort_by.key, ENTITY_COLUMNS[kind], kind.value, is_descending=is_descending)


def _page(context: Context, actor: Actor, request: Any, kind: EntityKind, *, with_content: bool = True) -> EntityPage:
    limit, offset = read_page(request.limit, request.token)
    query = EntityQuery(
        kind,
        request.id.project,
        request.id.domain,
        request.id.name,
        filters=read_filters(request.filters, ENTITY_COLUMNS[kind], kind.value),
        order=order_of(request.sort_by, kind),
        offset=offset,
        limit=limit,
    )
    return entity_reads.list_entities(context, actor, query, with_content=with_content)


def _id(message: Any, kind: EntityKind) -> EntityId:
    if message.resource_type not in (0, kind.number):
        raise FlyteInvalid(f"unexpected resource type {message.resource_type} for identifier, expected {kind.value}")
    return read_id(message, kind)


def _task(entity: StoredEntity) -> Any:
    answer = task_pb2.Task(id=to_message(entity.id), short_description=entity.row.description)
    answer.closure.compiled_task.template.CopyFrom(entity_reads.read_task(entity.body, entity.id))
    answer.closure.created_at.FromMicroseconds(entity.row.created_us)
    return answer


def _listed_workflow(entity: StoredEntity) -> Any:
    answer = workflow_pb2.Workflow(id=to_message(entity.id), short_description=entity.row.description)
    template = answer.closure.compiled_workflow.primary.template
    template.id.CopyFrom(answer.id)
    template.interface.CopyFrom(interface_pb2.TypedInterface.FromString(entity.row.signature))
    answer.closure.created_at.FromMicroseconds(entity.row.created_us)
    return answer


def _launch_plan(entity: StoredEntity) -> Any:
    row = entity.row
    closure = launch_plan_pb2.LaunchPlanClosure.FromString(row.signature)
    closure.state = launch_plan_pb2.ACTIVE if row.is_active else launch_plan_pb2.INACTIVE
    closure.created_at.FromMicroseconds(row.created_us)
    closure.updated_at.FromMicroseconds(row.updated_us)
    spec = launch_plan_pb2.LaunchPlanSpec.FromString(entity.body)
    return launch_plan_pb2.LaunchPlan(id=to_message(entity.id), spec=spec, closure=closure)


PREFIX = "named_entity"


def list_ids(kind: EntityKind, context: Context, actor: Actor, request: Any) -> Any:
    """The names of one kind."""
    rows, token = entity_changes.list_names(context, actor, _query(request, kind))
    return common_pb2.NamedEntityIdentifierList(entities=[_identifier(row) for row in rows], token=token)


def list_named(context: Context, actor: Actor, request: Any) -> Any:
    kind = _kind(request.resource_type)
    rows, token = entity_changes.list_names(context, actor, _query(request, kind))
    return common_pb2.NamedEntityList(entities=[_named(row, kind) for row in rows], token=token)


def get_named(context: Context, actor: Actor, request: Any) -> Any:
    kind, named = _kind(request.resource_type), _required_name(request)
    return _named(entity_changes.get_name(context, actor, _key(kind, named)), kind)


def update_named(context: Context, actor: Actor, request: Any) -> Any:
    """Replace description and state. Without metadata there is nothing to replace them with."""
    kind, named = _kind(request.resource_type), _required_name(request)
    if not request.HasField("metadata"):
        raise FlyteInvalid("missing metadata")
    metadata = request.metadata
    entity_changes.change_name(
        context, actor, _key(kind, named), description=metadata.description, state=metadata.state
    )
    return common_pb2.NamedEntityUpdateResponse()


def _query(request: Any, kind: EntityKind) -> NameQuery:
    limit, offset = read_page(request.limit, request.token)
    sort = request.sort_by
    is_descending = sort.direction == common_pb2.Sort.DESCENDING
    return NameQuery(
        kind,
        request.project,
        request.domain,
        filters=read_filters(request.filters, NAME_COLUMNS, PREFIX, kind.value),
        order=read_order(sort.key, NAME_COLUMNS, PREFIX, kind.value, is_descending=is_descending),
        offset=offset,
        limit=limit,
    )


def _key(kind: EntityKind, named: Any) -> EntityNameKey:
    return EntityNameKey(kind.value, named.project, named.domain, named.name)


def _required_name(request: Any) -> Any:
    for word in ("project", "domain", "name"):
        if not getattr(request.id, word):
            raise FlyteInvalid(f"missing {word}")
    return request.id


def _kind(number: int) -> EntityKind:
    if number not in KINDS_BY_NUMBER:
        raise FlyteInvalid(f"invalid value for resource_type: {number}; task, workflow or launch plan")
    return KINDS_BY_NUMBER[number]


def _identifier(row: EntityNameRow) -> Any:
    return common_pb2.NamedEntityIdentifier(project=row.project, domain=row.domain, name=row.name)


def _named(row: EntityNameRow, kind: EntityKind) -> Any:
    metadata = common_pb2.NamedEntityMetadata(description=row.name_description, state=row.name_state)
    return common_pb2.NamedEntity(resource_type=kind.number, id=_identifier(row), metadata=metadata)
