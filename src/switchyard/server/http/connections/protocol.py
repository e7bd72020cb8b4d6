"""HTTP/1.1 on one connection: parsed in short steps, with time limits for heads, bodies and answers."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any

import msgspec
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from switchyard.errors import Malformed, TooLarge, TooSlow, Unavailable, YardError
from switchyard.server.http.bodies.body_bounds import BODY_S_MAX
from switchyard.server.http.connections.asgi_messages import SCOPE_IS_CLOSED, problem_of
from switchyard.server.http.connections.connection_gate import (
    ClientConnection,
    ConnectionGate,
    ConnectionPhase,
    reset_on_close,
)
from switchyard.server.refusal_log import REFUSALS

STEP_BYTES = 8 * 1024  # parsed at once, in at most some milliseconds; nearly every request is smaller
HEADERS_MAX = 1000
TURN_S = 0.005  # for the steps of all connections together, in one turn of the loop


class SteppedProtocol(HttpToolsProtocol):
    """uvicorn's protocol without the long turns on the loop. A subclass that needs the incoming bytes overrides `feed`.

    One read of a connection may bring thousands of requests, headers or chunks, and uvicorn parses them all at once.
    Here they are parsed a step at a time, in turn with all other connections that have more to parse. A pipelined
    request is not parsed before the requests in front of it are answered. The body of a request that declares its
    length needs no steps: the parser hands on all of it at once.

    A proxy in front may bound all this, too, but `yard server` is also run without one.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._unfed: deque[memoryview] = deque()
        self._is_in_turn = False
        self._is_in_head = False  # of a request: from its first byte to the blank line
        self._body_left = 0  # bytes of a body with a declared length that have not come yet
        self._answering: RequestResponseCycle | None = None  # the request in work; `cycle` is the newest one
        turns: _ParseTurns | None = getattr(self.server_state, "turns", None)
        self._turns = turns or _ParseTurns(self.loop)
        self.server_state.turns = self._turns  # type: ignore[attr-defined]  # all connections of a server share them

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow: _PausableFlow = _PausableFlow(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._unfed.clear()
        super().connection_lost(exc)
        self._drop_requests()

    def _drop_requests(self) -> None:
        """Tell every open request that its client is gone. The base class tells only the newest one."""
        for cycle in (self._answering, *(waiting for waiting, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self.pipeline.clear()

    def _is_closed(self) -> bool:
        """Whether the connection is closed. Used after a failed write: the loop may report the close later."""
        if not self.transport.is_closing():
            return False
        self._drop_requests()
        return True

    def data_received(self, data: bytes) -> None:
        if len(data) <= self._step_bytes() and not self._unfed and not self.pipeline:
            self.feed(data)
            return
        self._unfed.append(memoryview(data))
        self.flow.hold()
        self._go_on()

    def feed(self, data: bytes) -> None:
        """Parse at once."""
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True
        self.scope[SCOPE_IS_CLOSED] = self._is_closed  # type: ignore[literal-required]

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_in_head:
            return  # a trailer field of a chunked body: a proxy has not checked it, and no route uses one
        if len(self.headers) >= HEADERS_MAX:  # finding a header reads all of them
            raise ValueError("too many headers")  # answered like a head that cannot be parsed
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._body_left = _declared_length(self.headers)
        super().on_headers_complete()
        if not self.pipeline:
            self._answering = self.cycle

    def on_body(self, body: bytes) -> None:
        self._body_left = max(0, self._body_left - len(body))
        was_empty = not self.cycle.body
        super().on_body(b"" if was_empty else body)
        if was_empty and not self.cycle.response_complete:
            # As it is: the base class would copy it twice. It pauses reading by itself only after the next piece.
            self.cycle.body = body  # type: ignore[assignment]
            if len(body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()

    def on_message_complete(self) -> None:
        self._body_left = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if self.pipeline:
            self._answering = self.pipeline[-1][0]  # the base class begins it now
        super().on_response_complete()
        self._go_on()

    def _go_on(self) -> None:
        if self._unfed and not self.pipeline and not self._is_in_turn:
            self._is_in_turn = True
            self._turns.wait(self)

    def step(self) -> bool:
        """Parse one step. Returns whether there is more to parse now."""
        if self._unfed and not self.pipeline and not self.transport.is_closing():
            first, size = self._unfed.popleft(), self._step_bytes()
            if len(first) > size:
                self._unfed.appendleft(first[size:])
            self.feed(bytes(first[:size]))
        if self.transport.is_closing():
            self._unfed.clear()
        elif not self._unfed:
            self.flow.let_go(is_wanted=not self.pipeline and not self._is_unread())
        self._is_in_turn = bool(self._unfed) and not self.pipeline
        return self._is_in_turn

    def _step_bytes(self) -> int:
        """How many bytes may be parsed at once."""
        return max(STEP_BYTES, self._body_left)

    def _is_unread(self) -> bool:
        """Whether much of a body waits for its reader, who then resumes reading from the connection."""
        return not (self.cycle is None or self.cycle.response_complete) and len(self.cycle.body) > HIGH_WATER_LIMIT


def _declared_length(headers: list[tuple[bytes, bytes]]) -> int:
    """The length that a request declares for its body. 0: it has no body, or a body in chunks."""
    length = 0
    for name, value in headers:
        if name == b"transfer-encoding":
            return 0
        if name == b"content-length" and value.isdigit():
            length = int(value)
    return length


class _ParseTurns:
    """All connections of a server that have more to parse. Each gets a step, one after the other."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[SteppedProtocol] = deque()

    def wait(self, protocol: SteppedProtocol) -> None:
        self._waiting.append(protocol)
        if len(self._waiting) == 1:
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        until = time.monotonic() + TURN_S
        while self._waiting and time.monotonic() < until:
            protocol = self._waiting[0]
            has_more = protocol.step()
            self._waiting.popleft()  # only now: a connection that comes meanwhile sees that a turn is scheduled
            if has_more:
                self._waiting.append(protocol)
        if self._waiting:
            self._loop.call_soon(self._turn)


class _PausableFlow(FlowControl):
    """Reads nothing more from the connection while there are unparsed bytes."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._is_on_hold = False

    def hold(self) -> None:
        self._is_on_hold = True
        self.pause_reading()

    def let_go(self, *, is_wanted: bool) -> None:
        self._is_on_hold = False
        if is_wanted:
            self.resume_reading()

    def resume_reading(self) -> None:
        if not self._is_on_hold:
            super().resume_reading()


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
