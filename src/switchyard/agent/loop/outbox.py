"""Picks what is sent to the server next: reports in order, an ended attempt's output before its end, and live output
in between. No network here."""

from __future__ import annotations

import logging
import time
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from dataclasses import replace as replace_fields

from msgspec.structs import replace

from switchyard.agent.backends import Backend
from switchyard.agent.journal.attempt import Attempt, AttemptKey, QueuedReport
from switchyard.agent.journal.journal import Journal
from switchyard.agent.log import line
from switchyard.agent.loop.live_output import LiveOutput, UnsentOutput
from switchyard.errors import YardError
from switchyard.model.cluster.poll import BATCH_MAX, CHUNK_BYTES_MAX, OUTPUT_CHUNKS_MAX, OutputChunk, Report
from switchyard.model.job.lifecycle import ReportAnswer
from switchyard.model.job.log import OUTPUT_BYTES_MAX, STREAMS

BATCH_OUTPUT_BYTES_MAX = 2**20  # of output in one poll: small, so that no report waits long behind it
REPORT_BATCHES_IN_ROW_MAX = 4  # batches of reports before one of live output
OUTPUT_PAUSE_S = 2.0  # without output after the server answered that it has too much

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

    def answered(self, batch: OutboxBatch, answers: list[ReportAnswer]) -> None:
        """Note that the server took the batch. It gives one answer per report. The journal's `flush` writes that."""
        self._one_by_one = False
        self._following, self._prepared = self._prepared, None
        for key, count in batch.advance.items():
            if key in self._plans:
                self._plans[key].done += count
        self._live.mark_sent(batch.fresh)
        # Deferred: a report that is sent again changes nothing at the server.
        self._journal.settle(zip(batch.queued, answers, strict=False), is_deferred=True)

    def refused(self, batch: OutboxBatch, error: YardError) -> None:
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
