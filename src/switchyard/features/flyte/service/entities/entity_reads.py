"""Read and list registered entities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from flyteidl.core import compiler_pb2, tasks_pb2

from switchyard.errors import BadRequest, NotFound
from switchyard.features.flyte.service.entities.known_signatures import closure_tasks
from switchyard.features.flyte.service.entities.scope import missing_entity, require_read, stored_key
from switchyard.features.flyte.store.entities import entities as store
from switchyard.features.flyte.workflow.compile.entity_id import EntityId, EntityKind, to_message
from switchyard.features.flyte.workflow.lists.list_query import ListFilter, ListOrder
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.store.engine.database import Tx

PAGE_ROWS_MAX = 1000  # a larger page ends there, with a token for the rest
PAGE_BYTES_MAX = 3 * 2**20  # of the contents on a page: gRPC clients take 4 MiB unless told otherwise
NEWEST_FIRST = ListOrder("created_us", is_descending=True)


@dataclass(frozen=True, slots=True)
class StoredEntity:
    """A registered entity. `body`: its content without its id; empty where a list leaves it out."""

    row: store.EntityRow
    body: bytes

    @property
    def id(self) -> EntityId:
        row = self.row
        return EntityId(EntityKind(row.kind), row.project, row.domain, row.name, row.version)


@dataclass(frozen=True, slots=True)
class EntityQuery:
    """What a list asks for. `name` empty: all names."""

    kind: EntityKind
    project: str
    domain: str
    name: str = ""
    only_active: bool = False
    filters: Sequence[ListFilter] = ()
    order: ListOrder | None = None
    offset: int = 0
    limit: int = 100


@dataclass(frozen=True, slots=True)
class EntityPage:
    """`token`: where the next page begins. It is set if this page is full, even if nothing follows, as in Flyte."""

    items: list[StoredEntity]
    token: str


def get_entity(context: Context, actor: Actor, entity: EntityId) -> StoredEntity:
    _require_id(entity)
    require_read(actor, entity.project, entity.domain)
    with context.database.read() as tx:
        row = store.entity_get(tx, stored_key(entity))
        if row is None:
            raise missing_entity(entity)
        return StoredEntity(row, _body(tx, row))


def get_active(context: Context, actor: Actor, project: str, domain: str, name: str) -> StoredEntity:
    """The active version of a launch plan."""
    entity = EntityId(EntityKind.LAUNCH_PLAN, project, domain, name, "")
    _require_id(entity, needs_version=False)
    require_read(actor, project, domain)
    with context.database.read() as tx:
        row = store.entity_active(tx, stored_key(entity))
        if row is None:
            raise NotFound(
                f"No active launch plan could be found: {project[:80]}:{domain[:80]}:{name[:256]}",
                next_step="UpdateLaunchPlan makes a version active (`pyflyte launchplan --activate`).",
            )
        return StoredEntity(row, _body(tx, row))


def get_workflow_closure(context: Context, entity: StoredEntity) -> Any:
    """The compiled workflow with all its tasks, as clients need it. The caller has read `entity` with its rights."""
    closure = compiler_pb2.CompiledWorkflowClosure.FromString(entity.body)
    closure.primary.template.id.CopyFrom(to_message(entity.id))
    tasks = closure_tasks(closure)
    with context.database.read() as tx:
        rows = store.entity_get_many(tx, {stored_key(task) for task in tasks})
        bodies = store.content_bodies(tx, {bytes(row.digest) for row in rows})
    digests = {row.key: bytes(row.digest) for row in rows}
    for task, compiled in zip(tasks, closure.tasks, strict=True):
        compiled.template.CopyFrom(read_task(bodies[digests[stored_key(task)]], task))
    return closure


def read_task(body: bytes, task: EntityId) -> Any:
    """The template of a task from its content."""
    template = tasks_pb2.TaskTemplate.FromString(body)
    template.id.CopyFrom(to_message(task))
    return template


def list_entities(context: Context, actor: Actor, query: EntityQuery, *, with_content: bool) -> EntityPage:
    require_read(actor, query.project, query.domain)
    limit = min(query.limit, PAGE_ROWS_MAX)
    if "\0" in query.name:
        raise BadRequest("the name has a NUL character")
    with context.database.read() as tx:
        rows = store.entity_list(
            tx,
            kind=query.kind.value,
            project=query.project,
            domain=query.domain,
            name=query.name,
            only_active=query.only_active,
            filters=query.filters,
            order=query.order or NEWEST_FIRST,
            offset=query.offset,
            limit=limit,
        )
        is_full = len(rows) == limit
        shown = rows[: _rows_within(rows, with_content=with_content)]
        bodies = store.content_bodies(tx, {bytes(row.digest) for row in shown}) if with_content else {}
    items = [StoredEntity(row, bodies.get(bytes(row.digest), b"")) for row in shown]
    has_more = is_full or len(shown) < len(rows)
    return EntityPage(items, str(query.offset + len(shown)) if has_more else "")


def _rows_within(rows: Sequence[store.EntityRow], *, with_content: bool) -> int:
    """How many of the first rows fit on a page. At least one."""
    sizes = accumulate(len(row.signature) + (row.size if with_content else 0) for row in rows)
    return max(1, sum(total <= PAGE_BYTES_MAX for total in sizes))


def _body(tx: Tx, row: store.EntityRow) -> bytes:
    return store.content_bodies(tx, [bytes(row.digest)])[bytes(row.digest)]


def _require_id(entity: EntityId, *, needs_version: bool = True) -> None:
    words = ("project", "domain", "name", "version") if needs_version else ("project", "domain", "name")
    for word in words:
        value: str = getattr(entity, word)
        if not value:
            raise BadRequest(f"missing {word}")
        if "\0" in value:
            raise BadRequest(f"the {word} has a NUL character")
