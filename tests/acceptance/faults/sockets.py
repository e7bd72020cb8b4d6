"""Bare connections to a server."""

from __future__ import annotations

import contextlib
import select
import socket
from urllib.parse import urlsplit

CLOSED_S = 60.0  # 2 s are enough on a quiet machine


def connected(url: str, *, source: str = "127.0.0.1") -> socket.socket:
    parts = urlsplit(url)
    assert parts.hostname is not None
    return socket.create_connection((parts.hostname, parts.port or 80), timeout=CLOSED_S, source_address=(source, 0))


def has_answer(sock: socket.socket) -> bool:
    poller = select.poll()  # select itself knows no file above 1,024
    poller.register(sock, select.POLLIN)
    return bool(poller.poll(0))


def received(sock: socket.socket) -> bytes | None:
    """What came, up to the end of the connection; none while it is open and silent."""
    if not has_answer(sock):
        return None
    with contextlib.suppress(ConnectionResetError):
        return sock.recv(65536)
    return b""
