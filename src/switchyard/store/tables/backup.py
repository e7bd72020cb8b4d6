"""Copy an SQLite database while a server uses it, and refuse a restore while a server uses the database."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from switchyard.errors import Conflict, Malformed, Unavailable
from switchyard.store.engine.database import SQLITE_BUSY_MS, Database
from switchyard.store.jobs.failures import translate_errors
from switchyard.store.tables import restore_recovery


def copy_sqlite(source: Path, target: Path) -> None:
    """Copy a database as of one moment, by SQLite's online backup. A server may write to the source meanwhile."""
    with _readable(source), closing(_open(source)) as here, closing(_open(target)) as there:
        here.execute("PRAGMA query_only = ON")
        here.backup(there)  # in one step: in WAL mode no writer waits for it, and no write restarts it
        there.execute("PRAGMA journal_mode = DELETE")  # leaves one file, without a WAL
    with target.open("rb") as file:
        os.fsync(file.fileno())


def check_sqlite(file: Path) -> None:
    """Refuse a file that is damaged or not an SQLite database."""
    with _readable(file), closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as db:
        result = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if result != "ok":
            raise Malformed(f"{file} is damaged: {result}.", next_step="Take an older backup.")


def need_unused_sqlite(file: Path) -> None:
    """Refuse while any process has the database open. Leaves all data in one file."""
    with _readable(file), closing(_open(file)) as db:
        try:
            # SQLite leaves WAL mode only if no other connection is open.
            mode = db.execute("PRAGMA journal_mode = DELETE").fetchone()[0]
        except sqlite3.OperationalError as exc:
            raise _in_use(str(file)) from exc
        if mode != "delete":
            raise _in_use(str(file))


def need_unused_postgresql(database: Database) -> None:
    """Refuse while a server is connected."""
    from switchyard.store.engine.postgresql_connections import APPLICATION, default_arguments

    activity = sa.table("pg_stat_activity", *map(sa.column, ("pid", "datname", "application_name")))
    query = sa.select(sa.func.count()).where(
        activity.c.datname == sa.func.current_database(),
        activity.c.application_name == APPLICATION,
    )
    engine = sa.create_engine(
        database.url,
        poolclass=NullPool,
        connect_args={**default_arguments(database.url), "application_name": f"{APPLICATION}-db"},
    )
    with translate_errors(), engine.connect() as tx:
        sessions = tx.execute(query).scalar_one()
    engine.dispose()
    if sessions:
        raise _in_use(f"{database.url.host}/{database.url.database}")


def mark_restored(database: Database, *, base: int, wait_us: int) -> None:
    with database.write() as tx:
        restore_recovery.put_restore_mark(tx, base=base, wait_us=wait_us)


def unmark_restored(database: Database) -> None:
    with database.write() as tx:
        restore_recovery.drop_restore_mark(tx)


def _open(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(file, timeout=SQLITE_BUSY_MS / 1000, isolation_level=None)


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as exc:
        if exc.sqlite_errorcode == sqlite3.SQLITE_FULL:  # only the copy is written
            raise Unavailable(
                "Disk full: the copy has no room.", next_step="Make room on its disk, then repeat."
            ) from exc
        if isinstance(exc, sqlite3.OperationalError):
            raise Unavailable(f"{file} cannot be read: {exc}.", next_step="Check the file and the disk.") from exc
        raise Malformed(
            f"{file} is not an SQLite database: {exc}.", next_step="Name a file of `yard db backup`."
        ) from exc


def _in_use(database: str) -> Conflict:
    return Conflict(f"A server is using {database}.", next_step="Stop every server on it, then restore.")
