"""Pull the plug: SIGKILL servers and agents while jobs run. Each command runs exactly once, each job has its end."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from switchyard import Client
from tests.acceptance.bed import Ledger, assert_each_ran_once, wait_all_final
from tests.programs import Agent, Program, Server, start_agent, start_server

NODES = {"nodes": 1, "each": {"core": 8, "memory": "8GiB"}}
AGENTS = ("alpha", "beta")


@dataclass(frozen=True)
class Ordeal:
    """How many jobs, and how often each program is killed."""

    jobs: int
    kills: int
    timeout_s: float


SHORT = Ordeal(jobs=50, kills=2, timeout_s=150)
LONG = Ordeal(jobs=3000, kills=100, timeout_s=1800)


# On SQLite alone: here, servers on PostgreSQL are killed by test_two_servers.py.
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_each_job_runs_once_whoever_is_killed(tmp_path: Path, database_url: str) -> None:
    undergo(SHORT, tmp_path, database_url)


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_each_job_runs_once_in_a_long_ordeal(tmp_path: Path, database_url: str) -> None:
    undergo(LONG, tmp_path, database_url)


def undergo(ordeal: Ordeal, folder: Path, database_url: str) -> None:
    ledger = Ledger(folder)
    with start_server(folder, database=database_url) as server:
        agents = [start_agent(folder, server.url, name, graph=NODES) for name in AGENTS]
        try:
            with Client(server.url, retry_s=ordeal.timeout_s) as client:
                ids = ordeal_of(ordeal, server, agents, client, ledger)
                jobs = wait_all_final(client, ids, ordeal.timeout_s)
            assert_each_ran_once(ledger, jobs)
            assert len(jobs) == ordeal.jobs
        finally:
            for agent in agents:
                agent.close()


def ordeal_of(ordeal: Ordeal, server: Server, agents: list[Agent], client: Client, ledger: Ledger) -> list[str]:
    """Submit all jobs while a reaper goes round; the ids, once both are done."""
    chance = random.Random(7)
    ids: list[str] = []
    trouble: list[Exception] = []

    def submit_all() -> None:
        try:
            for number in range(ordeal.jobs):
                pause = f"sleep {chance.choice(['0', '0.05', '0.3'])}"
                handle = client.submit(ledger.command(pause), env=ledger.env, labels={"n": str(number)})
                ids.append(handle.id)
        except Exception as exc:  # noqa: BLE001  told by the main thread
            trouble.append(exc)

    submitter = threading.Thread(target=submit_all)
    submitter.start()
    reap(ordeal, server, agents, chance)
    submitter.join(ordeal.timeout_s)
    if trouble:
        raise trouble[0]
    assert len(ids) == ordeal.jobs, "not all jobs were accepted in time"
    return ids


def reap(ordeal: Ordeal, server: Server, agents: list[Agent], chance: random.Random) -> None:
    """Kill each program as often as asked, in a random order, and start it again at once."""
    victims: list[Program] = [server, *agents] * ordeal.kills
    chance.shuffle(victims)
    for victim in victims:
        time.sleep(chance.uniform(0.02, 0.4))  # between two kills: anywhere in a job's path
        victim.kill()
        victim.start()
    server.wait_ready()
