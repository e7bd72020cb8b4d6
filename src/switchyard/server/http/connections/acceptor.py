"""The HTTP listener: uvicorn behind the connection gate. A TLS connection counts from its handshake on."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from switchyard.errors import Unavailable
from switchyard.server.http.connections.connection_gate import TICK_S, ClientConnection, ConnectionGate
from switchyard.server.http.connections.protocol import BoundedProtocol
from switchyard.server.refusal_log import REFUSALS

ACCEPTS_PER_TURN = 64  # connections accepted in one turn of the loop
ACCEPT_RETRY_S = 0.1  # after the system ran out of file descriptors
NO_FILES_ERRNOS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
UNLOGGED_MESSAGES = ("Invalid HTTP request", "Unsupported upgrade", "No supported WebSocket")


class TlsAcceptor:
    """Sockets that listen for TLS, with the methods of asyncio's server that uvicorn calls.

    asyncio's own server tells nobody of a connection before its handshake is done.
    """

    def __init__(
        self,
        sockets: list[socket.socket],
        gate: ConnectionGate,
        make: Callable[[ClientConnection], BoundedProtocol],
        tls: ssl.SSLContext,
    ) -> None:
        self.sockets = sockets
        self._gate = gate
        self._make = make
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._is_closed = False
        for sock in sockets:
            self._listen(sock)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for sock in self.sockets:
            self._loop.remove_reader(sock)
            sock.close()

    async def wait_closed(self) -> None:
        """uvicorn waits for the connections itself."""

    def _listen(self, listener: socket.socket) -> None:
        if not self._is_closed:
            self._loop.add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as exc:
                if exc.errno not in NO_FILES_ERRNOS:
                    raise
                REFUSALS.note("no file left for a connection", address="", reason=str(exc.strerror))
                self._gate.make_room()
                self._loop.remove_reader(listener)
                self._loop.call_later(ACCEPT_RETRY_S, self._listen, listener)
                return
            sock.setblocking(False)
            peer = self._gate.admit(address[0], sock)
            if peer is None:
                self._gate.refused(address[0], sock)
                sock.close()
                continue
            task = self._loop.create_task(self._open(sock, peer))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, sock: socket.socket, peer: ClientConnection) -> None:
        is_open = False
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(
                lambda: self._make(peer), sock, ssl=self._tls, ssl_handshake_timeout=self._gate.bounds.head_s
            )
            is_open = True
        except (OSError, ssl.SSLError) as exc:  # gone already, or no TLS within the time
            REFUSALS.note("connection closed", address=peer.address, reason="no TLS", error=type(exc).__name__)
        finally:
            if not is_open:
                self._gate.leave(peer)
                sock.close()


class HttpServer(uvicorn.Server):
    """uvicorn behind the gate. It has no signal handlers: ours must answer parked polls first."""

    def __init__(self, config: uvicorn.Config, gate: ConnectionGate) -> None:
        super().__init__(config)
        self._gate = gate
        self._ticking: asyncio.TimerHandle | None = None
        logging.getLogger("uvicorn.error").addFilter(_is_no_flood)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets is None  # they are bound here
        config, loop = self.config, asyncio.get_running_loop()
        protocol_options: dict[str, Any] = {
            "config": config,
            "server_state": self.server_state,
            "app_state": self.lifespan.state,
        }

        def make(peer: ClientConnection | None = None) -> BoundedProtocol:
            return BoundedProtocol(self._gate, peer, **protocol_options)

        bound = _listening_sockets(config)
        if config.ssl:
            self.servers: list[Any] = [TlsAcceptor(bound, self._gate, make, config.ssl)]
        else:
            self.servers = [await loop.create_server(make, sock=sock, backlog=config.backlog) for sock in bound]
        self._tick()
        self.started = True

    def _tick(self) -> None:
        self._gate.tick()
        self._ticking = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
        REFUSALS.flush(is_last=True)
        await super().shutdown(sockets)


def _is_no_flood(record: logging.LogRecord) -> bool:
    """Drop uvicorn's lines about bytes that are not HTTP: the refusal log counts them within a bound."""
    return not str(record.msg).startswith(UNLOGGED_MESSAGES)


def _listening_sockets(config: uvicorn.Config) -> list[socket.socket]:
    """A listening socket for each address of the host."""
    sockets: list[socket.socket] = []
    try:
        places = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, _, _, place in dict.fromkeys(places):
            sock = socket.socket(family, kind)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(place)
            sock.listen(config.backlog)
            sock.setblocking(False)
    except OSError as exc:
        for sock in sockets:
            sock.close()
        raise Unavailable(
            f"Cannot listen on {config.host}:{config.port}: {exc.strerror}.",
            next_step="Is the port taken? Give --http another.",
        ) from exc
    return sockets
