"""The journal's tables, and how rows become attempts and reports. journal.py decides what is written and when.

A damaged row affects nothing else: it is moved to the table `unreadable` for inspection.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from switchyard.agent.journal.attempt import Attempt, QueuedReport, Stage, TimedReport, task_index
from switchyard.agent.log import line
from switchyard.agent.loop.clock import Stamp
from switchyard.model.cluster.poll import Lease, Report

SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS attempts (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    job TEXT NOT NULL,
    fence INTEGER NOT NULL,
    task INTEGER NOT NULL,     -- index in an array; -1: no array
    lease BLOB NOT NULL,
    stage TEXT NOT NULL,
    native_id TEXT,
    is_cancel_asked INTEGER NOT NULL DEFAULT 0,
    is_stopped INTEGER NOT NULL DEFAULT 0,
    final BLOB,                -- report of the end, sent again to a server that was restored
    settled_s REAL,            -- wall clock, only for purging
    UNIQUE (job, fence)
);
CREATE INDEX IF NOT EXISTS attempts_settled ON attempts (settled_s) WHERE settled_s IS NOT NULL;
CREATE TABLE IF NOT EXISTS outbox (
    seq INTEGER PRIMARY KEY,
    job TEXT NOT NULL,
    fence INTEGER NOT NULL,
    report BLOB NOT NULL,
    boot TEXT NOT NULL,
    at_ns INTEGER NOT NULL,
    is_final INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS unreadable (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    origin TEXT NOT NULL,      -- the table it was in
    row TEXT NOT NULL,         -- the row as text
    why TEXT NOT NULL
);
"""

INSERT_ATTEMPT = "INSERT INTO attempts (job, fence, task, lease, stage, native_id) VALUES (?, ?, ?, ?, ?, ?)"
UPDATE_ATTEMPT = """
UPDATE attempts SET stage = ?, native_id = ?, is_cancel_asked = ?, is_stopped = ?, final = coalesce(?, final),
settled_s = ? WHERE job = ? AND fence = ?
"""
INSERT_REPORT = (
    "INSERT OR REPLACE INTO outbox (seq, job, fence, report, boot, at_ns, is_final) VALUES (?, ?, ?, ?, ?, ?, ?)"
)
SELECT_PURGEABLE = """
SELECT * FROM attempts WHERE settled_s IS NOT NULL AND (settled_s < ? OR settled_s <=
    (SELECT settled_s FROM attempts WHERE settled_s IS NOT NULL ORDER BY settled_s DESC LIMIT 1 OFFSET ?))
ORDER BY settled_s LIMIT ?
"""
SELECT_SETTLED = "SELECT * FROM attempts WHERE settled_s IS NOT NULL ORDER BY settled_s LIMIT ?"
SELECT_ENDED = """
SELECT * FROM attempts WHERE job = ? AND task = ? AND fence >= ? AND fence < ? AND final IS NOT NULL
AND NOT is_stopped ORDER BY fence DESC LIMIT 1
"""

DAMAGE_CODES = {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}
CORRUPT_MAX = 100  # damaged journals that are kept
UNREADABLE_MAX = 1000  # damaged rows that are kept

