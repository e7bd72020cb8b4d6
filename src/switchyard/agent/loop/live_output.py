"""Tracks how much output of running attempts was sent, and picks what to send next. It knows no server.

The first half of a stream's bound is sent whole; after it only the newest output. A job that writes faster than the
agent sends leaves gaps. Gaps in the last half of the bound are sent when the attempt ends.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from switchyard.agent.backends import Backend
from switchyard.agent.journal.attempt import Attempt, AttemptKey, Stage
from switchyard.agent.journal.journal import Journal
from switchyard.agent.log import line
from switchyard.errors import YardError
from switchyard.model.cluster.poll import CHUNK_BYTES_MAX, OUTPUT_CHUNKS_MAX
from switchyard.model.job.log import STREAMS, ByteRange, LogWindow, split_range, uncovered_ranges

READ_EVERY_S = 0.5  # between two batches of live output; a batch has at most one read per attempt
READ_EVERY_S_MAX = 1.0  # for attempts that write nothing
# In one batch, before its last attempt, which may add a chunk per stream: at most 1.5 MiB/s.
LIVE_BATCH_BYTES = 2**18

log = logging.getLogger(__name__)


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
    """Used by one thread. Progress is in memory: after a restart the same bytes are sent again, which is harmless."""

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
