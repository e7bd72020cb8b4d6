"""A TCP proxy that can go silent: connections stay open and nothing passes, as when a peer vanished without a word."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from types import TracebackType
from typing import Self

CHUNK = 65536


class SilentProxy:
    """Forwards from a port of its own to another one on loopback."""

    def __init__(self, port: int) -> None:
        self._to = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._selector = selectors.DefaultSelector()
        self._is_over = False
        self._is_silent = False
        self._lock = threading.Lock()
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._dead: list[socket.socket] = []  # open, and nobody reads them any more

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def silence(self) -> None:
        """Nothing passes, and nothing is closed: connections of now for ever, new ones until `speak`."""
        with self._lock:
            self._is_silent = True
            for end in self._pairs:
                self._selector.unregister(end)
                self._dead.append(end)
            self._pairs.clear()

    def speak(self) -> None:
        """New connections are served again."""
        with self._lock:
            self._is_silent = False

    def __enter__(self) -> Self:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        self._thread.join(10)
        for end in [self._listener, *self._pairs, *self._dead]:
            end.close()

    def _run(self) -> None:
        while not self._is_over:
            for key, _ in self._selector.select(0.1):
                with self._lock:
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.fileobj in self._pairs:
                        assert isinstance(key.fileobj, socket.socket)
                        self._forward(key.fileobj)

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        if self._is_silent:
            self._dead.append(near)
            return
        try:
            far = socket.create_connection(self._to, 10)
        except OSError:
            near.close()
            return
        for end, other in ((near, far), (far, near)):
            self._pairs[end] = other
            self._selector.register(end, selectors.EVENT_READ)

    def _forward(self, end: socket.socket) -> None:
        other = self._pairs[end]
        with contextlib.suppress(OSError):
            if data := end.recv(CHUNK):
                other.sendall(data)
                return
        for each in (end, other):
            self._pairs.pop(each, None)
            self._selector.unregister(each)
            each.close()
