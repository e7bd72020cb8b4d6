"""Follows events (a server-sent stream) and job logs (by offset). Both resume after a broken connection."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import urlencode

import msgspec
from msgspec.structs import replace

from switchyard.decoder_warmup import warm_type
from switchyard.errors import NotFound, Unavailable, YardError
from switchyard.model.wire.api import Event, Output
from switchyard.sdk.transport.calls import ApiCalls, api_path
from switchyard.sdk.transport.transport import Request

OUTAGE_S = 300.0  # a follower retries for this long while the server is away
SILENCE_S = 45.0  # three heartbeats of the server
PAUSE_S_FIRST, PAUSE_S_MAX = 0.2, 5.0
LOG_LONG_POLL_S = 30  # one held request for more of a log; proxies tend to cut idle ones at 60
FIRST_POLL_S = 1  # until the server has answered once, a silence is taken for a wrong address and not for an outage
POLL_S_MIN = 0.2  # between two polls, in case a server does not hold the request

OnTrouble = Callable[[YardError | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputQuery:
    """Which output of a job is read, from where, and whether what comes later is waited for."""

    stream: str = "stdout"
    task: int | None = None
    attempt: int | None = None
    offset: int = 0
    follow: bool = True


class StreamCalls(ApiCalls):
    """Client calls that follow events and logs."""

    def follow(
        self,
        *,
        after: int | None = None,
        job: str | None = None,
        project: str | None = None,
        outage_s: float = OUTAGE_S,
        on_trouble: OnTrouble | None = None,
    ) -> Iterator[Event]:
        """Yield events as they happen, without end. None is missed or repeated, also across restarts of the server.

        `after`: the number of the last event you know; 0: all events; None: from now on. `on_trouble` gets the error
        when the connection is lost, and None when it is back.
        """
        cursor = after
        lost_at: float | None = None
        pause_s = PAUSE_S_FIRST
        while True:
            try:
                for number, event in self._stream(cursor, job, project):
                    if lost_at is not None and on_trouble:
                        on_trouble(None)
                    lost_at, pause_s = None, PAUSE_S_FIRST
                    if event is not None and (cursor is None or event.seq > cursor):
                        cursor = event.seq
                        yield event
                    cursor = max(cursor or 0, number)
            except YardError as exc:
                now = time.monotonic()
                lost_at = now if lost_at is None else lost_at
                if not exc.transient or now - lost_at > outage_s:
                    raise
                if on_trouble:
                    on_trouble(exc)
            time.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 — spreads clients, guards no secret
            pause_s = min(pause_s * 2, PAUSE_S_MAX)

    def newest_event(self) -> int:
        """Return the number of the newest event. Call it before listing jobs and follow from it: nothing is missed."""
        end_s, pause_s = time.monotonic() + self._transport.retry_s, PAUSE_S_FIRST
        while True:
            try:
                for number, _ in self._stream(None, None, None):
                    return number
                # Do not return 0: following from 0 would repeat all events ever.
                error: YardError = Unavailable("The stream of events ended before its first number.")
            except YardError as exc:
                error = exc
            if not error.transient or time.monotonic() + pause_s > end_s:
                raise error
            time.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 — spreads clients, guards no secret
            pause_s = min(pause_s * 2, PAUSE_S_MAX)

    def _stream(self, after: int | None, job: str | None, project: str | None) -> Iterator[tuple[int, Event | None]]:
        """Read one connection. Yield event numbers, with the event where there is one."""
        params = {"after": after, "job": job, "project": project}
        query = urlencode({name: value for name, value in params.items() if value is not None})
        request = Request("GET", api_path("events", "stream") + (f"?{query}" if query else ""), repeatable=True)
        yield from _parse_stream(self._transport.lines(request, timeout_s=SILENCE_S))

    def _output_parts(self, job: str, asked: OutputQuery) -> Iterator[Output]:
        """Yield the parts of a stream; `Client.logs` says how."""
        number, offset, is_next = asked.attempt, asked.offset, False
        while True:
            started_at = time.monotonic()
            try:
                output = self._get(
                    api_path("jobs", job, "output"),
                    Output,
                    query={
                        "stream": asked.stream,
                        "task": asked.task,
                        "attempt": number,
                        "offset": offset or None,
                        "wait_s": self._follow_wait_s(LOG_LONG_POLL_S) if asked.follow else None,
                    },
                    timeout_s=LOG_LONG_POLL_S + SILENCE_S,
                    retry_s=self._patience_s() if asked.follow else None,
                )
            except NotFound:
                if is_next:
                    return  # the job ended before the next attempt
                raise
            # The offset never goes back, whatever the server answers: no byte is yielded twice.
            before = offset
            offset = max(offset, output.next, *(chunk.offset + len(chunk.data) for chunk in output.chunks))
            job, number, is_next = output.job, output.attempt, is_next and not output.chunks
            yield output
            if not asked.follow:
                if offset == before or offset >= output.size:
                    return
            elif output.is_over:
                if asked.attempt is not None or output.is_last:
                    return
                number, offset, is_next = number + 1, 0, True
            elif offset == before:
                time.sleep(max(0.0, POLL_S_MIN - (time.monotonic() - started_at)))

    def _follow_wait_s(self, most_s: float) -> float:
        """How long the server holds a request for more. The first one is short: see `Transport.patience_s`."""
        return most_s if self._transport.has_answered else FIRST_POLL_S

    def output(
        self, job: str, *, stream: str = "stdout", task: int | None = None, attempt: int | None = None
    ) -> Output:
        """Return a job's output so far. The server's limit left out the bytes of a gap between two chunks."""
        asked = OutputQuery(stream=stream, task=task, attempt=attempt, follow=False)
        parts = list(self._output_parts(job, asked))
        return replace(parts[-1], chunks=[chunk for part in parts for chunk in part.chunks])


def _parse_stream(lines: Iterable[bytes]) -> Iterator[tuple[int, Event | None]]:
    """Parse server-sent events into event numbers and events. Heartbeats have a number only."""
    number: int | None = None
    data = b""
    for line in lines:
        name, _, value = line.rstrip(b"\r\n").partition(b":")
        if name == b"id" and value.strip().isdigit():
            number = int(value)
        elif name == b"data":
            data = value.strip()
        elif not line.strip():
            if number is not None:
                yield number, _decode_event(data) if data else None
            data = b""


def _decode_event(data: bytes) -> Event:
    warm_type(Event)
    try:
        return msgspec.json.decode(data, type=Event)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise YardError(
            f"The server sent an event that this version does not understand: {exc}",
            next_step="Compare versions with `yard version`.",
        ) from exc
