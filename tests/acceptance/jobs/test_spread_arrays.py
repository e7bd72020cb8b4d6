"""One array on three real clusters of different size: agents and a server are killed, and every task runs once."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from switchyard import Client, State
from tests.processes import PATIENCE_S, until
from tests.programs import Agent, isolated_env, start_agent, start_server, yard
from tests.services import Postgres
from tests.store.prepared import migrated

SIZES = {"alpha": 1, "beta": 2, "gamma": 4}
TASKS = 30


def test_an_array_on_three_clusters_survives_the_death_of_an_agent_and_a_server(
    tmp_path: Path, postgres: Postgres
) -> None:
    database, ledger, go = migrated(postgres), tmp_path / "ledger", tmp_path / "go"
    wait = f"while [ ! -e {go} ]; do sleep 0.05; done; sleep 0.1"
    script = f'echo "$SWITCHYARD_ARRAY_INDEX" >> {ledger}; {wait}'
    with ExitStack() as stack:
        one = stack.enter_context(start_server(tmp_path, database=database, name="one"))
        two = stack.enter_context(start_server(tmp_path, database=database, name="two"))
        agents: dict[str, Agent] = {}
        for name, cores in SIZES.items():
            url, other = (one.url, two.url) if name == "alpha" else (two.url, one.url)
            graph = {"nodes": 1, "each": {"core": cores, "memory": "1GiB"}}
            agent = start_agent(tmp_path, url, name, graph=graph, extra=["--server", other])
            agents[name] = stack.enter_context(agent)
        client = stack.enter_context(Client(one.url, retry_s=PATIENCE_S))
        job = client.submit(["/bin/sh", "-c", script], array=f"0-{TASKS - 1}")

        def has_begun(count: int) -> bool:
            return ledger.exists() and len(ledger.read_text().split()) >= count

        until(lambda: has_begun(sum(SIZES.values())), PATIENCE_S, "every core of every cluster has a task")
        assert client.job(job.id).tasks_by_cluster == SIZES, "each cluster leases what it has room for"
        agents["gamma"].kill()
        two.kill()
        go.touch()
        agents["gamma"].start()
        until(lambda: has_begun(15), PATIENCE_S, "tasks begin without the second server")
        two.start().wait_ready()
        ended = job.wait(timeout_s=PATIENCE_S * 2)
        assert (ended.state, ended.reason) == (State.SUCCEEDED, "")
        assert Counter(ledger.read_text().split()) == Counter(str(index) for index in range(TASKS))
        by_cluster = client.job(job.id).tasks_by_cluster
        assert sum(by_cluster.values()) == TASKS
        assert by_cluster == Counter(task.cluster for task in client.tasks(job.id))
        _views(tmp_path, one.url, job.id, by_cluster)
        _together(client, tmp_path, one.url)


def _views(folder: Path, url: str, job: str, by_cluster: dict[str, int]) -> None:
    """`yard show`, `yard tasks` and JSON say how many tasks ran where."""
    env = isolated_env(folder, url=url)
    ordered = sorted(by_cluster.items(), key=lambda item: (-item[1], item[0]))
    text = ", ".join(f"{name} {count}" for name, count in ordered)
    assert text in yard("show", job, env=env).stdout
    assert f"{TASKS} tasks: {TASKS} ok. On clusters: {text}." in yard("tasks", job, env=env).stderr
    assert json.loads(yard("show", job, "-o", "json", env=env).stdout)["tasks_by_cluster"] == by_cluster


def _together(client: Client, folder: Path, url: str) -> None:
    """`--together` keeps all tasks on one cluster, also while the others are idle."""
    words = ("submit", "--array", "0-59", "--together", "-o", "json", "--", "sleep", "600")
    job = json.loads(yard(*words, env=isolated_env(folder, url=url), check=True).stdout)["id"]
    until(lambda: client.job(job).started_us is not None, PATIENCE_S, "a task has begun")
    kept = client.job(job)
    assert (kept.together, len(kept.tasks_by_cluster)) == (True, 1)
    client.cancel(job)
