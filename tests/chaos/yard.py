"""The yard that the chaos run breaks: two servers on one PostgreSQL, three kinds of agent, a real Slurm with accounts.

Server `a` reaches PostgreSQL through a relay that can fall silent. Server `b` goes through PgBouncer in transaction
mode. Both have a wall clock that the run can move. The agent of `alpha` reaches both servers through relays.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tests.acceptance.bed import Ledger
from tests.acceptance.slurm.slurm_stage import SITE
from tests.pgbouncer_service import PgBouncer, pgbouncer_running
from tests.processes import end_strays
from tests.programs import Agent, MovableClock, Server, start_agent, start_server
from tests.relay import Relay, relaying
from tests.services import Postgres
from tests.slurm_bed import SlurmBed, SlurmCluster

WIDE = {"nodes": 1, "each": {"core": 400, "memory": "800GiB"}}
SLURM = "alpha"  # the bed's cluster that keeps accounts


@dataclass
class ChaosYard:
    folder: Path
    postgres: Postgres
    database: str
    bouncer: PgBouncer
    to_postgres: Relay
    to_servers: dict[str, Relay]
    servers: dict[str, Server]
    clocks: dict[str, MovableClock]
    slurm: SlurmCluster
    agents: dict[str, Agent] = field(default_factory=dict)
    copies: list[Agent] = field(default_factory=list)

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.folder)

    def copy_agent(self, name: str) -> None:
        """Start a second agent on a copy of the first one's folder."""
        original = self.agents[name]
        data = self.folder / f"{name}-copy-{len(self.copies)}"
        shutil.copytree(original.data, data, ignore=shutil.ignore_patterns("*.sock", "lock", "*.lock"))
        argv = [str(data) if word == str(original.data) else word for word in original.argv]
        copy = Agent(argv, self.folder, name=f"agent-{data.name}", env=original.env)
        copy.cluster, copy.data = original.cluster, data
        self.copies.append(copy.start())

    def kill_copies(self) -> None:
        for copy in self.copies:
            copy.kill()


@contextlib.contextmanager
def chaos_yard(folder: Path, postgres: Postgres, slurm: SlurmBed) -> Iterator[ChaosYard]:
    """Everything started and up; nothing of it is left afterwards."""
    with contextlib.ExitStack() as stack:
        stack.callback(end_strays, folder)
        database = postgres.create_database()
        to_postgres = stack.enter_context(relaying(postgres.port))
        bouncer = stack.enter_context(pgbouncer_running(postgres))
        clocks = {name: MovableClock(folder / f"clock-{name}") for name in ("a", "b")}
        urls = {
            "a": to_postgres.url(database),
            "b": bouncer.url(database),
        }
        servers: dict[str, Server] = {}
        for name, url in urls.items():
            servers[name] = stack.enter_context(
                start_server(folder, database=url, env=clocks[name].env, name=f"server-{name}")
            )
        to_servers = {
            name: stack.enter_context(relaying(urlsplit(server.url).port or 0)) for name, server in servers.items()
        }
        yard = ChaosYard(folder, postgres, database, bouncer, to_postgres, to_servers, servers, clocks, slurm[SLURM])
        stack.callback(yard.kill_copies)
        stack.callback(yard.slurm.heal)
        for name, agent in _start_agents(yard).items():
            yard.agents[name] = stack.enter_context(agent)
        yield yard


def _start_agents(yard: ChaosYard) -> dict[str, Agent]:
    first, second = (server.url for server in yard.servers.values())
    through = [f"http://127.0.0.1:{relay.port}" for relay in yard.to_servers.values()]
    site = yard.folder / "site.json"
    site.write_text(json.dumps({"slurm": {**SITE, "bin": str(yard.slurm.bin)}}), encoding="utf-8")
    return {
        "alpha": start_agent(yard.folder, through[0], "alpha", graph=WIDE, extra=["--server", through[1]]),
        "sigma": start_agent(
            yard.folder, second, "sigma", graph=None, backend="slurm", extra=["--server", first, "--config", str(site)]
        ),
    }
