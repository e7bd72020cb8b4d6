"""Queries about the names of entities: one row for all versions of a name."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from msgspec import UNSET, UnsetType

from switchyard.features.flyte.store.entities.entity_filters import condition
from switchyard.features.flyte.store.tables.entities_tables import entity_names
from switchyard.features.flyte.workflow.lists.list_query import ListFilter, ListOrder
from switchyard.store.engine.column_update import ColumnUpdate
from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, columns_of, fetch_all, fetch_one


class EntityNameKey(StoredRow, frozen=True):
    kind: str
    project: str
    domain: str
    name: str


class EntityNameRow(EntityNameKey, frozen=True):
    """`name_state`: Flyte's number: active, archived, system-generated."""

    name_description: str
    name_state: int


class EntityNameUpdate(ColumnUpdate, frozen=True, kw_only=True):
    name_description: str | UnsetType = UNSET
    name_state: int | UnsetType = UNSET


def name_get(tx: Tx, key: EntityNameKey) -> EntityNameRow | None:
    return fetch_one(tx, EntityNameRow, sa.select(*columns_of(EntityNameRow, entity_names)).where(*_is(key)))


def name_lock(tx: Tx, key: EntityNameKey) -> EntityNameRow | None:
    """Return a name, locked until the commit."""
    query = sa.select(*columns_of(EntityNameRow, entity_names)).where(*_is(key)).with_for_update()
    return fetch_one(tx, EntityNameRow, query)


def name_change(tx: Tx, key: EntityNameKey, change: EntityNameUpdate) -> None:
    tx.execute(sa.update(entity_names).where(*_is(key)).values(change.columns()))


def name_list(
    tx: Tx,
    *,
    kind: str,
    project: str,
    domain: str,
    filters: Sequence[ListFilter],
    order: ListOrder,
    offset: int,
    limit: int,
) -> list[EntityNameRow]:
    query = sa.select(*columns_of(EntityNameRow, entity_names)).where(
        entity_names.c.kind == kind, entity_names.c.project == project, entity_names.c.domain == domain
    )
    query = query.where(*(condition(tx, one, entity_names.c.__getitem__) for one in filters))
    column = entity_names.c[order.column]
    by = [column.desc() if order.is_descending else column.asc(), entity_names.c.name]
    return fetch_all(tx, EntityNameRow, query.order_by(*by).offset(offset).limit(limit))


def _is(key: EntityNameKey) -> list[sa.ColumnElement[bool]]:
    return [entity_names.c[word] == getattr(key, word) for word in EntityNameKey.__struct_fields__]
