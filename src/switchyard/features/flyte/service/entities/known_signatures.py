"""What registered entities take and give, for those who refer to them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flyteidl.admin import launch_plan_pb2
from flyteidl.core import interface_pb2

from switchyard.features.flyte.service.entities.scope import missing_entity, stored_key
from switchyard.features.flyte.store.entities import entities as store
from switchyard.features.flyte.workflow.compile.entity_id import EntityId, EntityKind, read_id
from switchyard.features.flyte.workflow.compile.signature import Signature, of_interface, of_launch_plan
from switchyard.model.rules.access import Role
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor


def find_signatures(context: Context, actor: Actor, wanted: Iterable[EntityId]) -> dict[EntityId, Signature]:
    """The signatures of these tasks and launch plans, of whichever project. Those that are hidden are not there."""
    keys = {stored_key(one): one for one in wanted if actor.may_project(Role.VIEW, one.project) and _is_storable(one)}
    with context.database.read() as tx:
        rows = store.entity_get_many(tx, keys)
    return {keys[row.key]: _signature(row) for row in rows}


def workflow_interface(context: Context, actor: Actor, workflow: EntityId) -> Any:
    """The interface of a registered workflow."""
    actor.need_project(Role.VIEW, workflow.project)
    with context.database.read() as tx:
        row = store.entity_get(tx, stored_key(workflow)) if _is_storable(workflow) else None
    if row is None:
        raise missing_entity(workflow)
    return interface_pb2.TypedInterface.FromString(row.signature)


def task_sizes(context: Context, closure: Any) -> int:
    """How many bytes the tasks of a compiled workflow take."""
    with context.database.read() as tx:
        rows = store.entity_get_many(tx, {stored_key(one) for one in closure_tasks(closure)})
    return sum(row.size for row in rows)


def closure_tasks(closure: Any) -> list[EntityId]:
    return [read_id(task.template.id, EntityKind.TASK) for task in closure.tasks]


def _signature(row: store.EntityRow) -> Signature:
    if row.kind == EntityKind.LAUNCH_PLAN:
        return of_launch_plan(launch_plan_pb2.LaunchPlanClosure.FromString(row.signature))
    return of_interface(interface_pb2.TypedInterface.FromString(row.signature))


def _is_storable(entity: EntityId) -> bool:
    """PostgreSQL has no NUL in texts."""
    return "\0" not in f"{entity}"
