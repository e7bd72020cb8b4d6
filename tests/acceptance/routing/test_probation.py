"""Black holes, from outside: a cluster whose agent lacks a program loses few tasks, says why, and comes back."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from switchyard import Client, State
from tests.processes import PATIENCE_S, until
from tests.programs import Agent, call, isolated_env, start_agent, start_server, yard

pytestmark = pytest.mark.xdist_group("probation")
CONFIG = "probation: {pause_s: 1, successes: 1}\n"
CORES = 2
TASKS = 40
# The aim: a quick failure each core may have in hand when the third one is counted.
LOST_MAX = 5


@dataclass
class Bed:
    """Two clusters. On `hole` the program `simulate` is missing until `mend`."""

    folder: Path
    client: Client
    env: dict[str, str]
    agents: dict[str, Agent]

    def run(self, *words: str) -> Any:
        return yard(*words, env=self.env)

    def show(self, cluster: str) -> str:
        return str(yard("cluster", "show", cluster, env=self.env, check=True).stdout)

    def clear(self, *clusters: str) -> None:
        for cluster in clusters:
            yard("cluster", "probation", cluster, "--clear", env=self.env, check=True)

    def array(self, tasks: int = TASKS, *, command: str = "simulate") -> Any:
        """Submit an array and wait for its end."""
        return self.client.submit([command], array=f"0-{tasks - 1}").wait(timeout_s=PATIENCE_S * 2)

    def failed_on(self, job: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for task in self.client.tasks(job):
            if task.state is State.FAILED:
                found[task.cluster or ""] = found.get(task.cluster or "", 0) + 1
        return found

    def mend(self) -> None:
        self._program(self.folder / "hole-bin")

    def unmend(self) -> None:
        (self.folder / "hole-bin" / "simulate").unlink(missing_ok=True)

    @staticmethod
    def _program(folder: Path) -> None:
        program = folder / "simulate"
        program.write_text("#!/bin/sh\nsleep 0.05\n")
        program.chmod(0o755)


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("probation")
    config = folder / "yard.yaml"
    config.write_text(CONFIG)
    with ExitStack() as stack:
        server = stack.enter_context(start_server(folder, extra=["--config", str(config)]))
        agents = {}
        for name in ("good", "hole"):
            places = folder / f"{name}-bin"
            places.mkdir()
            env = {"PATH": f"{places}:{os.environ['PATH']}"}
            graph = {"nodes": 1, "each": {"core": CORES, "memory": "1GiB"}}
            agents[name] = stack.enter_context(start_agent(folder, server.url, name, graph=graph, env=env))
        client = stack.enter_context(Client(server.url, retry_s=PATIENCE_S))
        made = Bed(folder, client, isolated_env(folder, url=server.url), agents)
        made._program(folder / "good-bin")
        yield made


@pytest.fixture(autouse=True)
def fresh(bed: Bed) -> None:
    bed.unmend()
    bed.clear("good", "hole")


def test_a_cluster_without_the_program_loses_few_of_forty_tasks(bed: Bed) -> None:
    ended = bed.array()
    assert set(bed.failed_on(ended.id)) == {"hole"}
    assert 3 <= ended.tasks.failed <= LOST_MAX
    assert ended.tasks.ok == TASKS - ended.tasks.failed
    shown = bed.show("hole")
    assert "probation" in shown
    assert "tasks in a row failed there within 10 s, more than elsewhere" in shown
    assert "probation" not in bed.show("good")
    assert "comes last: on probation for your jobs" in bed.run("submit", "--plan", "--", "simulate").stdout
    (probation,) = json.loads(bed.run("cluster", "show", "hole", "-o", "json").stdout)["probations"]
    assert "exit code 127" in probation["reason"] or "not found" in probation["reason"]
    metrics = call("GET", f"{bed.client.url}/metrics").body.decode()
    assert 'switchyard_clusters_on_probation{whose="owner"} 1.0' in metrics
    assert 'switchyard_probations_total{cluster="hole"}' in metrics
    for page in ("", "clusters", "clusters/hole"):
        assert b"robation" in call("GET", f"{bed.client.url}/{page}").body, page
    assert "cluster.probation-begin" in bed.run("audit").stdout


def test_it_comes_back_by_canaries_also_after_a_restart_of_its_agent(bed: Bed) -> None:
    bed.array(8)
    assert "probation" in bed.show("hole")
    bed.agents["hole"].kill()
    bed.agents["hole"].start()
    assert "probation" in bed.show("hole")
    bed.mend()
    job = bed.client.submit(["simulate"], array="0-29")
    until(lambda: "probation" not in bed.show("hole"), PATIENCE_S, "canaries did well")
    job.wait(timeout_s=PATIENCE_S)


def test_jobs_that_fail_everywhere_close_nothing(bed: Bed) -> None:
    ended = bed.array(12, command="absent")
    assert ended.tasks.failed == 12
    assert len(bed.failed_on(ended.id)) == 2, "both clusters ran them"
    until(lambda: not any("probation" in bed.show(name) for name in ("good", "hole")), PATIENCE_S, "it is the job")


def test_plain_jobs_leave_and_all_clusters_on_probation_take_jobs(bed: Bed) -> None:
    for name in ("good", "hole"):
        assert bed.run("cluster", "probation", name, "--confirm", "--reason", "smoke").returncode == 0
    assert "confirmed by local-admin: smoke" in bed.show("good")
    jobs = [bed.client.submit(["true"]) for _ in range(4)]
    assert {job.wait(timeout_s=PATIENCE_S).state for job in jobs} == {State.SUCCEEDED}
    bed.clear("good")
    assert bed.client.submit(["true"]).wait(timeout_s=PATIENCE_S).cluster == "good"
    assert bed.client.submit(["true"], cluster="hole").wait(timeout_s=PATIENCE_S).cluster == "hole"


def test_an_exempt_cluster_takes_what_it_fails(bed: Bed) -> None:
    assert "never put on probation" in bed.run("cluster", "probation", "hole", "--off").stdout
    assert "switched off by an operator" in bed.run("cluster", "probation", "hole").stdout
    refused = bed.run("cluster", "probation", "hole", "--confirm")
    assert refused.returncode != 0
    assert "--on" in refused.stderr
    assert bed.run("cluster", "probation", "hole", "--on").returncode == 0


BAD_COMMANDS = (
    (("probation",), "NAME"),
    (("probation", "nowhere"), "nowhere"),
    (("probation", "nowhere", "--clear"), "nowhere"),
    (("probation", "hole", "--clear", "--off"), "not allowed with"),
    (("probation", "hole", "--confirm", "--reason", "x" * 5000), "reason"),
    (("probation", "hole", "--banish"), "--banish"),
)


def test_bad_commands_say_what_is_wrong(bed: Bed) -> None:
    for words, expected in BAD_COMMANDS:
        done = bed.run("cluster", *words)
        assert done.returncode != 0, words
        assert expected in done.stderr, (words, done.stderr)
        assert "Traceback" not in done.stderr


BAD_BODIES: tuple[object, ...] = (
    {},
    {"action": "banish"},
    {"action": None},
    {"action": "off", "node": "n1"},
    [],
    "off",
)


def test_bad_bodies_are_refused(bed: Bed) -> None:
    for body in BAD_BODIES:
        assert call("POST", f"{bed.client.url}/v1/clusters/hole/probation", body).status == 400, body
    assert call("POST", f"{bed.client.url}/v1/clusters/nowhere/probation", {"action": "off"}).status == 404
