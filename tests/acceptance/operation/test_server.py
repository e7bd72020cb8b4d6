"""`yard server` as an operator meets it: ports, TLS, signals, mistakes, its database."""

from __future__ import annotations

import json
import socket
import sqlite3
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from switchyard.errors import EXIT_CONFLICT, EXIT_NOT_FOUND, EXIT_OK, EXIT_UNAVAILABLE, EXIT_USAGE
from tests.acceptance.stage import SOON_S, graph
from tests.processes import PATIENCE_S, free_port, until
from tests.programs import (
    PROBE_S,
    START_S,
    YARD,
    Server,
    call,
    is_ready,
    isolated_env,
    start_agent,
    start_server,
    yard,
)
from tests.services import Postgres
from tests.store.prepared import migrated

STOP_S_MAX = 50.0  # the promise is 2 s on a quiet machine; waiting for a parked call would take 60 s
GRPC_CHECK = """
import sys, grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
with grpc.insecure_channel(sys.argv[1]) as line:
    answer = health_pb2_grpc.HealthStub(line).Check(health_pb2.HealthCheckRequest(), timeout=60, wait_for_ready=True)
print(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))
"""


def stopped_in(server: Server) -> float:
    """Seconds from SIGTERM to the end, which must be an orderly one."""
    begun = time.monotonic()
    assert server.terminate() == EXIT_OK, server.tail()
    return time.monotonic() - begun


def program(folder: Path, *options: str, name: str = "server") -> Server:
    """`yard server` with exactly these options, not started yet."""
    return Server([*YARD, "server", *options], folder, name=name, env=isolated_env(folder))


def test_both_ports_answer_a_second_server_is_refused_and_sigterm_ends_both(tmp_path: Path) -> None:
    grpc_port = free_port()
    server = start_server(tmp_path, auth=True, extra=["--grpc", f"127.0.0.1:{grpc_port}"])
    with server:
        for path in ("/healthz", "/readyz"):
            answer = call("GET", server.url + path)
            assert (answer.status, answer.json) == (200, {"status": "ok"})
        assert call("GET", f"{server.url}/v1/openapi.json").json["openapi"] == "3.1.0"
        assert call("GET", f"{server.url}/v1/jobs").status == 401, "no token, no jobs"
        asked = [sys.executable, "-c", GRPC_CHECK, f"127.0.0.1:{grpc_port}"]
        said = subprocess.run(asked, capture_output=True, text=True, timeout=START_S, check=False)
        assert said.stdout.strip() == "SERVING", said.stderr
        data = str(tmp_path / "server-data")
        second = yard("server", "--data", data, "--http", f"127.0.0.1:{free_port()}", env=isolated_env(tmp_path))
        assert (second.returncode, f"Another server runs on {data}" in second.stderr) == (EXIT_CONFLICT, True)
        assert is_ready(server.url), "the first goes on"
        assert stopped_in(server) < STOP_S_MAX
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", grpc_port), timeout=10)


def test_sigterm_sends_parked_polls_and_waits_home_at_once(tmp_path: Path, postgres: Postgres) -> None:
    """On PostgreSQL, where a listener and a pool of connections must end, too."""
    with (
        start_server(tmp_path, database=migrated(postgres)) as server,
        start_agent(tmp_path, server.url, "alpha", graph=graph(4)),
        ThreadPoolExecutor(4) as aside,
    ):
        job = call("POST", f"{server.url}/v1/jobs", {"spec": {"command": ["sleep", "600"]}}).json["id"]
        state = f"{server.url}/v1/jobs/{job}"
        until(lambda: call("GET", state).json["state"] == "RUNNING", SOON_S, "the job runs")
        waits = [aside.submit(call, "GET", f"{state}/wait?timeout_s=60") for _ in range(4)]
        call("GET", f"{state}/wait?timeout_s=3")  # those above were sent before this one came back
        assert not any(wait.done() for wait in waits)
        assert stopped_in(server) < STOP_S_MAX
        assert [(wait.result().status, wait.result().json["state"]) for wait in waits] == [(200, "RUNNING")] * 4


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate of our own for 127.0.0.1, and its key."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    named = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    argv = ["openssl", "req", "-x509", *curve, *named, "-keyout", str(key), "-out", str(cert)]
    subprocess.run(argv, check=True, capture_output=True, timeout=PATIENCE_S)
    return cert, key


