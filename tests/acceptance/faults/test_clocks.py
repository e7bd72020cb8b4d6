"""Clocks that are wrong: a server ahead of or behind the others, a clock that jumps while jobs run, killed leaders.

Nothing is lost, nothing runs twice, nothing gets stuck, and upkeep goes on within one term of a killed leader.
"""

from __future__ import annotations

import fcntl
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard import Client, State
from switchyard.model.job.job import JobSpec, OnLost
from tests.pace import slowness
from tests.processes import until
from tests.programs import MovableClock, off_clock, start_agent, start_server
from tests.services import Postgres, postgres_running
from tests.soak import SOAKED

NODES = {"nodes": 4, "each": {"core": 8, "memory": "8GiB"}}
TASKS = 12  # of the array
JOBS = 6
WAIT_S = 90.0  # for what takes about ten seconds on a quiet machine
TERM_S = 15.0  # a leader that says nothing for this long is replaced
HOUR_S = 3600
BACKOFF_S = 20  # so long that the clock jumps while a job waits for its next try
# An agent is silent after 15 s, and a job that runs is judged by that even if it bears less.
LOST_AFTER_S = 2


class Load:
    """Jobs and an array that run until the gate opens; each run leaves a line.

    The gate is a file lock: 18 shells that look for a file again and again take as much of the machine as a server.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ids: list[str] = []
        self._gate = (folder / "gate").open("w")
        fcntl.flock(self._gate, fcntl.LOCK_EX)

    def open_gate(self) -> None:
        self._gate.close()

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger"

    def begin(self, client: Client) -> None:
        script = f'echo "$SWITCHYARD_JOB_ID/$SWITCHYARD_ARRAY_INDEX" >> {self.ledger}; flock -s {self._gate.name} true'
        spec = JobSpec(command=["/bin/sh", "-c", script], on_lost=OnLost.REQUEUE, lost_after=LOST_AFTER_S)
        self.ids += [client.submit(spec).id for _ in range(JOBS)]
        self.ids.append(client.submit(spec, array=f"0-{TASKS - 1}").id)
        until(lambda: self.runs().total() == JOBS + TASKS, WAIT_S, "all have begun")

    def end(self, client: Client) -> None:
        """Open the gate; each has run once, under its first attempt, and was never called lost."""
        self.open_gate()
        for job_id in self.ids:
            job = client.handle(job_id).wait(timeout_s=WAIT_S * slowness())
            assert job.state is State.SUCCEEDED, job
            kinds = kinds_of(client, job_id)
            assert not {"lost", "requeued", "retrying"} & kinds, kinds
        runs = self.runs()
        assert (runs.total(), max(runs.values())) == (JOBS + TASKS, 1), runs

    def runs(self) -> Counter[str]:
        return Counter(self.ledger.read_text().split()) if self.ledger.exists() else Counter()


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    made = Load(tmp_path)
    yield made
    made.open_gate()


@pytest.fixture
def clock() -> Iterator[MovableClock]:
    with tempfile.TemporaryDirectory(prefix="switchyard-clock-") as folder:
        Path(folder).chmod(0o755)  # PostgreSQL runs as another user
        yield MovableClock(Path(folder) / "clock")


def upkeep_goes_on(client: Client, *, within_s: float) -> None:
    """A job that fails twice: each back-off is over when the leader says so, and its end needs several rounds."""
    retry = {"limit": 2, "backoff": 1, "exit_codes": "75"}
    began = time.monotonic()
    failing = client.submit({"command": ["/bin/sh", "-c", "exit 75"], "retry": retry})
    after = client.submit(["true"], after=[f"{failing.id}:any"])
    job = after.wait(timeout_s=within_s * slowness())
    assert job.state is State.SUCCEEDED, (job, time.monotonic() - began)
    assert client.job(failing.id).tries == 2


@pytest.mark.slow  # the next test has a leader whose clock is off by as much
@pytest.mark.parametrize("offset", ["-1h", "+25s", "+1h", "-25s"])
def test_a_leader_whose_clock_is_off_harms_nothing_and_its_death_neither(
    tmp_path: Path, postgres: Postgres, load: Load, offset: str
) -> None:
    database = postgres.create_database()
    with (
        start_server(tmp_path, database=database, name="off", env=off_clock(offset)) as off,  # first, so it leads
        start_server(tmp_path, database=database, name="true") as true,
        start_agent(tmp_path, true.url, "alpha", graph=NODES),
        start_agent(tmp_path, off.url, "beta", graph=NODES, extra=["--server", true.url]),
        Client(true.url) as client,
        Client(off.url) as at_off,
    ):
        load.begin(client)
        for each in (client, at_off):
            upkeep_goes_on(each, within_s=WAIT_S)
        # Ids are made in the order of arrival, at whichever server.
        ids = [(client if number % 2 else at_off).submit(["true"]).id for number in range(6)]
        assert ids == sorted(ids)
        off.kill()
        upkeep_goes_on(client, within_s=TERM_S + 45)
        load.end(client)


def test_a_leader_whose_clock_jumps_while_jobs_run(
    tmp_path: Path, postgres: Postgres, load: Load, clock: MovableClock
) -> None:
    database = postgres.create_database()
    with (
        start_server(tmp_path, database=database, name="jumping", env=clock.env) as jumping,
        start_server(tmp_path, database=database, name="true") as true,
        start_agent(tmp_path, true.url, "alpha", graph=NODES),
        start_agent(tmp_path, jumping.url, "beta", graph=NODES, extra=["--server", true.url]),
        Client(true.url) as client,
        Client(jumping.url) as at_jumping,
    ):
        load.begin(client)
        for offset in (f"+{HOUR_S}", f"-{HOUR_S}", "+0"):
            clock.move(offset)
            upkeep_goes_on(client, within_s=WAIT_S)
            # Ids are made in the order of arrival, at whichever server.
            ids = [(client if number % 2 else at_jumping).submit(["true"]).id for number in range(4)]
            assert ids == sorted(ids)
        assert "jumped" not in jumping.log, "only the database's clock counts"
        jumping.kill()
        upkeep_goes_on(client, within_s=TERM_S + 45)
        load.end(client)


@pytest.mark.parametrize("offset", [f"-{HOUR_S}", SOAKED(f"+{HOUR_S}"), SOAKED("-25")])
def test_a_server_on_sqlite_whose_clock_jumps(tmp_path: Path, load: Load, clock: MovableClock, offset: str) -> None:
    with (
        start_server(tmp_path, env=clock.env) as server,
        start_agent(tmp_path, server.url, "alpha", graph=NODES),
        Client(server.url) as client,
    ):
        load.begin(client)
        waiting = waits_for_retry(client)
        clock.move(offset)
        server.wait_for(lambda: "the clock jumped" in server.log, WAIT_S, "the jump is noticed")
        ends_soon(client, waiting)
        upkeep_goes_on(client, within_s=WAIT_S)
        clock.move("+0")
        until(lambda: server.log.count("the clock jumped") == 2, WAIT_S, "and so is the way back")
        upkeep_goes_on(client, within_s=WAIT_S)
        load.end(client)


@pytest.mark.parametrize("is_killed", [True, SOAKED(False)])
def test_a_server_on_sqlite_that_starts_again_an_hour_earlier(
    tmp_path: Path, load: Load, clock: MovableClock, is_killed: bool
) -> None:
    clock.move(f"+{HOUR_S}")
    with (
        start_server(tmp_path, env=clock.env) as server,
        start_agent(tmp_path, server.url, "alpha", graph=NODES),
        Client(server.url) as client,
    ):
        load.begin(client)
        waiting = waits_for_retry(client)
        if is_killed:
            server.kill()
        clock.move("+0")
        server.restart()
        ends_soon(client, waiting)
        upkeep_goes_on(client, within_s=WAIT_S)
        load.end(client)


@pytest.mark.parametrize("offset", [f"+{HOUR_S}", SOAKED(f"-{HOUR_S}")])  # back: on SQLite, above
def test_a_database_whose_clock_jumps(tmp_path: Path, load: Load, clock: MovableClock, offset: str) -> None:
    """As when a standby on a machine with another clock takes over."""
    with postgres_running(env=clock.env) as own:
        database = own.create_database()
        with (
            start_server(tmp_path, database=database, name="one") as one,
            start_server(tmp_path, database=database, name="two") as two,
            start_agent(tmp_path, one.url, "alpha", graph=NODES, extra=["--server", two.url]),
            start_agent(tmp_path, two.url, "beta", graph=NODES),
            Client(two.url) as client,
        ):
            load.begin(client)
            waiting = waits_for_retry(client)
            clock.move(offset)
            for server in (one, two):
                server.wait_for(lambda log=server: "the clock jumped" in log.log, WAIT_S, "the jump is noticed")
            ends_soon(client, waiting)
            upkeep_goes_on(client, within_s=WAIT_S)
            one.kill()
            upkeep_goes_on(client, within_s=TERM_S + 45)
            load.end(client)


def kinds_of(client: Client, job_id: str) -> set[str]:
    """The kinds of a job's events; those of an array's tasks without their mark."""
    return {event.kind.removeprefix("task-") for event in client.events(job_id)}


def waits_for_retry(client: Client) -> list[str]:
    """A job and an array that failed once, and wait for their next try."""
    retry = {"limit": 1, "backoff": BACKOFF_S, "exit_codes": "75"}
    spec = {"command": ["/bin/sh", "-c", "exit 75"], "retry": retry}
    ids = [client.submit(spec).id, client.submit(spec, array="0-1").id]
    until(lambda: all("retrying" in kinds_of(client, job) for job in ids), WAIT_S, "both wait")
    return ids


def ends_soon(client: Client, ids: list[str]) -> None:
    for job_id in ids:
        assert client.handle(job_id).wait(timeout_s=BACKOFF_S + WAIT_S * slowness()).state is State.FAILED
