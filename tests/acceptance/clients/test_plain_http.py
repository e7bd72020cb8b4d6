"""Secrets stay unseen: no credential over plain HTTP to another machine, and no password among a process's words."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard import Client
from switchyard.errors import EXIT_ERROR, EXIT_UNAVAILABLE, EXIT_USAGE, BadRequest
from tests.acceptance.stage import SOON_S, Stage, graph, staged
from tests.processes import PATIENCE_S, free_port, until
from tests.programs import YARD, Server, call, isolated_env, start_agent, yard
from tests.services import Postgres
from tests.soak import SOAKED
from tests.store.prepared import migrated

ELSEWHERE = "http://yard.example.invalid:8080"  # no such machine: whoever tries to send would say so
ALLOWED = {"YARD_INSECURE_HTTP": "1"}
TOKEN = "yard_" + "0" * 26 + "_secret-of-a-test"

REFUSED_SERVERS = {
    "all addresses": ["--http", "0.0.0.0:8080"],
    "all IPv6 addresses": ["--http", "[::]:8080"],
    "a name": ["--http", "yard.example.invalid:8080"],
    "gRPC alone": ["--http", "127.0.0.1:8080", "--grpc", "0.0.0.0:9090"],
}


@pytest.mark.parametrize("row", REFUSED_SERVERS)
def test_a_server_beyond_loopback_wants_tls(tmp_path: Path, row: str) -> None:
    done = yard("server", "--data", str(tmp_path / "data"), *REFUSED_SERVERS[row], env=isolated_env(tmp_path))
    assert done.returncode == EXIT_USAGE
    assert all(word in done.stderr for word in ("--tls-cert", "127.0.0.1", "--insecure-http")), done.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("way", ["flag", "variable"])
def test_a_server_that_is_told_so_serves_plain_http(tmp_path: Path, way: str) -> None:
    port = free_port()
    argv = [*YARD, "server", "--data", str(tmp_path / "data"), "--http", f"0.0.0.0:{port}"]
    argv += ["--insecure-http"] if way == "flag" else []
    env = isolated_env(tmp_path) | (ALLOWED if way == "variable" else {})
    with Server(argv, tmp_path, name="server", env=env) as server:
        server.url = f"http://127.0.0.1:{port}"
        server.wait_ready()
        assert "plain HTTP beyond this machine" in server.log


CLIENTS = {
    "a command": ["whoami"],
    "login": ["login", "--token-stdin"],
    "the agent": ["agent", "--cluster", "a", "--backend", "fake", "--token", "join_x"],
}


@pytest.mark.parametrize("row", CLIENTS)
def test_no_credential_goes_over_plain_http_to_another_machine(tmp_path: Path, row: str) -> None:
    env = isolated_env(tmp_path, url=ELSEWHERE, token=TOKEN)
    done = yard(*CLIENTS[row], env=env, stdin=f"{TOKEN}\n")
    assert done.returncode == EXIT_USAGE, done.stderr
    assert "plain HTTP" in done.stderr
    assert "YARD_INSECURE_HTTP=1" in done.stderr
    told = yard(*CLIENTS[row], env=env | ALLOWED, stdin=f"{TOKEN}\n")
    assert told.returncode == EXIT_UNAVAILABLE, "it tries, and finds no such machine"
    assert "plain HTTP" not in told.stderr


def test_the_sdk_refuses_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadRequest, match="plain HTTP"):
        Client(ELSEWHERE, TOKEN)
    Client(ELSEWHERE, TOKEN, insecure_http=True).close()
    Client(ELSEWHERE).close()  # without a token there is nothing to read
    Client("http://[::1]:8080", TOKEN).close()
    monkeypatch.setenv("YARD_INSECURE_HTTP", "1")
    Client(ELSEWHERE, TOKEN).close()


def test_the_doctor_finds_plain_http(tmp_path: Path) -> None:
    done = yard("agent", "doctor", "--server", ELSEWHERE, env=isolated_env(tmp_path))
    assert done.returncode == EXIT_ERROR
    assert "plain HTTP" in done.stdout


PASSWORDS = {
    "of the user": "postgresql://yard:{}@127.0.0.1:1/yard",
    "as an option of the URL": "postgresql://yard@127.0.0.1:1/yard?password={}",
}


@pytest.mark.parametrize("command", [["server", "--http", "127.0.0.1:1"], ["db", "status"], ["db", "upgrade"]])
@pytest.mark.parametrize("row", PASSWORDS)
def test_a_password_among_the_words_is_refused(tmp_path: Path, command: list[str], row: str) -> None:
    argv = [*YARD, *command, "--data", str(tmp_path / "data"), "--database", PASSWORDS[row].format("hush-hush")]
    done = subprocess.run(
        argv, env=isolated_env(tmp_path), capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert done.returncode == EXIT_USAGE, done.stderr
    assert "--database-file" in done.stderr
    assert "YARD_DATABASE_URL" in done.stderr
    assert "hush-hush" not in done.stdout + done.stderr


def test_a_file_with_the_url_must_not_be_everybodys(tmp_path: Path) -> None:
    file = tmp_path / "database"
    file.write_text(f"sqlite:///{tmp_path / 'yard.db'}\n", encoding="utf-8")
    file.chmod(0o644)
    env = isolated_env(tmp_path)
    refused = yard("db", "upgrade", "--database-file", str(file), env=env)
    assert refused.returncode == EXIT_USAGE
    assert "chmod o=" in refused.stderr
    file.chmod(0o600)
    yard("db", "upgrade", "--database-file", str(file), env=env, check=True)
    assert (tmp_path / "yard.db").exists()


@pytest.mark.parametrize("way", [SOAKED("file"), "variable"])
def test_no_process_shows_the_password(tmp_path: Path, postgres: Postgres, way: str) -> None:
    """The words of all processes of this machine, while a server with a PostgreSQL serves and is looked at."""
    url = migrated(postgres)
    password = url.split(":")[2].split("@")[0]
    file = tmp_path / "database"
    file.write_text(url, encoding="utf-8")
    file.chmod(0o600)
    port = free_port()
    words = ["--database-file", str(file)] if way == "file" else []
    env = isolated_env(tmp_path) | ({"YARD_DATABASE_URL": url} if way == "variable" else {})
    argv = [*YARD, "server", "--data", str(tmp_path / "data"), "--http", f"127.0.0.1:{port}", *words]
    with Server(argv, tmp_path, name="server", env=env, is_warm=False) as server:
        server.url = f"http://127.0.0.1:{port}"
        server.wait_ready()
        assert password not in words_of_all()
        status = yard("db", "status", *words, env=env, check=True)
        backup = yard("db", "backup", str(tmp_path / "backup"), *words, env=env, check=True)
        assert password not in server.log + status.stdout + status.stderr + backup.stdout + backup.stderr
    postgres.drop_database(url)


def test_an_agent_hides_its_join_token(tmp_path: Path) -> None:
    with staged(tmp_path, auth=True) as stage:
        token = stage.invite("alpha", is_reusable=True)
        with start_agent(
            tmp_path, stage.url, "alpha", graph=graph(2), token=token, reader=stage.token, is_warm=False
        ) as agent:
            shown = Path(f"/proc/{agent.pid}/cmdline").read_bytes().decode()
            assert token not in shown
            assert "--token\0***" in shown
            assert token not in words_of_all()


def words_of_all() -> str:
    """The words of every process, as `ps` shows them to every user."""
    found = []
    for pid in os.listdir("/proc"):  # noqa: PTH208 - quicker
        if pid.isdigit() and int(pid) != os.getpid():
            try:
                found.append(Path("/proc", pid, "cmdline").read_bytes())
            except OSError:
                continue
    return b"\n".join(found).decode(errors="replace")


REFUSALS = {
    "no token": ("GET", "/v1/whoami", None, 401, "unauthenticated"),
    "a wrong token": ("GET", "/v1/whoami", TOKEN, 401, "unauthenticated"),
    "a bad invite": ("POST", "/v1/agents/join", "join_" + "0" * 26 + "_secret-of-a-test", 401, "unauthenticated"),
    "an agent that is unknown": ("POST", "/v1/agents/poll", "agent_" + "0" * 26 + "_secret-of-a-test", 410, "gone"),
    "no right": ("GET", "/v1/audit", "ann", 403, "denied"),
}


# One that nobody knows, and one that may not. In the others only the reason is another.
@pytest.mark.parametrize("row", [row if row in ("a wrong token", "no right") else SOAKED(row) for row in REFUSALS])
def test_refused_calls_are_logged_within_bounds(tmp_path: Path, row: str) -> None:
    """The first with who, where and what; further ones as a count; never a secret."""
    method, path, token, status, reason = REFUSALS[row]
    with staged(tmp_path, auth=True) as stage:
        if token == "ann":
            stage.post("/v1/users", {"name": "ann"})
            token = stage.post("/v1/tokens", {"user": "ann"})["token"]
        joining = {"cluster": "a", "name": "a", "journal": "0" * 26, "backend": "fake"}
        body = joining if path.endswith("join") else None
        for _ in range(20):
            assert call(method, stage.url + path, body, token=token).status == status
        line = until(lambda: _line(stage, 'event="call refused"'), SOON_S, "the refusal is logged")
        for part in ("address=127.0.0.1", f"reason={reason}", f"method={method}", f"path={path}"):
            assert part in line
        assert ("who=ann" in line) is (row == "no right")
        assert ("credential=" in line) is (token is not None)
        assert stage.server.log.count('event="call refused"') <= 11
        again = until(lambda: _line(stage, 'event="call refused again"'), 10 * SOON_S, "the others are counted")
        assert f"reason={reason}" in again
        assert "times=" in again
        if token is not None:
            assert token not in stage.server.log
            assert token.split("_", 2)[2] not in stage.server.log.replace(str(stage.token), "")


def _line(stage: Stage, event: str) -> str:
    return next((line for line in stage.server.log.splitlines() if event in line), "")


def test_bytes_that_are_no_http_do_not_fill_the_log(tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        before = len(stage.server.log.splitlines())
        host, port = stage.url.removeprefix("http://").split(":")
        for _ in range(200):
            with socket.create_connection((host, int(port)), 10) as sock:
                sock.sendall(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
                while sock.recv(4096):
                    pass
        assert stage.call("GET", "/healthz").status == 200
        assert len(stage.server.log.splitlines()) - before < 20


NUMBERS = {
    "letters": "abc",
    "below zero": "-5",
    "a fraction": "1.5",
    "too large": str(2**70),
    "thousands of digits": "9" * 5000,
    "above the newest event": "999999999",
    "two numbers": "1 2",
    "hexadecimal": "0x10",
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("plain")) as made:
        yield made


@pytest.mark.parametrize("row", NUMBERS)
def test_a_nonsense_last_event_id_is_the_callers_mistake(plain: Stage, row: str) -> None:
    told = plain.call("GET", "/v1/events/stream", headers={"Last-Event-ID": NUMBERS[row]})
    assert (told.status, told.json["code"]) == (400, "malformed")
    assert "number" in told.json["detail"]


CURSORS = [
    *("/v1/jobs?cursor=nonsense", "/v1/audit?cursor=nonsense", "/v1/tokens?cursor=nonsense"),
    *("/v1/events?cursor=nonsense", "/v1/events?after=-1", "/v1/events?cursor=" + "9" * 500),
    *("/v1/events/stream?after=nonsense", "/v1/events/stream?after=" + "9" * 500, "/v1/jobs?limit=" + "9" * 500),
    "/v1/events/stream?after=999999999",
]


@pytest.mark.parametrize("path", CURSORS)
def test_a_nonsense_cursor_is_the_callers_mistake(plain: Stage, path: str) -> None:
    begun = time.monotonic()
    told = plain.call("GET", path)
    assert (told.status, told.json["code"]) == (400, "malformed"), told.body
    assert time.monotonic() - begun < SOON_S
