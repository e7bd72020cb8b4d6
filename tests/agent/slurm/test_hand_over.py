"""Handed over exactly once, whatever sbatch says: real Slurm, clients with faults, a runner taken step by step."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from switchyard.agent.backends import marker_of
from switchyard.agent.journal.attempt import Stage
from switchyard.agent.journal.journal import Journal
from switchyard.agent.loop.need import spec_of
from switchyard.agent.loop.runner import Runner
from switchyard.agent.site.accounts import AllowList
from switchyard.errors import Denied, Unavailable
from switchyard.features.slurm.agent.backend import SlurmBackend
from switchyard.features.slurm.agent.jobs.submitted_scripts import SubmittedScript
from switchyard.model.cluster.poll import Lease, Report
from switchyard.model.job.job import Native
from switchyard.model.job.lifecycle import ObservedState
from tests.agent.builders import a_lease, end_of, status_when
from tests.agent.slurm.builders import a_job, a_slurm_setting, given_up_soon, runs
from tests.processes import until
from tests.slurm_bed import SlurmBed, SlurmCluster
from tests.slurm_faults import LATE_S, Fault, FaultyClients

END_S = 60.0
SETTLE_S = 2.0 * LATE_S
pytestmark = pytest.mark.xdist_group("slurm-hand-over")


class Agent:
    """A runner with a real journal and a real Slurm, which can be killed and started again."""

    def __init__(self, folder: Path, cluster: SlurmCluster, **slurm: Any) -> None:
        self.folder, self.cluster = folder, cluster
        self.clients = FaultyClients(folder / "bin", cluster)
        self.site = {"allow": slurm.pop("allow", AllowList())}
        self.slurm = {"settle_s": SETTLE_S, **slurm}
        self.start()

    def start(self) -> None:
        setting = a_slurm_setting(self.folder, self.cluster, clients=self.clients.bin, slurm=self.slurm, **self.site)
        self.backend = SlurmBackend(setting)
        self.journal = Journal(self.folder / "journal.db")
        self.runner = Runner(self.journal, self.backend)
        self.runner.adopt()

    def kill(self) -> None:
        """Nothing is said to anybody: what is not on disk is gone."""
        self.journal.close()

    def until(self, is_so: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + END_S
        while not is_so():
            assert time.monotonic() < deadline, what
            self.run_once()
            self.backend.watch(0.05)

    def run_once(self) -> None:
        with contextlib.suppress(Unavailable):  # a controller that is too busy to answer: as the loop does
            self.backend.refresh()
        self.runner.run_once(may_start=True)

    def submit_with(self, fault: Fault) -> None:
        """Run once. Only this time, sbatch has the fault."""
        self.clients.set(fault)
        with given_up_soon("sbatch"):
            self.run_once()
        self.clients.set(Fault.NONE)

    def ends(self) -> list[Report]:
        return [queued.timed.report for queued in self.journal.queued() if queued.is_final]

    def native_jobs(self, lease: Lease) -> list[str]:
        return self.cluster.run("squeue", "-h", "-t", "all", "-o", "%F", f"--name={marker_of(lease)}").split()


@pytest.fixture
def agent(tmp_path: Path, slurm: SlurmBed) -> Iterator[Agent]:
    made = Agent(tmp_path, slurm["alpha"])
    yield made
    made.kill()
    slurm["alpha"].cancel_all()


@pytest.mark.parametrize("fault", [Fault.STALL, Fault.TIMEOUT, Fault.LATE, Fault.DROP, Fault.BANNER, Fault.FULL])
def test_a_submit_in_doubt_becomes_one_job(agent: Agent, tmp_path: Path, fault: Fault) -> None:
    lease = a_job(tmp_path)
    agent.journal.take([lease])
    agent.submit_with(fault)
    agent.until(agent.ends, f"the job has its end after {fault}")
    (end,) = agent.ends()
    assert (end.seen, runs(tmp_path)) == (ObservedState.SUCCEEDED, 1)
    assert len(agent.native_jobs(lease)) == 1


def test_the_agent_dies_after_the_submit_and_before_it_knows(agent: Agent, tmp_path: Path) -> None:
    lease = a_job(tmp_path, "sleep 3")
    agent.journal.take([lease])
    agent.submit_with(Fault.STALL)
    agent.kill()
    agent.start()
    agent.until(agent.ends, "the job has its end")
    assert (agent.ends()[0].seen, runs(tmp_path), len(agent.native_jobs(lease))) == (ObservedState.SUCCEEDED, 1, 1)


def test_the_agent_dies_before_the_submit(agent: Agent, tmp_path: Path) -> None:
    lease = a_job(tmp_path)
    agent.journal.take([lease])
    agent.backend._register.write(SubmittedScript(lease))  # as far as it came
    agent.kill()
    agent.start()
    agent.until(agent.ends, "the job has its end")
    assert (agent.ends()[0].seen, runs(tmp_path), len(agent.native_jobs(lease))) == (ObservedState.SUCCEEDED, 1, 1)


def test_the_journal_is_lost_and_what_runs_is_taken_up(agent: Agent, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    lease = a_job(tmp_path, f"until [ -e {gate} ]; do sleep 0.1; done")
    agent.journal.take([lease])
    agent.until(lambda: agent.native_jobs(lease), "it is submitted")
    agent.kill()
    (tmp_path / "journal.db").unlink()
    agent.start()
    assert [each.stage for each in agent.journal.attempts()] == [Stage.SUBMITTED]
    gate.touch()
    agent.until(agent.ends, "the job has its end")
    assert (agent.ends()[0].seen, runs(tmp_path)) == (ObservedState.SUCCEEDED, 1)


@pytest.mark.parametrize("is_late_one_first", [False, True])
def test_one_that_comes_after_all_patience_does_not_run_twice(
    tmp_path: Path, slurm: SlurmBed, is_late_one_first: bool
) -> None:
    """Two jobs of one name are in Slurm: whichever begins first runs, and it is the one that is followed."""
    agent = Agent(tmp_path, slurm["alpha"], settle_s=0.1, allow=AllowList(options=["--begin"]))
    lease = a_job(tmp_path, "sleep 3; exit 5")
    agent.clients.set(Fault.LATE)
    with given_up_soon("sbatch"), pytest.raises(Unavailable, match="no answer"):
        agent.backend.submit(lease)
    agent.clients.set(Fault.NONE)
    spec = replace(spec_of(lease), native=Native(options=["--begin=now+3"] if is_late_one_first else []))
    handle = agent.backend.submit(replace(lease, spec=spec))
    until(lambda: len(agent.native_jobs(lease)) == 2, END_S, "both submits have come")
    found = end_of(agent.backend, handle, timeout_s=END_S)
    assert (found.seen, found.exit_code, runs(tmp_path)) == (ObservedState.FAILED, 5, 1)
    agent.kill()


def test_tasks_of_an_array_in_doubt_are_found_as_one_job(agent: Agent, tmp_path: Path) -> None:
    lease = replace(a_job(tmp_path, "exit $SWITCHYARD_ARRAY_INDEX"), lo=0, hi=4)
    agent.journal.take([lease])
    agent.submit_with(Fault.STALL)
    agent.until(lambda: len(agent.ends()) == 5, "every task has its end")
    assert sorted(end.exit_code or 0 for end in agent.ends()) == [0, 1, 2, 3, 4]
    assert runs(tmp_path) == 5
    assert {(end.native_id or "").partition("_")[0] for end in agent.ends()} == set(agent.native_jobs(lease))
    assert len(set(agent.native_jobs(lease))) == 1


def test_a_cancel_in_doubt_waits_until_it_is_found(agent: Agent, tmp_path: Path) -> None:
    lease = a_job(tmp_path, "sleep 60")
    agent.journal.take([lease])
    agent.submit_with(Fault.LATE)
    agent.journal.request_end([(lease.job, lease.fence)], cancel=True)
    agent.until(agent.ends, "the cancelled job has its end")
    assert agent.ends()[0].seen is ObservedState.CANCELLED
    assert len(agent.native_jobs(lease)) == 1


def test_a_number_that_was_given_to_another_is_lost_and_left_alone(agent: Agent) -> None:
    other = agent.cluster.run("sbatch", "--parsable", "-J", "somebody", "-o", "/dev/null", "--wrap", "sleep 60").strip()
    lease = a_lease("true")
    agent.backend._register.write(SubmittedScript(lease, native=other))
    handle = agent.backend.find(marker_of(lease))
    assert handle == f"{other}/{marker_of(lease)}"
    agent.backend.cancel([handle])
    found = end_of(agent.backend, handle, timeout_s=END_S)
    assert (found.seen, found.reason) == (
        ObservedState.LOST,
        f"the cluster does not know job {other} any more, and it left no sign that it began",
    )
    assert agent.cluster.field(other, "JobState") in ("RUNNING", "PENDING")


def test_a_job_that_was_refused_a_second_start_is_told_as_such(tmp_path: Path, slurm: SlurmBed) -> None:
    """Whatever the first start left, and though a command may end by the same code."""
    backend = SlurmBackend(a_slurm_setting(tmp_path, slurm["alpha"]))
    own = end_of(backend, backend.submit(a_lease("sh", "-c", "exit 96")), timeout_s=END_S)
    assert (own.seen, own.exit_code, own.reason) == (ObservedState.FAILED, 96, "exit code 96")
    lease = a_lease("true")
    folder = tmp_path / "output" / marker_of(lease)
    folder.mkdir()
    (folder / "started").write_text("1 0 elsewhere\n")  # by a start that nobody knows any more
    refused = end_of(backend, backend.submit(lease), timeout_s=END_S)
    assert (refused.seen, refused.exit_code) == (ObservedState.FAILED, None)
    assert "started it a second time" in refused.reason


@pytest.mark.parametrize(("text", "code", "signal"), [("exit 137", 137, None), ("kill -9 $$", None, 9)])
def test_slurm_tells_codes_from_signals(
    tmp_path: Path, slurm: SlurmBed, text: str, code: int | None, signal: int | None
) -> None:
    backend = SlurmBackend(a_slurm_setting(tmp_path, slurm["alpha"]))
    found = end_of(backend, backend.submit(a_lease("sh", "-c", text)), timeout_s=END_S)
    assert (found.seen, found.exit_code, found.signal) == (ObservedState.FAILED, code, signal)


@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_a_controller_that_forgets_what_has_ended(tmp_path: Path, slurm: SlurmBed, name: str) -> None:
    """With accounts they tell the end, without them the script's own note does."""
    clients = FaultyClients(tmp_path / "bin", slurm[name]).bin
    (clients / "squeue").unlink()
    (clients / "squeue").write_text(f"#!/bin/sh\n{slurm[name].bin}/squeue \"$@\" | grep -v '|FAILED|'\ntrue\n")
    (clients / "squeue").chmod(0o755)
    backend = SlurmBackend(a_slurm_setting(tmp_path, slurm[name], clients=clients))
    native_id = backend.submit(a_lease("sh", "-c", "exit 3"))
    found = end_of(backend, native_id, timeout_s=END_S)
    assert (found.seen, found.exit_code, found.reason) == (ObservedState.FAILED, 3, "exit code 3")
    assert found.usage is not None


