"""Picks what is sent to the server next: reports in order, an ended attempt's output before its end, and live output
in between. No network here."""

from __future__ import annotations

import logging
import time
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields

from msgspec.structs import replace

from switchyard.agent.backends import Backend
from switchyard.agent.journal.attempt import Attempt, AttemptKey, QueuedReport, Stage
from switchyard.agent.journal.journal import Journal
from switchyard.agent.log import line
from switchyard.errors import YardError
from switchyard.model.cluster.poll import BATCH_MAX, CHUNK_BYTES_MAX, OUTPUT_CHUNKS_MAX, OutputChunk, Report
from switchyard.model.job.lifecycle import ReportAnswer
from switchyard.model.job.log import OUTPUT_BYTES_MAX, STREAMS, ByteRange, LogWindow, split_range, uncovered_ranges

BATCH_OUTPUT_BYTES_MAX = 2**20  # of output in one poll: small, so that no report waits long behind it
REPORT_BATCHES_IN_ROW_MAX = 4  # batches of reports before one of live output
OUTPUT_PAUSE_S = 2.0  # without output after the server answered that it has too much
READ_EVERY_S = 0.5  # between two batches of live output; a batch has at most one read per attempt
READ_EVERY_S_MAX = 1.0  # for attempts that write nothing
# In one batch, before its last attempt, which may add a chunk per stream: at most 1.5 MiB/s.
LIVE_BATCH_BYTES = 2**18

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OutboxBatch:
    """The reports and the output of one poll."""

    queued: tuple[QueuedReport, ...]
    reports: tuple[Report, ...]
    output: tuple[OutputChunk, ...]
    advance: dict[AttemptKey, int]  # how many pieces of an attempt's output are in the batch
    fresh: tuple[UnsentOutput, ...] = ()  # live output of running attempts


@dataclass(slots=True)
class _OutputPlan:
    """The pieces of an ended attempt's output, and how many were sent."""

    pieces: list[tuple[str, int, int]]  # stream, offset, size
    done: int = 0

    @property
    def left(self) -> list[tuple[str, int, int]]:
        return self.pieces[self.done :]

    @property
    def left_bytes(self) -> int:
        return sum(size for _, _, size in self.left)


