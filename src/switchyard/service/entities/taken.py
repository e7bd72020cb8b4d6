"""The refusal of an entity that is registered already: with the same content, or with another one."""

from __future__ import annotations

from typing import Any

from switchyard.errors import BadRequest, NameTaken
from switchyard.service.core.context import Context
from switchyard.service.entities.scope import stored_key
from switchyard.store.entities import entities as store
from switchyard.workflow.compile.difference import describe_difference
from switchyard.workflow.compile.entity_id import EntityId
from switchyard.workflow.values.content import is_same


def refuse_taken(context: Context, entity: EntityId, kind: type[Any], digest: bytes, body: bytes) -> None:
    """Raise if the entity is registered. Takes long for large ones: never call it in the committer."""
    with context.database.read() as tx:
        row = store.entity_get(tx, stored_key(entity))
        if row is None:
            return
        stored = body if row.digest == digest else store.content_bodies(tx, [row.digest])[bytes(row.digest)]
    if is_same(kind, stored, body):
        raise NameTaken(
            f"{entity.kind.words} with identical structure already exists with id {entity}",
            next_step="Nothing is left to do: it is registered.",
        )
    difference = describe_difference(kind.FromString(stored), kind.FromString(body))
    raise BadRequest(
        f"{entity.kind.words} with different structure already exists with id {entity}; its difference: {difference}",
        next_step="Register it under another version.",
    )
