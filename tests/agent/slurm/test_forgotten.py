"""Jobs that squeue and sacct forget, on real Slurm: an end that was seen stays known, and an unsure one waits."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from switchyard.agent.backends.shared.returns import ATTEMPTS_MAX
from switchyard.features.slurm.agent.backend import SlurmBackend
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause
from tests.agent.builders import a_lease, end_of, status_when
from tests.agent.slurm.builders import Clients, a_job, a_slurm_setting, runs
from tests.processes import until
from tests.slurm_bed import SlurmBed, SlurmCluster

END_S = 60.0
UNENDED = "sleep 3; kill -9 $PPID"  # the script dies with the command, and leaves no note of its end
FORGET = "exit 0\n"
# The accounts as they were before any job ended: rows without an end, as of an hour ago.
NOTHING_ENDED = """{real} "$@" | awk -F'|' -v OFS='|' '{ $3 = "RUNNING"; $4 = "0:0"; $6 = "Unknown"; print }'\n"""
pytestmark = pytest.mark.xdist_group("slurm-hand-over")


@pytest.fixture
def alpha(slurm: SlurmBed) -> SlurmCluster:
    return slurm["alpha"]


@pytest.fixture
def clients(tmp_path: Path, alpha: SlurmCluster) -> Clients:
    return Clients(tmp_path, alpha)


def backend_of(folder: Path, cluster: SlurmCluster, clients: Clients, **slurm: float) -> SlurmBackend:
    return SlurmBackend(a_slurm_setting(folder, cluster, clients=clients.bin, slurm=slurm))


def refresh_for(backend: SlurmBackend, handle: str, seconds: float) -> set[ObservedState]:
    """Look for so long; all that was seen of the job."""
    deadline, found = time.monotonic() + seconds, set()
    while time.monotonic() < deadline:
        backend.refresh()
        found.add(backend.status([handle])[handle].seen)
        backend.watch(0.1)
    return found


def test_an_end_that_waits_for_its_usage_is_not_forgotten(
    tmp_path: Path, alpha: SlurmCluster, clients: Clients
) -> None:
    clients.be("sacct", FORGET)
    backend = backend_of(tmp_path, alpha, clients)
    handle = backend.submit(a_lease("sh", "-c", UNENDED))
    number = handle.partition("/")[0]
    status_when(backend, handle, lambda status: status.text == "RUNNING")
    until(lambda: alpha.field(number, "JobState") == "FAILED", END_S, "it has ended")
    seen = status_when(backend, handle, lambda status: status.text != "RUNNING", END_S)
    assert (seen.seen, seen.text) == (ObservedState.RUNNING, "COMPLETING"), "it waits for its usage"
    clients.be("squeue", FORGET)
    found = end_of(backend, handle, timeout_s=END_S)
    assert (found.seen, found.signal) == (ObservedState.FAILED, 9), found


def test_a_script_with_accounts_notes_its_end_too(tmp_path: Path, alpha: SlurmCluster, clients: Clients) -> None:
    """An agent that was away finds neither squeue nor sacct to tell how the job ended."""
    backend = backend_of(tmp_path, alpha, clients)
    handle = backend.submit(a_job(tmp_path, "exit 5"))
    until(lambda: alpha.field(handle.partition("/")[0], "JobState") == "FAILED", END_S, "it has ended")
    clients.be("squeue", FORGET)
    clients.be("sacct", FORGET)
    found = end_of(backend_of(tmp_path, alpha, clients), handle, timeout_s=END_S)
    assert (found.seen, found.exit_code, found.reason) == (ObservedState.FAILED, 5, "exit code 5")


def test_accounts_without_an_end_are_no_answer_while_slurmctld_has_a_backlog(
    tmp_path: Path, alpha: SlurmCluster, clients: Clients
) -> None:
    """slurmdbd was away: sacct answers again, and slurmctld has not sent the end of the job yet."""
    clients.be("sacct", NOTHING_ENDED)
    clients.be("sdiag", "echo 'DBD Agent queue size: 7'\n")
    backend = backend_of(tmp_path, alpha, clients)
    handle = backend.submit(a_lease("sh", "-c", UNENDED))
    status_when(backend, handle, lambda status: status.text == "RUNNING")
    until(lambda: alpha.field(handle.partition("/")[0], "JobState") == "FAILED", END_S, "it has ended")
    clients.be("squeue", FORGET)
    assert ObservedState.LOST not in refresh_for(backend, handle, 12)
    assert clients.calls("sacct") > 1
    clients.be("sacct", 'exec {real} "$@"\n')
    found = end_of(backend, handle, timeout_s=END_S)
    assert (found.seen, found.signal) == (ObservedState.FAILED, 9), found


def test_accounts_that_do_not_show_a_later_end_are_behind(
    tmp_path: Path, alpha: SlurmCluster, clients: Clients
) -> None:
    """slurmctld's backlog is empty, and yet sacct reads an old copy of the database."""
    clients.be("sacct", NOTHING_ENDED)
    backend = backend_of(tmp_path, alpha, clients)
    gate = tmp_path / "gate"
    first = backend.submit(a_lease("sh", "-c", UNENDED))
    later = backend.submit(a_lease("sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.1; done"))
    name = first.partition("/")[2]

    def seen_of(handle: str) -> ObservedState:
        backend.refresh()
        return backend.status([first, later])[handle].seen

    until(lambda: seen_of(first) is seen_of(later) is ObservedState.RUNNING, END_S, "both run")
    until(lambda: alpha.field(first.partition("/")[0], "JobState") == "FAILED", END_S, "the first has ended")
    clients.be("squeue", f"{{real}} \"$@\" | grep -v '{name}'\ntrue\n")
    assert (seen_of(first), seen_of(later)) == (ObservedState.SUBMITTED, ObservedState.RUNNING), "the first is missing"
    gate.touch()
    until(lambda: seen_of(later) is ObservedState.SUCCEEDED, END_S, "the later has ended")
    assert ObservedState.LOST not in refresh_for(backend, first, 12)
    clients.be("sacct", 'exec {real} "$@"\n')
    found = end_of(backend, first, timeout_s=END_S)
    assert (found.seen, found.signal) == (ObservedState.FAILED, 9), found


