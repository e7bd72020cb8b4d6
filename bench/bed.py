"""What the measurements run on: real servers and agents, and on request a real PostgreSQL that writes through."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
from tests.programs import Server, call, start_server
from tests.services import postgres_running

from switchyard.model.graph import Graph
from switchyard.model.graph.read import compile_graph

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
    return credential
