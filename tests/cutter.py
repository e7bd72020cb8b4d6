"""A relay before a real server that cuts answers after a given number of bytes. It is a peer, not a mock."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

CHUNK = 65536


class Cutter:
    """Passes each request on, and the first `cut()` bytes of its answer back; None: all of it. Then it hangs up.

    Each request is handed to the server whole, whatever becomes of its answer. `answers` keeps them as they were.
    """

    def __init__(self, server: str | Callable[[bytes], bytes], cut: Callable[[], int | None]) -> None:
        self._server = server
        self._cut = cut
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.requests: list[bytes] = []
        self.answers: list[bytes] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                taken, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._relay, args=(taken,), daemon=True).start()

    def _relay(self, taken: socket.socket) -> None:
        with taken:
            request = _whole_request(taken)
            if not request:
                return
            answer = self._server(request) if callable(self._server) else _ask(self._server, request)
            self.requests.append(request)
            self.answers.append(answer)
            taken.sendall(answer[: self._cut()])


def _whole_request(taken: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        part = taken.recv(CHUNK)
        if not part:
            return b""
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    left = int(lengths[0].partition(b":")[2]) - len(body) if lengths else 0
    while left > 0:
        part = taken.recv(CHUNK)
        data, left = data + part, left - len(part)
    return data


def _ask(server: str, request: bytes) -> bytes:
    parts = urlsplit(server)
    first, _, rest = request.partition(b"\r\n")
    with socket.create_connection((parts.hostname, parts.port)) as upstream:
        upstream.sendall(first + b"\r\nConnection: close\r\n" + rest)
        return b"".join(iter(lambda: upstream.recv(CHUNK), b""))
