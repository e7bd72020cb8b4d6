"""What the agent and the SDK ask of the kernel for each connection, so that a server that vanished is noticed."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from switchyard.agent.server.client import Connection, parse_server_url
from switchyard.connection import KEEPALIVE_IDLE_S, KEEPALIVE_PROBES, SEND_TIMEOUT_MS
from switchyard.sdk.transport.transport import Transport


@pytest.fixture
def url() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("side", ["agent", "sdk"])
def test_the_kernel_asks_whether_the_server_is_there(url: str, side: str) -> None:
    if side == "agent":
        connection = Connection([parse_server_url(url)])._connected(5)
    else:
        connection = Transport(url, None, timeout_s=5, retry_s=0)._connect(5)
    sock = connection.sock
    assert sock is not None
    names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    asked = tuple(sock.getsockopt(socket.IPPROTO_TCP, name) for name in names)
    assert asked == (KEEPALIVE_IDLE_S, KEEPALIVE_IDLE_S, KEEPALIVE_PROBES, SEND_TIMEOUT_MS)
    assert KEEPALIVE_IDLE_S * (KEEPALIVE_PROBES + 1) <= 15
    connection.close()
