"""Queries about attributes: rows by kind and scope."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from switchyard.model.scope import ScopeKey
from switchyard.store import dialect
from switchyard.store.database import Tx
from switchyard.store.schema import attributes, counters

Row = sa.Row[*tuple[Any, ...]]

_SCOPE = (attributes.c.domain, attributes.c.project, attributes.c.workflow, attributes.c.launch_plan)
_SCOPE_NAMES = ("domain", "project", "workflow", "launch_plan")


def attribute_get(tx: Tx, kind: str, key: ScopeKey) -> Row | None:
    """The row exactly at a scope."""
    query = sa.select(attributes).where(attributes.c.kind == kind, *_is_at(key), attributes.c.value.is_not(None))
    return tx.execute(query).one_or_none()


def attribute_nearest(tx: Tx, kind: str, key: ScopeKey) -> Row | None:
    """The most specific row that holds at a scope."""
    # A list per column, as the index has them: SQLite reads every row for a list of whole scopes.
    within = [column.in_(sorted({"", part})) for column, part in zip(_SCOPE, key, strict=True)]
    query = sa.select(attributes).where(attributes.c.kind == kind, *within, attributes.c.value.is_not(None))
    return tx.execute(query.order_by(attributes.c.rank.desc()).limit(1)).one_or_none()


def attribute_list(
    tx: Tx,
    kind: str,
    *,
    wanted: dict[str, str],
    rank: int | None,
    projects: Sequence[str] | None,
    after: tuple[int, str],
    limit: int,
) -> list[Row]:
    """The most specific first, then in the order they were made. `projects`: those one may view; none: all."""
    last_rank, last_id = after
    later = sa.or_(attributes.c.rank < last_rank, sa.and_(attributes.c.rank == last_rank, attributes.c.id > last_id))
    query = sa.select(attributes).where(attributes.c.kind == kind, attributes.c.value.is_not(None), later)
    for name, text in wanted.items():
        query = query.where(attributes.c[name] == text)
    if rank is not None:
        query = query.where(attributes.c.rank == rank)
    if projects is not None:
        query = query.where(sa.or_(attributes.c.project == "", attributes.c.project.in_(projects)))
    return list(tx.execute(query.order_by(attributes.c.rank.desc(), attributes.c.id).limit(limit)))


def attribute_put(tx: Tx, kind: str, key: ScopeKey, columns: dict[str, Any]) -> Row:
    """Create or replace; no value: the row is gone, but for other servers to see that. Its id stays.

    The serial is the policy's version, which the caller has just raised.
    """
    serial = sa.select(counters.c.value).where(counters.c.name == "policy").scalar_subquery()
    at = {"kind": kind, **dict(zip(_SCOPE_NAMES, key, strict=True))}
    changes = {name: value for name, value in columns.items() if name != "id"} | {"serial": serial}
    new = dialect.insert_statement(tx, attributes).values(**at, **columns, serial=serial)
    put = new.on_conflict_do_update(index_elements=list(at), set_=changes).returning(*attributes.c)
    return tx.execute(put).one()


def attribute_count(tx: Tx) -> int:
    return tx.execute(sa.select(sa.func.count()).where(attributes.c.value.is_not(None))).scalar_one()


def attribute_values(tx: Tx, kind: str) -> list[str]:
    """The values of all rows of a kind."""
    query = sa.select(attributes.c.value).where(attributes.c.kind == kind, attributes.c.value.is_not(None))
    return list(tx.execute(query).scalars())


def attribute_list_since(tx: Tx, serial: int) -> list[Row]:
    """Every row written after a version of the policy, deleted ones too; from the very first on: all that there are."""
    return list(tx.execute(sa.select(attributes).where(attributes.c.serial > serial)))


def attribute_clean(tx: Tx, *, before_us: int, limit: int) -> int:
    """Forget rows that were deleted long ago: every server has heard of that."""
    old = sa.select(attributes.c.id).where(attributes.c.value.is_(None), attributes.c.changed_us < before_us)
    gone = list(tx.execute(old.limit(limit)).scalars())
    return tx.execute(sa.delete(attributes).where(attributes.c.id.in_(gone))).rowcount if gone else 0


def _is_at(key: ScopeKey) -> list[sa.ColumnElement[bool]]:
    return [column == part for column, part in zip(_SCOPE, key, strict=True)]
