"""Queries about registered entities and their contents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from msgspec.structs import asdict

from switchyard.features.flyte.store.entities.entity_filters import condition, list_column
from switchyard.features.flyte.store.tables.entities_tables import (
    ACTIVE_ENTITY,
    entities,
    entity_contents,
    entity_names,
    entity_usage,
)
from switchyard.features.flyte.workflow.lists.list_query import ListFilter, ListOrder
from switchyard.store.engine import dialect
from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, columns_of, fetch_all, fetch_one

IDS_PER_QUERY = 500  # SQLite takes 32,766 parameters


class EntityKey(StoredRow, frozen=True, order=True):
    """The primary key."""

    kind: str
    project: str
    domain: str
    name: str
    version: str


class EntityRow(StoredRow, frozen=True):
    """One version of one entity, without its content."""

    kind: str
    project: str
    domain: str
    name: str
    version: str
    digest: bytes
    size: int
    signature: bytes
    type: str
    description: str
    workflow_project: str
    workflow_domain: str
    workflow_name: str
    workflow_version: str
    schedule_type: str
    is_active: bool
    created_us: int
    updated_us: int
    created_by: str

    @property
    def key(self) -> EntityKey:
        return EntityKey(self.kind, self.project, self.domain, self.name, self.version)


class EntityUsageRow(StoredRow, frozen=True):
    """How much a project has registered."""

    project: str
    entities: int
    bytes: int


def content_put(tx: Tx, digest: bytes, body: bytes) -> None:
    dialect.insert_missing(tx, entity_contents, [{"digest": digest, "body": body}])


def content_bodies(tx: Tx, digests: Collection[bytes]) -> dict[bytes, bytes]:
    bodies: dict[bytes, bytes] = {}
    for some in _chunks(sorted(set(digests))):
        query = sa.select(entity_contents.c.digest, entity_contents.c.body).where(entity_contents.c.digest.in_(some))
        bodies |= {bytes(row.digest): bytes(row.body) for row in tx.execute(query)}
    return bodies


def entity_insert(tx: Tx, row: EntityRow) -> bool:
    """Insert a version, and its name if it is the first. Returns False if the version is stored already."""
    insert = dialect.insert_statement(tx, entities).values(**asdict(row))
    # Not by the row count: psycopg returns -1 if nothing was inserted.
    if tx.execute(insert.on_conflict_do_nothing().returning(entities.c.version)).scalar() is None:
        return False
    name = {"kind": row.kind, "project": row.project, "domain": row.domain, "name": row.name}
    dialect.insert_missing(tx, entity_names, [name | {"name_description": "", "name_state": 0}])
    return True


def entity_get(tx: Tx, key: EntityKey) -> EntityRow | None:
    query = sa.select(*columns_of(EntityRow, entities))
    return fetch_one(tx, EntityRow, query.where(*_is(key), entities.c.version == key.version))


def entity_get_many(tx: Tx, keys: Iterable[EntityKey]) -> list[EntityRow]:
    """The stored ones of these entities."""
    groups: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for key in keys:
        groups[key.kind, key.project, key.domain, key.version].append(key.name)
    found: list[EntityRow] = []
    for (kind, project, domain, version), names in sorted(groups.items()):
        for some in _chunks(sorted(names)):
            query = sa.select(*columns_of(EntityRow, entities)).where(
                entities.c.kind == kind,
                entities.c.project == project,
                entities.c.domain == domain,
                entities.c.version == version,
                entities.c.name.in_(some),
            )
            found += fetch_all(tx, EntityRow, query)
    return found


def entity_lock(tx: Tx, key: EntityKey) -> None:
    """Lock a version until the commit. SQLite has one writer, and needs no lock."""
    query = sa.select(entities.c.version).where(*_is(key), entities.c.version == key.version)
    tx.execute(query.with_for_update(key_share=True))


def entity_active(tx: Tx, key: EntityKey) -> EntityRow | None:
    """The active version of a name."""
    query = sa.select(*columns_of(EntityRow, entities))
    return fetch_one(tx, EntityRow, query.where(*_is(key), sa.text(ACTIVE_ENTITY)))


def entity_set_active(tx: Tx, key: EntityKey, *, is_active: bool, at_us: int) -> None:
    """Make a version active in place of the active one, or inactive. The caller has locked the name."""
    others = sa.update(entities).where(*_is(key), sa.text(ACTIVE_ENTITY), entities.c.version != key.version)
    own = sa.update(entities).where(*_is(key), entities.c.version == key.version)
    if is_active:
        tx.execute(others.values(is_active=False, updated_us=at_us))
    tx.execute(own.values(is_active=is_active, updated_us=at_us))


def entity_list(
    tx: Tx,
    *,
    kind: str,
    project: str,
    domain: str,
    name: str,
    only_active: bool,
    filters: Sequence[ListFilter],
    order: ListOrder,
    offset: int,
    limit: int,
) -> list[EntityRow]:
    """List versions. `name` empty: of all names."""
    joined = entities.join(entity_names, sa.and_(*(entities.c[word] == entity_names.c[word] for word in _NAME)))
    query = sa.select(*columns_of(EntityRow, entities)).select_from(joined)
    query = query.where(entities.c.kind == kind, entities.c.project == project, entities.c.domain == domain)
    if name:
        query = query.where(entities.c.name == name)
    if only_active:
        query = query.where(sa.text(f"entities.{ACTIVE_ENTITY}"))
    query = query.where(*(condition(tx, one) for one in filters))
    column = list_column(order.column)
    by = [column.desc() if order.is_descending else column.asc(), entities.c.name, entities.c.version]
    return fetch_all(tx, EntityRow, query.order_by(*by).offset(offset).limit(limit))


def usage_add(tx: Tx, project: str, size: int) -> EntityUsageRow:
    """Count one more entity of a project. Returns what it then has; the row is locked until the commit."""
    new = dialect.insert_statement(tx, entity_usage).values(project=project, entities=1, bytes=size)
    more: dict[str, Any] = {"entities": entity_usage.c.entities + 1, "bytes": entity_usage.c.bytes + size}
    put = new.on_conflict_do_update(index_elements=["project"], set_=more).returning(*entity_usage.c)
    return EntityUsageRow(*tx.execute(put).one())


_NAME = ("kind", "project", "domain", "name")


def _is(key: EntityKey) -> list[sa.ColumnElement[bool]]:
    """All versions of the name."""
    return [entities.c[word] == getattr(key, word) for word in _NAME]


def _chunks(values: Sequence[Any]) -> Iterable[Sequence[Any]]:
    return (values[start : start + IDS_PER_QUERY] for start in range(0, len(values), IDS_PER_QUERY))
