"""A server process from outside: it ends when told, with whatever is parked; a second one is told why not."""

from __future__ import annotations

import http.client
import signal
import threading
import time
import urllib.parse
from pathlib import Path
from typing import Any

import pytest

from tests.processes import free_port, until
from tests.programs import call, isolated_env, start_server, yard
from tests.server.town import GRAPH

pytestmark = pytest.mark.xdist_group("stop")
STOP_S = 2.0


def test_a_server_with_parked_polls_and_waits_ends_within_two_seconds(tmp_path: Path) -> None:
    with start_server(tmp_path) as server:
        agents = [_join(server.url, f"agent-{index}") for index in range(5)]
        job = call("POST", f"{server.url}/v1/jobs", {"spec": {"command": ["true"]}}).json["id"]
        first = {"incarnation": "i1", "session": 1, "want": 1}
        assert call("POST", f"{server.url}/v1/agents/poll", first, token=agents[0]).json["leases"][0]["job"] == job
        answers: list[Any] = []

        def ask(method: str, path: str, body: Any, token: str | None) -> None:
            try:
                answers.append(call(method, server.url + path, body, token=token, timeout_s=30))
            except OSError as exc:
                answers.append(exc)

        parked = {"incarnation": "i1", "session": 1, "want": 1, "wait_s": 60}
        threads = [threading.Thread(target=ask, args=("POST", "/v1/agents/poll", parked, token)) for token in agents]
        threads += [
            threading.Thread(target=ask, args=("GET", f"/v1/jobs/{job}/wait?timeout_s=60", None, None))
            for _ in range(5)
        ]
        for thread in threads:
            thread.start()
        half_sent = _half_a_request(server.url)
        until(lambda: call("GET", f"{server.url}/healthz").status == 200, 10, "it still answers")
        time.sleep(0.5)  # all of them are parked by now; one that is not must end all the same
        assert answers == []
        began = time.monotonic()
        server.signal(signal.SIGTERM)
        assert server.wait(10) == 0
        took_s = time.monotonic() - began
        for thread in threads:
            thread.join(5)
        half_sent.close()
        assert took_s < STOP_S, f"took {took_s:.1f} s"
        assert len(answers) == len(threads)
        assert all(not isinstance(answer, OSError) and answer.status == 200 for answer in answers), answers
        assert sum("is_closing" in answer.json for answer in answers) == len(agents), "agents are told to come back"
        assert "level=error" not in server.log


def _join(url: str, name: str) -> str:
    asked = {"cluster": "alpha", "name": name, "journal": name, "backend": "fake"}
    credential = call("POST", f"{url}/v1/agents/join", asked).json["credential"]
    hello = {"incarnation": "i1", "inventory": [], "graph": GRAPH}
    assert call("POST", f"{url}/v1/agents/poll", hello, token=credential).json["session"] == 1
    return str(credential)


def _half_a_request(url: str) -> http.client.HTTPConnection:
    """A client that sends half a body and then nothing."""
    parts = urllib.parse.urlsplit(url)
    line = http.client.HTTPConnection(parts.hostname or "", parts.port or 0, timeout=10)
    line.putrequest("POST", "/v1/jobs")
    line.putheader("Content-Length", "1000")
    line.endheaders()
    line.send(b"{")
    return line


def test_what_was_accepted_is_there_after_a_kill(tmp_path: Path) -> None:
    with start_server(tmp_path) as server:
        key = {"Idempotency-Key": "k"}
        body = {"spec": {"command": ["true"]}}
        made = call("POST", f"{server.url}/v1/jobs", body, headers=key)
        assert made.status == 201
        server.kill()
        server.restart()
        again = call("POST", f"{server.url}/v1/jobs", body, headers=key)
        assert (again.status, again.json["id"]) == (200, made.json["id"])
        server.signal(signal.SIGINT)
        assert server.wait(10) == 0


def test_a_second_server_on_the_same_folder_or_port_says_why_not(tmp_path: Path) -> None:
    with start_server(tmp_path) as server:
        env = isolated_env(tmp_path)
        port = urllib.parse.urlsplit(server.url).port
        same_folder = yard(
            *("server", "--data", str(tmp_path / "server-data"), "--http", f"127.0.0.1:{free_port()}"), env=env
        )
        assert same_folder.returncode == 6
        assert "Another server runs on" in same_folder.stderr
        same_port = yard("server", "--data", str(tmp_path / "other"), "--http", f"127.0.0.1:{port}", env=env)
        assert same_port.returncode == 1
        assert f"Cannot listen on 127.0.0.1:{port}" in same_port.stderr
        assert all("next: " in done.stderr for done in (same_folder, same_port))
        assert "Traceback" not in same_folder.stderr + same_port.stderr


def test_both_ports_serve_and_the_first_token_is_shown_once(tmp_path: Path) -> None:
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    port = free_port()
    with start_server(tmp_path, auth=True, extra=["--grpc", f"127.0.0.1:{port}"]) as server:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            check = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
        assert check.status == health_pb2.HealthCheckResponse.SERVING
        token = server.admin_token
        assert call("GET", f"{server.url}/v1/whoami", token=token).json["is_platform_admin"]
        assert server.log.count(token) == 1
