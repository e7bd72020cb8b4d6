"""HTTP/1.1 on one connection, within bounds: time limits for heads, bodies and answers."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from switchyard.errors import Malformed, TooLarge, TooSlow, Unavailable, YardError
from switchyard.server.http.bodies.body_bounds import BODY_S_MAX
from switchyard.server.http.connections.asgi_messages import problem_of
from switchyard.server.http.connections.connection_gate import (
    ClientConnection,
    ConnectionGate,
    ConnectionPhase,
    reset_on_close,
)
from switchyard.server.http.connections.stepped_protocol import HEADERS_MAX, SteppedProtocol
from switchyard.server.refusal_log import REFUSALS

HEAD_BYTES_MAX = 64 * 1024  # request line and headers; also the trailers of a chunked body
HEAD_TOO_LARGE_STATUS = 431
PHRASES = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


def raw_answer(error: YardError, status: int) -> bytes:
    """Return a complete answer for a request that reached no route."""
    body = msgspec.json.encode(msgspec.structs.replace(problem_of(error), status=status))
    head = (
        f"HTTP/1.1 {status} {PHRASES[status]}\r\ncontent-type: application/problem+json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n"
    )
    retry_header = "retry-after: 1\r\n" if error.transient else ""
    return f"{head}{retry_header}\r\n".encode() + body


SERVER_FULL = raw_answer(
    Unavailable("This server has as many connections as it takes, and each has a request in work."), status=503
)
NOT_HTTP = Malformed("The request is not valid HTTP/1.1.", next_step="Send plain HTTP/1.1, as curl does.")


class BoundedProtocol(SteppedProtocol):
    """Tells the gate what the connection waits for, and closes it in `check` when its time is over."""

    def __init__(self, gate: ConnectionGate, peer: ClientConnection | None, **options: Any) -> None:
        """`peer`: the connection, if the gate admitted it before a TLS handshake; else it is admitted here."""
        super().__init__(**options)
        self._gate = gate
        self._admitted = peer
        self._unparsed = 0  # bytes since the parser last produced something
        self._has_asked = False  # the head of a request has come
        self._is_whole = True  # the last request has arrived completely
        self._body_bytes = 0  # in this window of time
        self._body_bytes_in_all = 0
        self._window = 0  # the tick at which it began
        self._unsent = 0  # bytes of answers when the window of a client that does not read began
        self._stalled_at: int | None = None  # and its tick
        self._closing_at: int | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        host, sock = (self.client or ("",))[0], transport.get_extra_info("socket")
        peer = self._admitted or self._gate.admit(host, sock)
        if peer is None:
            self._peer = self._gate.refused(host, sock)
            transport.write(SERVER_FULL)
            transport.close()
            return
        self._peer = peer
        peer.protocol = self
        self._gate.move(peer, ConnectionPhase.SILENT)

    def connection_lost(self, exc: Exception | None) -> None:
        self._gate.leave(self._peer)
        super().connection_lost(exc)

    def feed(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._unparsed += len(data)
        super().feed(data)
        if self._unparsed > HEAD_BYTES_MAX and not self.transport.is_closing():
            self._refuse(TooLarge(f"The head of the request is over {HEAD_BYTES_MAX} bytes."), HEAD_TOO_LARGE_STATUS)
        elif not self._is_whole and self._peer.phase is ConnectionPhase.BUSY:
            self._body_bytes, self._window = 0, self._gate.now
            self._gate.move(self._peer, ConnectionPhase.BODY)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._unparsed = 0
        self._peer.since = self._gate.now  # of a silent one: from here on for the head

    def on_headers_complete(self) -> None:
        self._is_whole = False
        self._has_asked = True
        self._body_bytes_in_all = 0
        if self._peer.phase is not ConnectionPhase.BUSY:
            self._gate.move(self._peer, ConnectionPhase.BUSY)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        self._body_bytes += len(body)
        self._body_bytes_in_all += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._unparsed = 0
        self._is_whole = True
        if self._peer.phase is ConnectionPhase.BODY:
            self._gate.move(self._peer, ConnectionPhase.BUSY)
        elif self._peer.phase is ConnectionPhase.SILENT:  # the rest of a request that is answered
            self._gate.move(self._peer, ConnectionPhase.SILENT)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:  # no further request is in the pipeline
            self._gate.move(self._peer, ConnectionPhase.SILENT)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled_at, self._unsent = self._gate.now, self.transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stalled_at = None

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  # the base class calls it
        if self._is_in_head and len(self.headers) >= HEADERS_MAX:
            self._refuse(TooLarge(f"The request has over {HEADERS_MAX} headers."), HEAD_TOO_LARGE_STATUS)
            return
        self._refuse(NOT_HTTP, NOT_HTTP.status)

    def evict(self) -> None:
        if self.transport.get_write_buffer_size():
            self._cut("too many connections, and the answer is not read")
        else:
            self.transport.close()

    def check(self, now: int) -> None:
        bounds, peer = self._gate.bounds, self._peer
        if self.transport.is_closing():
            self._closing_at = now if self._closing_at is None else self._closing_at
            if now - self._closing_at >= bounds.answer_s:
                self._cut("the last bytes were not taken")
        elif self._stalled_at is not None and now - self._stalled_at >= bounds.answer_s:
            left = self.transport.get_write_buffer_size()
            if self._unsent - left < bounds.slow_bytes:
                self._cut("the answer is not read")
            self._stalled_at, self._unsent = now, left
        elif peer.phase is ConnectionPhase.SILENT:
            self._check_silent(now - peer.since)
        elif peer.phase is ConnectionPhase.BODY:
            self._check_body(now)

    def _check_silent(self, waited: int) -> None:
        bounds = self._gate.bounds
        if self._is_in_head:
            if waited >= bounds.head_s:
                error = TooSlow(f"The head of the request did not arrive within {bounds.head_s} s.")
                self._refuse(error, error.status)
        elif not self._is_whole:
            if waited >= bounds.body_s:
                self._note("the rest of a refused body")
                self.transport.close()
        elif waited >= (bounds.idle_s if self._has_asked else bounds.head_s):
            if not self._has_asked:
                self._note("no request came")
            self.transport.close()

    def _check_body(self, now: int) -> None:
        bounds = self._gate.bounds
        if self.flow.read_paused:  # the server is slow, not the client
            self._body_bytes, self._window = 0, now
        elif now - self._window >= bounds.body_s:
            least = self._least_body_bytes()
            if self._body_bytes < least:
                error = TooSlow(f"Less than {least} bytes of the body arrived within {bounds.body_s} s.")
                self._refuse(error, error.status)
            self._body_bytes, self._window = 0, now

    def _least_body_bytes(self) -> int:
        """How much of a body must arrive in a window: so much that all of it arrives within BODY_S_MAX."""
        declared = next((value for name, value in self.headers if name == b"content-length"), b"")
        size = int(declared) if declared.isdigit() else self._body_bytes_in_all
        return max(self._gate.bounds.slow_bytes, size * self._gate.bounds.body_s // BODY_S_MAX)

    def _refuse(self, error: YardError, status: int) -> None:
        self._note(error.detail)
        first = self._answering  # a refusal must not be written into the answer of an earlier request
        if first is None or first.response_complete or not first.response_started:
            self.transport.write(raw_answer(error, status))
        self.transport.close()

    def _cut(self, reason: str) -> None:
        self._note(reason)
        reset_on_close(self._peer.sock)
        self.transport.abort()

    def _note(self, reason: str) -> None:
        REFUSALS.note("connection closed", address=self._peer.address, reason=reason, phase=self._peer.phase.value)
