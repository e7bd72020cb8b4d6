"""How far the output of running attempts has gone up, and what of it goes next. It knows the backend, not the server.

Of each stream the first half of the bound goes up whole. Beyond it the newest goes up as it comes; a job that writes
faster than we send leaves gaps, and what of them belongs to the last half is sent when it ends.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass

from switchyard.agent.attempt import Attempt, AttemptKey, Stage
from switchyard.agent.backends import Backend
from switchyard.agent.journal import Journal
from switchyard.agent.log import line
from switchyard.errors import YardError
from switchyard.model.log import STREAMS, ByteRange, LogWindow, split_range, uncovered_ranges
from switchyard.model.poll import CHUNK_BYTES_MAX

READ_EVERY_S = 0.5  # one letter of running output in this time, and each attempt at most once
READ_EVERY_S_MAX = 1.0  # an attempt that writes nothing is looked at less often
LIVE_BATCH_BYTES = (
    2**18
)  # in one such letter before its last attempt, which may add a chunk per stream: 1.5 MiB/s at most
LIVE_BATCH_CHUNKS = 64  # the protocol's own bound

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class UnsentOutput:
    """Bytes of a running attempt that have not gone up."""

    key: AttemptKey
    stream: str
    offset: int
    data: bytes


@dataclass(slots=True)
class _Progress:
    sent: int = 0  # whatever lies before was sent or left out
    solid_from: int = 0  # from here up to `sent` nothing was left out


class LiveOutput:
    """Used by one thread. Kept in memory: after a restart the same bytes go up again, which is harmless."""

    def __init__(self, journal: Journal, backend: Backend) -> None:
        self._journal = journal
        self._backend = backend
        self._window = LogWindow()
        self._progress: dict[tuple[AttemptKey, str], _Progress] = {}
        self._look_at: dict[AttemptKey, float] = {}
        self._pause_s: dict[AttemptKey, float] = {}
        self._next_at = 0.0
        self._turn = 0  # which attempt is first: each gets its turn

    def bound(self, bytes_max: int) -> None:
        """What the server keeps of a stream. Another bound than before: begin again, since other parts are wanted."""
        if bytes_max != self._window.bytes_max:
            self._window = LogWindow(bytes_max)
            self._progress.clear()

    @property
    def look_s(self) -> float | None:
        """In how many seconds to look again; none: nothing runs."""
        is_any = any(_is_writing(each) for each in self._journal.attempts())
        return max(0.0, self._next_at - time.monotonic()) if is_any else None

    def fresh(self) -> list[UnsentOutput]:
        """What is new, as much as one letter takes."""
        now = time.monotonic()
        if now < self._next_at:
            return []
        self._next_at = now + READ_EVERY_S
        attempts = [each for each in self._journal.attempts() if _is_writing(each)]
        self._forget(attempts)
        found: list[UnsentOutput] = []
        self._turn = (self._turn + 1) % max(1, len(attempts))
        for attempt in attempts[self._turn :] + attempts[: self._turn]:
            if self._look_at.get(attempt.key, 0.0) > now:
                continue
            if (
                sum(len(each.data) for each in found) > LIVE_BATCH_BYTES
                or len(found) + len(STREAMS) > LIVE_BATCH_CHUNKS
            ):
                break
            new = [each for stream in STREAMS if (each := self._read(attempt, stream)) is not None]
            pause_s = READ_EVERY_S if new else min(READ_EVERY_S_MAX, self._pause_s.get(attempt.key, READ_EVERY_S) * 1.5)
            self._pause_s[attempt.key], self._look_at[attempt.key] = pause_s, now + pause_s
            found += new
        return found

    def sent(self, pieces: Iterable[UnsentOutput]) -> None:
        """The server has these."""
        for piece in pieces:
            progress = self._progress.setdefault((piece.key, piece.stream), _Progress())
            if piece.offset > progress.sent:
                progress.solid_from = piece.offset
            progress.sent = max(progress.sent, piece.offset + len(piece.data))

    def left(self, key: AttemptKey, stream: str, total: int) -> list[ByteRange]:
        """Of a stream that is whole now: what is still to be sent, in pieces."""
        progress = self._progress.get((key, stream), _Progress())
        half = self._window.half
        gone = [(0, min(progress.sent, half)), (max(progress.solid_from, half), progress.sent)]
        held = [span for span in gone if span[0] < span[1]]
        spans = [part for kept in self._window.kept((0, total), total) for part in uncovered_ranges(kept, held)]
        return [piece for span in spans for piece in split_range(span, CHUNK_BYTES_MAX)]

    def _read(self, attempt: Attempt, stream: str) -> UnsentOutput | None:
        assert attempt.native_id is not None
        at = self._progress.get((attempt.key, stream), _Progress()).sent
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

    def _forget(self, attempts: list[Attempt]) -> None:
        """What has ended and was told needs no place any more."""
        held = self._journal.attempts()
        if len(self._look_at) > 2 * len(attempts) + 8 or len(self._progress) > 4 * len(held) + 16:
            known = {each.key for each in held}
            self._progress = {each: progress for each, progress in self._progress.items() if each[0] in known}
            self._look_at = {key: at for key, at in self._look_at.items() if key in known}
            self._pause_s = {key: pause_s for key, pause_s in self._pause_s.items() if key in known}


def _is_writing(attempt: Attempt) -> bool:
    """Thousands that wait in a queue have written nothing; what is not yet known to run is looked at a moment later."""
    return attempt.stage is Stage.RUNNING and attempt.native_id is not None and not attempt.is_stopped
