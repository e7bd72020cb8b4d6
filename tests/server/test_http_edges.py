"""What is odd below HTTP's routes, on a real server: trailers, malformed requests, clients that go away."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.programs import Server, start_server

PLAN = b'{"spec":{"command":["true"]}}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with start_server(tmp_path_factory.mktemp("edges"), auth=True) as server:
        yield server


def connected(server: Server) -> socket.socket:
    parts = urlsplit(server.url)
    return socket.create_connection((parts.hostname, parts.port), timeout=300)


def answer(server: Server, sent: bytes) -> tuple[bytes, bytes]:
    """The head and the body of all that comes until the server closes."""
    with connected(server) as line:
        line.sendall(sent)
        said = b"".join(iter(lambda: line.recv(65536), b""))
    head, _, body = said.partition(b"\r\n\r\n")
    return head, body


def chunked(head: bytes, trailer: bytes) -> bytes:
    begin = b"POST /v1/plan HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n"
    return b"%b%b\r\n%x\r\n%b\r\n0\r\n%b\r\n" % (begin, head, len(PLAN), PLAN, trailer)


def test_a_field_in_a_trailer_is_no_header(server: Server) -> None:
    token = f"Authorization: Bearer {server.admin_token}\r\n".encode()
    assert answer(server, chunked(token, b""))[0].startswith(b"HTTP/1.1 200")
    head, body = answer(server, chunked(b"", token))
    assert head.startswith(b"HTTP/1.1 401")
    assert json.loads(body)["code"] == "unauthenticated"
    assert answer(server, chunked(token, b"Content-Type: text/plain\r\n"))[0].startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "sent",
    [
        b"GARBAGE\r\n\r\n",
        b"GET /v1/version HTTP/9.9\r\n\r\n",
        b"GET /v1/version HTTP/1.1\r\nbad header\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_malformed_http_is_answered_with_a_problem(server: Server, sent: bytes) -> None:
    head, body = answer(server, sent)
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"content-type: application/problem+json" in head
    problem = json.loads(body)
    assert (problem["status"], problem["code"]) == (400, "malformed")
    assert problem["next_step"]


def test_pipelined_requests_and_a_reset_are_no_defect(tmp_path: Path) -> None:
    with start_server(tmp_path, auth=True) as server:
        for path in ("/v1/version", "/v1/openapi.json", "/healthz", "/v1/whoami"):
            request = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.admin_token}\r\n\r\n".encode()
            for _ in range(30):
                with connected(server) as line:
                    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                    line.sendall(request * 20)
                    line.recv(1)  # the first answer has begun
                    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close resets
        server.terminate()  # it ends after every request in work
        for word in ("defect", "Exception in ASGI", "without completing", "without starting"):
            assert word not in server.log


@pytest.mark.parametrize("size", [10, 8 * 1024, 300_000, 900_000])
def test_requests_right_behind_a_large_body(server: Server, size: int) -> None:
    """The body comes in large pieces. The last one has the beginning of what follows in it."""
    token = f"Authorization: Bearer {server.admin_token}\r\n".encode()
    body = PLAN[:-1] + b" " * size + b"}"
    plan = b"POST /v1/plan HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n%b\r\n%b" % (len(body), token, body)
    who = b"GET /v1/whoami HTTP/1.1\r\nHost: x\r\n%b\r\n" % token
    end = b"GET /v1/version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with connected(server) as line:
        line.sendall((plan + who) * 3 + end)
        said = b"".join(iter(lambda: line.recv(65536), b""))
    assert said.count(b"HTTP/1.1 200 OK") == 7, said[:300]
    places = [said.rindex(word) for word in (b'"verdicts"', b'"name"', b'"version"')]
    assert places == sorted(places), "answers come in the order of the requests"


LEAVES_MAX = 5


def test_a_bulk_submit_stops_when_its_client_leaves_and_its_repetition_makes_each_job_once(server: Server) -> None:
    """A large bulk submit waits until the last one of its user is over. Status 201: that one stored none of these.

    A server that reads the last byte and the end of the connection apart may have begun: then another client leaves.
    """
    count = 2000
    job = b'{"spec":{"command":["true","%b"]},"hold":true}' % (b"x" * 600)
    body = b'{"each":true,"jobs":[%b]}' % b",".join([job] * count)
    sent = b"POST /v1/jobs/bulk HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n%b\r\n%b"
    for number in range(LEAVES_MAX):
        head = f"Authorization: Bearer {server.admin_token}\r\nContent-Type: application/json\r\n"
        request = sent % (len(body), f"{head}Idempotency-Key: left-{number}\r\n".encode(), body)
        with connected(server) as line:
            line.sendall(request[:-1])
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)  # the last byte and the end go in one segment
            line.sendall(request[-1:])
        first, made = answer(server, request)
        if first.startswith(b"HTTP/1.1 201"):
            break
        assert first.startswith(b"HTTP/1.1 200"), first[:200]
    else:
        raise AssertionError("no bulk submit stopped when its client left")
    ids = {item["job"]["id"] for item in json.loads(made)["items"]}
    assert len(ids) == count
    again, same = answer(server, request)
    assert again.startswith(b"HTTP/1.1 200"), again[:200]
    assert {item["job"]["id"] for item in json.loads(same)["items"]} == ids
