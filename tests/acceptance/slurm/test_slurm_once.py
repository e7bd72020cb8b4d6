"""Each command runs once on real Slurm, whatever breaks: submits in doubt, dead agents, controllers away."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from switchyard import Client
from switchyard.model.job.job import Job, State
from tests.acceptance.bed import Ledger, wait_all_final
from tests.acceptance.slurm.slurm_stage import Yard, slurm_yard, write_site
from tests.programs import Agent
from tests.slurm_bed import SlurmBed
from tests.slurm_faults import Fault

pytestmark = pytest.mark.xdist_group("slurm-once")

# What may be told of a job that did not succeed: that its cluster has lost it, before it began or after.
UNBEGUN = "left no sign that it began"
EXCUSES = ("the cluster does not know", UNBEGUN)


@dataclass(frozen=True)
class Ordeal:
    """How many jobs over which clusters, and for how long faults go on."""

    jobs: int
    faults_s: float
    timeout_s: float


SHORT = Ordeal(jobs=18, faults_s=8, timeout_s=150)
LONG = Ordeal(jobs=1000, faults_s=600, timeout_s=1800)


@pytest.fixture
def yard(slurm: SlurmBed, tmp_path: Path) -> Iterator[Yard]:
    with slurm_yard(tmp_path, slurm) as made:
        # A call that hangs is given up soon. Not at the first start, which needs an answer of its cluster.
        alpha = made.agents["alpha"]
        alpha.close()
        write_site(made.stage, slurm["alpha"], clients=made.faulty.bin, slurm={"timeout_s": 0.6})
        alpha.start()
        yield made


def test_eight_ambiguous_submits_run_once_each(yard: Yard) -> None:
    """By chance: test_slurm_days.py has each fault once."""
    ambiguous(yard, 8, timeout_s=200)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_thousand_ambiguous_submits_run_once_each(yard: Yard) -> None:
    ambiguous(yard, 1000, timeout_s=3000)
    met = yard.faulty.submits()
    assert {Fault.STALL, Fault.DROP, Fault.TIMEOUT, Fault.LATE, Fault.NONE} <= set(met), met


def ambiguous(yard: Yard, count: int, *, timeout_s: float) -> None:
    """No submit is sure: each stalls, is dropped, comes late, or says that it failed, and some work."""
    yard.faulty.set(Fault.MIXED)
    with Client(yard.stage.url) as client:
        ids = [client.submit(yard.ledger.command(), env=yard.ledger.env, cluster="alpha").id for _ in range(count)]
        jobs = wait_all_final(client, ids, timeout_s)
    assert_once_or_excused(yard.ledger, jobs)
    assert all(job.state is State.SUCCEEDED for job in jobs.values()), "nothing but submits was in doubt"


def test_jobs_over_two_slurms_and_a_local_cluster_with_faults(yard: Yard) -> None:
    undergo(SHORT, yard)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_minutes_of_faults(yard: Yard) -> None:
    undergo(LONG, yard)


def undergo(ordeal: Ordeal, yard: Yard) -> None:
    with yard.stage.agent("local", cores=8), Client(yard.stage.url, retry_s=ordeal.timeout_s) as client:
        chance = random.Random(11)
        ids: list[str] = []
        reaper = threading.Thread(target=break_things, args=(ordeal, yard, chance))
        reaper.start()
        try:
            for number in range(ordeal.jobs):
                cluster = ("alpha", "beta", "local")[number % 3]
                then = f"sleep {chance.choice(['0', '0.2', '1'])}"
                ids.append(client.submit(yard.ledger.command(then), env=yard.ledger.env, cluster=cluster).id)
                time.sleep(ordeal.faults_s / ordeal.jobs / 2)  # so that faults meet jobs at every step
        finally:
            reaper.join(ordeal.timeout_s)
        assert not reaper.is_alive(), "the faults are over"
        jobs = wait_all_final(client, ids, ordeal.timeout_s)
    assert_once_or_excused(yard.ledger, jobs)


def break_things(ordeal: Ordeal, yard: Yard, chance: random.Random) -> None:
    """One fault after the other until the time is over; all is whole at the end."""
    until_s = time.monotonic() + ordeal.faults_s
    faults = [_kill_agent, _pause_controller, _restart_controller, _doubt, _kill_accounting]
    while time.monotonic() < until_s:
        chance.choice(faults)(yard, chance)
    yard.faulty.set(Fault.NONE)


def _kill_agent(yard: Yard, chance: random.Random) -> None:
    """At whichever step it is just then."""
    agent: Agent = chance.choice(list(yard.agents.values()))
    time.sleep(chance.random())  # how long is left to chance
    agent.kill()
    agent.start()


def _pause_controller(yard: Yard, chance: random.Random) -> None:
    cluster = yard.slurm[chance.choice(["alpha", "beta"])]
    cluster.pause("slurmctld")
    time.sleep(chance.uniform(0.5, 3))  # how long is left to chance
    cluster.resume("slurmctld")


def _restart_controller(yard: Yard, chance: random.Random) -> None:
    """In an orderly way: killed, it forgets, and that has a test of its own."""
    cluster = yard.slurm[chance.choice(["alpha", "beta"])]
    cluster.stop("slurmctld")
    time.sleep(chance.random())  # how long is left to chance
    cluster.heal_daemons()


def _doubt(yard: Yard, chance: random.Random) -> None:
    yard.faulty.set(Fault.MIXED)
    time.sleep(chance.uniform(1, 4))  # how long is left to chance
    yard.faulty.set(Fault.NONE)


def _kill_accounting(yard: Yard, chance: random.Random) -> None:
    yard.slurm["alpha"].kill("slurmdbd")
    time.sleep(chance.uniform(0.5, 3))  # how long is left to chance
    yard.slurm["alpha"].heal_daemons()


def assert_once_or_excused(ledger: Ledger, jobs: dict[str, Job]) -> None:
    """No command ran twice; who succeeded ran; who did not was lost by its cluster, and says so."""
    runs = ledger.runs()
    ends = Counter(job.state.value for job in jobs.values())
    twice = sum(count > 1 for count in runs.values())
    print(f"{len(jobs)} jobs: {dict(ends)}; commands that ran: {len(runs)}, more than once: {twice}")
    assert set(runs) <= set(jobs), "a job ran that nobody knows of"
    assert {job: count for job, count in runs.items() if count > 1} == {}, "ran more than once"
    done = [job for job in jobs.values() if job.state is State.SUCCEEDED]
    assert [job.id for job in done if job.id not in runs] == [], "succeeded without having run"
    others = {job.id: (job.state, job.reason) for job in jobs.values() if job.state is not State.SUCCEEDED}
    assert {job: end for job, end in others.items() if not any(each in end[1] for each in EXCUSES)} == {}
    assert [job for job, end in others.items() if UNBEGUN in end[1] and job in runs] == [], "it began"
