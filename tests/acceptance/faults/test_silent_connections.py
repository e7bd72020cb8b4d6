"""Connections without a word, and slow ones: they end in time, and lock nobody out."""

from __future__ import annotations

import contextlib
import http.client
import json
import resource
import select
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.acceptance.faults.sockets import CLOSED_S, connected, has_answer, received
from tests.acceptance.stage import END_S, Secret, Stage, staged
from tests.processes import PATIENCE_S, end_strays, free_port, until
from tests.programs import YARD, Server, isolated_env, start_agent

SILENT = 1_300  # more than the 1,024 open files with which a service is started, and less than the hard limit
SOFT, HARD = 1_024, 3_000
BOUND_S = 2  # of heads, bodies, answers and idle connections in these tests
DRIP_S = 0.2
TRIES = 5
MANY_ANSWERS = 300  # of the API's description, some 100 kB each: more than any kernel keeps for a reader
SHORT = {"head_s": BOUND_S, "idle_s": BOUND_S, "body_s": BOUND_S, "answer_s": BOUND_S}


def config_file(folder: Path, **connections: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "connections.yaml"
    file.write_text(json.dumps({"connections": connections}), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A server with authentication and short time limits."""
    folder = tmp_path_factory.mktemp("quick")
    with staged(folder, auth=True, extra=["--config", str(config_file(folder, **SHORT))]) as made:
        yield made


@pytest.fixture(autouse=True)
def _enough_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def read_to_end(sock: socket.socket, *, drip: bytes = b"") -> bytes:
    """All that the server says until it closes the connection, while a byte goes out now and then."""
    said = b""
    deadline, next_drip = time.monotonic() + CLOSED_S, 0.0
    while time.monotonic() < deadline:
        if drip and time.monotonic() >= next_drip:
            next_drip = time.monotonic() + DRIP_S
            with contextlib.suppress(OSError):
                sock.sendall(drip)
        part = received(sock)
        if part == b"":
            return said
        said += part or b""
        time.sleep(0.02)  # between two looks
    raise AssertionError(f"still open after {CLOSED_S:g} s; so far it said {said[:200]!r}")


def read_head(sock: socket.socket) -> bytes:
    """The beginning of the answer; empty if the connection was closed without one."""
    try:
        return sock.recv(65536)
    except ConnectionResetError:
        return b""


def test_silent_sockets_lock_nobody_out(tmp_path: Path) -> None:
    """Started with the usual 1,024 open files: an agent's job and a user's calls go on beside 1,300 silent sockets."""
    port = free_port()
    words = ["server", "--data", str(tmp_path / "data"), "--http", f"127.0.0.1:{port}"]
    limited = ["prlimit", f"--nofile={SOFT}:{HARD}", "--", *YARD, *words]
    with (
        contextlib.ExitStack() as open_ones,
        Server(limited, tmp_path, name="server", env=isolated_env(tmp_path)) as server,
    ):
        server.url = f"http://127.0.0.1:{port}"
        server.wait_ready()
        stage = Stage(tmp_path, server, Secret(server.admin_token))
        with stage.agent("alpha"):
            silent = [open_ones.enter_context(connected(server.url)) for _ in range(SILENT)]
            assert stage.ended(stage.submit("true"), timeout_s=END_S)["state"] == "SUCCEEDED"
            assert stage.yard("whoami", check=True).returncode == 0
            with start_agent(
                tmp_path,
                server.url,
                "late",
                graph={"nodes": 1, "each": {"core": 1}},
                token=stage.invite("late"),
                reader=stage.token,
            ):
                assert stage.ended(stage.submit("true", cluster="late"))["state"] == "SUCCEEDED"
            until(lambda: all(received(each) == b"" for each in silent), CLOSED_S, "all silent ones are closed")
            assert stage.health("alpha") == "up"
        assert f'event="open files" limit={HARD} before={SOFT}' in server.log
    end_strays(tmp_path)


HEADS = {
    "nothing at all": (b"", b""),
    "half a request line": (b"GET /v1/wh", b""),
    "a request line byte by byte": (b"GET /", b"a"),
    "headers one by one": (b"GET /healthz HTTP/1.1\r\nHost: x\r\n", b"X-A: b\r\n"),
    "no end of the head": (b"GET /healthz HTTP/1.1\r\nHost: x\r\n", b""),
}


@pytest.mark.parametrize("row", HEADS)
def test_a_head_that_does_not_come_ends_the_connection(quick: Stage, row: str) -> None:
    begin, drip = HEADS[row]
    with connected(quick.url) as sock:
        sock.sendall(begin)
        said = read_to_end(sock, drip=drip)
    assert said.startswith(b"HTTP/1.1 408 ") if begin else said == b"", said
    assert b"too-slow" in said or not begin
    assert quick.call("GET", "/v1/whoami").status == 200


BODIES: dict[str, tuple[str, str, bytes]] = {
    "no body": ("POST", "/v1/jobs", b""),
    "a body byte by byte": ("POST", "/v1/jobs", b" "),
    "a graph byte by byte": ("PUT", "/v1/clusters/slow/graph", b" "),
    "a join, which needs no token": ("POST", "/v1/agents/join", b" "),
}


@pytest.mark.parametrize("row", BODIES)
def test_a_body_that_does_not_come_ends_the_connection(quick: Stage, row: str) -> None:
    method, path, drip = BODIES[row]
    with connected(quick.url) as sock:
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {quick.token}\r\nContent-Length: 200000\r\n"
        )
        sock.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode())
        said = read_to_end(sock, drip=drip)
    assert said.startswith(b"HTTP/1.1 408 "), said
    assert b"too-slow" in said


def test_a_large_body_that_comes_too_slowly_ends_the_connection(quick: Stage) -> None:
    """It moves, but at this pace it would hold the memory of a large body for a quarter of an hour and more."""
    with connected(quick.url) as sock:
        head = f"POST /v1/jobs/bulk HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {quick.token}\r\n"
        sock.sendall(f"{head}Content-Length: {60 * 2**20}\r\nContent-Type: application/json\r\n\r\n".encode())
        said = read_to_end(sock, drip=b" " * 8192)
    assert said.startswith(b"HTTP/1.1 408 "), said
    assert b"too-slow" in said


def test_the_rest_of_a_refused_body_is_not_awaited_for_ever(quick: Stage) -> None:
    with connected(quick.url) as sock:
        sock.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n")
        said = read_to_end(sock, drip=b" ")
    assert said.startswith(b"HTTP/1.1 401 "), said


def test_an_idle_connection_is_closed(quick: Stage) -> None:
    with connected(quick.url) as sock:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        said = read_to_end(sock)
    assert said.startswith(b"HTTP/1.1 200 ")


def test_a_slow_body_that_moves_is_taken(quick: Stage) -> None:
    """Longer than the limit in all, but never too slow: a poor line is no attack."""
    for _ in range(TRIES):
        said, gap_s = _sent_slowly(quick)
        if gap_s < BOUND_S / 2:  # else the machine stood still, and the body did, too
            break
    assert said.startswith((b"HTTP/1.1 201 ", b"HTTP/1.1 422 ", b"HTTP/1.1 400 ")), said[:300]


def _sent_slowly(stage: Stage) -> tuple[bytes, float]:
    """The answer to a job that is sent in pieces, and the longest time between two of them."""
    spec = json.dumps({"spec": {"command": ["true"], "env": {"A": "x" * 100_000}}}).encode()
    head = f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {stage.token}\r\nConnection: close\r\n"
    with connected(stage.url) as sock:
        sock.sendall(f"{head}Content-Type: application/json\r\nContent-Length: {len(spec)}\r\n\r\n".encode())
        begun = time.monotonic()
        times = [begun]
        with contextlib.suppress(ConnectionError):  # it was too slow
            for number, at in enumerate(range(0, len(spec), 10_000)):
                due = begun + number * 0.4
                until(lambda due=due: time.monotonic() >= due, CLOSED_S, "the next piece's time")  # type: ignore[misc]
                sock.sendall(spec[at : at + 10_000])
                times.append(time.monotonic())
        said = read_to_end(sock)
    assert time.monotonic() - begun > BOUND_S
    return said, max(later - earlier for earlier, later in pairwise(times))


HUGE: dict[str, Callable[[], bytes]] = {
    "a long address": lambda: b"GET /" + b"a" * 400_000,
    "a long header": lambda: b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 400_000,
    "many headers": lambda: b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"X-A: b\r\n" * 60_000,
}


@pytest.mark.parametrize("row", HUGE)
def test_a_head_without_end_is_refused(quick: Stage, row: str) -> None:
    with connected(quick.url) as sock:
        with contextlib.suppress(ConnectionError):
            sock.sendall(HUGE[row]())
        said = read_to_end(sock)
    assert said.startswith(b"HTTP/1.1 431 ") or said == b"", said[:200]  # a reset may overtake the answer


def test_a_client_that_never_reads_is_cut_off(quick: Stage) -> None:
    """It asks for far more than the kernels keep for it, and takes nothing."""
    sock = socket.socket()
    with sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        parts = urlsplit(quick.url)
        sock.connect((parts.hostname, parts.port))
        sock.sendall(b"GET /v1/openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * MANY_ANSWERS)
        poller = select.poll()
        poller.register(sock, 0)  # only how it ends, not what there is to read
        ended = select.POLLHUP | select.POLLERR
        until(lambda: any(event & ended for _, event in poller.poll(0)), CLOSED_S, "the connection is cut")
    assert "the answer is not read" in quick.server.log
    assert quick.call("GET", "/v1/whoami").status == 200


def test_the_cap_is_reached_and_released(tmp_path: Path) -> None:
    """Silent connections make room, also for their own address; requests in work do not, and are refused above it.

    Waits take half of an address's connections; the other half is for its work.
    """
    config = config_file(tmp_path, http_max=64, address_max=16)
    with staged(tmp_path, auth=True, extra=["--config", str(config)]) as stage, contextlib.ExitStack() as kept:
        silent = [kept.enter_context(connected(stage.url, source="127.0.0.2")) for _ in range(20)]
        until(lambda: sum(received(each) == b"" for each in silent) == 4, CLOSED_S, "the oldest four are closed")
        assert all(received(each) == b"" for each in silent[:4])
        job = _held(stage)
        waiting = [_waiting(kept, stage, job, "127.0.0.3") for _ in range(16)]
        until(lambda: sum(has_answer(each) for each in waiting) == 8, CLOSED_S, "half of the waits are refused")
        parked = [each for each in waiting if not has_answer(each)]
        answers = [read_head(each) for each in waiting if each not in parked]
        assert all(b"Your address has 8 waits and streams open here" in answer for answer in answers), answers
        assert _status_from(stage, "127.0.0.3") == 200, "half of its connections are for work"
        bodies = [_sending(kept, stage, "127.0.0.3") for _ in range(8)]

        def is_full() -> bool:
            """A request whose bytes the server had not read yet counted as silent, and made room: it comes again."""
            for number, each in enumerate(bodies):
                if has_answer(each):
                    bodies[number] = _sending(kept, stage, "127.0.0.3")
            return _status_from(stage, "127.0.0.3") == 503

        until(is_full, CLOSED_S, "its address has all its connections in work")
        assert _status_from(stage, "127.0.0.4") == 200, "others have room"
        bodies.pop().close()
        until(lambda: _status_from(stage, "127.0.0.3") == 200, CLOSED_S, "a place is free again")
        assert not any(has_answer(each) for each in parked), "nobody who waits was closed"
        assert 'event="connection refused" address=127.0.0.3' in stage.server.log


def test_the_cap_of_all_makes_room_among_the_silent(tmp_path: Path) -> None:
    config = config_file(tmp_path, http_max=32, address_max=16)
    with staged(tmp_path, auth=True, extra=["--config", str(config)]) as stage, contextlib.ExitStack() as kept:
        sources = [f"127.0.0.{number}" for number in (2, 3, 4, 5)]
        silent = [kept.enter_context(connected(stage.url, source=each)) for each in sources for _ in range(12)]
        until(lambda: sum(received(each) == b"" for each in silent) >= 16, CLOSED_S, "the oldest are closed")
        assert all(_status_from(stage, "127.0.0.6") == 200 for _ in range(20))


def test_handshakes_that_never_end_lock_nobody_out(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    named = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    argv = ["openssl", "req", "-x509", *curve, *named, "-keyout", str(key), "-out", str(cert)]
    subprocess.run(argv, check=True, capture_output=True, timeout=PATIENCE_S)
    config = config_file(tmp_path, http_max=32, address_max=32, **SHORT)
    port = free_port()
    words = [*YARD, "server", "--data", str(tmp_path / "data"), "--http", f"127.0.0.1:{port}", "--config", str(config)]
    words += ["--tls-cert", str(cert), "--tls-key", str(key)]
    url = f"https://127.0.0.1:{port}"
    with Server(words, tmp_path, name="server", env=isolated_env(tmp_path)) as server, contextlib.ExitStack() as kept:
        server.wait_for(lambda: _answers_tls(url, cert), CLOSED_S, "it serves")
        silent = [kept.enter_context(connected(url)) for _ in range(100)]
        assert _answers_tls(url, cert), "the oldest handshakes made room"
        until(lambda: all(received(each) == b"" for each in silent), CLOSED_S, "all handshakes are given up")
        assert _answers_tls(url, cert)


def _answers_tls(url: str, cert: Path) -> bool:
    trust = ssl.create_default_context(cafile=str(cert))
    try:
        with urllib.request.urlopen(f"{url}/readyz", context=trust, timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _status_from(stage: Stage, source: str) -> int:
    """What a call from this address is answered; 503 too if the connection was closed at once."""
    parts = urlsplit(stage.url)
    line = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=20, source_address=(source, 0))
    try:
        line.request("GET", "/v1/whoami", headers={"Authorization": f"Bearer {stage.token}"})
        return line.getresponse().status
    except (OSError, http.client.HTTPException):
        return 503
    finally:
        line.close()


def _held(stage: Stage) -> str:
    """A job that ends by nobody."""
    with stage.agent("gone"):
        return stage.submit("true", hold=True, cluster="gone")


def _waiting(kept: contextlib.ExitStack, stage: Stage, job: str, source: str) -> socket.socket:
    sock = kept.enter_context(connected(stage.url, source=source))
    line = f"GET /v1/jobs/{job}/wait?timeout_s=60 HTTP/1.1\r\nHost: x\r\n"
    sock.sendall(f"{line}Authorization: Bearer {stage.token}\r\n\r\n".encode())
    return sock


def _sending(kept: contextlib.ExitStack, stage: Stage, source: str) -> socket.socket:
    """A request whose body does not come."""
    sock = kept.enter_context(connected(stage.url, source=source))
    line = "POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n"
    sock.sendall(f"{line}Authorization: Bearer {stage.token}\r\n\r\n".encode())
    return sock
