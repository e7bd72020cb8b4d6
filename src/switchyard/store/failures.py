"""The drivers' errors, translated once: what callers are told when the database cannot do what it was asked."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from switchyard.errors import Unavailable

READ_ONLY_STATE = "25006"
READ_ONLY = "The database is read-only: nothing can be changed."
PG_DISK_FULL = "53100"
DISK_FULL = "Disk full: the database has no room for the change."
MAKE_ROOM = (
    "The operator makes room on the disk of the database; then send it again. Nothing that was accepted is lost."
)
NO_DATABASE = "The file is no SQLite database, or its head is damaged."
# SQLite also needs room for the memory map beside its file, and calls it an I/O error if there is none.
SQLITE_DISK_FULL = ("SQLITE_FULL", "SQLITE_IOERR_SHMSIZE")
# PostgreSQL's codes: https://www.postgresql.org/docs/current/errcodes-appendix.html
REASONS = {
    READ_ONLY_STATE: READ_ONLY,  # read_only_sql_transaction: also every write on a standby
    "25P03": "The database ended a transaction that was idle for too long.",
    "25P04": "The database ended a transaction that took too long.",
    "53200": "The database has no memory left.",
    "53300": "The database takes no more connections.",
}
# The server is stopping or starting, or ended this session: another connection may work.
LOST = ("57P01", "57P02", "57P03")
# The statement was cancelled and its transaction undone: nothing of it is in doubt.
UNDONE = {
    "55P03": "Another session of the database holds what this change needs.",  # lock_not_available
    "57014": "The database took too long for this change.",  # query_canceled
}
AGAIN = "40"  # class of errors after which the same transaction may be tried again at once: deadlock, lost race


class DiskTrouble(Unavailable):
    """The disk of the database fails, or is full."""


class ConnectionLost(Unavailable):
    """The database does not answer."""

    is_in_doubt = False  # it was lost while a commit was under way: nobody knows whether that happened


class StatementTimeout(Unavailable):
    """The database took too long for this change, and nothing of it was stored."""


class Contention(Unavailable):
    """Other changes got in the way of this one each time, and nothing of it was stored."""


@contextmanager
def translated() -> Iterator[None]:
    """Errors of the connection, and what the database itself cannot help, become Unavailable, here and nowhere else."""
    try:
        yield
    except sa.exc.TimeoutError as exc:
        raise Unavailable("All connections to the database are busy.") from exc
    except sqlite3.DatabaseError as exc:  # of a connection without SQLAlchemy
        raise _noted(_of_sqlite(exc) or Unavailable("The database does not answer."), exc) from exc
    except DBAPIError as exc:
        error = _translate(exc)
        if error is None:
            raise
        raise _noted(error, exc) from exc


def _noted(error: Unavailable, exc: BaseException) -> Unavailable:
    """Where the database is, and why it does not answer, is for the operator's log and terminal, not for callers."""
    origin = getattr(exc, "orig", None) or exc
    error.add_note(str(origin).strip().split("\n")[0][:300])
    return error


def _translate(exc: DBAPIError) -> Unavailable | None:
    state = str(getattr(exc.orig, "sqlstate", None) or "")
    if state.startswith(AGAIN):
        return Contention()
    if state in UNDONE and not exc.connection_invalidated:
        return StatementTimeout(UNDONE[state])
    if state == PG_DISK_FULL:
        return DiskTrouble(DISK_FULL, next_step=MAKE_ROOM)
    if state in REASONS:
        return Unavailable(REASONS[state])
    if isinstance(exc.orig, sqlite3.Error):
        return _of_sqlite(exc.orig) or (Unavailable("The database does not answer.") if _is_of_use(exc) else None)
    return ConnectionLost() if _is_of_use(exc) or state in LOST else None


def _is_of_use(exc: DBAPIError) -> bool:
    """Whether the error is about the use of the database, not about what was asked of it."""
    return isinstance(exc, (OperationalError, InterfaceError)) or exc.connection_invalidated


def _of_sqlite(exc: BaseException | None) -> Unavailable | None:
    name = str(getattr(exc, "sqlite_errorname", "") or "")
    if name.startswith(SQLITE_DISK_FULL):
        return DiskTrouble(DISK_FULL, next_step=MAKE_ROOM)
    if name == "SQLITE_NOTADB":
        return Unavailable(NO_DATABASE, next_step="Give the path of another file, or restore a backup.")
    if name.startswith("SQLITE_IOERR"):
        return DiskTrouble()
    return Unavailable(READ_ONLY) if name.startswith("SQLITE_READONLY") else None
