"""Slurm forgets: accounts far behind, slurmdbd away, a controller without its state. Each command runs exactly once."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from switchyard import Client
from switchyard.model.job.job import Job, State
from switchyard.model.job.lifecycle import FINAL_STATES
from switchyard.sdk.client import JobFields
from tests.acceptance.bed import Ledger, assert_each_ran_once, wait_all_final
from tests.acceptance.slurm.slurm_stage import slurm_agent
from tests.acceptance.stage import Stage, staged
from tests.processes import until
from tests.programs import Agent
from tests.slurm_bed import SlurmBed, SlurmCluster, slurm_running
from tests.slurm_conf import CLIENTS, Spec
from tests.slurm_faults import pinged_often, save_state, saved_ns
from tests.soak import SOAKED

pytestmark = [pytest.mark.xdist_group("slurm-forgotten"), pytest.mark.timeout(900)]

END_S = 300.0
TRIES = 5
JOBS = 12
LAG_S = 90
REQUEUE: JobFields = {"on_lost": "requeue"}
# sacct as it would have answered LAG_S ago: ends since then have not come, nor jobs that have begun since then.
STALE_SACCT = """\
#!/bin/sh
{real} "$@" | awk -F'|' -v OFS='|' -v then="$(($(date +%s) - {lag_s}))" '
$5 ~ /^[0-9]+$/ && $5 > then {{ next }}
$6 ~ /^[0-9]+$/ && $6 > then {{ $3 = "RUNNING"; $4 = "0:0"; $6 = "Unknown" }}
{{ print }}'
"""


@dataclass(frozen=True)
class Yard:
    stage: Stage
    cluster: SlurmCluster
    agent: Agent
    clients: Path
    ledger: Ledger

    def submit(self, client: Client, count: int, then: str = "") -> list[str]:
        """Jobs that would run again if they were taken for lost."""
        command = self.ledger.command(then)
        return [client.submit(command, env=self.ledger.env, **REQUEUE).id for _ in range(count)]

    def await_forgotten(self) -> None:
        """Until the controller knows no job any more, ended ones included."""
        until(lambda: not self.cluster.run("squeue", "-h", "-t", "all"), END_S, "the controller has forgotten all jobs")


@pytest.fixture(scope="module")
def forgetful() -> Iterator[SlurmBed]:
    """A cluster whose controller forgets jobs two seconds after they ended."""
    with slurm_running(Spec("gamma", accounting=True, extra=("MinJobAge=2",))) as bed:
        yield bed


@pytest.fixture
def yard(forgetful: SlurmBed, tmp_path: Path) -> Iterator[Yard]:
    cluster, clients = forgetful["gamma"], tmp_path / "clients"
    clients.mkdir()
    for program in CLIENTS:
        (clients / program).symlink_to(cluster.bin / program)
    with staged(tmp_path) as stage, slurm_agent(stage, cluster, clients=clients) as agent:
        yield Yard(stage, cluster, agent, clients, Ledger(tmp_path))
    cluster.heal()


def test_accounts_far_behind_and_an_agent_that_was_away(yard: Yard) -> None:
    """The jobs end while nobody looks; squeue has forgotten them, and sacct tells of the time before they ended."""
    stale = yard.clients / "sacct.stale"
    stale.write_text(STALE_SACCT.format(real=yard.cluster.bin / "sacct", lag_s=LAG_S), encoding="utf-8")
    stale.chmod(stale.stat().st_mode | stat.S_IXUSR)
    stale.replace(yard.clients / "sacct")
    with Client(yard.stage.url) as client:
        ids = yard.submit(client, JOBS, "sleep 0.5")
        until(lambda: len(yard.ledger.runs()) > JOBS // 4, END_S, "some of them have begun")
        yard.agent.kill()
        yard.await_forgotten()
        yard.agent.start()
        jobs = wait_all_final(client, ids, END_S)
    assert_each_ran_once(yard.ledger, jobs)


def test_slurmdbd_away_and_a_controller_that_forgets_after_two_seconds(yard: Yard) -> None:
    with Client(yard.stage.url) as client:
        ids = yard.submit(client, JOBS // 3, "sleep 0.5")
        yard.cluster.kill("slurmdbd")
        try:
            ids += yard.submit(client, JOBS // 3, "sleep 0.5")
            bad = client.submit(yard.ledger.command("exit 7"), env=yard.ledger.env, **REQUEUE).id
            until(lambda: len(yard.ledger.runs()) > JOBS // 3, END_S, "some of them have begun")
            yard.agent.kill()
            yard.await_forgotten()
            yard.agent.start()
            ids += yard.submit(client, JOBS // 3)
            # A submit in which the agent was killed is looked for in the accounts, too: such a job waits for slurmdbd.
            until(lambda: _count_final(client) > len(ids) // 2, END_S, "the others end without slurmdbd")
        finally:
            yard.cluster.heal_daemons()
        jobs = wait_all_final(client, [*ids, bad], END_S)
    failed = jobs.pop(bad)
    assert (failed.state, failed.exit_code, yard.ledger.runs()[bad]) == (State.FAILED, 7, 1)
    ran = {job: count for job, count in yard.ledger.runs().items() if job != bad}
    assert set(ran.values()) == {1}
    assert {job.id for job in jobs.values() if job.state is State.SUCCEEDED} == set(ran) == set(ids), jobs


# Where there are accounts, the tests above show what they are asked for.
@pytest.mark.parametrize("name", [SOAKED("alpha"), "beta"])
def test_jobs_that_a_killed_controller_forgot_before_they_began_run_after_all(
    slurm: SlurmBed, tmp_path: Path, name: str
) -> None:
    """They wait in the queue, and the controller dies before it has saved them."""
    cluster = slurm[name]
    nodes = ",".join(cluster.spec.node_names)
    with staged(tmp_path) as stage, slurm_agent(stage, cluster), Client(stage.url) as client:
        ledger = Ledger(tmp_path)
        ids: list[str] = []
        try:
            cluster.run("scontrol", "update", f"NodeName={nodes}", "State=DRAIN", "Reason=test")
            for _ in range(TRIES):
                at_ns = save_state(cluster, END_S)
                new = [client.submit(ledger.command(), env=ledger.env).id for _ in range(5)]
                ids += new
                until(lambda new=new: _are_handed_over(client, new), END_S, "Slurm has them")  # type: ignore[misc]
                cluster.kill("slurmctld")
                if saved_ns(cluster) == at_ns:
                    break
                cluster.heal_daemons()  # the machine was slow, and some of the jobs are saved
        finally:
            cluster.heal_daemons()
            cluster.open_nodes()
        jobs = wait_all_final(client, ids, END_S)
        kinds = {event.kind for job in ids for event in client.events(job)}
        cluster.heal()
    assert_each_ran_once(ledger, jobs)
    assert "returned" in kinds, "Slurm has forgotten none of them"


@pytest.mark.parametrize("kills", [2, SOAKED(20)])
def test_jobs_of_a_shaken_controller_run_once_each(slurm: SlurmBed, tmp_path: Path, kills: int) -> None:
    """It is killed again and again: what had begun may be lost, and what had not runs after all.

    Slurm may take a script away when its node has opened the job's output, before the first line: that had not begun.
    A script that was killed between its first line and the command had begun.
    """
    cluster, ledger = slurm["beta"], Ledger(tmp_path)
    with (
        pinged_often(cluster),
        staged(tmp_path) as stage,
        slurm_agent(stage, cluster),
        Client(stage.url) as client,
    ):
        ids: list[str] = []
        for _ in range(kills):
            ids += [client.submit(ledger.command("sleep 0.3"), env=ledger.env).id for _ in range(6)]
            before = len(ledger.runs())
            until(lambda before=before: _count_runs(cluster, ledger) > before, END_S, "one more began")  # type: ignore[misc]
            cluster.kill("slurmctld")
            cluster.heal_daemons()
        until(lambda: _count_runs(cluster, ledger) and _count_final(client) >= len(ids), END_S, "all have their end")
        jobs = {job: client.job(job) for job in ids}
        runs = ledger.runs()
        lost = {job for job in ids if job not in runs and "lost" in {event.kind for event in client.events(job)}}
        cluster.heal()
    assert {job: count for job, count in runs.items() if count > 1} == {}, "ran more than once"
    assert _reasons(jobs, set(ids) - set(runs) - lost) == {}, "never ran, and was not told as lost"
    done = sum(job.state is State.SUCCEEDED for job in jobs.values())
    print(json.dumps({"jobs": len(jobs), "succeeded": done, "lost before the command": len(lost)}))


def _are_handed_over(client: Client, ids: list[str]) -> bool:
    return all(client.job(job).state in (State.SUBMITTED, State.RUNNING) for job in ids)


def _count_runs(cluster: SlurmCluster, ledger: Ledger) -> int:
    """Slurm drains a node to which it sent a number twice: the site opens it again."""
    nodes = ",".join(cluster.spec.node_names)
    cluster.run("scontrol", "update", f"NodeName={nodes}", "State=RESUME", check=False)
    return len(ledger.runs())


def _count_final(client: Client) -> int:
    return sum(job.state in FINAL_STATES for job in client.jobs())


def _reasons(jobs: dict[str, Job], ids: set[str]) -> dict[str, tuple[State, str]]:
    return {job: (jobs[job].state, jobs[job].reason) for job in ids}
