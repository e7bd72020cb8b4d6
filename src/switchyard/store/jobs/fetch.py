"""Rows as frozen types: one type for the columns of each query.

The fields of a type are the columns of its SELECT, equal in name and in order, because rows are built by position. That
costs less than reading a few columns of an SQLAlchemy row by name. Values are not checked: SQLite may return text where
a number belongs, and a damaged row must still load. `store/jobs/job_columns.py` finds such values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import sqlalchemy as sa
from msgspec import Struct

from switchyard.store.engine.database import Tx


class StoredRow(Struct, frozen=True, gc=False):
    """Base of all row types. `gc=False`: the values are text, numbers, bytes or None and hold no other objects."""


R = TypeVar("R", bound=StoredRow)


def fetch_all(tx: Tx, row_type: type[R], query: sa.Executable, values: Mapping[str, object] | None = None) -> list[R]:
    return [row_type(*row) for row in tx.execute(query, values).all()]


def fetch_one(tx: Tx, row_type: type[R], query: sa.Executable, values: Mapping[str, object] | None = None) -> R | None:
    """Return the only row, or None. A query with more than one row is an error."""
    row = tx.execute(query, values).one_or_none()
    return None if row is None else row_type(*row)


def columns_of(row_type: type[StoredRow], table: sa.FromClause, **others: Any) -> list[sa.ColumnElement[Any]]:
    """Return the columns to select for a row type: those of `table`, and `others`, each under the name of its field."""
    return [others[name].label(name) if name in others else table.c[name] for name in row_type.__struct_fields__]
