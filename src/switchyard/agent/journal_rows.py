"""The journal's tables, and its rows as attempts and reports. What is written when is journal.py's.

A row that cannot be read, because a bit of it is wrong, is that row's trouble alone: it is moved to the table
`unreadable` for whoever wants to look, and everything else goes on.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from switchyard.agent.attempt import Attempt, QueuedReport, Stage, TimedReport, task_index
from switchyard.agent.clock import Stamp
from switchyard.agent.log import line
from switchyard.model.poll import Lease, Report

SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS attempts (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    job TEXT NOT NULL,
    fence INTEGER NOT NULL,
    task INTEGER NOT NULL,     -- of an array; -1: not one
    lease BLOB NOT NULL,
    stage TEXT NOT NULL,
    native_id TEXT,
    is_cancel_asked INTEGER NOT NULL DEFAULT 0,
    is_stopped INTEGER NOT NULL DEFAULT 0,
    final BLOB,                -- the report of its end, to say it again to a server that forgot
    settled_s REAL,            -- wall clock: only for clean-up
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
    row TEXT NOT NULL,         -- all of it, as text
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
SELECT_ENDED = """
SELECT * FROM attempts WHERE job = ? AND task = ? AND fence >= ? AND fence < ? AND final IS NOT NULL
AND NOT is_stopped ORDER BY fence DESC LIMIT 1
"""

CORRUPT_MAX = 100  # damaged journals kept aside, for whoever wants to look
UNREADABLE_MAX = 1000  # rows kept to be looked at

log = logging.getLogger(__name__)
T = TypeVar("T")
SqlWrite = tuple[str, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class DecodedRows(Generic[T]):
    """What rows say, and the rows that say nothing, each with the reason."""

    values: list[T]
    unreadable: list[tuple[sqlite3.Row, str]]


def read_rows(rows: Iterable[sqlite3.Row], read: Callable[[sqlite3.Row], T]) -> DecodedRows[T]:
    found: DecodedRows[T] = DecodedRows([], [])
    for row in rows:
        try:
            found.values.append(read(row))
        except (msgspec.DecodeError, ValueError, TypeError) as exc:
            found.unreadable.append((row, f"{type(exc).__name__}: {exc}"))
    return found


def set_aside_row(table: str, row: sqlite3.Row, why: str) -> list[SqlWrite]:
    """Move a row that cannot be read out of the way."""
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
    said = TimedReport(report_of(row["report"]), Stamp(row["boot"], int(row["at_ns"])))
    if (said.report.job, said.report.fence) != (row["job"], row["fence"]):
        raise ValueError("the report is of another attempt than the row says")
    return QueuedReport(row["seq"], (row["job"], row["fence"]), said, bool(row["is_final"]))


def report_of(body: bytes) -> Report:
    return msgspec.json.decode(body, type=Report)


def final_report_of(row: sqlite3.Row) -> Report | None:
    """The report of an attempt's end as it was kept; none: it cannot be read."""
    try:
        return report_of(row["final"])
    except msgspec.DecodeError as exc:
        log.error(line("journal-row-unreadable", table="attempts", job=row["job"], fence=row["fence"], why=exc))
        return None


def decode_text(body: bytes) -> str:
    """Text as the database has it; a byte that is no text must not keep the rest of its row from being read."""
    return body.decode("utf-8", "replace")


def move_journal_aside(path: Path) -> Path:
    places = [path.with_name(f"journal.corrupt-{number}") for number in range(1, CORRUPT_MAX + 1)]
    aside = next((place for place in places if not place.exists()), places[-1])
    path.replace(aside)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    return aside
