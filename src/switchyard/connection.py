"""Rules for connections of the agent and the SDK: no credential over plain HTTP, and TCP keep-alive."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from urllib.parse import urlsplit

from switchyard.errors import BadRequest

KEEPALIVE_IDLE_S = 5  # silence after which the kernel probes the server
KEEPALIVE_PROBES = 2
SEND_TIMEOUT_MS = 15_000  # for the server to acknowledge sent data
PLAIN_HTTP_VARIABLE = "YARD_INSECURE_HTTP"  # the variable that allows plain HTTP beyond this machine


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_plain_http_allowed(value: str | None) -> bool:
    """Whether this value of the variable YARD_INSECURE_HTTP allows plain HTTP."""
    return (value or "").strip().lower() in ("1", "true", "yes")


def refuse_plain_http(url: str, *, is_plain_allowed: bool) -> None:
    """Raise before a credential goes over plain HTTP to another machine, where others could read it."""
    parts = urlsplit(url)
    if parts.scheme != "http" or is_plain_allowed or is_loopback(parts.hostname or ""):
        return
    raise BadRequest(
        f"{url} is plain HTTP: everybody on the way to that machine can read the credential.",
        next_step=f"Use https://. If something else protects the way, such as a tunnel, allow it: --insecure-http "
        f"(server and agent) or {PLAIN_HTTP_VARIABLE}=1.",
    )


def enable_keepalive(sock: socket.socket) -> None:
    """Make a read on this connection fail about 15 s after the server has vanished.

    The kernel probes the peer, so a slow server is still waited for. Behind a proxy only the timeout of each request
    notices.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    with contextlib.suppress(OSError, AttributeError):  # not every system has these
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_IDLE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SEND_TIMEOUT_MS)
