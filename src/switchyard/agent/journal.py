"""What the agent must not forget: attempts and unanswered reports, in one SQLite file. It knows no backend, no server.

A lease is committed here before the backend hears of it: `take` writes or raises. Everything else may be found out
again after a crash (the backend and the server say it anew), so memory goes first there, and what a full disk refuses
is written as soon as it can be.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import sqlite3
import threading
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from switchyard.agent import start_counter
from switchyard.agent.attempt import (
    Attempt,
    AttemptChange,
    AttemptKey,
    QueuedReport,
    Stage,
    TimedReport,
    split_ranges,
    task_index,
)
from switchyard.agent.clock import Stamp
from switchyard.agent.journal_rows import (
    INSERT_REPORT,
    SCHEMA,
    SELECT_ENDED,
    SELECT_PURGEABLE,
    SqlWrite,
    attempt_of,
    decode_text,
    final_report_of,
    insert_attempt,
    move_journal_aside,
    queued_report_of,
    read_rows,
    set_aside_row,
    update_attempt,
)
from switchyard.agent.log import line
from switchyard.errors import Conflict, Unavailable
from switchyard.model.lifecycle import ObservedState, ReportAnswer
from switchyard.model.poll import Lease, Report

SCHEMA_VERSION = "1"
BUSY_S = 5.0  # nobody else writes here; only a backup tool could hold it for a moment
SETTLED_DAYS_MAX = 1.0  # how long a settled attempt and its directory stay to be looked at
SETTLED_MAX = 10_000
PURGE_MAX = 500  # attempts removed in one go: their directories take time

END_UNREADABLE = "the agent's journal is damaged where it says how this ended"
SAVE_WRITE_COUNT = "INSERT OR REPLACE INTO meta VALUES ('writes', ?)"
DISK_PROBE: SqlWrite = (
    "INSERT OR REPLACE INTO meta VALUES ('probe', ?)",
    ("x" * 4096,),
)  # a page: less could fit by chance

log = logging.getLogger(__name__)


class JournalTrouble(Unavailable):
    """The journal cannot be written."""

    default_next = "Make room on the agent's disk; it goes on by itself."


class Journal:
    def __init__(self, path: Path, *, journal_id: str | None = None) -> None:
        """Open or create. A damaged file is moved aside; `journal_id` is then the identity to go on with."""
        self._lock = threading.RLock()
        self._behind: list[SqlWrite] = []  # what the disk has refused so far, in order
        self.trouble = ""
        self.was_damaged = False
        self.doubted: set[AttemptKey] = set()  # attempts whose rows could not be read: the backend may have them
        self.is_rebuilt = False  # it was lost, so what it had before says nothing
        self.start = 0  # which start of an agent on this journal this is, once it is claimed (`begin`)
        self.claim = ""  # the word of that claim
        self._claim = ""  # the claim as the journal has it
        self._is_accepted = False  # by the server; until then writes do not count
        try:
            self._open(path, journal_id)
        except (sqlite3.OperationalError, OSError) as exc:
            raise JournalTrouble(f"The journal {path} cannot be opened: {exc}.") from exc
        except (sqlite3.DatabaseError, msgspec.DecodeError) as exc:
            aside = move_journal_aside(path)
            log.error(line("journal-damaged", error=exc, moved_to=aside))
            self.was_damaged = True
            self._open(path, journal_id)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def begin(self) -> int:
        """Claim the next start, durably, before the server hears of it (start_counter.py)."""
        with self._lock:
            if not self.start:
                start = self._starts + 1
                if not start_counter.claim_word(self._claim, start):
                    claim = start_counter.make_claim(start)
                    self._write([("INSERT OR REPLACE INTO meta VALUES ('claim', ?)", (claim,))])
                    self._claim = claim
                self.start, self.claim = start, start_counter.claim_word(self._claim, start)
            return self.start

    def accepted(self) -> None:
        """The server has taken this process for the agent: its start and its writes count from here on."""
        with self._lock:
            if self._is_accepted:
                return
            self._is_accepted, self.is_rebuilt, self._starts = True, False, self.start
            self._write_when_possible(
                [
                    ("INSERT OR REPLACE INTO meta VALUES ('starts', ?)", (str(self.start),)),
                    ("DELETE FROM meta WHERE key IN ('claim', 'rebuilt')", ()),
                ]
            )
            try:
                start_counter.save_start_count(self._folder, self.start)
            except OSError as exc:  # the journal has the number
                log.warning(line("start-not-counted", folder=self._folder, error=exc))

    def attempts(self) -> list[Attempt]:
        """Everything not settled, in the order it was taken."""
        with self._lock:
            return list(self._attempts.values())

    def get(self, key: AttemptKey) -> Attempt | None:
        with self._lock:
            return self._attempts.get(key)

    def knows(self, key: AttemptKey) -> bool:
        """Was this attempt ever taken here (as far as is kept)?"""
        with self._lock:
            return key in self._attempts or self._row(key) is not None

    def queued(self) -> list[QueuedReport]:
        """Reports to send, oldest first."""
        with self._lock:
            return list(self._queue.values())

    def take(self, leases: Iterable[Lease], *, stage: Stage = Stage.INTENT) -> list[Attempt]:
        """Keep new leases, durably. One that is known is no news; a higher fence of a job or task ends the lower."""
        with self._lock:
            new: dict[AttemptKey, Attempt] = {}
            for lease in split_ranges(leases):
                key = (lease.job, lease.fence)
                if key in self._attempts or key in new:
                    continue
                if (row := self._row(key)) is not None:
                    self._say_again(key, row)
                elif self._highest_fence(lease.job, task_index(lease)) < lease.fence:
                    new[key] = Attempt(lease, stage)
            ops = [insert_attempt(attempt) for attempt in new.values()]
            for change in [each for attempt in new.values() if (each := self._ended_before(attempt)) is not None]:
                new[change.attempt.key], [said] = change.attempt, change.said
                ops += [
                    update_attempt(change.attempt, said.report),
                    self._enqueue(change.attempt.key, said, is_final=True),
                ]
            self._write(ops)
            self._attempts.update(new)
            highest = {attempt.lineage: attempt.lease.fence for attempt in new.values()}
            lower = [key for key, each in self._attempts.items() if key[1] < highest.get(each.lineage, -1)]
            self.mark(lower, stop=True)
            return [self._attempts[key] for key in new if key in self._attempts]

    def apply(self, changes: Sequence[AttemptChange]) -> None:
        """Note how attempts have become and what is to be told of them."""
        with self._lock:
            ops: list[SqlWrite] = []
            done: set[AttemptKey] = set()
            for change in changes:
                attempt, said = self._merged(change)
                final = said[-1].report if said and attempt.stage is Stage.ENDED else None
                ops.append(update_attempt(attempt, final))
                if attempt.is_stopped or attempt.stage is Stage.SETTLED:
                    done.add(attempt.key)
                ops += [self._enqueue(attempt.key, each, is_final=each.report is final) for each in said]
                self._attempts[attempt.key] = attempt
                if attempt.stage is Stage.SETTLED:
                    del self._attempts[attempt.key]
            self._write_when_possible(ops + (self._drop_queued(done) if done else []))

    def say(self, key: AttemptKey, said: TimedReport) -> None:
        """Tell something of an attempt that goes on."""
        with self._lock:
            if key in self._attempts:
                self._write_when_possible([self._enqueue(key, said, is_final=False)])

    def settle(self, answers: Iterable[tuple[QueuedReport, ReportAnswer]]) -> None:
        """The server answered these: they need not be sent again."""
        with self._lock:
            changes: list[AttemptChange] = []
            for queued, answer in answers:
                self._queue.pop(queued.seq, None)
                self._behind.append(("DELETE FROM outbox WHERE seq = ?", (queued.seq,)))
                attempt = self._attempts.get(queued.key)
                if attempt is not None and queued.is_final:
                    changes.append(AttemptChange(replace(attempt, stage=Stage.SETTLED)))
                elif attempt is not None and answer is ReportAnswer.STOP:
                    changes.append(AttemptChange(replace(attempt, is_stopped=True)))
            self.apply(changes)

    def mark(self, keys: Iterable[AttemptKey], *, cancel: bool = False, stop: bool = False) -> list[AttemptKey]:
        """Note that the end of these was asked for. Returns the ones that are not known here."""
        with self._lock:
            unknown: list[AttemptKey] = []
            changes: list[AttemptChange] = []
            for key in keys:
                attempt = self._attempts.get(key)
                if attempt is None:
                    unknown.append(key)
                    continue
                marked = replace(
                    attempt,
                    is_cancel_asked=attempt.is_cancel_asked or cancel,
                    is_stopped=attempt.is_stopped or stop,
                    stage=Stage.SETTLED if stop and attempt.stage is Stage.ENDED else attempt.stage,
                )
                if marked != attempt:
                    changes.append(AttemptChange(marked))
            self.apply(changes)
            return unknown

    def flush(self) -> None:
        """Write what the disk has refused before; after trouble, see whether it is over."""
        with self._lock:
            self._write_when_possible([DISK_PROBE] if self.trouble else [])

    def purgeable(self) -> list[Attempt]:
        """Settled attempts that have been kept long enough, oldest first."""
        with self._lock:
            oldest_s = time.time() - SETTLED_DAYS_MAX * 86_400
            rows = read_rows(self._read(SELECT_PURGEABLE, (oldest_s, SETTLED_MAX, PURGE_MAX)), attempt_of)
            self._set_aside("attempts", rows.unreadable)
            return rows.values

    def purge(self, attempts: Iterable[Attempt]) -> None:
        with self._lock:
            gone = "DELETE FROM attempts WHERE job = ? AND fence = ? AND settled_s IS NOT NULL"
            self._write_when_possible([(gone, attempt.key) for attempt in attempts])

    def _open(self, path: Path, journal_id: str | None) -> None:
        self._folder = path.parent
        self._db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            path.chmod(0o600)
            self._load(journal_id)
        except BaseException:
            self._db.close()
            raise

    def _load(self, journal_id: str | None) -> None:
        db = self._db
        db.row_factory = sqlite3.Row
        db.text_factory = decode_text
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")  # an intent must survive a power cut, or a job could run twice
        db.execute("PRAGMA journal_size_limit = 16777216")
        if db.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
            raise sqlite3.DatabaseError("the journal is damaged")
        db.executescript(SCHEMA)
        meta = {row["key"]: row["value"] for row in db.execute("SELECT key, value FROM meta")}
        if meta.get("schema", SCHEMA_VERSION) != SCHEMA_VERSION:
            raise Conflict(
                f"The journal has format {meta['schema']}; this agent knows {SCHEMA_VERSION}.",
                next_step="Start the newer version of the agent that wrote it.",
            )
        # Only a journal that is damaged goes on under its id. One that is gone, or empty, may be on another machine.
        self.id = meta.get("id") or (journal_id if self.was_damaged else None) or secrets.token_hex(16)
        if "id" not in meta:
            db.execute("INSERT INTO meta VALUES ('schema', ?), ('id', ?)", (SCHEMA_VERSION, self.id))
        self._load_counts(meta)
        attempts = read_rows(db.execute("SELECT * FROM attempts WHERE settled_s IS NULL ORDER BY seq"), attempt_of)
        queue = read_rows(db.execute("SELECT * FROM outbox ORDER BY seq"), queued_report_of)
        self._attempts = {attempt.key: attempt for attempt in attempts.values}
        self._queue = {queued.seq: queued for queued in queue.values}
        self._next_seq = max([*self._queue, *(row["seq"] for row, _ in queue.unreadable)], default=0) + 1
        self.doubted = {(row["job"], row["fence"]) for row, _ in attempts.unreadable}
        self.is_rebuilt |= bool(attempts.unreadable)
        self._set_aside("attempts", attempts.unreadable)
        self._set_aside("outbox", queue.unreadable)
        if queue.unreadable:
            self._say_lost_ends()

    def _load_counts(self, meta: dict[str, str]) -> None:
        """`writes` grows with each transaction of an accepted process; `found`: its value at the open."""
        kept = start_counter.load_start_count(self._folder)
        self._starts = max(kept, start_counter.parse_count(meta.get("starts")))
        self.found = self.writes = start_counter.parse_count(meta.get("writes"))
        self._claim = meta.get("claim", "")
        # A journal that was damaged: the server must not take the new one for an outdated copy.
        is_lost = self.was_damaged and kept > 0
        self.is_rebuilt = is_lost or "rebuilt" in meta
        if is_lost:
            self._db.execute("INSERT OR REPLACE INTO meta VALUES ('rebuilt', '1')")

    def _set_aside(self, table: str, rows: list[tuple[sqlite3.Row, str]]) -> None:
        for row, why in rows:
            log.error(
                line("journal-row-unreadable", table=table, seq=row["seq"], job=row["job"], fence=row["fence"], why=why)
            )
            self._behind += set_aside_row(table, row, why)
        self._write_when_possible([])

    def _say_lost_ends(self) -> None:
        """A report of an end could not be read. The attempt's own row has it, too; else the end is not known."""
        told = {queued.key for queued in self._queue.values() if queued.is_final}
        for attempt in list(self._attempts.values()):
            if attempt.stage is Stage.ENDED and attempt.key not in told and (row := self._row(attempt.key)) is not None:
                self._behind.append(
                    self._enqueue(attempt.key, TimedReport(self._end_of(row), Stamp("", 0)), is_final=True)
                )
        self._write_when_possible([])

    def _end_of(self, row: sqlite3.Row) -> Report:
        """How an attempt ended; LOST where nobody can say."""
        key = (row["job"], row["fence"])
        if row["is_stopped"] or row["final"] is None:
            return Report(*key, ObservedState.LOST, reason="it was stopped here before the server was restored")
        return final_report_of(row) or Report(*key, ObservedState.LOST, reason=END_UNREADABLE)

    def _merged(self, change: AttemptChange) -> tuple[Attempt, tuple[TimedReport, ...]]:
        """Requests to end it that came meanwhile from another thread are kept; a stopped one says nothing more."""
        now = self._attempts.get(change.attempt.key, change.attempt)
        attempt = replace(
            change.attempt,
            is_cancel_asked=change.attempt.is_cancel_asked or now.is_cancel_asked,
            is_stopped=change.attempt.is_stopped or now.is_stopped,
        )
        if not attempt.is_stopped:
            return attempt, change.said
        return (replace(attempt, stage=Stage.SETTLED) if attempt.stage is Stage.ENDED else attempt), ()

    def _enqueue(self, key: AttemptKey, said: TimedReport, *, is_final: bool) -> SqlWrite:
        queued = QueuedReport(self._next_seq, key, said, is_final)
        self._next_seq += 1
        self._queue[queued.seq] = queued
        return INSERT_REPORT, (queued.seq, *key, msgspec.json.encode(said.report), said.at.boot, said.at.ns, is_final)

    def _drop_queued(self, keys: Container[AttemptKey]) -> list[SqlWrite]:
        """Of these nothing more is to be told. All in one go: thousands end at once, and as many are queued."""
        gone = [seq for seq, queued in self._queue.items() if queued.key in keys]
        for seq in gone:
            del self._queue[seq]
        return [("DELETE FROM outbox WHERE seq = ?", (seq,)) for seq in gone]

    def _say_again(self, key: AttemptKey, row: sqlite3.Row) -> None:
        """The server leases what is over here: it was restored from a backup. Tell it the end again."""
        if any(queued.key == key for queued in self._queue.values()):
            return
        self._behind.append(self._enqueue(key, TimedReport(self._end_of(row), Stamp("", 0)), is_final=True))

    def _ended_before(self, attempt: Attempt) -> AttemptChange | None:
        """A restored server leases anew what ended here after its backup: tell it that end instead of running it."""
        lease = attempt.lease
        where = (lease.job, task_index(lease), lease.known, lease.fence)
        rows = self._read(SELECT_ENDED, where) if lease.known is not None else []
        if not rows:
            return None
        report = final_report_of(rows[0])
        if report is None:
            report = Report(lease.job, lease.fence, ObservedState.LOST, reason=END_UNREADABLE)
        elif report.seen not in (ObservedState.SUCCEEDED, ObservedState.FAILED, ObservedState.CANCELLED):
            return None
        said = TimedReport(msgspec.structs.replace(report, fence=lease.fence), Stamp("", 0))
        return AttemptChange(replace(attempt, stage=Stage.ENDED, native_id=rows[0]["native_id"]), (said,))

    def _row(self, key: AttemptKey) -> sqlite3.Row | None:
        return next(iter(self._read("SELECT * FROM attempts WHERE job = ? AND fence = ?", key)), None)

    def _highest_fence(self, job: str, task: int) -> int:
        query = "SELECT fence FROM attempts WHERE job = ? AND task = ? ORDER BY fence DESC LIMIT 1"
        rows = self._read(query, (job, task))
        return int(rows[0]["fence"]) if rows else -1

    def _read(self, query: str, values: tuple[Any, ...]) -> list[sqlite3.Row]:
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as exc:
            self.trouble = f"the journal cannot be read: {exc}"
            raise JournalTrouble(f"The journal cannot be read: {exc}.") from exc

    def _write_when_possible(self, ops: list[SqlWrite]) -> None:
        self._behind += [op for op in ops if op is not DISK_PROBE]
        try:
            self._write([DISK_PROBE] if DISK_PROBE in ops else [])
        except JournalTrouble as exc:
            log.warning(line("journal-behind", writes=len(self._behind), error=exc.detail))

    def _write(self, ops: list[SqlWrite]) -> None:
        """These, after all that was refused before; in one transaction, or not at all."""
        if not self._behind and not ops:
            return
        # A process that was not accepted counts nothing: else a copy would catch up by being started often enough.
        writes = self.writes + self._is_accepted
        try:
            with self._transaction() as db:
                for statement, values in [*self._behind, *ops, (SAVE_WRITE_COUNT, (str(writes),))]:
                    db.execute(statement, values)
        except sqlite3.Error as exc:
            self.trouble = f"the journal cannot be written: {exc}"
            raise JournalTrouble(f"The journal cannot be written: {exc}.") from exc
        self._behind.clear()
        self.writes = writes
        self.trouble = ""

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield self._db
            self._db.execute("COMMIT")
        except sqlite3.Error:
            if self._db.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
            raise