def test_tls_from_the_cli_and_the_agent(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    address = f"127.0.0.1:{free_port()}"
    url = f"https://{address}"
    tls = ["--tls-cert", str(cert), "--tls-key", str(key)]
    trusting = {**isolated_env(tmp_path, url=url), "SSL_CERT_FILE": str(cert)}
    with program(tmp_path, "--data", str(tmp_path / "data"), "--http", address, *tls) as server:
        server.wait_for(lambda: answers_tls(url, cert), START_S, f"{url}/readyz answers")
        # The local CLI finds the address and the token in its own file; only the certificate is to be trusted.
        assert yard("whoami", env=trusting).stdout.split()[1] == "admin"
        untrusted = yard("whoami", env=isolated_env(tmp_path))
        assert (untrusted.returncode, "certificate" in untrusted.stderr) == (EXIT_UNAVAILABLE, True)
        login = ["login", "--token-stdin", "--ca-file", str(cert), "--server", url]
        yard(*login, stdin=server.admin_token, env=isolated_env(tmp_path), check=True)
        kept = isolated_env(tmp_path)  # the CA's file was kept with the token
        token = yard("cluster", "invite", "alpha", env=kept, check=True).stdout.split()[-1]
        refused = start_agent(tmp_path, url, "alpha", graph=graph(2), token=token, data=tmp_path / "distrust")
        assert refused.wait(SOON_S) != EXIT_OK
        assert "certificate" in refused.log.lower()
        with start_agent(tmp_path, url, "alpha", graph=graph(2), token=token, extra=["--ca-file", str(cert)]):
            done = yard("submit", "--wait", "--timeout", "100", "--", "echo", "over", "tls", env=kept)
            assert (done.returncode, done.stdout) == (EXIT_OK, "over tls\n"), done.stderr
            assert stopped_in(server) < STOP_S_MAX


def answers_tls(url: str, cert: Path) -> bool:
    trust = ssl.create_default_context(cafile=str(cert))
    try:
        with urllib.request.urlopen(f"{url}/readyz", context=trust, timeout=PROBE_S) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_every_mistake_of_options_and_config_is_listed_at_once(tmp_path: Path) -> None:
    config = tmp_path / "yard.yaml"
    config.write_text(
        "clusters: {clusterConfigs: [{nmae: alpha}]}\nqueues: [{name: a, priority: high}]\nnonsense: 1\n"
        "match: {engine: 7}\n"
    )
    done = yard(
        *("server", "--data", str(tmp_path / "data"), "--http", "nowhere", "--grpc", "127.0.0.1:99999"),
        *("--tls-cert", "/no/cert.pem", "--database", "mysql://x/y", "--config", str(config)),
        env=isolated_env(tmp_path),
    )
    assert done.returncode == EXIT_USAGE
    wanted = [
        *("--http", "--grpc", "--tls-cert", "go together", "--database"),
        *("nmae", "clusterConfigs[0].name: missing", "queues[0].priority", "nonsense", "match.engine"),
    ]
    assert [word for word in wanted if word not in done.stderr] == [], done.stderr
    assert not (tmp_path / "data").exists(), "nothing was touched"


def test_no_auth_is_refused_beyond_loopback(tmp_path: Path) -> None:
    done = yard("server", "--data", str(tmp_path), "--http", "0.0.0.0:8080", "--no-auth", env=isolated_env(tmp_path))
    assert done.returncode == EXIT_USAGE
    assert "--no-auth is for loopback only" in done.stderr


@pytest.mark.parametrize("flag", ["--http", "--grpc"])
def test_a_port_that_is_taken_is_said_plainly(tmp_path: Path, flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ports = {"--http": f"127.0.0.1:{free_port()}", flag: address}
        options = [word for pair in ports.items() for word in pair]
        done = yard("server", "--data", str(tmp_path / "data"), *options, env=isolated_env(tmp_path))
    assert done.returncode == EXIT_UNAVAILABLE
    assert f"Cannot listen on {address}" in done.stderr
    assert flag in done.stderr
    assert "Traceback" not in done.stderr
    assert "yard_" not in done.stdout, "the administrator's token is not shown for a server that never was"


def test_the_database_is_looked_after_by_hand_and_one_of_another_version_is_refused(tmp_path: Path) -> None:
    data, env = tmp_path / "data", isolated_env(tmp_path)

    def db(verb: str) -> subprocess.CompletedProcess[str]:
        return yard("db", verb, "--data", str(data), env=env)

    assert db("status").returncode == EXIT_NOT_FOUND
    assert "upgraded from empty" in db("upgrade").stdout
    assert "up to date" in db("status").stdout
    with sqlite3.connect(data / "switchyard.db") as line:
        line.execute("UPDATE alembic_version SET version_num = '9999'")
    line.close()
    served = yard("server", "--data", str(data), "--http", f"127.0.0.1:{free_port()}", env=env)
    for refused in (served, db("upgrade")):
        assert refused.returncode == EXIT_CONFLICT
        assert "revision 9999" in refused.stderr
        assert "next: A newer version made it" in refused.stderr
        assert "Traceback" not in refused.stderr


def test_two_servers_starting_at_one_moment_on_an_empty_postgresql_both_come_up(
    tmp_path: Path, postgres: Postgres
) -> None:
    database = postgres.create_database()
    servers = []
    for name in ("one", "two"):
        address = f"127.0.0.1:{free_port()}"
        options = ["--data", str(tmp_path / name), "--http", address, "--database", database]
        servers.append(program(tmp_path, *options, name=name))
        servers[-1].url = f"http://{address}"
    one, two = servers
    with one, two:
        one.wait_ready()
        two.wait_ready()
        tokens = [file.read_text().strip() for file in tmp_path.glob("*/first-admin-token")]
        assert len(tokens) == 1, "one first start, one administrator"
        for each in servers:
            assert call("GET", f"{each.url}/v1/whoami", token=tokens[0]).json["is_platform_admin"] is True
        made = call("POST", f"{one.url}/v1/projects", {"name": "shared"}, token=tokens[0])
        assert made.status == 201
        seen = json.dumps(call("GET", f"{two.url}/v1/projects", token=tokens[0]).json)
        assert "shared" in seen
        join = call("POST", f"{one.url}/v1/clusters/alpha/invites", {}, token=tokens[0]).json["token"]
        with start_agent(tmp_path, one.url, "alpha", graph=graph(3), token=join, reader=tokens[0]):
            there = f"{two.url}/v1/clusters/alpha"
            until(lambda: "load" in call("GET", there, token=tokens[0]).json, SOON_S, "both know how the cluster is")
            assert call("GET", there, token=tokens[0]).json["load"]["free_cores"] == 3
