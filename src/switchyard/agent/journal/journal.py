"""The agent's database: attempts and unanswered reports, in one SQLite file. It knows no backend and no server.

A lease is committed before the backend is called: `take` and `begin` write or raise. Everything else can be recovered
after a crash from the backend and the server. So other changes are made in memory first; writes that a full disk
refuses are kept and tried again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import sqlite3
import threading
import time
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from switchyard.agent.journal.attempt import (
    Attempt,
    AttemptChange,
    AttemptKey,
    QueuedReport,
    Stage,
    TimedReport,
    split_ranges,
    task_index,
)
from switchyard.agent.journal.journal_rows import (
    INSERT_REPORT,
    SCHEMA,
    SELECT_ENDED,
    SELECT_PURGEABLE,
    SELECT_SETTLED,
    SqlWrite,
    attempt_of,
    check_schema,
    decode_text,
    final_report_of,
    find_damage,
    insert_attempt,
    is_damage,
    move_journal_aside,
    queued_report_of,
    read_rows,
    set_aside_row,
    transaction,
    trouble_text,
    update_attempt,
)
from switchyard.agent.log import line
from switchyard.agent.loop.clock import Stamp
from switchyard.agent.private_files import replace_file
from switchyard.errors import Conflict, Unavailable
from switchyard.log_pace import LogPace
from switchyard.model.cluster.poll import EVENT_MARK_CHARS_MAX, Lease, Report
from switchyard.model.job.lifecycle import ObservedState, ReportAnswer

SCHEMA_VERSION = "1"
BUSY_S = 5.0  # only a backup tool could lock the file, for a moment
SETTLED_DAYS_MAX = 1.0  # how long a settled attempt and its directory are kept for inspection
SETTLED_MAX = 10_000
PURGE_MAX = 500  # attempts removed in one go: their directories take time

END_UNREADABLE = "the agent's journal is damaged where it says how this ended"
SAVE_META = "INSERT OR REPLACE INTO meta VALUES (?, ?)"
PROBE = "x" * 4096  # a page: less could fit by chance
DISK_PROBE: SqlWrite = ("INSERT OR REPLACE INTO meta VALUES ('probe', ?)", (PROBE,))
LOG_BYTES = 4 * 2**20  # below the size to which the journal cuts its log
RESERVE_BYTES = 2**20  # to open the journal: its log and index begin with less than 100 KiB
RESERVE_FREE_BYTES_MIN = 4 * LOG_BYTES  # with less on the disk, no room is taken
HOLD_EVERY_S = 5.0  # between two tries to take that room

log = logging.getLogger(__name__)


class JournalTrouble(Unavailable):
    """The journal cannot be written."""

    default_next = "Make room on the agent's disk; it goes on by itself."


class Journal:
    def __init__(self, path: Path, *, journal_id: str | None = None) -> None:
        """Open or create the file. A damaged file is moved aside, and the new one gets the identity `journal_id`."""
        self.event_mark = ""  # the newest mark of the server's answers
        self._lock = threading.RLock()
        self._unwritten: list[SqlWrite] = []  # writes that the disk refused, in order
        self.trouble = ""
        self._behind = LogPace()
        self.was_damaged = False
        self.unreadable_keys: set[AttemptKey] = set()  # attempts with unreadable rows: the backend may have them
        self.is_rebuilt = False  # its content was lost: the server must not compare it with earlier counts
        self.start = 0  # number of this start on this journal, once claimed by `begin`
        self.claim = ""  # the secret word of that claim
        self._claim = ""  # the claim as stored
        self._is_accepted = False  # by the server; writes are counted from then on
        self.event_mark = ""  # the newest of the server's answers
        self._reserve = JournalReserve(path)
        self._settled_unwritten: dict[AttemptKey, Attempt] = {}  # settled, and the disk refused to take it
        try:
            self._open_or_replace(path, journal_id)
        except (sqlite3.Error, OSError) as exc:
            raise JournalTrouble(f"The journal {path} cannot be opened: {exc}.") from exc
        self._reserve.hold()

    def close(self) -> None:
        with self._lock:
            self._write_when_possible([])
            self._db.close()

    def begin(self) -> int:
        """Claim the next start number durably, before it is sent to the server (journal.py)."""
        with self._lock:
            if not self.start:
                start = self._starts + 1
                if not claim_word(self._claim, start):
                    claim = make_claim(start)
                    self._write([("INSERT OR REPLACE INTO meta VALUES ('claim', ?)", (claim,))])
                    self._claim = claim
                self.start, self.claim = start, claim_word(self._claim, start)
            return self.start

    def confirm_identity(self) -> None:
        """Count the start and the writes of this process from now on: the server accepted it as the agent."""
        with self._lock:
            if self._is_accepted:
                return
            self._is_accepted, self.is_rebuilt, self._starts = True, False, self.start
            save_starts = ("INSERT OR REPLACE INTO meta VALUES ('starts', ?)", (str(self.start),))
            self._write_when_possible([save_starts, ("DELETE FROM meta WHERE key IN ('claim', 'rebuilt')", ())])
            try:
                save_start_count(self._folder, self.start)
            except OSError as exc:  # the journal has the number
                log.warning(line("start-not-counted", folder=self._folder, error=exc))

    def note_event_mark(self, mark: str) -> None:
        """Keep the newest mark of the server's answers. It is written with the next change: every lease is one."""
        with self._lock:
            if len(mark) <= EVENT_MARK_CHARS_MAX and _number_of(mark) > _number_of(self.event_mark):
                self.event_mark = mark

    def attempts(self) -> list[Attempt]:
        """All attempts that are not settled, in the order in which they were leased."""
        with self._lock:
            return list(self._attempts.values())

    def get(self, key: AttemptKey) -> Attempt | None:
        with self._lock:
            return self._attempts.get(key)

    def knows(self, key: AttemptKey) -> bool:
        """Whether this attempt was ever leased here and is not purged."""
        with self._lock:
            return key in self._attempts or self._row(key) is not None

    def queued(self) -> list[QueuedReport]:
        """Reports to send, oldest first."""
        with self._lock:
            return list(self._queue.values())

    def has_queued(self, seqs: Iterable[int]) -> bool:
        """Whether all reports with these numbers are still to be sent."""
        with self._lock:
            return all(seq in self._queue for seq in seqs)

    def take(self, leases: Iterable[Lease]) -> list[Attempt]:
        """Store new leases durably, or raise. A known lease is ignored; a higher fence ends the lower one."""
        if not (leases := list(leases)):
            return []  # as in most answers: what follows looks at all attempts
        with self._lock:
            new: dict[AttemptKey, Attempt] = {}
            for lease in split_ranges(leases):
                key = (lease.job, lease.fence)
                if key in self._attempts or key in new:
                    continue
                if (row := self._row(key)) is not None:
                    self._report_end_again(key, row)
                elif self._highest_fence(lease.job, task_index(lease)) < lease.fence:
                    new[key] = Attempt(lease)
            ops = [insert_attempt(attempt) for attempt in new.values()]
            for change in [change for attempt in new.values() if (change := self._ended_before(attempt)) is not None]:
                key, [timed] = change.attempt.key, change.reports
                new[key] = change.attempt
                ops += [update_attempt(change.attempt, timed.report), self._enqueue(key, timed, is_final=True)]
            self._write(ops)
            self._attempts.update(new)
            highest = {attempt.lineage: attempt.lease.fence for attempt in new.values()}
            lower = [key for key, attempt in self._attempts.items() if key[1] < highest.get(attempt.lineage, -1)]
            self.request_end(lower, stop=True)
            return [self._attempts[key] for key in new if key in self._attempts]

    def apply(self, changes: Sequence[AttemptChange], *, is_deferred: bool = False) -> None:
        """Store changed attempts and queue their reports for the server. `is_deferred`: `flush` writes them."""
        with self._lock:
            ops: list[SqlWrite] = []
            done: set[AttemptKey] = set()
            for change in changes:
                attempt, reports = self._merge_requests(change)
                final = reports[-1].report if reports and attempt.stage is Stage.ENDED else None
                ops.append(update_attempt(attempt, final))
                if attempt.is_stopped or attempt.stage is Stage.SETTLED:
                    done.add(attempt.key)
                ops += [self._enqueue(attempt.key, report, is_final=report.report is final) for report in reports]
                self._attempts[attempt.key] = attempt
                if attempt.stage is Stage.SETTLED:
                    del self._attempts[attempt.key]
                    self._settled_unwritten[attempt.key] = attempt
            self._unwritten += ops + (self._drop_queued(done) if done else [])
            if not is_deferred:
                self._write_when_possible([])

    def queue_report(self, key: AttemptKey, report: TimedReport) -> None:
        """Queue a report of an attempt that is not over."""
        with self._lock:
            if key in self._attempts:
                self._write_when_possible([self._enqueue(key, report, is_final=False)])

    def settle(self, answers: Iterable[tuple[QueuedReport, ReportAnswer]], *, is_deferred: bool = False) -> None:
        """Remove answered reports, settle or stop their attempts. If that is deferred, a crash sends them again."""
        with self._lock:
            changes: list[AttemptChange] = []
            for queued, answer in answers:
                self._queue.pop(queued.seq, None)
                self._unwritten.append(("DELETE FROM outbox WHERE seq = ?", (queued.seq,)))
                attempt = self._attempts.get(queued.key)
                if attempt is not None and queued.is_final:
                    changes.append(AttemptChange(replace(attempt, stage=Stage.SETTLED)))
                elif attempt is not None and answer is ReportAnswer.STOP:
                    changes.append(AttemptChange(replace(attempt, is_stopped=True)))
            self.apply(changes, is_deferred=is_deferred)

    def request_end(self, keys: Iterable[AttemptKey], *, cancel: bool = False, stop: bool = False) -> list[AttemptKey]:
        """Mark attempts to be cancelled or stopped. Returns the keys that are not known here."""
        with self._lock:
            unknown: list[AttemptKey] = []
            changes: list[AttemptChange] = []
            for key in keys:
                attempt = self._attempts.get(key)
                if attempt is None:
                    unknown.append(key)
                    continue
                is_over = stop and attempt.stage is Stage.ENDED
                if attempt.is_cancel_asked >= cancel and attempt.is_stopped >= stop and not is_over:
                    continue  # asked before
                is_cancel_asked, is_stopped = attempt.is_cancel_asked or cancel, attempt.is_stopped or stop
                stage = Stage.SETTLED if is_over else attempt.stage
                marked = replace(attempt, is_cancel_asked=is_cancel_asked, is_stopped=is_stopped, stage=stage)
                changes.append(AttemptChange(marked))
            self.apply(changes)
            return unknown

    def flush(self) -> None:
        """Try the refused writes again. After trouble, test whether the disk has room."""
        with self._lock:
            self._write_when_possible([DISK_PROBE] if self.trouble else [])
            self._reserve.hold()

    def purgeable(self) -> list[Attempt]:
        """Settled attempts that have been kept long enough, oldest first."""
        with self._lock:
            oldest_s = time.time() - SETTLED_DAYS_MAX * 86_400
            rows = read_rows(self._read(SELECT_PURGEABLE, (oldest_s, SETTLED_MAX, PURGE_MAX)), attempt_of)
            self._set_aside("attempts", rows.unreadable)
            return rows.values

    def settled(self) -> list[Attempt]:
        """Settled attempts, oldest first, also those that the disk refused to take."""
        with self._lock:
            rows = read_rows(self._read(SELECT_SETTLED, (SETTLED_MAX,)), attempt_of)
            return [*rows.values, *self._settled_unwritten.values()]

    def purge(self, attempts: Iterable[Attempt]) -> None:
        with self._lock:
            gone = "DELETE FROM attempts WHERE job = ? AND fence = ? AND settled_s IS NOT NULL"
            self._write_when_possible([(gone, attempt.key) for attempt in attempts])

    def _open_or_replace(self, path: Path, journal_id: str | None) -> None:
        """Open the file. A damaged one is moved aside; a full disk gets back the room that is held for this."""
        problem: Exception
        try:
            self._open(path, journal_id)
            return
        except (sqlite3.Error, msgspec.DecodeError) as exc:
            problem = exc
        if is_damage(problem):
            aside = move_journal_aside(path)
            log.error(line("journal-damaged", error=problem, moved_to=aside))
            self.was_damaged = True
        elif not self._reserve.release():
            raise problem
        self._open(path, journal_id)

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
        if problem := find_damage(db):
            raise sqlite3.DatabaseError(f"the journal is damaged: {problem}")
        db.executescript(SCHEMA)
        check_schema(db)
        meta = {row["key"]: row["value"] for row in db.execute("SELECT key, value FROM meta")}
        if meta.get("schema", SCHEMA_VERSION) != SCHEMA_VERSION:
            raise Conflict(
                f"The journal has format {meta['schema']}; this agent knows {SCHEMA_VERSION}.",
                next_step="Start the newer version of the agent that wrote it.",
            )
        # Only a damaged journal keeps its id. The journal that is missing here may be in use on another machine.
        self.id = meta.get("id") or (journal_id if self.was_damaged else None) or secrets.token_hex(16)
        if "id" not in meta:
            db.execute("INSERT INTO meta VALUES ('schema', ?), ('id', ?)", (SCHEMA_VERSION, self.id))
        self._load_counts(meta)
        attempts = read_rows(db.execute("SELECT * FROM attempts WHERE settled_s IS NULL ORDER BY seq"), attempt_of)
        queue = read_rows(db.execute("SELECT * FROM outbox ORDER BY seq"), queued_report_of)
        self._attempts = {attempt.key: attempt for attempt in attempts.values}
        self._queue = {queued.seq: queued for queued in queue.values}
        self._next_seq = max([*self._queue, *(row["seq"] for row, _ in queue.unreadable)], default=0) + 1
        self.unreadable_keys = {(row["job"], row["fence"]) for row, _ in attempts.unreadable}
        self.is_rebuilt |= bool(attempts.unreadable)
        self._set_aside("attempts", attempts.unreadable)
        self._set_aside("outbox", queue.unreadable)
        if queue.unreadable:
            self._requeue_lost_ends()

    def _load_counts(self, meta: dict[str, str]) -> None:
        """`writes` counts the transactions of accepted processes: the server sees which copy of a journal is newest."""
        saved = load_start_count(self._folder)
        self._starts = max(saved, parse_count(meta.get("starts")))
        self.writes_at_open = self.writes = parse_count(meta.get("writes"))
        self._claim = meta.get("claim", "")
        self.event_mark = meta.get("event_mark", "")
        # The server must not take the new journal that replaces a damaged one for an outdated copy.
        is_lost = self.was_damaged and saved > 0
        self.is_rebuilt = is_lost or "rebuilt" in meta
        if is_lost:
            self._db.execute("INSERT OR REPLACE INTO meta VALUES ('rebuilt', '1')")

    def _set_aside(self, table: str, rows: list[tuple[sqlite3.Row, str]]) -> None:
        for row, why in rows:
            place = {name: row[name] for name in ("seq", "job", "fence")}
            log.error(line("journal-row-unreadable", table=table, **place, why=why))
            self._unwritten += set_aside_row(table, row, why)
        self._write_when_possible([])

    def _requeue_lost_ends(self) -> None:
        """Queue unreadable reports of ends again from the attempts' rows, or as LOST if those are unreadable too."""
        reported = {queued.key for queued in self._queue.values() if queued.is_final}
        for attempt in list(self._attempts.values()):
            if attempt.stage is not Stage.ENDED or attempt.key in reported:
                continue
            if (row := self._row(attempt.key)) is not None:
                self._enqueue_end(attempt.key, row)
        self._write_when_possible([])

    def _enqueue_end(self, key: AttemptKey, row: sqlite3.Row) -> None:
        """Queue the report of how an attempt ended; LOST if that is not known."""
        if row["is_stopped"] or row["final"] is None:
            report = Report(*key, ObservedState.LOST, reason="it was stopped here before the server was restored")
        else:
            report = final_report_of(row) or Report(*key, ObservedState.LOST, reason=END_UNREADABLE)
        self._unwritten.append(self._enqueue(key, TimedReport(report, Stamp("", 0)), is_final=True))

    def _merge_requests(self, change: AttemptChange) -> tuple[Attempt, tuple[TimedReport, ...]]:
        """Keep requests to end the attempt that came from another thread. A stopped attempt sends no reports."""
        attempt = change.attempt
        now = self._attempts.get(attempt.key, attempt)
        is_cancel_asked = attempt.is_cancel_asked or now.is_cancel_asked
        is_stopped = attempt.is_stopped or now.is_stopped
        if is_cancel_asked != attempt.is_cancel_asked or is_stopped != attempt.is_stopped:
            attempt = replace(attempt, is_cancel_asked=is_cancel_asked, is_stopped=is_stopped)
        if not attempt.is_stopped:
            return attempt, change.reports
        return (replace(attempt, stage=Stage.SETTLED) if attempt.stage is Stage.ENDED else attempt), ()

    def _enqueue(self, key: AttemptKey, timed: TimedReport, *, is_final: bool) -> SqlWrite:
        queued = QueuedReport(self._next_seq, key, timed, is_final)
        self._next_seq += 1
        self._queue[queued.seq] = queued
        return INSERT_REPORT, (
            queued.seq,
            *key,
            msgspec.json.encode(timed.report),
            timed.at.boot,
            timed.at.ns,
            is_final,
        )

    def _drop_queued(self, keys: Container[AttemptKey]) -> list[SqlWrite]:
        """Remove the queued reports of these attempts, in one pass: thousands may end at once."""
        gone = [seq for seq, queued in self._queue.items() if queued.key in keys]
        for seq in gone:
            del self._queue[seq]
        return [("DELETE FROM outbox WHERE seq = ?", (seq,)) for seq in gone]

    def _report_end_again(self, key: AttemptKey, row: sqlite3.Row) -> None:
        """Report an end again to a server that leases an ended attempt: it was restored from a backup."""
        if not any(queued.key == key for queued in self._queue.values()):
            self._enqueue_end(key, row)

    def _ended_before(self, attempt: Attempt) -> AttemptChange | None:
        """Return the known end of an attempt that a restored server leases again, so that it does not run twice."""
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
        timed = TimedReport(msgspec.structs.replace(report, fence=lease.fence), Stamp("", 0))
        return AttemptChange(replace(attempt, stage=Stage.ENDED, native_id=rows[0]["native_id"]), (timed,))

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
            self.trouble = trouble_text("read", exc)
            raise JournalTrouble(f"The journal cannot be read: {exc}.") from exc

    def _write_when_possible(self, ops: list[SqlWrite]) -> None:
        self._unwritten += [op for op in ops if op is not DISK_PROBE]
        try:
            self._write([DISK_PROBE] if DISK_PROBE in ops else [])
        except JournalTrouble as exc:
            if times := self._behind.note(exc.detail):
                log.warning(line("journal-behind", writes=len(self._unwritten), error=exc.detail, times=times))

    def _write(self, ops: list[SqlWrite]) -> None:
        """Write the refused writes, then these, in one transaction."""
        if not self._unwritten and not ops:
            return
        # Writes of a process that was not accepted do not count: a copy of the journal could catch up by restarting.
        writes = self.writes + self._is_accepted
        try:
            with transaction(self._db) as db:
                counts = [(SAVE_META, ("writes", str(writes))), (SAVE_META, ("event_mark", self.event_mark))]
                for statement, values in [*self._unwritten, *ops, *counts]:
                    db.execute(statement, values)
        except sqlite3.Error as exc:
            self.trouble = trouble_text("written", exc)
            raise JournalTrouble(f"The journal cannot be written: {exc}.") from exc
        self._unwritten.clear()
        self._settled_unwritten.clear()
        self.writes = writes
        self.trouble = ""
        if self._behind.end():
            self._reserve.note_growth()
            log.info(line("journal-caught-up"))


