"""Pages that are bounded in bytes: the sizes of rows are read first, and then the rows that fit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

NOTHING = sa.literal(b"")


def size_of(*columns: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """The bytes in these columns together."""
    total: sa.ColumnElement[Any] = sa.literal(0)
    for column in columns:
        total = total + sa.func.coalesce(sa.func.length(column), 0)
    return total


def without_content(column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Nothing in place of what the column holds; NULL stays NULL."""
    return sa.case((column.is_not(None), NOTHING))


def keys_within(sizes: Iterable[Any], bytes_max: int) -> list[str]:
    """The first of these keys, each with the size of its row, that fit together. At least one."""
    keys, total = list[str](), 0
    for key, size in sizes:
        total += size
        if keys and total > bytes_max:
            break
        keys.append(key)
    return keys
