"""A TCP relay for tests that can go silent: it still takes what is sent, closes nothing and passes nothing on."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit

CHUNK = 65536


class Relay:
    """Passes connections on to one port of loopback.

    `silence()` mutes the connections that are open; new ones work. `block()` mutes new ones too, until `unblock()`.
    """

    def __init__(self, port: int, *, listen: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self._target = port
        self._listener = socket.create_server(listen, backlog=100)
        self.port = int(self._listener.getsockname()[1])
        self._generation = 0  # connections of an older one are mute
        self._is_blocked = False
        self._sockets: list[socket.socket] = []
        self.accepted = 0
        threading.Thread(target=self._accept, name="relay", daemon=True).start()

    def url(self, url: str) -> str:
        """The same address, through this relay."""
        parts = urlsplit(url)
        place = parts.netloc.rpartition(":")[0]
        return urlunsplit(parts._replace(netloc=f"{place}:{self.port}"))

    def silence(self) -> None:
        self._generation += 1

    def block(self) -> None:
        self._is_blocked = True
        self.silence()

    def unblock(self) -> None:
        """New connections work again; those that are mute stay so."""
        self._is_blocked = False

    def close(self) -> None:
        self._listener.close()
        for connection in self._sockets:
            with contextlib.suppress(OSError):
                connection.close()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._listener.accept()
            except OSError:
                return
            try:
                there = socket.create_connection(("127.0.0.1", self._target))
            except OSError:  # the target is down: so is this connection
                here.close()
                continue
            self.accepted += 1
            self._sockets += [here, there]
            generation = -1 if self._is_blocked else self._generation
            for source, target in ((here, there), (there, here)):
                threading.Thread(target=self._pass, args=(source, target, generation), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, generation: int) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                if generation == self._generation:
                    target.sendall(data)
            if generation == self._generation:
                target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def relaying(port: int) -> Iterator[Relay]:
    relay = Relay(port)
    try:
        yield relay
    finally:
        relay.close()
