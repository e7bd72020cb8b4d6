"""The restore drill: back up, go on, lose it all, restore; nothing that was handed over runs twice. Both databases."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from switchyard import Client, State
from switchyard.errors import EXIT_CONFLICT, EXIT_NOT_FOUND, EXIT_OK, EXIT_USAGE
from tests.acceptance.bed import Ledger
from tests.processes import PATIENCE_S, until
from tests.programs import Server, call, isolated_env, start_agent, start_server, yard
from tests.services import Postgres
from tests.soak import SOAKED

TWO_CORES = {"nodes": 1, "each": {"core": 2, "memory": "8GiB"}}
END_S = PATIENCE_S
SOON_S = PATIENCE_S


@dataclass(frozen=True)
class Yard:
    """A server whose database is backed up and restored by the command line."""

    folder: Path
    database: str | None

    @property
    def place(self) -> list[str]:
        where = ["--data", str(self.folder / "server-data")]
        return where + (["--database", self.database] if self.database else [])

    def start(self, port: int | None = None) -> Server:
        return start_server(self.folder, database=self.database, port=port)

    def db(self, *args: str, check: bool = True) -> Any:
        return yard("db", *args, *self.place, env=isolated_env(self.folder), check=check)

    def copy_to(self, file: Path) -> None:
        """Copy the database of a stopped server, as an operator does without `yard`."""
        if self.database is None:
            with sqlite3.connect(self.folder / "server-data/switchyard.db") as db:
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            db.close()
            shutil.copy(self.folder / "server-data/switchyard.db", file)
        else:
            words = ["pg_dump", "--format=custom", f"--file={file}", f"--dbname={self._libpq_url}"]
            subprocess.run(words, check=True, timeout=PATIENCE_S)

    def copy_back(self, file: Path) -> None:
        if self.database is None:
            for path in (self.folder / "server-data").glob("switchyard.db-*"):
                path.unlink()
            shutil.copy(file, self.folder / "server-data/switchyard.db")
        else:
            options = ["--clean", "--if-exists", "--single-transaction"]
            words = ["pg_restore", *options, f"--dbname={self._libpq_url}", str(file)]
            subprocess.run(words, check=True, timeout=PATIENCE_S)

    @property
    def _libpq_url(self) -> str:
        assert self.database is not None
        return self.database.replace("postgresql+psycopg:", "postgresql:")


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Yard]:
    if request.param == "sqlite":
        yield Yard(tmp_path, None)
        return
    server: Postgres = request.getfixturevalue("postgres")
    url = server.create_database()
    yield Yard(tmp_path, url)
    server.drop_database(url)


def gated(ledger: Ledger, gate: Path) -> list[str]:
    """A job that leaves a line in the ledger and runs until there is a file."""
    return ledger.command(f"while [ ! -e {gate} ]; do sleep 0.05; done; echo out of $SWITCHYARD_JOB_ID")


@pytest.mark.parametrize(
    ("place", "is_agent_killed"),
    [("sqlite", True), ("postgresql", False), SOAKED("sqlite", False), SOAKED("postgresql", True)],
    indirect=["place"],
)
def test_the_drill(place: Yard, is_agent_killed: bool) -> None:
    ledger, backup = Ledger(place.folder), place.folder / "yard.backup"
    gates = {name: place.folder / name for name in ("first", "second", "third")}
    server = place.start()
    agent = start_agent(place.folder, server.url, "alpha", graph=TWO_CORES)
    try:
        with Client(server.url, retry_s=PATIENCE_S) as client:

            def submit(gate: str) -> str:
                return client.submit(gated(ledger, gates[gate]), env=ledger.env, name=gate).id

            before = client.submit(ledger.command(), env=ledger.env).wait(timeout_s=END_S).id
            handed_over = [submit("first") for _ in range(2)]
            until(lambda: len(ledger.runs()) == 3, END_S, "both run")
            ended_later = [submit("first") for _ in range(3)]  # wait in line at the backup, and end before the restore
            runs_later = submit("second")  # waits in line at the backup, and runs at the restore
            place.db("backup", str(backup))

            gates["first"].touch()
            until(lambda: runs_later in ledger.runs(), END_S, "the line is worked off")
            for job in (*handed_over, *ended_later):
                assert client.wait(job, timeout_s=END_S).state is State.SUCCEEDED
            unknown = submit("third")  # submitted after the backup
            until(lambda: unknown in ledger.runs(), END_S, "it runs")
            fences = max(job.fence for job in client.jobs())
            last = max(event.seq for event in client.events())

            if is_agent_killed:
                agent.kill()
            server.terminate()
            place.db("restore", str(backup), "--force", "--wait", "12s")  # agents are back within 10
            server = place.start(port=int(server.url.rpartition(":")[2]))
            if is_agent_killed:
                agent.start()

            until(lambda: client.job(runs_later).state is State.RUNNING, SOON_S, "what ran goes on where it ran")
            gates["second"].touch()
            known = [before, *handed_over, *ended_later, runs_later]
            done = {job: client.wait(job, timeout_s=END_S) for job in known}
            assert {job.state for job in done.values()} == {State.SUCCEEDED}
            assert {job: ledger.runs()[job] for job in known} == dict.fromkeys(known, 1), "each ran once"
            assert call("GET", f"{server.url}/v1/jobs/{unknown}").status == 404
            until(lambda: f"event=stop job={unknown}" in agent.log, SOON_S, "what nobody knows is stopped")
            assert client.handle(ended_later[0]).output() == f"out of {ended_later[0]}\n".encode()

            fresh = client.submit(["true"]).wait(timeout_s=END_S)
            assert fresh.state is State.SUCCEEDED
            assert all(done[job].fence > fences for job in ended_later), "no fence is used twice"
            assert min(event.seq for event in client.events(after=last)) > last
            assert "db.restored" in {entry.action for entry in client.audit()}
    finally:
        agent.close()
        server.close()


def test_a_backup_is_of_one_moment_while_the_server_is_busy(place: Yard) -> None:
    made: list[str] = []
    is_over = threading.Event()
    backup = place.folder / "busy.backup"
    with place.start() as server, Client(server.url) as client:

        def submit_on() -> None:
            while not is_over.is_set():
                made.append(client.submit(["true"]).id)

        aside = threading.Thread(target=submit_on)
        aside.start()
        until(lambda: len(made) > 50, END_S, "there is traffic")
        first = len(made)
        done = place.db("backup", str(backup))
        last = len(made)
        is_over.set()
        aside.join(END_S)
        assert (done.returncode, backup.stat().st_mode & 0o777) == (EXIT_OK, 0o600)
        assert last > first, "submits went on"
    place.db("restore", str(backup), "--force", "--wait", "1s")
    with place.start() as server, Client(server.url) as client:
        kept = [job.id for job in client.jobs()][::-1]
        assert kept == made[: len(kept)], "up to some moment all of them, after it none"
        assert first <= len(kept) <= last + 1


def test_into_a_folder_under_a_name_of_its_own(place: Yard) -> None:
    with place.start():
        place.db("backup", str(place.folder))
        (written,) = place.folder.glob("switchyard-*.d*")
        assert written.suffix == (".dump" if place.database else ".db")
        assert not list(place.folder.glob("*.part"))


def test_refusals_of_a_restore(place: Yard) -> None:
    backup, rubbish = place.folder / "yard.backup", place.folder / "rubbish"
    rubbish.write_bytes(b"not a backup at all " * 100)
    assert place.db("backup", str(backup), check=False).returncode == EXIT_NOT_FOUND, "there is nothing yet"
    with place.start() as server:
        place.db("backup", str(backup))
        again = place.db("backup", str(backup), check=False)
        assert (again.returncode, "is there already" in again.stderr) == (EXIT_CONFLICT, True)
        place.db("backup", str(backup), "--force")
        running = place.db("restore", str(backup), "--force", check=False)
        assert running.returncode == EXIT_CONFLICT
        assert "server" in running.stderr
        assert call("GET", f"{server.url}/readyz").status == 200
    here = place.db("restore", str(backup), check=False)
    assert (here.returncode, "--force" in here.stderr) == (EXIT_CONFLICT, True)
    for file, code in (
        (rubbish, EXIT_USAGE),
        (place.folder / "nothing", EXIT_NOT_FOUND),
        (place.folder, EXIT_NOT_FOUND),
    ):
        assert place.db("restore", str(file), "--force", check=False).returncode == code
    wrong = place.db("restore", str(backup), "--wait", "soon", check=False)
    assert wrong.returncode == EXIT_USAGE
    with place.start() as server:
        assert call("GET", f"{server.url}/v1/whoami").status == 200, "the database is as it was"


def test_a_truncated_or_foreign_file_is_refused(place: Yard) -> None:
    backup, part, foreign = (place.folder / name for name in ("yard.backup", "part", "foreign.db"))
    with place.start() as server, Client(server.url) as client:
        kept = client.submit(["true"]).id
        place.db("backup", str(backup))
    part.write_bytes(backup.read_bytes()[: backup.stat().st_size // 2])
    with sqlite3.connect(foreign) as db:
        db.execute("CREATE TABLE jobs (id TEXT)")
    db.close()
    for file in (part, foreign):
        assert place.db("restore", str(file), "--force", check=False).returncode != EXIT_OK
    with place.start() as server, Client(server.url) as client:
        assert client.job(kept).id == kept, "nothing was changed"
        assert not client.job(kept).reason.startswith("restored")


def test_into_an_empty_place(tmp_path: Path) -> None:
    old, new = Yard(tmp_path / "old", None), Yard(tmp_path / "new", None)
    backup = tmp_path / "yard.backup"
    with old.start() as server, Client(server.url) as client:
        job = client.submit(["true"]).id
        old.db("backup", str(backup))
    new.folder.mkdir()
    done = new.db("restore", str(backup))
    assert "restored" in done.stdout
    with new.start() as server, Client(server.url) as client:
        assert client.job(job).id == job


def test_what_was_there_is_kept_beside_it(tmp_path: Path) -> None:
    place = Yard(tmp_path, None)
    backup = tmp_path / "yard.backup"
    with place.start() as server, Client(server.url) as client:
        place.db("backup", str(backup))
        later = client.submit(["true"]).id
    place.db("restore", str(backup), "--force")
    (aside,) = (tmp_path / "server-data").glob("switchyard.db.before-*")
    place.db("restore", str(aside), "--force")
    with place.start() as server, Client(server.url) as client:
        assert client.job(later).id == later


def test_without_postgresqls_programs_it_says_what_is_missing(postgres: Postgres, tmp_path: Path) -> None:
    url = postgres.create_database()
    with start_server(tmp_path, database=url):
        env = isolated_env(tmp_path) | {"PATH": str(tmp_path)}
        done = yard("db", "backup", str(tmp_path / "x"), "--database", url, env=env)
    assert done.returncode == EXIT_NOT_FOUND
    assert "pg_dump is not installed" in done.stderr
    assert "postgresql-client" in done.stderr
    postgres.drop_database(url)


def test_no_password_is_seen_by_others(postgres: Postgres, tmp_path: Path) -> None:
    """A program that prints its command line, in the place of pg_dump."""
    url = postgres.create_database()
    spy = tmp_path / "bin"
    spy.mkdir()
    (spy / "pg_dump").write_text('#!/bin/sh\necho "$@" >&2\nexit 1\n')
    (spy / "pg_dump").chmod(0o755)
    with start_server(tmp_path, database=url):
        env = isolated_env(tmp_path)
        done = yard("db", "backup", str(tmp_path / "x"), "--database", url, env=env | {"PATH": f"{spy}:{env['PATH']}"})
    assert "pg_dump failed" in done.stderr
    secret = url.partition("://")[2].partition("@")[0].partition(":")[2]
    assert secret not in done.stderr
    postgres.drop_database(url)


def test_a_database_that_was_turned_back_without_restore_is_noticed(place: Yard) -> None:
    """A stopped server's database is replaced by an old copy. Nothing is handed out until `yard db recover`."""
    ledger, old = Ledger(place.folder), place.folder / "old"
    server = place.start()
    port = int(server.url.rpartition(":")[2])
    agent = start_agent(place.folder, server.url, "alpha", graph=TWO_CORES)
    try:
        agent.terminate()
        with Client(server.url, retry_s=PATIENCE_S) as client:
            waiting = client.submit(ledger.command(), env=ledger.env, cluster="alpha", name="waits in the copy").id
        server.terminate()
        place.copy_to(old)
        server = place.start(port=port)
        agent.start()
        with Client(server.url, retry_s=PATIENCE_S) as client:
            assert client.wait(waiting, timeout_s=END_S).state is State.SUCCEEDED
            forgotten = client.submit(ledger.command(), env=ledger.env).wait(timeout_s=END_S).id
            server.terminate()
            place.copy_back(old)
            server.start()
            until(lambda: "was turned back" in agent.log, SOON_S, "the agent is told")
            reason = call("GET", f"{server.url}/readyz").json["reason"]
            assert "was turned back" in reason
            assert "yard db recover" in reason
            later = client.submit(ledger.command(), env=ledger.env).id
            shown = yard("cluster", "ls", env=isolated_env(place.folder, url=server.url), check=True).stdout
            assert "database turned back" in shown
            server.terminate()
            refusals = agent.log.count("was turned back")
            server.start()
            until(lambda: agent.log.count("was turned back") > refusals, SOON_S, "a restart changes nothing")
            assert ledger.runs() == {waiting: 1, forgotten: 1}, "nothing was handed out"
            server.terminate()
            place.db("recover", "--wait", "1s")
            server = place.start(port=port)
            for job in (waiting, later):
                assert client.wait(job, timeout_s=END_S).state is State.SUCCEEDED
            assert ledger.runs() == {waiting: 1, forgotten: 1, later: 1}, "the agent tells the end that it knows"
            assert call("GET", f"{server.url}/readyz").status == 200
    finally:
        agent.close()
        server.close()


def test_a_turned_back_database_is_noticed_when_its_numbers_have_passed_those_of_the_agents(place: Yard) -> None:
    """The server takes jobs and is started again before an agent comes back: the lost numbers are given by then."""
    ledger, old = Ledger(place.folder), place.folder / "old"
    server = place.start()
    agent = start_agent(place.folder, server.url, "alpha", graph=TWO_CORES)
    try:
        server.terminate()
        place.copy_to(old)
        server.start()
        with Client(server.url, retry_s=PATIENCE_S) as client:
            forgotten = client.submit(ledger.command(), env=ledger.env).wait(timeout_s=END_S).id
            agent.terminate()
            server.terminate()
            place.copy_back(old)
            server.start()
            for _ in range(20):
                client.submit(ledger.command(), env=ledger.env)
            server.terminate()
            server.start()
            agent.start()
            until(lambda: "was turned back" in agent.log or len(ledger.runs()) > 1, SOON_S, "the agent has an answer")
            assert ledger.runs() == {forgotten: 1}, "nothing was handed out"
    finally:
        agent.close()
        server.close()
