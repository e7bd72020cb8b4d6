"""Queries about attributes: rows by kind and scope."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from msgspec.structs import asdict

from switchyard.model.rules.scope import ScopeKey
from switchyard.store.engine import dialect
from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, fetch_all, fetch_one
from switchyard.store.tables.rules_tables import attributes
from switchyard.store.tables.schema import counters

_SCOPE = (attributes.c.domain, attributes.c.project, attributes.c.workflow, attributes.c.launch_plan)
_SCOPE_NAMES = ("domain", "project", "workflow", "launch_plan")


class StoredAttribute(StoredRow, frozen=True):
    """The value of one kind at one scope. No value: it was deleted."""

    id: str
    kind: str
    domain: str
    project: str
    workflow: str
    launch_plan: str
    rank: int
    value: str | None
    etag: str
    serial: int
    changed_us: int
    changed_by: str


class WrittenValue(StoredRow, frozen=True):
    """A value to store at a scope. `id`: for a new row; a stored row keeps its own."""

    id: str
    rank: int
    value: str | None
    etag: str
    changed_us: int
    changed_by: str


class AttributeWithValue(StoredAttribute, frozen=True):
    """A row that is not deleted."""

    value: str


def attribute_get(tx: Tx, kind: str, key: ScopeKey) -> AttributeWithValue | None:
    """Return the row exactly at a scope."""
    query = sa.select(attributes).where(attributes.c.kind == kind, *_is_at(key), attributes.c.value.is_not(None))
    return fetch_one(tx, AttributeWithValue, query)


def attribute_nearest(tx: Tx, kind: str, key: ScopeKey) -> AttributeWithValue | None:
    """Return the most specific row that applies to a scope."""
    # A condition per column, in the order of the index: for a list of whole scopes SQLite reads every row.
    within = [column.in_(sorted({"", part})) for column, part in zip(_SCOPE, key, strict=True)]
    query = sa.select(attributes).where(attributes.c.kind == kind, *within, attributes.c.value.is_not(None))
    return fetch_one(tx, AttributeWithValue, query.order_by(attributes.c.rank.desc()).limit(1))


def attribute_list(
    tx: Tx,
    kind: str,
    *,
    wanted: dict[str, str],
    rank: int | None,
    projects: Sequence[str] | None,
    after: tuple[int, str],
    limit: int,
) -> list[AttributeWithValue]:
    """List rows, the most specific first, then oldest first. `projects`: those the reader may view; None: all."""
    last_rank, last_id = after
    is_later = sa.or_(attributes.c.rank < last_rank, sa.and_(attributes.c.rank == last_rank, attributes.c.id > last_id))
    query = sa.select(attributes).where(attributes.c.kind == kind, attributes.c.value.is_not(None), is_later)
    for name, text in wanted.items():
        query = query.where(attributes.c[name] == text)
    if rank is not None:
        query = query.where(attributes.c.rank == rank)
    if projects is not None:
        query = query.where(sa.or_(attributes.c.project == "", attributes.c.project.in_(projects)))
    return fetch_all(tx, AttributeWithValue, query.order_by(attributes.c.rank.desc(), attributes.c.id).limit(limit))


def attribute_put(tx: Tx, kind: str, key: ScopeKey, written: WrittenValue) -> StoredAttribute:
    """Insert or replace a row; its id stays. Without a value it is deleted and stays so that other servers see that.

    The serial is the version of the policy, which the caller has just raised.
    """
    serial = sa.select(counters.c.value).where(counters.c.name == "policy").scalar_subquery()
    at = {"kind": kind, **dict(zip(_SCOPE_NAMES, key, strict=True))}
    columns = asdict(written) | {"serial": serial}
    changes = {name: value for name, value in columns.items() if name != "id"}
    new = dialect.insert_statement(tx, attributes).values(**at, **columns)
    put = new.on_conflict_do_update(index_elements=list(at), set_=changes).returning(*attributes.c)
    return StoredAttribute(*tx.execute(put).one())


def attribute_count(tx: Tx) -> int:
    return tx.execute(sa.select(sa.func.count()).where(attributes.c.value.is_not(None))).scalar_one()


def attribute_values(tx: Tx, kind: str) -> list[str]:
    """Return the values of all rows of a kind."""
    query = sa.select(attributes.c.value).where(attributes.c.kind == kind, attributes.c.value.is_not(None))
    return list(tx.execute(query).scalars())


def attribute_list_since(tx: Tx, serial: int) -> list[StoredAttribute]:
    """List every row written after a version of the policy, deleted rows too."""
    return fetch_all(tx, StoredAttribute, sa.select(attributes).where(attributes.c.serial > serial))


def attribute_clean(tx: Tx, *, before_us: int, limit: int) -> int:
    """Remove rows that were deleted long ago. Every server has read that they are deleted."""
    old = sa.select(attributes.c.id).where(attributes.c.value.is_(None), attributes.c.changed_us < before_us)
    ids = list(tx.execute(old.limit(limit)).scalars())
    return tx.execute(sa.delete(attributes).where(attributes.c.id.in_(ids))).rowcount if ids else 0


def _is_at(key: ScopeKey) -> list[sa.ColumnElement[bool]]:
    return [column == part for column, part in zip(_SCOPE, key, strict=True)]