def test_accounts_alone_know_the_end(tmp_path: Path, slurm: SlurmBed) -> None:
    clients = FaultyClients(tmp_path / "bin", slurm["alpha"]).bin
    (clients / "squeue").unlink()
    (clients / "squeue").write_text(f"#!/bin/sh\n{slurm['alpha'].bin}/squeue \"$@\" | grep -v '|FAILED|'\ntrue\n")
    (clients / "squeue").chmod(0o755)
    backend = SlurmBackend(a_slurm_setting(tmp_path, slurm["alpha"], clients=clients))
    native_id = backend.submit(a_lease("sh", "-c", f"rm -rf {tmp_path}/output/*/started; kill -9 $$"))
    found = end_of(backend, native_id, timeout_s=END_S)
    assert (found.seen, found.signal) == (ObservedState.FAILED, 9)


def test_silence_of_the_controller_proves_nothing(tmp_path: Path, slurm: SlurmBed) -> None:
    cluster = slurm["beta"]
    backend = SlurmBackend(a_slurm_setting(tmp_path, cluster, slurm={"settle_s": 0.1}))
    native_id = backend.submit(a_lease("sleep", "2"))
    status_when(backend, native_id, lambda status: status.seen is ObservedState.RUNNING)
    cluster.pause("slurmctld")
    try:
        with given_up_soon():
            for _ in range(2):
                with pytest.raises(Unavailable, match="no answer"):
                    backend.refresh()
                assert backend.status([native_id])[native_id].seen is ObservedState.RUNNING
            with pytest.raises(Unavailable, match="no answer"):
                backend.quote(a_lease("true").spec)  # type: ignore[arg-type]
            with pytest.raises(Unavailable, match="no answer"):
                backend.submit(a_lease("true"))
    finally:
        cluster.resume("slurmctld")
    assert end_of(backend, native_id, timeout_s=END_S).seen is ObservedState.SUCCEEDED
    cluster.heal()


