"""Doubts and tricks on real Slurm: what clients hide, hang on or say in words of their own, and what others forge."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from switchyard.agent.journal.attempt import Stage
from switchyard.agent.journal.journal import Journal
from switchyard.agent.loop.runner import Runner
from switchyard.agent.site.accounts import AllowList
from switchyard.errors import PolicyRefused, Unavailable, YardError
from switchyard.features.slurm.agent.backend import SlurmBackend
from switchyard.features.slurm.agent.commands.command_runner import CommandRunner, CommandTimeout
from switchyard.features.slurm.agent.jobs.submitted_scripts import SubmittedScript
from switchyard.features.slurm.agent.slurm_site import SlurmSite
from switchyard.model.cluster.poll import Lease, Report
from switchyard.model.job.job import JobSpec, Native
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause
from tests.agent.builders import a_lease, end_of, status_when
from tests.agent.slurm.builders import Clients, a_slurm_setting, given_up_soon
from tests.processes import until
from tests.slurm_bed import SlurmBed, SlurmCluster

END_S = 40.0
pytestmark = pytest.mark.xdist_group("slurm-hand-over")


@pytest.fixture
def beta(slurm: SlurmBed) -> Iterator[SlurmCluster]:
    yield slurm["beta"]
    slurm["beta"].cancel_all()


@pytest.fixture
def clients(tmp_path: Path, beta: SlurmCluster) -> Clients:
    return Clients(tmp_path, beta)


def backend_of(folder: Path, cluster: SlurmCluster, clients: Clients | None = None, **more: Any) -> SlurmBackend:
    return SlurmBackend(a_slurm_setting(folder, cluster, clients=clients.bin if clients else None, **more))


def handed_over(backend: SlurmBackend, folder: Path, lease: Lease) -> Report:
    """The end of a lease, by a runner's own turns."""
    journal = Journal(folder / "journal.db")
    end = ended_by(Runner(journal, backend), backend, journal, lease)
    journal.close()
    return end


def ended_by(runner: Runner, backend: SlurmBackend, journal: Journal, lease: Lease) -> Report:
    journal.take([lease])
    deadline = time.monotonic() + END_S
    while True:
        said = [
            each.timed.report for each in journal.queued() if each.is_final and each.key == (lease.job, lease.fence)
        ]
        if said:
            return said[0]
        assert time.monotonic() < deadline, "it has its end"
        backend.refresh()
        runner.run_once(may_start=True)
        backend.watch(0.05)


def test_a_wrapper_that_breaks_after_the_submit(tmp_path: Path, beta: SlurmCluster, clients: Clients) -> None:
    clients.be("sbatch", "{real} \"$@\" >/dev/null; echo 'KeyError: budget' >&2; exit 1\n")
    lease = a_lease("sh", "-c", f"echo run >>{tmp_path}/ledger")
    end = handed_over(backend_of(tmp_path, beta, clients), tmp_path, lease)
    assert (end.seen, clients.calls("sbatch"), (tmp_path / "ledger").read_text()) == (
        ObservedState.SUCCEEDED,
        1,
        "run\n",
    )


def test_a_wrapper_that_says_no_in_words_of_its_own(tmp_path: Path, beta: SlurmCluster, clients: Clients) -> None:
    clients.be("sbatch", "echo 'Your budget is spent.' >&2; exit 1\n")
    end = handed_over(backend_of(tmp_path, beta, clients), tmp_path, a_lease("true"))
    assert (end.seen, end.reason) == (ObservedState.FAILED, "It was not submitted: Your budget is spent.")
    assert clients.calls("sbatch") == 1
    assert list((tmp_path / "output").iterdir()) == []


