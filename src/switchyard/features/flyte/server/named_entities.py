"""Flyte's calls about names of entities: lists of them, and the description and state that all versions share."""

from __future__ import annotations

from typing import Any

from flyteidl.admin import common_pb2

from switchyard.features.flyte.server.grpc_status import FlyteInvalid
from switchyard.features.flyte.service.entities import entity_changes
from switchyard.features.flyte.service.entities.entity_changes import NameQuery
from switchyard.features.flyte.store.entities.entity_names import EntityNameKey, EntityNameRow
from switchyard.features.flyte.workflow.compile.entity_id import KINDS_BY_NUMBER, EntityKind
from switchyard.features.flyte.workflow.lists.filters import NAME_COLUMNS, read_filters, read_order, read_page
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor

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
