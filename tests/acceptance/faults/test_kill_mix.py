"""Pull the plug on everything at once: arrays, retries and returned leases, while all programs are killed."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from switchyard import Client
from tests.acceptance.bed import wait_all_final
from tests.programs import Agent, Program, Server, call, start_agent, start_server

NODES = {"nodes": 1, "each": {"core": 8, "memory": "8GiB"}}

# Returns each job that is labelled `picky` the first time it sees it, and starts everything else.
CHOOSER = """\
#!/usr/bin/env python3
import json, pathlib, sys
seen = pathlib.Path(__file__).with_suffix(".seen")
asked = json.load(sys.stdin)
known = set(seen.read_text().split()) if seen.exists() else set()
start, back = [], []
for lease in asked["waiting"]:
    held = {"job": lease["job"], "fence": lease["fence"]}
    if lease.get("labels", {}).get("picky") and lease["job"] not in known:
        known.add(lease["job"])
        back.append(held | {"reason": "not today"})
    else:
        start.append(held)
seen.write_text(" ".join(sorted(known)))
json.dump({"start": start, "return": back}, sys.stdout)
"""


@dataclass(frozen=True)
class Ordeal:
    """How many tasks, how many jobs of each other kind, and how often each program is killed."""

    tasks: int
    others: int
    kills: int


SHORT = Ordeal(tasks=16, others=4, kills=2)
LONG = Ordeal(tasks=80, others=20, kills=5)


@pytest.fixture
def chooser(tmp_path: Path) -> str:
    program = tmp_path / "chooser.py"
    program.write_text(CHOOSER)
    program.chmod(0o755)
    return str(program)


# On SQLite alone: what is counted here is the same on PostgreSQL, and `make soak` counts it there.
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_arrays_retries_and_returns_survive_the_plug(tmp_path: Path, database_url: str, chooser: str) -> None:
    undergo(SHORT, tmp_path, database_url, chooser)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_many_arrays_retries_and_returns_survive_the_plug(tmp_path: Path, database_url: str, chooser: str) -> None:
    undergo(LONG, tmp_path, database_url, chooser)


def undergo(ordeal: Ordeal, folder: Path, database_url: str, chooser: str) -> None:
    with start_server(folder, database=database_url) as server:
        agents = [
            start_agent(folder, server.url, name, graph=NODES, extra=["--chooser", chooser])
            for name in ("alpha", "beta")
        ]
        try:
            with Client(server.url, retry_s=120) as client:
                array, flaky, picky = submit_all(ordeal, server, folder)
                reap(server, agents, kills=ordeal.kills)
                jobs = wait_all_final(client, [array, *flaky, *picky], 150)
            assert {job.state.value for job in jobs.values()} == {"SUCCEEDED"}, jobs
            runs = Counter((folder / "ledger").read_text().split())
            assert {key: count for key, count in runs.items() if count != expected(key)} == {}
            assert len(runs) == ordeal.tasks + 2 * ordeal.others
        finally:
            for agent in agents:
                agent.close()


def submit_all(ordeal: Ordeal, server: Server, folder: Path) -> tuple[str, list[str], list[str]]:
    """An array, jobs that fail at their first try, and jobs that the clusters give back first."""
    note = f"echo {{}} >> {folder}/ledger; sleep 0.05"
    array = post(server, ["/bin/sh", "-c", note.format("task-$SWITCHYARD_ARRAY_INDEX")], array=f"0-{ordeal.tasks - 1}")
    flaky = [
        post(
            server,
            [
                "/bin/sh",
                "-c",
                f"{note.format(f'flaky-{number}')}; mkdir {folder}/tried-{number} 2>/dev/null && exit 75 || :",
            ],
            retry={"limit": 3, "backoff": 1, "exit_codes": "75"},
        )
        for number in range(ordeal.others)
    ]
    picky = [
        post(server, ["/bin/sh", "-c", note.format(f"picky-{number}")], labels={"picky": "yes"})
        for number in range(ordeal.others)
    ]
    return array, flaky, picky


def expected(key: str) -> int:
    return 2 if key.startswith("flaky") else 1


def post(server: Server, command: list[str], *, retry: dict[str, object] | None = None, **request: object) -> str:
    spec: dict[str, object] = {"command": command} | ({"retry": retry} if retry else {})
    answer = call("POST", f"{server.url}/v1/jobs", {"spec": spec, **request})
    assert answer.status == 201, answer.body
    return str(answer.json["id"])


def reap(server: Server, agents: list[Agent], *, kills: int) -> None:
    chance = random.Random(11)
    victims: list[Program] = [server, *agents] * kills
    chance.shuffle(victims)
    for victim in victims:
        time.sleep(chance.uniform(0.1, 0.5))  # between two kills: jobs are at every step
        victim.kill()
        victim.start()
    server.wait_ready()