@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_an_array_is_cancelled_by_one_question_and_over_at_once(tmp_path: Path, slurm: SlurmBed, name: str) -> None:
    """Some of it runs, most of it waits, and of that Slurm keeps nothing."""
    cluster, count = slurm[name], 40
    clients = Clients(tmp_path, cluster)
    clients.be("scancel", '{real} "$@"\n')
    backend = backend_of(tmp_path, cluster, clients, slurm={"settle_s": 300.0})
    whole = a_lease("sh", "-c", f"echo run >>{tmp_path}/ledger; exec sleep 600")
    leases = [replace(whole, fence=1 + index, lo=index, hi=index) for index in range(count)]
    handles = backend.submit_range(leases)
    status_when(backend, handles[0], lambda status: status.seen is ObservedState.RUNNING)
    status_when(backend, handles[-1], lambda status: status.text == "PENDING")
    kept = handles.pop(-2)
    backend.cancel(handles)
    ends = [end_of(backend, handle, timeout_s=END_S) for handle in handles]
    assert {(end.seen, end.reason) for end in ends} == {(ObservedState.CANCELLED, "cancelled")}
    assert clients.calls("scancel") == 1
    assert status_when(backend, kept, lambda status: status.seen is ObservedState.RUNNING, END_S)
    assert len((tmp_path / "ledger").read_text().split()) < count
    cluster.cancel_all()


def test_rows_in_the_name_of_anothers_job_are_not_believed(tmp_path: Path, beta: SlurmCluster) -> None:
    backend = backend_of(tmp_path, beta)
    native_id = backend.submit(a_lease("sleep", "600"))
    number, name = native_id.split("/")
    row = f"{number}|FAILED|256|{name}|1794732424|1794732425|n1|0|root|None|"
    words = ["--parsable", "-o", "/dev/null", "-J", f"yard-x\n{row}\n{row}", "--wrap", "sleep 600"]
    status_when(backend, native_id, lambda status: status.seen is ObservedState.RUNNING)
    theirs = beta.run("sbatch", *words).strip()
    until(lambda: beta.field(theirs, "JobState") == "RUNNING", END_S, "it is listed after ours")
    backend.refresh()
    assert backend.status([native_id])[native_id].seen is ObservedState.RUNNING


def test_silence_in_between_starts_the_settle_time_anew(tmp_path: Path, beta: SlurmCluster, clients: Clients) -> None:
    backend = backend_of(tmp_path, beta, clients, slurm={"settle_s": 1.5})
    native_id = backend.submit(a_lease("sleep", "600"))
    status_when(backend, native_id, lambda status: status.seen is ObservedState.RUNNING)
    clients.be("squeue", "exit 0\n")
    backend.refresh()
    clients.be("squeue", "exit 1\n")
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        with pytest.raises(Unavailable):
            backend.refresh()
    clients.be("squeue", "exit 0\n")
    backend.refresh()
    assert backend.status([native_id])[native_id].seen is not ObservedState.LOST
    assert end_of(backend, native_id, timeout_s=END_S).seen is ObservedState.LOST


def test_accounts_that_hang_are_not_asked_at_every_look(tmp_path: Path, slurm: SlurmBed) -> None:
    clients = Clients(tmp_path, slurm["alpha"])
    backend = backend_of(tmp_path, slurm["alpha"], clients)
    native_id = backend.submit(a_lease("sleep", "600"))
    status_when(backend, native_id, lambda status: status.seen is ObservedState.RUNNING)
    clients.be("squeue", "exit 0\n")
    clients.be("sacct", "exec sleep 600\n")
    with given_up_soon("sacct"):
        for _ in range(5):
            backend.refresh()
    assert clients.calls("sacct") == 1
    assert backend.status([native_id])[native_id].seen is not ObservedState.LOST
    slurm["alpha"].cancel_all()


def test_who_was_killed_and_forgotten_was_not_to_blame(tmp_path: Path, beta: SlurmCluster, clients: Clients) -> None:
    backend = backend_of(tmp_path, beta, clients)
    native_id = backend.submit(a_lease("sh", "-c", "kill -9 $$"))
    clients.be("squeue", "exit 0\n")
    found = end_of(backend, native_id, timeout_s=END_S)
    assert (found.seen, found.signal, found.cause) == (ObservedState.FAILED, 9, Cause.CLUSTER)
    assert found.reason == "the cluster does not know it any more; it was killed by SIGKILL (signal 9)"


