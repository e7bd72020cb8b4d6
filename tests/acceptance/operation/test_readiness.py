"""`/readyz` writes: a database that answers and takes no change is not ready, and the reason is said."""

from __future__ import annotations

import resource
import secrets
from pathlib import Path

import psycopg

from tests.acceptance.stage import SOON_S
from tests.processes import until
from tests.programs import Server, call, start_server
from tests.services import Postgres


def readiness(server: Server) -> tuple[int, str]:
    answer = call("GET", f"{server.url}/readyz", timeout_s=10)
    return answer.status, answer.json.get("reason", "")


# As SQLite calls it: there is no room, or the file could not be written.
FULL = ("Disk full: the database has no room for the change.", "The disk of the database fails, or is full.")


def submit(server: Server) -> tuple[int, str]:
    answer = call("POST", f"{server.url}/v1/jobs", {"spec": {"command": ["true"]}, "hold": True})
    return answer.status, answer.json.get("detail", "")


def test_a_read_only_postgresql_is_not_ready_and_says_why(tmp_path: Path, own_postgres: Postgres) -> None:
    with start_server(tmp_path, database=own_postgres.create_database()) as server:
        _set_read_only(own_postgres, "on")
        until(lambda: readiness(server)[0] == 503, SOON_S, "a balancer is told")
        assert readiness(server) == (503, "The database is read-only: nothing can be changed.")
        assert submit(server) == (503, "The database is read-only: nothing can be changed.")
        assert call("GET", f"{server.url}/v1/jobs").status == 200, "reading goes on"
        _set_read_only(own_postgres, "off")
        until(lambda: readiness(server)[0] == 200, SOON_S, "it serves again")
        assert submit(server)[0] == 201
        assert "Traceback" not in server.log


def fill(server: Server) -> str:
    """Submit more than the file may hold; why it was refused, or nothing: SQLite found room in what it had."""
    specs = [{"command": ["true"], "env": {"FILLER": secrets.token_hex(2000)}} for _ in range(200)]
    answer = call("POST", f"{server.url}/v1/jobs/bulk", {"jobs": [{"spec": spec, "hold": True} for spec in specs]})
    return str(answer.json["detail"]) if answer.status == 503 else ""


def test_a_disk_that_takes_nothing_more_is_not_ready_and_says_why(tmp_path: Path) -> None:
    """By a bound on the size of files, which the kernel keeps like a full disk."""
    with start_server(tmp_path) as server:
        assert submit(server)[0] == 201
        before = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
        largest = max(file.stat().st_size for file in (tmp_path / "server-data").glob("switchyard.db*"))
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (largest, before[1]))
        refused = until(lambda: fill(server), SOON_S, "the disk takes nothing more")
        assert refused in FULL
        until(lambda: readiness(server)[0] == 503, SOON_S, "a balancer is told")
        assert readiness(server)[1] in FULL
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, before)
        until(lambda: readiness(server)[0] == 200, SOON_S, "it serves again")
        assert submit(server)[0] == 201
        assert "Traceback" not in server.log


def test_many_probes_cost_few_writes(tmp_path: Path) -> None:
    with start_server(tmp_path) as server:
        before = _batches(server)
        for _ in range(100):
            assert readiness(server) == (200, "")
        assert _batches(server) - before < 60


def _batches(server: Server) -> float:
    said = call("GET", f"{server.url}/metrics").body.decode()
    lines = [line for line in said.splitlines() if line.startswith("switchyard_commit") and "_count" in line]
    return float(lines[0].rsplit(" ", 1)[1])


def _set_read_only(postgres: Postgres, value: str) -> None:
    with psycopg.connect(postgres.url(), autocommit=True) as line:
        line.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}".encode())
        line.execute("SELECT pg_reload_conf()")
