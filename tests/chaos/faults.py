"""What the chaos run breaks, and how each fault ends. One fault at a time: its cost is then its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import psycopg

from tests.chaos.yard import ChaosYard

Step = Callable[[ChaosYard], None]


def _nothing(_yard: ChaosYard) -> None:
    """The fault ends by itself."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`lasts_s` passes between `begin` and `end`. `ratio_min`: the least throughput, as a part of the calm before."""

    name: str
    begin: Step
    end: Step = _nothing
    lasts_s: float = 0.0
    ratio_aim: float | None = None


def _kill_postgres(yard: ChaosYard) -> None:
    yard.postgres.kill()
    yard.postgres.start()


def _restart_bouncer(yard: ChaosYard) -> None:
    yard.bouncer.kill()
    yard.bouncer.start()


def _set_read_only(value: str) -> Step:
    def step(yard: ChaosYard) -> None:
        with psycopg.connect(yard.postgres.url(), autocommit=True, connect_timeout=10) as session:
            session.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}".encode())
            session.execute("SELECT pg_reload_conf()")

    return step


def _set_clock(server: str, offset: str) -> Step:
    return lambda yard: yard.clocks[server].move(offset)


def _kill_server(name: str) -> Step:
    def step(yard: ChaosYard) -> None:
        yard.servers[name].kill()
        yard.servers[name].start()

    return step


def _kill_agent(name: str) -> Step:
    def step(yard: ChaosYard) -> None:
        yard.agents[name].kill()
        yard.agents[name].start()

    return step


def _block_agent(yard: ChaosYard) -> None:
    for relay in yard.to_servers.values():
        relay.block()


def _unblock_agent(yard: ChaosYard) -> None:
    for relay in yard.to_servers.values():
        relay.unblock()


FAULTS = (
    Fault("PostgreSQL restarted", lambda yard: yard.postgres.restart(), ratio_aim=0.8),
    Fault("PostgreSQL killed (SIGKILL)", _kill_postgres, ratio_aim=0.6),
    Fault("PostgreSQL paused", lambda yard: yard.postgres.pause(), lambda yard: yard.postgres.resume(), 4),
    Fault("PostgreSQL's connections fall silent", lambda yard: yard.to_postgres.silence(), lasts_s=4),
    Fault("PostgreSQL read-only", _set_read_only("on"), _set_read_only("off"), 4),
    Fault("PgBouncer killed", _restart_bouncer),
    Fault("a server killed", _kill_server("a")),
    Fault("a server paused", lambda yard: yard.servers["a"].pause(), lambda yard: yard.servers["a"].resume(), 10),
    Fault("the other server paused", lambda yard: yard.servers["b"].pause(), lambda y: y.servers["b"].resume(), 10),
    Fault("a clock 25 s ahead", _set_clock("a", "+25"), _set_clock("a", "+0"), 10),
    Fault("a clock one hour ahead", _set_clock("b", "+3600"), _set_clock("b", "+0"), 10),
    Fault("a clock one hour behind", _set_clock("a", "-3600"), _set_clock("a", "+0"), 10),
    Fault("an agent cut off", _block_agent, _unblock_agent, 8),
    Fault("an agent copied", lambda yard: yard.copy_agent("alpha"), lambda yard: yard.kill_copies(), 10),
    Fault("an agent killed", _kill_agent("alpha")),
    Fault("Slurm's agent killed", _kill_agent("sigma")),
    Fault("Slurm's accounts away", lambda y: y.slurm.kill("slurmdbd"), lambda y: y.slurm.heal_daemons(), 10),
    Fault("Slurm's accounts late", lambda y: y.slurm.pause("slurmdbd"), lambda y: y.slurm.resume("slurmdbd"), 10),
    Fault("Slurm's controller restarted", lambda y: y.slurm.stop("slurmctld"), lambda y: y.slurm.heal_daemons(), 1),
)