def test_a_start_without_journal_and_accounts_holds_nobody_up(tmp_path: Path, slurm: SlurmBed) -> None:
    clients = Clients(tmp_path, slurm["alpha"])
    clients.be("sacct", "exit 1\n")
    doubtful = a_lease("sh", "-c", f"echo run >>{tmp_path}/ledger")
    backend = backend_of(tmp_path, slurm["alpha"], clients)
    backend._register.write(
        SubmittedScript(doubtful)
    )  # and whether it was submitted nobody can say without the accounts
    journal = Journal(tmp_path / "journal.db")
    runner = Runner(journal, backend)
    assert (runner.adopt(), [each.stage for each in journal.attempts()]) == (1, [Stage.INTENT])
    end = ended_by(runner, backend, journal, a_lease("true"))
    assert (end.seen, (tmp_path / "ledger").exists()) == (ObservedState.SUCCEEDED, False)
    clients.be("sacct", 'exec {real} "$@"\n')
    assert ended_by(runner, backend, journal, doubtful).seen is ObservedState.SUCCEEDED
    assert (tmp_path / "ledger").read_text() == "run\n"
    journal.close()


def test_one_task_beyond_what_slurm_counts(tmp_path: Path, beta: SlurmCluster) -> None:
    backend = backend_of(tmp_path, beta)
    index = backend._cluster.array_size_max + 7
    lease = replace(a_lease("sh", "-c", "echo $SWITCHYARD_ARRAY_INDEX"), lo=index, hi=index)
    native_id = backend.submit(lease)
    assert end_of(backend, native_id, timeout_s=END_S).seen is ObservedState.SUCCEEDED
    assert backend.output(native_id, "stdout", offset=0, size=100).data == f"{index}\n".encode()


def test_a_task_forgotten_twice_takes_nothing_from_the_others(tmp_path: Path, beta: SlurmCluster) -> None:
    """As by an agent killed after it forgot some, and before it wrote that down."""
    whole = a_lease("echo", "mine")
    leases = [replace(whole, fence=7 + step, lo=3 + step, hi=3 + step) for step in range(3)]
    first = backend_of(tmp_path, beta)
    native_ids = first.submit_range(leases)
    for native_id in native_ids:
        end_of(first, native_id, timeout_s=END_S)
    for _ in range(3):
        first.forget(native_ids[1])
    again = backend_of(tmp_path, beta)
    again.forget(native_ids[1])
    assert again.output(native_ids[0], "stdout", offset=0, size=100).data == b"mine\n"
    again.forget(native_ids[0])
    again.forget(native_ids[2])
    assert (again.held(), list((tmp_path / "output").iterdir())) == ([], [])


def test_a_job_without_a_queue_goes_to_no_queue_that_is_not_allowed(tmp_path: Path, beta: SlurmCluster) -> None:
    backend = backend_of(tmp_path, beta, allow=AllowList(queues=["short"]))
    with pytest.raises(PolicyRefused, match="queue main"):
        backend.submit(a_lease("true"))
    lease = replace(a_lease("true"), queue="short")
    assert end_of(backend, backend.submit(lease), timeout_s=END_S).seen is ObservedState.SUCCEEDED


def test_a_quote_takes_no_option_that_the_site_does_not(tmp_path: Path, beta: SlurmCluster) -> None:
    quote = backend_of(tmp_path, beta).quote(JobSpec(command=["true"], native=Native(options=["--bbf=/etc/shadow"])))
    assert (quote.can, quote.reason) == (False, "This site does not allow the option --bbf: it allows none.")


def test_a_command_that_is_not_ours_to_end_is_given_up_all_the_same() -> None:
    """As sudo's, which is root's: an agent that is not root cannot end it."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    raised = Path(shutil.copy("/usr/bin/setpriv", folder))
    raised.chmod(0o4755)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            caller = CommandRunner(SlurmSite(timeout_s=0.2), {"PATH": os.defpath})
            try:
                caller.call([str(raised), "--reuid=0", "--regid=0", "--clear-groups", "sleep", "3"])
            except CommandTimeout:
                code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    shutil.rmtree(folder)
    assert os.waitstatus_to_exitcode(status) == 0


def test_an_account_that_is_gone_keeps_nobody_elses_cancel_from_being_asked_for(
    tmp_path: Path, beta: SlurmCluster
) -> None:
    backend = backend_of(tmp_path, beta)
    gone, own = backend.submit(a_lease("sleep", "600")), backend.submit(a_lease("sleep", "600"))
    handed = backend._register.get(gone.partition("/")[2])
    assert handed is not None
    backend._register.write(replace(handed, account="nobody-of-this-name"))
    with pytest.raises(YardError, match="nobody-of-this-name"):
        backend.cancel([gone, own])
    assert end_of(backend, own, timeout_s=END_S).seen is ObservedState.CANCELLED