log = logging.getLogger(__name__)
T = TypeVar("T")
SqlWrite = tuple[str, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class DecodedRows(Generic[T]):
    """The values of readable rows, and the unreadable rows with the reason."""

    values: list[T]
    unreadable: list[tuple[sqlite3.Row, str]]


def read_rows(rows: Iterable[sqlite3.Row], read: Callable[[sqlite3.Row], T]) -> DecodedRows[T]:
    decoded: DecodedRows[T] = DecodedRows([], [])
    for row in rows:
        try:
            decoded.values.append(read(row))
        except (msgspec.DecodeError, ValueError, TypeError) as exc:
            decoded.unreadable.append((row, f"{type(exc).__name__}: {exc}"))
    return decoded


def set_aside_row(table: str, row: sqlite3.Row, why: str) -> list[SqlWrite]:
    """Move an unreadable row into the table `unreadable`."""
    text = repr({name: row[name] for name in row.keys()})  # noqa: SIM118 - a Row without keys() gives its values
    return [
        ("INSERT INTO unreadable (origin, row, why) VALUES (?, ?, ?)", (table, text, why)),
        (f"DELETE FROM {table} WHERE seq = ?", (row["seq"],)),  # noqa: S608 - our own two names
        ("DELETE FROM unreadable WHERE seq <= (SELECT max(seq) FROM unreadable) - ?", (UNREADABLE_MAX,)),
    ]


def insert_attempt(attempt: Attempt) -> SqlWrite:
    return INSERT_ATTEMPT, (
        *attempt.key,
        task_index(attempt.lease),
        msgspec.json.encode(attempt.lease),
        attempt.stage,
        attempt.native_id,
    )


def update_attempt(attempt: Attempt, final: Report | None) -> SqlWrite:
    return UPDATE_ATTEMPT, (
        attempt.stage,
        attempt.native_id,
        attempt.is_cancel_asked,
        attempt.is_stopped,
        msgspec.json.encode(final) if final else None,
        time.time() if attempt.stage is Stage.SETTLED else None,
        *attempt.key,
    )


def attempt_of(row: sqlite3.Row) -> Attempt:
    attempt = Attempt(
        lease=msgspec.json.decode(row["lease"], type=Lease),
        stage=Stage(row["stage"]),
        native_id=row["native_id"],
        is_cancel_asked=bool(row["is_cancel_asked"]),
        is_stopped=bool(row["is_stopped"]),
    )
    if (*attempt.key, task_index(attempt.lease)) != (row["job"], row["fence"], row["task"]):
        raise ValueError("the lease is another one than the row says")
    return attempt


def queued_report_of(row: sqlite3.Row) -> QueuedReport:
    timed = TimedReport(report_of(row["report"]), Stamp(row["boot"], int(row["at_ns"])))
    if (timed.report.job, timed.report.fence) != (row["job"], row["fence"]):
        raise ValueError("the report is of another attempt than the row says")
    return QueuedReport(row["seq"], (row["job"], row["fence"]), timed, bool(row["is_final"]))


def report_of(body: bytes) -> Report:
    return msgspec.json.decode(body, type=Report)


def final_report_of(row: sqlite3.Row) -> Report | None:
    """The stored report of an attempt's end; None: it cannot be read."""
    try:
        return report_of(row["final"])
    except msgspec.DecodeError as exc:
        log.error(line("journal-row-unreadable", table="attempts", job=row["job"], fence=row["fence"], why=exc))
        return None


def decode_text(body: bytes) -> str:
    """Decode a text of the database. An invalid byte does not make the other columns of its row unreadable."""
    return body.decode("utf-8", "replace")


def find_damage(db: sqlite3.Connection) -> str:
    """What is wrong with the file (empty: nothing). `quick_check` would not see a row that its index lacks."""
    return str(db.execute("PRAGMA integrity_check(1)").fetchone()[0]).removeprefix("ok")


def check_schema(db: sqlite3.Connection) -> None:
    """Raise DatabaseError if a table lacks a column of ours, or has it in another form: a bit of its text was flipped.

    Else the first statement that needs the column would fail, perhaps only when a job ends.
    """
    with contextlib.closing(sqlite3.connect(":memory:")) as model:
        model.executescript(SCHEMA)
        tables = [name for (name,) in model.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            missing = _columns(model, table) - _columns(db, table)
            if missing:
                raise sqlite3.DatabaseError(f"the table {table} has no column {min(missing)[0]} as it should be")


def _columns(db: sqlite3.Connection, table: str) -> set[tuple[str, ...]]:
    """Name, type, NOT NULL, default and primary key of each column."""
    return {tuple(str(value) for value in tuple(row)[1:]) for row in db.execute(f"PRAGMA table_info({table})")}


def trouble_text(verb: str, problem: sqlite3.Error) -> str:
    """Why the journal cannot be read or written: a full disk, a damaged file, or what SQLite says."""
    if is_damage(problem):
        return f"journal damaged: {problem}; restart the agent, which moves it aside"
    code = getattr(problem, "sqlite_errorcode", sqlite3.SQLITE_FULL) & 0xFF
    cause = "disk full" if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR) else "disk error"
    return f"{cause}: the journal cannot be {verb}: {problem}"


def is_damage(problem: Exception) -> bool:
    """Whether the file itself is damaged, and not the disk full, the file locked or the folder not writable.

    SQLite reports damage in its schema table as a plain error of the statement (SQLITE_ERROR): the statements are ours
    and correct, so what they meet is not what this agent wrote.
    """
    if not isinstance(problem, sqlite3.Error):
        return True  # a row that cannot be decoded
    code = getattr(problem, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    return code in DAMAGE_CODES or not isinstance(problem, sqlite3.OperationalError)


def move_journal_aside(path: Path) -> Path:
    places = [path.with_name(f"journal.corrupt-{number}") for number in range(1, CORRUPT_MAX + 1)]
    aside = next((place for place in places if not place.exists()), places[-1])
    path.replace(aside)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    return aside


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Write all or nothing."""
    try:
        db.execute("BEGIN IMMEDIATE")
        yield db
        db.execute("COMMIT")
    except sqlite3.Error:
        if db.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                db.execute("ROLLBACK")
        raise
