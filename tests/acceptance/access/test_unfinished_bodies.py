"""Large bodies that never end: they stay within a budget, and hold no small request up."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
from pathlib import Path

from tests.acceptance.access.grpc_calls import peak_mib
from tests.acceptance.faults.sockets import connected, received
from tests.acceptance.stage import Stage, staged
from tests.processes import PATIENCE_S, until

MIB = 2**20
DECLARED = 63 * MIB
SENT = 16 * MIB  # of each body
CONNECTIONS = 24
REFUSED = 7  # one body is read and 16 wait; the others are refused at once
GROWN_MIB_MAX = 200  # one body is up to 72 MiB; those of all connections are 384 MiB


def test_unfinished_bodies_stay_within_a_budget(tmp_path: Path) -> None:
    with staged(tmp_path, auth=True) as stage, contextlib.ExitStack() as stack:
        stage.post("/v1/users", {"name": "eve"})
        eve = stage.post("/v1/tokens", {"user": "eve"})["token"]
        before = peak_mib(stage.server)
        socks = [stack.enter_context(connected(stage.url)) for _ in range(CONNECTIONS)]
        for sock in socks:
            threading.Thread(target=_begin_body, args=(sock, eve), daemon=True).start()
        answers = dict.fromkeys(socks, b"")

        def refusals() -> list[bytes]:
            for sock in socks:
                answers[sock] += received(sock) or b""
            whole = [answer for answer in answers.values() if is_whole(answer)]
            return whole if len(whole) >= REFUSED else []

        for answer in until(refusals, PATIENCE_S, "bodies over the budget are refused"):
            assert answer.startswith(b"HTTP/1.1 429 ")
            problem = json.loads(answer.partition(b"\r\n\r\n")[2])
            assert (problem["code"], problem["limit"]) == ("throttled", "bodies")
        assert stage.call("GET", "/v1/whoami", token=eve).status == 200
        assert stage.call("POST", "/v1/jobs", {"spec": {"command": ["true"]}, "hold": True}).status == 201
        assert _large_status(stage, stage.token or "") == 201, "another user has a share of their own"
        grown = peak_mib(stage.server) - before
        print(f"grown by {grown} MiB")
        assert grown < GROWN_MIB_MAX
        for sock in socks:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        until(lambda: _large_status(stage, eve) == 201, PATIENCE_S, "the budget is free again")


def is_whole(answer: bytes) -> bool:
    head, _, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)^content-length: (\d+)", head, re.MULTILINE)
    return length is not None and len(body) >= int(length[1])


def _begin_body(sock: socket.socket, token: str) -> None:
    head = f"POST /v1/jobs/bulk HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: {DECLARED}\r\n"
    with contextlib.suppress(OSError):  # closed at the end of the test
        sock.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode())
        for _ in range(SENT // MIB):
            sock.sendall(b" " * MIB)


def _large_status(stage: Stage, token: str) -> int:
    job = {"spec": {"command": ["true"], "env": {"A": "x" * 100_000}}, "hold": True}
    return stage.call("POST", "/v1/jobs", job, token=token).status
