"""Translate the errors of both database drivers into our errors, in one place."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from switchyard.errors import Unavailable

READ_ONLY_STATE = "25006"
READ_ONLY = "The database is read-only: nothing can be changed."
DISK_FULL_STATE = "53100"
DISK_FULL = "Disk full: the database has no room for the change."
DISK_FULL_NEXT_STEP = (
    "The operator makes room on the disk of the database; then send it again. Nothing that was accepted is lost."
)
NOT_A_DATABASE = "The file is no SQLite database, or its head is damaged."
# SQLite also needs room for the memory map beside its file, and calls it an I/O error if there is none.
SQLITE_DISK_FULL_NAMES = ("SQLITE_FULL", "SQLITE_IOERR_SHMSIZE")
# PostgreSQL's codes: https://www.postgresql.org/docs/current/errcodes-appendix.html
UNAVAILABLE_REASONS = {
    READ_ONLY_STATE: READ_ONLY,  # read_only_sql_transaction: also every write on a standby
    "25P03": "The database ended a transaction that was idle for too long.",
    "25P04": "The database ended a transaction that took too long.",
    "53200": "The database has no memory left.",
    "53300": "The database takes no more connections.",
}
# The server is stopping or starting, or ended this session: another connection may work.
SESSION_ENDED_STATES = ("57P01", "57P02", "57P03")
# The statement was cancelled and its transaction undone: nothing of it is in doubt.
CANCELLED_REASONS = {
    "55P03": "Another session of the database holds what this change needs.",  # lock_not_available
    "57014": "The database took too long for this change.",  # query_canceled
}
# class of errors after which the same transaction may be tried again at once: deadlock, lost race
RETRYABLE_CLASS = "40"


class DatabaseDiskError(Unavailable):
    """The disk of the database fails, or is full."""


class ConnectionLost(Unavailable):
    """The database does not answer."""

    is_in_doubt = False  # it was lost during a commit, which may have succeeded


class StatementTimeout(Unavailable):
    """The database took too long for this change, and nothing of it was stored."""


class Contention(Unavailable):
    """Other changes got in the way of this one each time, and nothing of it was stored."""


@contextmanager
def translate_errors() -> Iterator[None]:
    """Turn errors of the connection and of the database's machine into Unavailable. Other errors pass."""
    try:
        yield
    except sa.exc.TimeoutError as exc:
        raise Unavailable("All connections to the database are busy.") from exc
    except sqlite3.DatabaseError as exc:  # of a connection without SQLAlchemy
        raise _with_note(_translate_sqlite(exc) or Unavailable("The database does not answer."), exc) from exc
    except DBAPIError as exc:
        error = _translate(exc)
        if error is None:
            raise
        raise _with_note(error, exc) from exc


def _with_note(error: Unavailable, exc: BaseException) -> Unavailable:
    """Add the driver's message as a note: it is for the operator's log and terminal, not for callers."""
    origin = getattr(exc, "orig", None) or exc
    error.add_note(str(origin).strip().split("\n")[0][:300])
    return error


def _translate(exc: DBAPIError) -> Unavailable | None:
    state = str(getattr(exc.orig, "sqlstate", None) or "")
    if state.startswith(RETRYABLE_CLASS):
        return Contention()
    if state in CANCELLED_REASONS and not exc.connection_invalidated:
        return StatementTimeout(CANCELLED_REASONS[state])
    if state == DISK_FULL_STATE:
        return DatabaseDiskError(DISK_FULL, next_step=DISK_FULL_NEXT_STEP)
    if state in UNAVAILABLE_REASONS:
        return Unavailable(UNAVAILABLE_REASONS[state])
    if isinstance(exc.orig, sqlite3.Error):
        return _translate_sqlite(exc.orig) or (
            Unavailable("The database does not answer.") if _is_connection_error(exc) else None
        )
    return ConnectionLost() if _is_connection_error(exc) or state in SESSION_ENDED_STATES else None


def _is_connection_error(exc: DBAPIError) -> bool:
    """Whether the error is about the connection, not about the statement."""
    return isinstance(exc, (OperationalError, InterfaceError)) or exc.connection_invalidated


def _translate_sqlite(exc: BaseException | None) -> Unavailable | None:
    name = str(getattr(exc, "sqlite_errorname", "") or "")
    if name.startswith(SQLITE_DISK_FULL_NAMES):
        return DatabaseDiskError(DISK_FULL, next_step=DISK_FULL_NEXT_STEP)
    if name == "SQLITE_NOTADB":
        return Unavailable(NOT_A_DATABASE, next_step="Give the path of another file, or restore a backup.")
    if name.startswith("SQLITE_IOERR"):
        return DatabaseDiskError()
    return Unavailable(READ_ONLY) if name.startswith("SQLITE_READONLY") else None