def _number_of(mark: str) -> int:
    return parse_count(mark.partition(".")[0])


# Counts the starts on a data folder that the server accepted, in a small file beside the journal.
#
# The journal has the number, too. The file survives a damaged journal; a copy of the credential alone has neither.
#
# An agent sends the next number to the server, and counts it only after the server accepted it. So a copy that is
# refused sends the same number at every start. Before it sends, the agent writes a *claim* to its journal: the number
# and a secret word. If the agent is killed between the acceptance and the count, the next process sends the same number
# with the same word, and the server recognizes the word.

STARTS_FILE = "starts"


def load_start_count(folder: Path) -> int:
    """The stored count; 0 if there is none or it cannot be read."""
    try:
        return parse_count((folder / STARTS_FILE).read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return 0


def save_start_count(folder: Path, start: int) -> None:
    replace_file(folder / STARTS_FILE, f"{start}\n".encode())


def make_claim(start: int) -> str:
    return f"{start} {secrets.token_hex(8)}"


def claim_word(claim: str, start: int) -> str:
    """The word of a claim to this start; empty if the claim is to another start or missing."""
    number, _, word = claim.partition(" ")
    return word if number == str(start) else ""


def parse_count(text: str | None) -> int:
    """Parse a stored count; 0 if it cannot be read."""
    text = (text or "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


class JournalReserve:
    """Disk room for the journal, so that a job that fills the disk stops neither the agent nor its next start.

        JOURNAL-wal      is made so large beforehand. SQLite writes into it, so a write needs no further room.
        JOURNAL.reserve  is removed if the journal cannot be opened for want of room, and made again later.

    SQLite takes what stands in the first file behind its own frames for the rest of an older log, and ignores it.
    `release` comes before the journal is open, `hold` afterwards.
    """

    def __init__(self, journal: Path) -> None:
        self._log = journal.with_name(f"{journal.name}-wal")
        self._reserve = journal.with_name(f"{journal.name}.reserve")
        self._is_held = False
        self._tried_at = -HOLD_EVERY_S

    def release(self) -> bool:
        """Give the room to the journal that is being opened. False: none is held."""
        self._is_held = False
        try:
            self._reserve.unlink()
        except OSError:
            return False
        return True

    def hold(self) -> None:
        """Take the room, unless it is held. Without room on the disk, a later call does it."""
        now = time.monotonic()
        if self._is_held or now - self._tried_at < HOLD_EVERY_S:
            return
        self._tried_at = now
        with contextlib.suppress(OSError):
            if shutil.disk_usage(self._log.parent).free < RESERVE_FREE_BYTES_MIN:
                return  # else running jobs would fail for want of this room
            _extend(self._log, LOG_BYTES)
            _extend(self._reserve, RESERVE_BYTES)
            self._is_held = True

    def note_growth(self) -> None:
        """The journal may have used the room that is held in its log, or cut the log."""
        self._is_held = False


def _extend(path: Path, size: int) -> None:
    """Make a file so large, with blocks on the disk. What it contains stays."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        have = os.fstat(fd).st_size
        if have < size:
            os.posix_fallocate(fd, have, size - have)
    finally:
        os.close(fd)
