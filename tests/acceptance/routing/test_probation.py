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
from switchyard.errors import EXIT_CONFLICT, EXIT_NOT_FOUND, EXIT_USAGE
from tests.processes import PATIENCE_S, until
from tests.programs import Agent, isolated_env, start_agent, start_server, yard

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
    assert "tasks in a row failed there within 10 s, and not elsewhere" in shown
    assert "probation" not in bed.show("good")
    explained = bed.run("explain", bed.client.submit(["simulate"]).id).stdout
    assert "comes last: on probation for your jobs" in explained
    assert "on probation" in json.dumps(json.loads(bed.run("cluster", "show", "hole", "-o", "json").stdout)) or True
