"""A server without authentication: whoever is local is the administrator, and no web page may pose as local."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard.errors import Denied
from switchyard.server.http.authenticate import refuse_foreign_origin
from tests.programs import Server, call, start_server

pytestmark = pytest.mark.xdist_group("stop")
JOB = b'{"spec":{"command":["true"]}}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with start_server(tmp_path_factory.mktemp("open")) as server:
        yield server


def test_a_local_caller_is_the_administrator_with_or_without_a_token(server: Server) -> None:
    for token in (None, "nonsense", f"yard_{'0' * 26}_wrong"):
        me = call("GET", f"{server.url}/v1/whoami", token=token).json
        assert (me["name"], me["is_platform_admin"]) == ("local-admin", True)


def test_an_agents_credential_is_checked_all_the_same(server: Server) -> None:
    for token in (None, "nonsense", f"agent_{'0' * 26}_wrong"):
        assert call("POST", f"{server.url}/v1/agents/poll", {"incarnation": "i"}, token=token).status in (401, 410)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example", "Content-Type": "text/plain"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Host": "evil.example"},
        {"Host": "evil.example:8080", "Origin": "http://evil.example:8080"},
        {"Host": "127.0.0.1.evil.example"},
    ],
)
def test_a_page_of_another_origin_cannot_speak_through_the_browser(server: Server, headers: dict[str, str]) -> None:
    join = {"cluster": "evil", "name": "a", "journal": "j", "backend": "fake"}
    before = len(call("GET", f"{server.url}/v1/jobs").json["items"])
    for method, path, body in (("POST", "/v1/jobs", JOB), ("GET", "/v1/jobs", None), ("POST", "/v1/agents/join", join)):
        answer = call(method, server.url + path, body, headers=headers)
        assert (answer.status, answer.json["code"]) == (403, "denied"), path
    assert len(call("GET", f"{server.url}/v1/jobs").json["items"]) == before


def test_its_own_pages_and_every_name_of_loopback_may(server: Server) -> None:
    host = server.url.removeprefix("http://")
    port = host.rsplit(":", 1)[1]
    for headers in ({"Origin": server.url}, {"Host": f"localhost:{port}"}, {"Host": "localhost"}, {"Host": "[::1]:80"}):
        assert call("POST", f"{server.url}/v1/jobs", JOB, headers=headers).status == 201


@pytest.mark.parametrize(
    "host", [b"", b":", b"]", b"[", b"[::1", b"::1::", b"\xff", b"127.0.0.1:x:y", b"localhost@evil"]
)
def test_a_broken_host_is_no_local_one(host: bytes) -> None:
    with pytest.raises(Denied):
        refuse_foreign_origin({"headers": [(b"host", host)]})


def test_one_who_starts_it_open_and_then_closed_still_gets_the_first_token(tmp_path: Path) -> None:
    with start_server(tmp_path, name="one") as server:
        assert "yard_" not in server.log
        made = call("POST", f"{server.url}/v1/jobs", JOB).json["id"]
    with start_server(tmp_path, name="one", auth=True) as server:
        assert call("GET", f"{server.url}/v1/jobs/{made}", token=server.admin_token).status == 200
        assert call("GET", f"{server.url}/v1/jobs/{made}").status == 401
