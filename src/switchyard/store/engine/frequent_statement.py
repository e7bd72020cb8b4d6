"""Statements that run many times a second, straight on SQLite's driver.

SQLAlchemy takes several times as long for the execution of a small statement as SQLite itself. So a frequent statement
is compiled once, and the driver runs its text. On PostgreSQL, where the round trip costs most, SQLAlchemy runs it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import sqlalchemy as sa
from msgspec.structs import fields
from sqlalchemy.exc import DBAPIError

from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import R, StoredRow, fetch_all

LIST_MAX = 16  # values of an IN; a longer list is rare, and SQLAlchemy runs it

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _DriverText:
    """The text for SQLite's driver. For each `?`: the name of its value, its place in a list, and a constant."""

    sql: str
    marks: tuple[tuple[str, int | None, object], ...]

    def bind(self, values: Values) -> list[object]:
        return [
            constant if not name else values[name] if place is None else values[name][place]
            for name, place, constant in self.marks
        ]


class FrequentStatement:
    """A statement of SQLAlchemy, built once. Its parameters are named; one in an IN is `expanding`."""

    def __init__(self, statement: sa.Executable) -> None:
        self.statement = statement
        self._texts: dict[tuple[int, ...], _DriverText] = {}  # by the lengths of its lists

    def rows(self, tx: Tx, values: Values) -> Sequence[Sequence[Any]]:
        """Run the statement. Returns its rows, without conversion of types: SQLite has numbers for booleans."""
        text = self._text(tx, values)
        if text is None:
            return tx.execute(self.statement, values).all()
        return _sqlite_rows(tx, text.sql, text.bind(values))

    def fetch_all(self, tx: Tx, row_type: type[R], values: Values) -> list[R]:
        text = self._text(tx, values)
        if text is None:
            return fetch_all(tx, row_type, self.statement, values)
        return _rows_of_type(row_type, _sqlite_rows(tx, text.sql, text.bind(values)))

    def run(self, tx: Tx, rows: Sequence[Values]) -> None:
        """Run the statement once for each of `rows`, which have lists of the same lengths."""
        if not rows:
            return
        text = self._text(tx, rows[0])
        if text is None:
            tx.execute(self.statement, rows if len(rows) > 1 else rows[0])
        else:
            _sqlite_run(tx, text.sql, [text.bind(values) for values in rows])

    def _text(self, tx: Tx, values: Values) -> _DriverText | None:
        """Return the text for the driver. None: SQLAlchemy has to run the statement."""
        if not is_direct(tx):
            return None
        lengths = tuple(len(value) for value in values.values() if isinstance(value, list))
        text = self._texts.get(lengths)
        if text is None:
            if lengths and max(lengths) > LIST_MAX:
                return None
            text = self._texts[lengths] = _compile(tx, self.statement, values)
        return text


def is_direct(tx: Tx) -> bool:
    """Whether a statement may go straight to the driver: SQLite, in a transaction, and nobody listens to SQLAlchemy."""
    if tx.dialect.name != "sqlite" or not tx.in_transaction():
        return False
    events = tx.dispatch
    return not (events.before_cursor_execute or events.after_cursor_execute)


def driver_fetch_all(tx: Tx, row_type: type[R], sql: str, values: Sequence[object]) -> list[R]:
    """Run a query in the words of the driver, with a mark for each value."""
    if is_direct(tx):
        return _rows_of_type(row_type, _sqlite_rows(tx, sql, values))
    return [row_type(*row) for row in tx.exec_driver_sql(sql, tuple(values)).all()]


def driver_run(tx: Tx, sql: str, rows: list[tuple[Any, ...]]) -> None:
    """Run a statement in the words of the driver, once for each row of values."""
    if is_direct(tx):
        _sqlite_run(tx, sql, rows)
    else:
        tx.exec_driver_sql(sql, rows)


def _sqlite_rows(tx: Tx, sql: str, values: Sequence[object]) -> list[Any]:
    try:
        return _connection(tx).execute(sql, values).fetchall()
    except sqlite3.Error as exc:
        raise _as_sqlalchemy(exc, sql, values) from exc


def _sqlite_run(tx: Tx, sql: str, rows: Sequence[Sequence[object]]) -> None:
    connection = _connection(tx)
    try:
        if len(rows) == 1:
            connection.execute(sql, rows[0])
        else:
            connection.executemany(sql, rows)
    except sqlite3.Error as exc:
        raise _as_sqlalchemy(exc, sql, rows[0]) from exc


def _rows_of_type(row_type: type[R], rows: Sequence[Sequence[Any]]) -> list[R]:
    """Build rows from those of the driver. SQLite has numbers for booleans."""
    places = _bool_places(row_type)
    if not places:
        return [row_type(*row) for row in rows]
    built: list[R] = []
    for row in rows:
        values = list(row)
        for place in places:
            if values[place] is not None:
                values[place] = bool(values[place])
        built.append(row_type(*values))
    return built


@cache
def _bool_places(row_type: type[StoredRow]) -> tuple[int, ...]:
    return tuple(place for place, item in enumerate(fields(row_type)) if item.type in (bool, bool | None))


def _connection(tx: Tx) -> sqlite3.Connection:
    return cast(sqlite3.Connection, tx.connection.dbapi_connection)


def _compile(tx: Tx, statement: sa.Executable, values: Values) -> _DriverText:
    """Compile a statement for lists of the same lengths as in `values`."""
    assert isinstance(statement, sa.ClauseElement)
    compiled = statement.compile(dialect=tx.dialect)
    assert isinstance(compiled, sa.sql.compiler.SQLCompiler)
    expanded = compiled.construct_expanded_state(dict(values))
    assert expanded.positiontup is not None, "SQLite's parameters are positional"
    places = {
        mark: (name, place) for name, marks in expanded.parameter_expansion.items() for place, mark in enumerate(marks)
    }
    marks: list[tuple[str, int | None, object]] = []
    for mark in expanded.positiontup:
        if mark in places:
            marks.append((*places[mark], None))
        elif mark in values:
            marks.append((mark, None, None))
        else:
            marks.append(("", None, expanded.parameters[mark]))
    return _DriverText(expanded.statement, tuple(marks))


def _as_sqlalchemy(exc: sqlite3.Error, sql: str, values: Sequence[object]) -> BaseException:
    """Return the error that SQLAlchemy would raise."""
    return DBAPIError.instance(sql, tuple(values), exc, sqlite3.Error, hide_parameters=True)
