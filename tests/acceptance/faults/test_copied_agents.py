"""Copies of an agent: its data folder, or its credential alone, used by a second process. Each job runs once.

The process that has the agent's place keeps it; the copy is refused, ends by itself, and the operator is shown it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard import Client
from switchyard.errors import EXIT_CONFLICT
from switchyard.model.job.job import State
from tests.acceptance.bed import Ledger, assert_each_ran_once, wait_all_final
from tests.acceptance.stage import END_S, Fields, Stage, graph
from tests.processes import until
from tests.programs import Agent, start_agent, start_server
from tests.services import Postgres
from tests.store.prepared import migrated

pytestmark = pytest.mark.xdist_group("copied-agents")

REFUSED_S = 60.0  # the server asks the agent for 5 s at most; the rest is a busy machine
JOBS = 8
STARTS = 12  # more than the agent writes to its journal for two jobs


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "gate"
    (tmp_path / "gate").touch()  # nothing waits for ever, whatever the test found


def started(stage: Stage, cluster: str, data: Path) -> Agent:
    """An agent that may be refused."""
    return start_agent(stage.folder, stage.url, cluster, graph=graph(4), data=data, wait=False)


def copied(agent: Agent, place: Path) -> Path:
    """The data folder as `cp -r` takes it, without the sockets and pipes of running jobs."""

    def special(folder: str, names: list[str]) -> list[str]:
        files = [Path(folder, name) for name in names]
        return [file.name for file in files if not (file.is_file() or file.is_dir())]

    def is_copied() -> bool:
        shutil.rmtree(place, ignore_errors=True)
        try:
            shutil.copytree(agent.data, place, ignore=special, ignore_dangling_symlinks=True)
        except (shutil.Error, FileNotFoundError):  # the agent replaced a file while it was being copied
            return False
        return True

    until(is_copied, REFUSED_S, "the folder is copied whole")
    return place


def submitted(stage: Stage, ledger: Ledger, cluster: str, count: int = JOBS, then: str = "") -> list[str]:
    command, env = ledger.command(then), {"env": ledger.env}
    return [stage.submit(*command, spec=env, cluster=cluster) for _ in range(count)]


def agent_of(stage: Stage, cluster: str) -> Fields:
    [found] = stage.get(f"/v1/agents?cluster={cluster}")["items"]
    return dict(found)


def assert_refused(stage: Stage, copy: Agent, cluster: str) -> None:
    """The copy ended by itself and said why; the operator finds it in every place where one looks."""
    assert copy.wait(REFUSED_S) == EXIT_CONFLICT, copy.tail()
    assert "is refused" in copy.log
    assert "\nnext: " in copy.log
    assert "Traceback" not in copy.log
    agent = agent_of(stage, cluster)
    assert str(copy.data) in agent["rival"]["place"]
    assert "a copy was refused" in stage.yard("agent", "ls", "--cluster", cluster, check=True).stdout
    shown = stage.yard("agent", "show", agent["id"], check=True).stdout
    assert f"{copy.data} " in shown
    warned = [each for each in stage.server.log.splitlines() if "another process has its place" in each]
    assert any(agent["rival"]["incarnation"] in each and "warning" in each.lower() for each in warned)


def test_a_copy_of_the_folder_beside_the_living_agent_is_refused(
    stage: Stage, ledger: Ledger, gate: Path, tmp_path: Path
) -> None:
    with stage.agent("twin") as agent:
        [held] = submitted(stage, ledger, "twin", 1, f"until [ -e {gate} ]; do sleep 0.05; done")
        stage.until_state(held, State.RUNNING)
        with started(stage, "twin", copied(agent, tmp_path / "twin-copy")) as copy:
            jobs = [held, *submitted(stage, ledger, "twin")]
            assert_refused(stage, copy, "twin")
            gate.touch()
            assert {stage.ended(job)["state"] for job in jobs} == {"SUCCEEDED"}
        assert agent.is_running
    assert ledger.runs() == dict.fromkeys(jobs, 1)


def test_of_two_copies_that_alternate_one_goes_on(stage: Stage, ledger: Ledger, tmp_path: Path) -> None:
    """A, then its copy while A is frozen, then A again: A lost the place, and never gets it back."""
    with stage.agent("swap") as agent:
        first = submitted(stage, ledger, "swap")
        assert {stage.ended(job)["state"] for job in first} == {"SUCCEEDED"}
        folder = copied(agent, tmp_path / "swap-copy")
        agent.pause()
        with started(stage, "swap", folder) as copy:
            copy.wait_for(lambda: "event=synced" in copy.log, REFUSED_S, "the copy has the place of the frozen agent")
            second = submitted(stage, ledger, "swap")
            agent.resume()
            third = submitted(stage, ledger, "swap")
            assert_refused(stage, agent, "swap")
            jobs = [*first, *second, *third]
            assert {stage.ended(job)["state"] for job in jobs} == {"SUCCEEDED"}
            assert copy.is_running
    assert ledger.runs() == dict.fromkeys(jobs, 1)


def test_a_copy_from_before_a_restart_of_the_agent_is_refused_even_when_the_agent_is_down(
    stage: Stage, ledger: Ledger, tmp_path: Path
) -> None:
    with stage.agent("later") as agent:
        folder = copied(agent, tmp_path / "later-copy")
        agent.kill()  # perhaps before it could log its first sync
        synced = agent.log.count("event=synced")
        agent.start()
        agent.wait_for(lambda: agent.log.count("event=synced") > synced, REFUSED_S, "the agent is back")
        jobs = submitted(stage, ledger, "later")
        assert {stage.ended(job)["state"] for job in jobs} == {"SUCCEEDED"}
        agent.kill()
        with started(stage, "later", folder) as copy:
            assert_refused(stage, copy, "later")
        agent.start()
        jobs += submitted(stage, ledger, "later")
        assert {stage.ended(job)["state"] for job in jobs} == {"SUCCEEDED"}
    assert ledger.runs() == dict.fromkeys(jobs, 1)


def test_a_folder_from_a_backup_is_refused_until_it_joins_again(
    stage: Stage, ledger: Ledger, gate: Path, tmp_path: Path
) -> None:
    """It does not know of what was leased since: it would start that a second time."""
    with stage.agent("backup") as agent:
        folder = copied(agent, tmp_path / "backup-copy")
        [held] = submitted(stage, ledger, "backup", 1, f"until [ -e {gate} ]; do sleep 0.05; done")
        stage.until_state(held, State.RUNNING)
        agent.kill()
        with started(stage, "backup", folder) as copy:
            assert_refused(stage, copy, "backup")
        assert ledger.runs() == {held: 1}
        agent.start()
        gate.touch()
        assert stage.ended(held)["state"] == "SUCCEEDED"
    assert ledger.runs() == {held: 1}


def test_a_refused_copy_stays_refused_however_often_it_is_started(stage: Stage, ledger: Ledger, tmp_path: Path) -> None:
    """As a service manager starts it: again and again. It must not catch up with the agent."""
    with stage.agent("again") as agent:
        folder = copied(agent, tmp_path / "again-copy")
        [job] = submitted(stage, ledger, "again", 1)
        stage.ended(job)
        [held] = submitted(stage, ledger, "again", 1, "sleep 1")
        stage.until_state(held, State.RUNNING)
        agent.kill()
        for _ in range(STARTS - 1):
            with started(stage, "again", folder) as copy:
                assert copy.wait(REFUSED_S) == EXIT_CONFLICT, copy.tail()
        with started(stage, "again", folder) as copy:
            assert_refused(stage, copy, "again")
        agent.start()
        assert stage.ended(held)["state"] == "SUCCEEDED"
    assert ledger.runs() == {job: 1, held: 1}


@pytest.mark.parametrize("what", ["credential and starts", "all but journal and jobs"])
def test_a_folder_with_a_new_journal_is_refused_until_it_joins_again(
    stage: Stage, ledger: Ledger, tmp_path: Path, what: str
) -> None:
    cluster = f"new-{what[:3]}"
    with stage.agent(cluster) as agent:
        jobs = submitted(stage, ledger, cluster, 3, "sleep 1")
        for job in jobs:
            stage.until_state(job, State.RUNNING)
        agent.kill()
        folder = copied(agent, tmp_path / "copy")
        for path in folder.iterdir():
            is_kept = path.name in ("credential.json", "starts") or what.startswith("all")
            if not is_kept or path.name.startswith(("journal", "jobs", "supervisor")):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        with started(stage, cluster, folder) as copy:
            assert_refused(stage, copy, cluster)
        agent.start()
        assert {stage.ended(job)["state"] for job in jobs} == {"SUCCEEDED"}
    assert ledger.runs() == dict.fromkeys(jobs, 1)


@pytest.mark.parametrize("when", ["alive", "dead"])
def test_a_copy_of_the_credential_alone_is_refused(
    stage: Stage, ledger: Ledger, gate: Path, tmp_path: Path, when: str
) -> None:
    cluster = f"key-{when}"
    with stage.agent(cluster) as agent:
        [held] = submitted(stage, ledger, cluster, 1, f"until [ -e {gate} ]; do sleep 0.05; done")
        stage.until_state(held, State.RUNNING)
        folder = tmp_path / "key-copy"
        folder.mkdir(mode=0o700)
        shutil.copy2(agent.data / "credential.json", folder)
        if when == "dead":
            agent.kill()
        with started(stage, cluster, folder) as copy:
            jobs = [held, *submitted(stage, ledger, cluster)]
            assert_refused(stage, copy, cluster)
        if when == "dead":
            agent.start()
        gate.touch()
        assert {stage.ended(job, timeout_s=2 * END_S)["state"] for job in jobs} == {"SUCCEEDED"}
    assert ledger.runs() == dict.fromkeys(jobs, 1)


def test_an_agent_that_is_killed_and_started_over_and_over_is_never_refused(stage: Stage, ledger: Ledger) -> None:
    jobs: list[str] = []
    with stage.agent("honest") as agent:
        for _ in range(3):
            jobs += submitted(stage, ledger, "honest", 4, "sleep 0.2")
            agent.kill()
            synced = agent.log.count("event=synced")
            agent.start()
            agent.wait_for(lambda n=synced: agent.log.count("event=synced") > n, REFUSED_S, "it is back")
        assert {stage.ended(job)["state"] for job in jobs} == {"SUCCEEDED"}
        assert "rival" not in agent_of(stage, "honest")
    assert ledger.runs() == dict.fromkeys(jobs, 1)


def test_an_agent_whose_journal_is_damaged_goes_on(stage: Stage, ledger: Ledger, gate: Path) -> None:
    with stage.agent("damaged") as agent:
        [held] = submitted(stage, ledger, "damaged", 1, f"until [ -e {gate} ]; do sleep 0.05; done")
        stage.until_state(held, State.RUNNING)
        agent.kill()
        (agent.data / "journal.db").write_bytes(os.urandom(8192))
        for suffix in ("-wal", "-shm"):
            (agent.data / f"journal.db{suffix}").unlink(missing_ok=True)
        agent.start()
        gate.touch()
        assert stage.ended(held)["state"] == "SUCCEEDED"
    assert ledger.runs() == {held: 1}


def test_a_copy_that_goes_to_another_server_is_refused_and_a_restart_is_not(tmp_path: Path, postgres: Postgres) -> None:
    """The servers know of each other's agents only through the database."""
    url = migrated(postgres)
    ledger = Ledger(tmp_path)
    with (
        start_server(tmp_path, database=url, name="one") as one,
        start_server(tmp_path, database=url, name="two") as two,
        start_agent(tmp_path, one.url, "apart", graph=graph(4)) as agent,
        Client(one.url) as client,
    ):
        folder = copied(agent, tmp_path / "apart-copy")
        with start_agent(tmp_path, two.url, "apart", graph=graph(4), data=folder, wait=False) as copy:
            jobs = [client.submit(ledger.command(), env=ledger.env).id for _ in range(JOBS)]
            assert copy.wait(REFUSED_S) == EXIT_CONFLICT, copy.tail()
        agent.kill()
        agent.start()
        jobs += [client.submit(ledger.command(), env=ledger.env).id for _ in range(JOBS)]
        assert_each_ran_once(ledger, wait_all_final(client, jobs, 2 * END_S))
