"""What the measurements run on: real servers and agents, and on request a real PostgreSQL that writes through."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from tests.programs import Server, call, start_server
from tests.services import postgres_running

from switchyard.model.graph import Graph
from switchyard.model.graph.graph_compiler import compile_graph

ALIVE_S = 5.0
DATABASES = ("sqlite", "postgresql")


@contextlib.contextmanager
def database(kind: str) -> Iterator[str | None]:
    """A fresh database that commits to the disk."""
    if kind == "sqlite":
        yield None
        return
    with postgres_running(durable=True) as server:
        yield server.create_database()


@contextlib.contextmanager
def server(folder: Path, url: str | None, *extra: str) -> Iterator[Server]:
    with start_server(folder, database=url, extra=extra) as running:
        yield running


def join(url: str, name: str, *, cores: int = 1_000_000, graph: Graph | None = None) -> str:
    """A cluster that is up, without an agent's process: its credential."""
    joined = call(
        "POST", f"{url}/v1/agents/join", {"cluster": name, "name": "bench", "journal": name, "backend": "fake"}
    )
    credential: str = joined.json["credential"]
    has = graph or compile_graph({"nodes": 10, "each": {"core": cores, "memory": 2**50}}, where="bench")
    told = {"incarnation": "b", "inventory": [], "graph": msgspec.to_builtins(has)}
    call("POST", f"{url}/v1/agents/poll", told, token=credential)
    threading.Thread(target=_keep_alive, args=(url, credential), daemon=True).start()
    return credential


def _keep_alive(url: str, credential: str) -> None:
    """A cluster that falls silent is down, and its jobs would wait: that is another measurement."""
    with contextlib.suppress(OSError):  # the server has ended, and so has the measurement
        while True:
            call("POST", f"{url}/v1/agents/poll", {"incarnation": "b", "session": 1}, token=credential)
            time.sleep(ALIVE_S)
