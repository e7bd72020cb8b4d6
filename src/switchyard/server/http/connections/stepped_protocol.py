"""HTTP/1.1 on one connection, parsed in short steps: uvicorn's protocol without the long turns on the loop.

One read of a connection may bring thousands of requests, headers or chunks, and uvicorn parses them all at once. Here
they are parsed a step at a time, in turn with all other connections that have more to parse. A pipelined request is not
parsed before the requests in front of it are answered.

The body of a request that declares its length needs no steps: the parser hands on all of it at once, whatever it holds.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from switchyard.server.http.connections.asgi_messages import SCOPE_IS_CLOSED

STEP_BYTES = 8 * 1024  # parsed at once, in at most some milliseconds; nearly every request is smaller
HEADERS_MAX = 1000
TURN_S = 0.005  # for the steps of all connections together, in one turn of the loop


class SteppedProtocol(HttpToolsProtocol):
    """A subclass that needs the incoming bytes overrides `feed`."""

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
        self.flow: _HeldFlow = _HeldFlow(transport)

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


class _HeldFlow(FlowControl):
    """Reads nothing more from the connection while there are unparsed bytes."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._is_held = False

    def hold(self) -> None:
        self._is_held = True
        self.pause_reading()

    def let_go(self, *, is_wanted: bool) -> None:
        self._is_held = False
        if is_wanted:
            self.resume_reading()

    def resume_reading(self) -> None:
        if not self._is_held:
            super().resume_reading()
