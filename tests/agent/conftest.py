"""The agent as a real process against a peer, for the tests of this room."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.agent.peer import Peer
from tests.programs import YARD, Agent, isolated_env

Starter = Callable[..., Agent]


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer() as made:
        yield made


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Starter]:
    """Start an agent on one data folder, as often as one likes; all are ended with the test."""
    started: list[Agent] = []

    def start(
        url: str, *extra: str, cores: int = 4, backend: str = "local", cluster: str = "alpha", tmpfs: str | None = None
    ) -> Agent:
        data, graph = tmp_path / "data", tmp_path / "graph.yaml"
        data.mkdir(exist_ok=True)
        graph.write_text(f"nodes: 1\neach: {{core: {cores}, memory: 8GiB}}\n")
        argv = [*YARD, "agent", "--server", url, "--cluster", cluster, "--backend", backend, "--data", str(data)]
        argv += ["--graph", str(graph), "-v", "--allow-root", *extra]
        if tmpfs:
            # A disk of its own in a namespace of its own: gone with the agent and its jobs, and no need to be root.
            space = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
            mount = f'mount -t tmpfs -o size={tmpfs} tmpfs "{data}" && exec "$@"'
            argv = [*space, "sh", "-c", mount, "sh", *argv]
        made = Agent(argv, tmp_path, name=f"agent-{len(started)}", env=isolated_env(tmp_path)).start()
        started.append(made)
        return made

    yield start
    for each in started:
        each.close()
