"""Filters of lists of entities as SQL. The same values pass on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from switchyard.features.flyte.store.tables.entities_tables import entities, entity_names
from switchyard.features.flyte.workflow.lists.list_query import ListFilter
from switchyard.store.engine import dialect
from switchyard.store.engine.database import Tx

COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": lambda column, value: column == value,
    "ne": lambda column, value: column != value,
    "gt": lambda column, value: column > value,
    "gte": lambda column, value: column >= value,
    "lt": lambda column, value: column < value,
    "lte": lambda column, value: column <= value,
}


def list_column(name: str) -> sa.ColumnElement[Any]:
    """The column of this name. Names come from the grammar's tables, never from a request."""
    if name == "state":
        return sa.case((entities.c.is_active, 1), else_=0)
    return entity_names.c[name] if name in ("name_state", "name_description") else entities.c[name]


def condition(tx: Tx, one: ListFilter, column_of: Callable[[str], Any] = list_column) -> sa.ColumnElement[bool]:
    column, value = column_of(one.column), one.values[0]
    made: sa.ColumnElement[bool]
    if one.function in COMPARE:
        made = COMPARE[one.function](column, value)
    elif one.function == "contains":
        position = sa.func.strpos if dialect.is_postgresql(tx) else sa.func.instr
        made = position(column, value) > 0
    elif one.function == "not_like":
        made = sa.not_(_like(tx, column, str(value)))
    elif one.function == "value_in":
        made = column.in_(one.values)
    else:
        assert one.function == "value_not_in"
        made = column.not_in(one.values)
    return made


def _like(tx: Tx, column: Any, pattern: str) -> sa.ColumnElement[bool]:
    """LIKE with upper and lower case told apart: % is any text, _ any character, everything else is itself."""
    made: sa.ColumnElement[bool]
    if dialect.is_postgresql(tx):
        made = column.like(pattern.replace("\\", "\\\\"))
    else:  # SQLite's LIKE is blind to case, its GLOB is not
        glob = "".join(f"[{char}]" if char in "*?[" else {"%": "*", "_": "?"}.get(char, char) for char in pattern)
        made = column.op("GLOB", is_comparison=True)(glob)
    return made
