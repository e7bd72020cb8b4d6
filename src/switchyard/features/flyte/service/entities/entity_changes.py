"""Change what can be changed of entities: which launch plan is active, and the description and state of a name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from switchyard.errors import BadRequest, NotFound
from switchyard.features.flyte.service.entities.entity_reads import PAGE_ROWS_MAX
from switchyard.features.flyte.service.entities.scope import missing_entity, require_read, require_write, stored_key
from switchyard.features.flyte.store.entities import entities as store
from switchyard.features.flyte.store.entities import entity_names
from switchyard.features.flyte.store.executions import schedules
from switchyard.features.flyte.workflow.compile.entity_id import EntityId, EntityKind
from switchyard.features.flyte.workflow.lists.list_query import ListFilter, ListOrder
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.core.writes.audit import record_audit
from switchyard.service.core.writes.batch import Batch

DESCRIPTION_CHARS_MAX = 1000
STATES = (0, 1, 2)  # Flyte's: active, archived, system-generated
NO_SCHEDULE = "NONE"
BY_NAME = ListOrder("name", is_descending=False)


@dataclass(frozen=True, slots=True)
class NameQuery:
    """What a list of names asks for."""

    kind: EntityKind
    project: str
    domain: str
    filters: Sequence[ListFilter] = ()
    order: ListOrder | None = None
    offset: int = 0
    limit: int = 100


def set_active(context: Context, actor: Actor, plan: EntityId, *, is_active: bool) -> None:
    """Make a launch plan active in place of the version that is, in one transaction; or inactive."""
    require_write(context, actor, plan.project, plan.domain)
    _refuse_nul(plan.name, plan.version)
    key = stored_key(plan)

    def apply(batch: Batch) -> None:
        name = entity_names.EntityNameKey(plan.kind.value, plan.project, plan.domain, plan.name)
        entity_names.name_lock(batch.tx, name)
        row = store.entity_get(batch.tx, key)
        if row is None:
            raise missing_entity(plan)
        _set_schedule(batch, actor, row, is_active=is_active)
        if bool(row.is_active) == is_active:
            return
        store.entity_set_active(batch.tx, key, is_active=is_active, at_us=batch.now_us)
        action = "launch_plan.activate" if is_active else "launch_plan.deactivate"
        record_audit(batch, context, actor, action, str(plan))

    context.committer.call(apply)


def _set_schedule(batch: Batch, actor: Actor, row: store.EntityRow, *, is_active: bool) -> None:
    """The executions of a schedule belong to the user who made the launch plan active."""
    current = schedules.schedule_get(batch.tx, row.project, row.domain, row.name)
    is_own = current is not None and current.version == row.version
    if is_active and row.schedule_type != NO_SCHEDULE:
        new = schedules.ScheduleRow(
            *(row.project, row.domain, row.name, row.version, actor.name, actor.id),
            since_us=batch.now_us,
            last_us=None,
            next_us=schedules.COMPUTE,
            error="",
        )
        schedules.schedule_put(batch.tx, new)
    elif is_active or is_own:
        schedules.schedule_delete(batch.tx, row.project, row.domain, row.name)


def get_name(context: Context, actor: Actor, key: entity_names.EntityNameKey) -> entity_names.EntityNameRow:
    require_read(actor, key.project, key.domain)
    _refuse_nul(key.name)
    with context.database.read() as tx:
        row = entity_names.name_get(tx, key)
    if row is None:
        raise _missing_name(key)
    return row


def list_names(context: Context, actor: Actor, query: NameQuery) -> tuple[list[entity_names.EntityNameRow], str]:
    """The names of a kind, and the token of the next page."""
    require_read(actor, query.project, query.domain)
    limit = min(query.limit, PAGE_ROWS_MAX)
    with context.database.read() as tx:
        rows = entity_names.name_list(
            tx,
            kind=query.kind.value,
            project=query.project,
            domain=query.domain,
            filters=query.filters,
            order=query.order or BY_NAME,
            offset=query.offset,
            limit=limit,
        )
    return rows, str(query.offset + len(rows)) if len(rows) == limit else ""


def change_name(
    context: Context, actor: Actor, key: entity_names.EntityNameKey, *, description: str, state: int
) -> None:
    """Replace the description and the state of a name."""
    require_write(context, actor, key.project, key.domain)
    _refuse_nul(key.name, description)
    if state not in STATES:
        raise BadRequest(f"{state} is no state of a named entity")
    if len(description) > DESCRIPTION_CHARS_MAX:
        raise BadRequest(f"the description has more than {DESCRIPTION_CHARS_MAX} characters")

    def apply(batch: Batch) -> None:
        row = entity_names.name_lock(batch.tx, key)
        if row is None:
            raise _missing_name(key)
        change = entity_names.EntityNameUpdate(name_description=description, name_state=state)
        entity_names.name_change(batch.tx, key, change)
        before = {"description": row.name_description, "state": row.name_state}
        after = {"description": description, "state": state}
        what = f"{key.kind}:{key.project}:{key.domain}:{key.name}"
        record_audit(batch, context, actor, f"{key.kind}.name", what, before=before, after=after)

    context.committer.call(apply)


def _missing_name(key: entity_names.EntityNameKey) -> NotFound:
    kind = EntityKind(key.kind).name
    return NotFound(
        f"missing entity of type {kind} with identifier {key.project[:80]}:{key.domain[:80]}:{key.name[:256]}"
    )


def _refuse_nul(*texts: str) -> None:
    if any("\0" in text for text in texts):
        raise BadRequest("a text has a NUL character")