class Outbox:
    """Used by one thread. Progress is in memory: after a restart the same pieces are sent again, which is harmless."""

    def __init__(self, journal: Journal, backend: Backend) -> None:
        self._journal = journal
        self._backend = backend
        self._plans: dict[AttemptKey, _OutputPlan] = {}
        self._set_aside: set[int] = set()  # reports that the server refused even alone; sent again after a restart
        self._one_by_one = False
        self._live = LiveOutput(journal, backend)
        self._bytes_max = OUTPUT_BYTES_MAX
        self._reports_in_row = 0
        self._paused_until = 0.0
        self._prepared: OutboxBatch | None = None  # follows the batch that is under way
        self._following: OutboxBatch | None = None  # was prepared, and the batch before it is answered

    def set_bytes_max(self, bytes_max: int) -> None:
        """Set how much the server keeps of a stream. Called from any thread."""
        self._bytes_max = bytes_max

    @property
    def look_s(self) -> float | None:
        """Seconds until there may be new output; None: nothing runs."""
        return self._live.look_s

    def prepare_next(self, under_way: OutboxBatch) -> None:
        """Make the batch of reports that follows `under_way`, while the server works on that one.

        Not after a batch with output: what is sent next depends on whether the server takes that output.
        """
        is_alone = self._one_by_one or self._reports_in_row >= REPORT_BATCHES_IN_ROW_MAX
        if under_way.reports and not under_way.output and not is_alone:
            self._prepared = self._next_reports(skip={queued.seq for queued in under_way.queued})

    def next(self) -> OutboxBatch | None:
        following, self._following, self._prepared = self._following, None, None
        if following is not None and self._journal.has_queued(queued.seq for queued in following.queued):
            self._reports_in_row += 1
            return replace_fields(following, reports=_aged_reports(following.queued))
        self._live.set_bytes_max(self._bytes_max)
        if self._reports_in_row < REPORT_BATCHES_IN_ROW_MAX and (batch := self._next_reports()) is not None:
            self._reports_in_row += 1
            return batch
        self._reports_in_row = 0
        return self._next_fresh() or self._next_reports()

    def pause(self) -> None:
        """Send no output for a while: the server has too much. Reports go on."""
        self._paused_until = time.monotonic() + OUTPUT_PAUSE_S

    @property
    def _is_paused(self) -> bool:
        return time.monotonic() < self._paused_until

    def _next_fresh(self) -> OutboxBatch | None:
        fresh = [] if self._is_paused else self._live.read_new()
        chunks = tuple(OutputChunk(*piece.key, piece.stream, piece.offset, piece.data) for piece in fresh)
        return OutboxBatch((), (), output=chunks, advance={}, fresh=tuple(fresh)) if fresh else None

    def _next_reports(self, skip: Container[int] = ()) -> OutboxBatch | None:
        """`skip`: reports that are under way."""
        waiting = [
            queued for queued in self._journal.queued() if queued.seq not in self._set_aside and queued.seq not in skip
        ]
        known = {queued.key for queued in waiting}
        self._plans = {key: plan for key, plan in self._plans.items() if key in known}
        if not waiting:
            return None
        queued: list[QueuedReport] = []
        sending: dict[AttemptKey, int] = {}
        spare_bytes, spare_chunks = BATCH_OUTPUT_BYTES_MAX, OUTPUT_CHUNKS_MAX
        postponed: list[QueuedReport] = []
        for report in waiting[: 1 if self._one_by_one else BATCH_MAX]:
            plan = self._plan(report) if report.is_final else _OutputPlan([])
            # Leave room for one piece of large output, so that small output cannot block it forever.
            if plan.left_bytes > spare_bytes - CHUNK_BYTES_MAX or len(plan.left) > spare_chunks - 1:
                postponed.append(report)
                continue
            queued.append(report)
            sending[report.key] = len(plan.left)
            spare_bytes, spare_chunks = spare_bytes - plan.left_bytes, spare_chunks - len(plan.left)
        if postponed and not self._is_paused:
            first = postponed[0]
            pieces = _count_fitting(self._plan(first).left, spare_bytes, spare_chunks)
            sending[first.key] = pieces
            if pieces == len(self._plan(first).left):
                queued.append(first)
        return self._make_batch(queued, sending) if queued or sending else None

    def note_answers(self, batch: OutboxBatch, answers: list[ReportAnswer]) -> None:
        """Note that the server took the batch. It gives one answer per report. The journal's `flush` writes that."""
        self._one_by_one = False
        self._following, self._prepared = self._prepared, None
        for key, count in batch.advance.items():
            if key in self._plans:
                self._plans[key].done += count
        self._live.mark_sent(batch.fresh)
        # Deferred: a report that is sent again changes nothing at the server.
        self._journal.settle(zip(batch.queued, answers, strict=False), is_deferred=True)

    def note_refusal(self, batch: OutboxBatch, error: YardError) -> None:
        """The server cannot decode the batch: drop its output, then send reports one by one, then skip the bad one."""
        log.error(line("letter-refused", reports=len(batch.reports), chunks=len(batch.output), error=error.detail))
        if batch.output:
            for key in batch.advance:
                self._plans[key] = _OutputPlan([])
            self._live.mark_sent(batch.fresh)  # not sent again
        elif len(batch.queued) > 1:
            self._one_by_one = True
        else:
            self._set_aside |= {queued.seq for queued in batch.queued}

    def _plan(self, queued: QueuedReport) -> _OutputPlan:
        if queued.key not in self._plans:
            attempt = self._journal.get(queued.key)
            self._plans[queued.key] = _OutputPlan(list(self._pieces(attempt)) if attempt else [])
        return self._plans[queued.key]

    def _pieces(self, attempt: Attempt) -> Iterator[tuple[str, int, int]]:
        if attempt.native_id is None:
            return
        for stream in STREAMS:
            try:
                total = self._backend.output(attempt.native_id, stream, offset=0, size=0).total
            except (OSError, YardError) as exc:
                log.warning(line("output-unreadable", job=attempt.lease.job, stream=stream, error=exc))
                continue
            if not total:
                continue
            yield from ((stream, lo, hi - lo) for lo, hi in self._live.remaining_spans(attempt.key, stream, total))

    def _make_batch(self, queued: list[QueuedReport], sending: dict[AttemptKey, int]) -> OutboxBatch:
        chunks = []
        for key, count in sending.items():
            attempt = self._journal.get(key)
            if attempt is None or attempt.native_id is None:
                continue
            for stream, offset, size in self._plans[key].left[:count] if key in self._plans else []:
                try:
                    data = self._backend.output(attempt.native_id, stream, offset=offset, size=size).data
                except (OSError, YardError) as exc:
                    log.warning(line("output-unreadable", job=attempt.lease.job, stream=stream, error=exc))
                    continue
                chunks.append(
                    OutputChunk(attempt.lease.job, attempt.lease.fence, stream=stream, offset=offset, data=data)
                )
        return OutboxBatch(tuple(queued), _aged_reports(queued), tuple(chunks), sending)


def _aged_reports(queued: Iterable[QueuedReport]) -> tuple[Report, ...]:
    """The reports with the time since they were observed, which grows until they are sent."""
    return tuple(replace(report.timed.report, ago_us=report.timed.at.age_us) for report in queued)


def _count_fitting(pieces: list[tuple[str, int, int]], spare_bytes: int, spare_chunks: int) -> int:
    count = 0
    for _, _, size in pieces[:spare_chunks]:
        if size > spare_bytes:
            break
        spare_bytes -= size
        count += 1
    return count


@dataclass(frozen=True, slots=True)
class UnsentOutput:
    """Output of a running attempt that was not sent."""

    key: AttemptKey
    stream: str
    offset: int
    data: bytes


@dataclass(slots=True)
class _Progress:
    sent: int = 0  # everything before this offset was sent or skipped
    solid_from: int = 0  # nothing was skipped between this offset and `sent`