@pytest.mark.parametrize("sdiag", ["exec {real}\n", "exit 1\n"], ids=["the backlog is empty", "the bound has passed"])
def test_a_job_that_began_is_lost_when_nobody_can_tell_its_end(
    tmp_path: Path, alpha: SlurmCluster, clients: Clients, sdiag: str
) -> None:
    clients.be("sdiag", sdiag)
    backend = backend_of(tmp_path, alpha, clients, **({"accounts_lost_after_s": 8.0} if "1" in sdiag else {}))
    handle = backend.submit(a_job(tmp_path, "sleep 600"))
    until(lambda: runs(tmp_path), END_S, "it runs")
    clients.be("squeue", FORGET)
    found = end_of(backend, handle, timeout_s=END_S)
    assert (found.seen, runs(tmp_path)) == (ObservedState.LOST, 1)
    assert "it began, and left no word of its end" in found.reason
    alpha.cancel_all()


@pytest.mark.parametrize("attempt", [1, ATTEMPTS_MAX])
def test_a_job_that_is_forgotten_before_it_began_is_given_back_and_never_begins(
    tmp_path: Path, alpha: SlurmCluster, clients: Clients, attempt: int
) -> None:
    backend = backend_of(tmp_path, alpha, clients)
    names = ",".join(alpha.spec.node_names)
    alpha.run("scontrol", "update", f"NodeName={names}", "State=DRAIN", "Reason=test")
    handle = backend.submit(replace(a_job(tmp_path), attempt=attempt))
    clients.be("squeue", FORGET)
    found = end_of(backend, handle, timeout_s=END_S)
    wanted = (ObservedState.RETURNED, Cause.CLUSTER) if attempt == 1 else (ObservedState.FAILED, Cause.CLUSTER)
    assert (found.seen, found.cause) == wanted
    assert "left no sign that it began" in found.reason
    alpha.run("scontrol", "update", f"NodeName={names}", "State=RESUME")
    number = handle.partition("/")[0]
    until(lambda: alpha.field(number, "JobState") in ("FAILED", "COMPLETED"), END_S, "Slurm starts it late")
    assert runs(tmp_path) == 0
    alpha.heal()
