"""A server process from outside: it ends when told, with whatever is parked; a second one is told why not."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import signal
import threading
import time
import urllib.parse
from pathlib import Path
from typing import Any

import pytest

from switchyard.errors import EXIT_UNAVAILABLE, Unavailable
from switchyard.server.grpc import grpc_port
from tests.processes import PATIENCE_S, free_port, until
from tests.programs import Server, call, isolated_env, start_server, yard
from tests.server.town import GRAPH

pytestmark = pytest.mark.xdist_group("stop")
STOP_S = 20.0  # a quiet machine needs less than two, a poll is parked for 60


def test_a_server_with_parked_polls_and_waits_ends_without_waiting_for_them(tmp_path: Path) -> None:
    with start_server(tmp_path) as server:
        agents = [_join(server.url, f"agent-{index}") for index in range(5)]
        job = call("POST", f"{server.url}/v1/jobs", {"spec": {"command": ["true"]}}).json["id"]
        first = {"incarnation": "i1", "session": 1, "want": 1}
        assert call("POST", f"{server.url}/v1/agents/poll", first, token=agents[0]).json["leases"][0]["job"] == job
        # Before the calls are parked: two starts may take longer on a busy machine than a poll is parked.
        _no_second_server(server, tmp_path)
        answers: list[Any] = []

        def ask(method: str, path: str, body: Any, token: str | None) -> None:
            try:
                answers.append(call(method, server.url + path, body, token=token, timeout_s=PATIENCE_S))
            except OSError as exc:
                answers.append(exc)

        parked = {"incarnation": "i1", "session": 1, "want": 1, "wait_s": 60}
        threads = [threading.Thread(target=ask, args=("POST", "/v1/agents/poll", parked, token)) for token in agents]
        threads += [
            threading.Thread(target=ask, args=("GET", f"/v1/jobs/{job}/wait?timeout_s=60", None, None))
            for _ in range(5)
        ]
        before = _sockets(server)
        for thread in threads:
            thread.start()
        half_sent = _half_a_request(server.url)
        wanted = before + len(threads) + 1
        until(lambda: _sockets(server) >= wanted, PATIENCE_S, "the server has accepted all of them")
        until(lambda: call("GET", f"{server.url}/healthz").status == 200, PATIENCE_S, "it still answers")
        assert answers == []
        began = time.monotonic()
        server.signal(signal.SIGTERM)
        assert server.wait(PATIENCE_S) == 0
        took_s = time.monotonic() - began
        for thread in threads:
            thread.join(PATIENCE_S)
        half_sent.close()
        assert took_s < STOP_S, f"took {took_s:.1f} s"
        assert len(answers) == len(threads)
        assert all(not isinstance(answer, OSError) and answer.status == 200 for answer in answers), answers
        assert sum("is_closing" in answer.json for answer in answers) == len(agents), "agents are told to come back"
        assert "level=error" not in server.log


def _sockets(server: Server) -> int:
    """How many sockets a server has open."""
    count = 0
    for link in Path(f"/proc/{server.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            count += str(link.readlink()).startswith("socket:")
    return count


def _no_second_server(server: Server, folder: Path) -> None:
    """On the same folder, or at the same port: it says why not, and the first one does not mind."""
    env, port = isolated_env(folder), urllib.parse.urlsplit(server.url).port
    at = ("--http", f"127.0.0.1:{free_port()}")
    same_folder = yard("server", "--data", str(folder / "server-data"), *at, env=env)
    assert same_folder.returncode == 6
    assert "Another server runs on" in same_folder.stderr
    same_port = yard("server", "--data", str(folder / "other"), "--http", f"127.0.0.1:{port}", env=env)
    assert same_port.returncode == EXIT_UNAVAILABLE
    assert f"Cannot listen on 127.0.0.1:{port}" in same_port.stderr
    assert all("next: " in done.stderr for done in (same_folder, same_port))
    assert "Traceback" not in same_folder.stderr + same_port.stderr


def _join(url: str, name: str) -> str:
    asked = {"cluster": "alpha", "name": name, "journal": name, "backend": "fake"}
    credential = call("POST", f"{url}/v1/agents/join", asked).json["credential"]
    hello = {"incarnation": "i1", "inventory": [], "graph": GRAPH}
    assert call("POST", f"{url}/v1/agents/poll", hello, token=credential).json["session"] == 1
    return str(credential)


def _half_a_request(url: str) -> http.client.HTTPConnection:
    """A client that sends half a body and then nothing."""
    parts = urllib.parse.urlsplit(url)
    line = http.client.HTTPConnection(parts.hostname or "", parts.port or 0, timeout=60)
    line.putrequest("POST", "/v1/jobs")
    line.putheader("Content-Length", "1000")
    line.endheaders()
    line.send(b"{")
    return line


def test_what_was_accepted_is_there_after_a_kill(tmp_path: Path) -> None:
    grpc_port = free_port()
    with start_server(tmp_path, auth=True, extra=["--grpc", f"127.0.0.1:{grpc_port}"]) as server:
        assert _grpc_serves(grpc_port)
        token, key, body = server.admin_token, {"Idempotency-Key": "k"}, {"spec": {"command": ["true"]}}
        made = call("POST", f"{server.url}/v1/jobs", body, token=token, headers=key)
        assert made.status == 201
        server.kill()
        server.restart()
        again = call("POST", f"{server.url}/v1/jobs", body, token=token, headers=key)
        assert (again.status, again.json["id"]) == (200, made.json["id"])
        assert token not in server.log, "the first token is in a file"
        server.signal(signal.SIGINT)
        assert server.wait(PATIENCE_S) == 0


def _grpc_serves(port: int) -> bool:
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
    return bool(health.status == health_pb2.HealthCheckResponse.SERVING)


def test_a_grpc_port_that_does_not_open_in_time_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the first import of Flyte's messages takes longer than that. Before, the error had no text."""
    monkeypatch.setattr(grpc_port, "OPEN_S", 0.01)
    monkeypatch.setattr(grpc_port.GrpcPort, "_opened", lambda _: asyncio.Event().wait())
    unused: Any = None
    with pytest.raises(Unavailable, match="did not open within"):
        grpc_port.GrpcPort(unused)