@dataclass(slots=True)
class _AttemptOutput:
    """What was read and sent of one attempt."""

    read_at: float = 0.0  # earliest next read
    pause_s: float = READ_EVERY_S  # between its reads: longer while it writes nothing
    progress: dict[str, _Progress] = field(default_factory=dict)  # by stream


class LiveOutput:
    """How much output of running attempts was sent, and what to send next. Used by one thread.

    The first half of a stream's bound is sent whole; after it only the newest output. A job that writes faster than the
    agent sends leaves gaps. Gaps in the last half of the bound are sent when the attempt ends.
    """

    def __init__(self, journal: Journal, backend: Backend) -> None:
        self._journal = journal
        self._backend = backend
        self._window = LogWindow()
        self._outputs: dict[AttemptKey, _AttemptOutput] = {}
        self._next_at = 0.0
        self._turn = 0  # index of the attempt that is read first in the next batch

    def set_bytes_max(self, bytes_max: int) -> None:
        """Set how much the server keeps of a stream. A new bound restarts the progress: other parts are wanted."""
        if bytes_max != self._window.bytes_max:
            self._window = LogWindow(bytes_max)
            for output in self._outputs.values():
                output.progress.clear()

    @property
    def look_s(self) -> float | None:
        """Seconds until the next read; None: nothing runs."""
        is_any = any(_is_writing(attempt) for attempt in self._journal.attempts())
        return max(0.0, self._next_at - time.monotonic()) if is_any else None

    def read_new(self) -> list[UnsentOutput]:
        """Read new output, at most one batch."""
        now = time.monotonic()
        if now < self._next_at:
            return []
        self._next_at = now + READ_EVERY_S
        attempts = [attempt for attempt in self._journal.attempts() if _is_writing(attempt)]
        self._forget(attempts)
        unsent: list[UnsentOutput] = []
        self._turn = (self._turn + 1) % max(1, len(attempts))
        for attempt in attempts[self._turn :] + attempts[: self._turn]:
            output = self._outputs.setdefault(attempt.key, _AttemptOutput())
            if output.read_at > now:
                continue
            if (
                sum(len(piece.data) for piece in unsent) > LIVE_BATCH_BYTES
                or len(unsent) + len(STREAMS) > OUTPUT_CHUNKS_MAX
            ):
                break
            new = [piece for stream in STREAMS if (piece := self._read(attempt, stream)) is not None]
            output.pause_s = READ_EVERY_S if new else min(READ_EVERY_S_MAX, output.pause_s * 1.5)
            output.read_at = now + output.pause_s
            unsent += new
        return unsent

    def mark_sent(self, pieces: Iterable[UnsentOutput]) -> None:
        """Note that the server has these pieces."""
        for piece in pieces:
            output = self._outputs.setdefault(piece.key, _AttemptOutput())
            progress = output.progress.setdefault(piece.stream, _Progress())
            if piece.offset > progress.sent:
                progress.solid_from = piece.offset
            progress.sent = max(progress.sent, piece.offset + len(piece.data))

    def remaining_spans(self, key: AttemptKey, stream: str, total: int) -> list[ByteRange]:
        """The parts of an ended stream that are still to be sent, in pieces."""
        progress = self._progress_of(key, stream)
        half = self._window.half
        gone = [(0, min(progress.sent, half)), (max(progress.solid_from, half), progress.sent)]
        sent = [span for span in gone if span[0] < span[1]]
        spans = [part for span in self._window.kept((0, total), total) for part in uncovered_ranges(span, sent)]
        return [piece for span in spans for piece in split_range(span, CHUNK_BYTES_MAX)]

    def _read(self, attempt: Attempt, stream: str) -> UnsentOutput | None:
        assert attempt.native_id is not None
        at = self._progress_of(attempt.key, stream).sent
        half = self._window.half
        size = min(CHUNK_BYTES_MAX, half - at) if at < half else CHUNK_BYTES_MAX
        try:
            piece = self._backend.output(attempt.native_id, stream, offset=at, size=size)
            behind = piece.total - at - CHUNK_BYTES_MAX
            if at >= half and behind > 0:
                at += behind
                piece = self._backend.output(attempt.native_id, stream, offset=at, size=CHUNK_BYTES_MAX)
        except (OSError, YardError) as exc:
            log.warning(line("output-unreadable", job=attempt.lease.job, stream=stream, error=exc))
            return None
        return UnsentOutput(attempt.key, stream, at, piece.data) if piece.data else None

    def _progress_of(self, key: AttemptKey, stream: str) -> _Progress:
        output = self._outputs.get(key)
        return _Progress() if output is None else output.progress.get(stream, _Progress())

    def _forget(self, attempts: list[Attempt]) -> None:
        """Drop the progress of attempts that are settled."""
        if len(self._outputs) > 2 * len(attempts) + 8:
            known = {attempt.key for attempt in self._journal.attempts()}
            self._outputs = {key: output for key, output in self._outputs.items() if key in known}


def _is_writing(attempt: Attempt) -> bool:
    """Whether to read an attempt's output. Thousands of queued attempts have written nothing."""
    return attempt.stage is Stage.RUNNING and attempt.native_id is not None and not attempt.is_stopped
