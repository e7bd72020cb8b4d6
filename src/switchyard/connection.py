"""TCP connections of the agent and the SDK: a server that vanished without a word is noticed in seconds, not hours."""

from __future__ import annotations

import contextlib
import socket

IDLE_S = 5  # silence of the server after which the kernel asks whether it is there
PROBES = 2
SENT_MS = 15_000  # for the server to take what was sent


def notice_silence(sock: socket.socket) -> None:
    """End a wait on this connection with an error about 15 s after its server vanished.

    The kernel asks, so a server that is only slow is waited for. What a proxy hides, the time bound of each request
    finds out.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    with contextlib.suppress(OSError, AttributeError):  # not every system has these
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, IDLE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SENT_MS)
