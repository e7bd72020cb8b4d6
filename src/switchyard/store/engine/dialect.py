"""Functions that hide differences between SQLite and PostgreSQL: upsert, advisory locks, notify."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from typing import Any

import sqlalchemy as sa

from switchyard.store.engine.database import Tx

CHANNEL = "switchyard"
NOTIFY_BYTES_MAX = 7000  # PostgreSQL takes 8,000


def is_postgresql(tx: Tx) -> bool:
    return tx.dialect.name == "postgresql"


def rows_by_index(tx: Tx, table: str, index: str) -> sa.TextClause:
    """Name a table to select from, read by this index on SQLite, which has no statistics and may take a longer one."""
    return sa.text(table if is_postgresql(tx) else f"{table} INDEXED BY {index}")


def insert_statement(tx: Tx, table: sa.Table) -> Any:
    """Return an INSERT that has `on_conflict_do_nothing` and `on_conflict_do_update` on both databases."""
    return insert_for(tx.dialect.name, table)


def insert_missing(tx: Tx, table: sa.Table, rows: Sequence[Mapping[str, object]]) -> None:
    """Insert rows whose key is not stored yet. Stored rows stay as they are."""
    if rows:
        tx.execute(_insert_missing_statement(tx.dialect.name, table), rows)


@cache
def _insert_missing_statement(dialect: str, table: sa.Table) -> Any:
    return insert_for(dialect, table).on_conflict_do_nothing()


def insert_for(dialect: str, table: sa.Table) -> Any:
    if dialect == "postgresql":  # imported here, so that a server on SQLite starts without it
        from sqlalchemy.dialects.postgresql import insert as postgresql_insert

        return postgresql_insert(table)
    from sqlalchemy.dialects.sqlite import insert as sqlite_insert

    return sqlite_insert(table)


def insert_sql(tx: Tx, table: str, columns: tuple[str, ...]) -> str:
    """Return an INSERT of tuples for `exec_driver_sql`, which costs less than an INSERT by SQLAlchemy."""
    return _insert_sql(table, columns, "%s" if is_postgresql(tx) else "?")


@cache
def _insert_sql(table: str, columns: tuple[str, ...], mark: str) -> str:
    return f"{insert_into(table, columns)} VALUES ({', '.join(mark for _ in columns)})"


def insert_into(table: str, columns: tuple[str, ...]) -> str:
    return f'INSERT INTO {table} ("' + '", "'.join(columns) + '")'  # `array` is a reserved word of PostgreSQL


def lock_names(tx: Tx, names: Sequence[str]) -> None:
    """Lock names until the commit, always in the same order. SQLite needs no lock: it has one writer."""
    if is_postgresql(tx) and names:
        keys = sorted({int.from_bytes(sha256(name.encode()).digest()[:8], signed=True) for name in names})
        tx.execute(_LOCK, {"keys": keys}).all()


_LOCK = sa.text("SELECT pg_advisory_xact_lock(key) FROM unnest(CAST(:keys AS bigint[])) AS key")


def notify(tx: Tx, payload: str) -> None:
    """Wake the other servers when this transaction commits. On SQLite there are none."""
    if is_postgresql(tx):
        tx.exec_driver_sql("SELECT pg_notify(%s, %s)", notice_values(payload))


def notice_values(payload: str) -> tuple[str, str]:
    """Return channel and text for PostgreSQL's `pg_notify`. A text that is too long becomes `*`: anything changed."""
    return CHANNEL, payload if len(payload) <= NOTIFY_BYTES_MAX else "*"