def test_started_without_its_controller_it_knows_what_it_knew(tmp_path: Path, slurm: SlurmBed) -> None:
    before = SlurmBackend(a_slurm_setting(tmp_path, slurm["alpha"]))
    silent = tmp_path / "silent"
    silent.mkdir()
    (silent / "scontrol").write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2\nexit 1\n")
    (silent / "scontrol").chmod(0o755)
    after = SlurmBackend(a_slurm_setting(tmp_path, slurm["alpha"], clients=silent))
    assert after.describe() == before.describe()
    with pytest.raises(Unavailable, match="Unable to contact"):
        SlurmBackend(a_slurm_setting(tmp_path / "new", slurm["alpha"], clients=silent))


@pytest.mark.parametrize("note", ["no-number", "--allusers", "9;id", "٣", ""])
def test_a_note_that_a_job_forged_harms_no_other(tmp_path: Path, slurm: SlurmBed, note: str) -> None:
    """The number in it becomes a word of a question for all jobs."""
    backend = SlurmBackend(a_slurm_setting(tmp_path, slurm["alpha"]))
    forged = backend.submit(a_lease("sh", "-c", f"echo '{note} 0 n1 noted' > ../started; exit 0"))
    end = end_of(backend, forged, END_S)
    assert end.seen in (ObservedState.SUCCEEDED, ObservedState.FAILED, ObservedState.LOST)
    assert end_of(backend, backend.submit(a_lease("sh", "-c", "exit 3")), END_S).exit_code == 3
    backend.close()


def test_root_without_a_map_hands_over_jobs_of_administrators_alone(tmp_path: Path, slurm: SlurmBed) -> None:
    """What root submits runs as root on the nodes."""
    backend = SlurmBackend(dataclasses.replace(a_slurm_setting(tmp_path, slurm["beta"]), is_root_allowed=False))
    lease = a_lease("true")
    with pytest.raises(Denied, match="alice is none"):
        backend.submit(lease)
    assert backend.find(marker_of(lease)) is None
    assert end_of(backend, backend.submit(replace(lease, is_owner_admin=True)), END_S).seen is ObservedState.SUCCEEDED
    backend.close()
