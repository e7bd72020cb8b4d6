"""What differs between SQLite and PostgreSQL and is not worth a branch in a query: upsert, row locks, notify."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from typing import Any

import sqlalchemy as sa

from switchyard.store.database import Tx

CHANNEL = "switchyard"
NOTIFY_BYTES_MAX = 7000  # PostgreSQL takes 8,000


def is_postgresql(tx: Tx) -> bool:
    return tx.dialect.name == "postgresql"


def insert_statement(tx: Tx, table: sa.Table) -> Any:
    """An INSERT that has `on_conflict_do_nothing` and `on_conflict_do_update` on both."""
    return _insert_statement(tx.dialect.name, table)


def insert_missing(tx: Tx, table: sa.Table, rows: list[dict[str, Any]]) -> None:
    """Insert what is not there yet; what is there stays as it is."""
    if rows:
        tx.execute(_insert_missing_statement(tx.dialect.name, table), rows)


@cache
def _insert_missing_statement(dialect: str, table: sa.Table) -> Any:
    return _insert_statement(dialect, table).on_conflict_do_nothing()


def _insert_statement(dialect: str, table: sa.Table) -> Any:
    if dialect == "postgresql":  # imported where it is used: a server on SQLite starts without it
        from sqlalchemy.dialects.postgresql import insert as postgresql_insert

        return postgresql_insert(table)
    from sqlalchemy.dialects.sqlite import insert as sqlite_insert

    return sqlite_insert(table)


def lock_names(tx: Tx, names: Sequence[str]) -> None:
    """Until the commit nobody else holds these names. Always in one order; SQLite has one writer as it is."""
    if is_postgresql(tx) and names:
        keys = sorted({int.from_bytes(sha256(name.encode()).digest()[:8], signed=True) for name in names})
        tx.execute(_LOCK, {"keys": keys}).all()


_LOCK = sa.text("SELECT pg_advisory_xact_lock(key) FROM unnest(CAST(:keys AS bigint[])) AS key")


def notify(tx: Tx, payload: str) -> None:
    """Wake the other replicas when this transaction commits. SQLite has no others."""
    if is_postgresql(tx):
        text = payload if len(payload) <= NOTIFY_BYTES_MAX else "*"
        tx.execute(sa.select(sa.func.pg_notify(CHANNEL, text)))
