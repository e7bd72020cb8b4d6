"""A controller that lost what it had not saved: numbers given twice, starts forgotten, launches that never went out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from switchyard.agent.backends import TERMINAL_STATES
from switchyard.agent.site.accounts import AllowList
from switchyard.features.slurm.agent.backend import SlurmBackend
from switchyard.model.job.job import Native
from switchyard.model.job.lifecycle import ObservedState
from tests.agent.builders import end_of, status_when
from tests.agent.slurm.builders import a_job, a_slurm_setting, runs
from tests.processes import until
from tests.slurm_bed import SlurmBed, SlurmCluster, slurm_version
from tests.slurm_faults import pinged_often, save_state, saved_ns

END_S = 120.0
TRIES = 5
# A node tells once more of an end that no controller heard of, after so long: Slurm's own words, and its own time.
UNHEARD, RETELL_S = "Retrying job complete", 15.0
# Up to this version a node tells of an end by the job's number alone; 26.05 adds a name that is given once (SLUID).
BY_NUMBER_ALONE, NAMED_ANOTHER = (24, 11), "by SLUID but could by job_id"
# For so long after its start, by the times in the cluster's conf, a job is not missed on its node.
MISSED_S = 16.0
pytestmark = [pytest.mark.xdist_group("slurm-hand-over"), pytest.mark.timeout(600)]


def count(logs: Sequence[Path], text: str) -> int:
    return sum(log.read_text().count(text) for log in logs)


@pytest.fixture
def healed(slurm: SlurmBed) -> Iterator[SlurmCluster]:
    yield slurm["beta"]
    slurm["beta"].heal()


@pytest.fixture
def pinged(healed: SlurmCluster) -> Iterator[SlurmCluster]:
    with pinged_often(healed):
        yield healed


def forget_the_last(
    cluster: SlurmCluster, text: str = "sleep 600", *, then: Callable[[], float] = lambda: 0.0
) -> float:
    """Kill the controller with a job running that its saved state does not know: it gives that number again.

    `then` is done while the controller is away; what it says comes back.
    """
    for _ in range(TRIES):
        at_ns = save_state(cluster, END_S)
        number = cluster.run("sbatch", "--parsable", "-o", "/dev/null", "--wrap", text).strip()
        until(lambda number=number: cluster.field(number, "JobState") == "RUNNING", END_S, "it runs")  # type: ignore[misc]
        cluster.kill("slurmctld")
        is_forgotten = saved_ns(cluster) == at_ns
        said = then() if is_forgotten else 0.0
        cluster.heal_daemons()
        if is_forgotten:
            return said
        cluster.cancel_all()  # the machine was slow, and the job is saved
    raise AssertionError("the controller was never too late")


def test_a_number_that_was_given_twice_is_never_anothers_end(tmp_path: Path, healed: SlurmCluster) -> None:
    """Its node still has the first job of that number and may refuse the second, which Slurm calls FAILED, or worse."""
    backend = SlurmBackend(a_slurm_setting(tmp_path, healed))
    forget_the_last(healed)
    found = end_of(backend, backend.submit(a_job(tmp_path)), timeout_s=END_S)
    if found.seen is ObservedState.RETURNED:
        assert "was its number given twice?" in found.reason
    assert (found.seen, runs(tmp_path)) in ((ObservedState.RETURNED, 0), (ObservedState.SUCCEEDED, 1)), found


def give_anothers_end(folder: Path, cluster: SlurmCluster) -> tuple[SlurmBackend, str] | None:
    """A job whose number was another's before, when that one's node tells of its end. None: the machine was too slow.

    The first ends while the controller is away, and its node tells of that later, by the number alone.
    """
    gate, backend = folder / "gate", SlurmBackend(a_slurm_setting(folder, cluster))
    node, *others = cluster.spec.node_names
    logs, controllers = [cluster.folder / "log" / f"slurmd.{node}.log"], [cluster.folder / "log" / "slurmctld.log"]
    cluster.run("scontrol", "update", f"NodeName={','.join(others)}", "State=DRAIN", "Reason=test")
    untold, refused = count(logs, UNHEARD), count(controllers, NAMED_ANOTHER)

    def end() -> float:
        gate.touch()
        until(lambda: count(logs, UNHEARD) > untold, END_S, "its node could tell nobody of its end")
        return time.monotonic() + RETELL_S

    retells_at = forget_the_last(cluster, f"while [ ! -e {gate} ]; do sleep 0.05; done", then=end)
    until(lambda: cluster.run("sinfo", "-h", "-n", node, "-o", "%T").strip() == "idle", END_S, "the node is back")
    # Slurm sends it elsewhere, or ends it, if the node does not launch it within some seconds.
    until(lambda: time.monotonic() > retells_at - 3, END_S, "the node is about to tell of it once more")
    cluster.pause(f"slurmd/{node}")  # so that it does not refuse the second before
    handle = backend.submit(a_job(folder))
    while time.monotonic() < retells_at + RETELL_S:
        if is_taken(cluster, handle) or count(controllers, NAMED_ANOTHER) > refused:
            return backend, handle
        time.sleep(0.1)  # between two looks at a moment that may pass
    return None


def is_taken(cluster: SlurmCluster, handle: str) -> bool:
    """24.11 says COMPLETING until the node, which stands still, has confirmed it."""
    return cluster.field(handle.partition("/")[0], "JobState") in ("COMPLETED", "COMPLETING")


def is_queued(cluster: SlurmCluster, handle: str) -> bool:
    return cluster.field(handle.partition("/")[0], "JobState") == "PENDING"


def test_the_end_of_the_first_job_of_a_number_is_not_the_end_of_the_second(
    tmp_path: Path, pinged: SlurmCluster
) -> None:
    """Slurm calls the second COMPLETED, though its node has not begun it, and never would. A Slurm that sees by a name
    of the first that it is another's end goes on with the second, which then runs.
    """
    for number in range(TRIES):
        folder = tmp_path / str(number)
        if (made := give_anothers_end(folder, pinged)) is not None:
            break
        pinged.heal()
    else:
        raise AssertionError("the node never told of the end in time")
    backend, handle = made
    if not is_taken(pinged, handle):
        assert slurm_version(pinged.spec.root) > BY_NUMBER_ALONE
        pinged.resume(f"slurmd/{pinged.spec.node_names[0]}")
        found = end_of(backend, handle, timeout_s=END_S)
        assert (found.seen, runs(folder)) == (ObservedState.SUCCEEDED, 1), found
        return
    found = status_when(
        backend, handle, lambda status: status.seen in TERMINAL_STATES or is_queued(pinged, handle), timeout_s=END_S
    )
    pinged.heal()  # and its node reads the launch that was sent to it
    if found.seen not in TERMINAL_STATES:
        # On a slow machine Slurm called the node down before it told, and has the job in its queue again.
        found = end_of(backend, handle, timeout_s=END_S)
        assert (found.seen, runs(folder)) in ((ObservedState.RETURNED, 0), (ObservedState.SUCCEEDED, 1)), found
        return
    assert (found.seen, runs(folder)) == (ObservedState.RETURNED, 0), found
    assert "completed, and it left no sign that it began: was its number given twice?" in found.reason


@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_a_start_that_the_controller_forgot_and_made_again(tmp_path: Path, slurm: SlurmBed, name: str) -> None:
    """The node has it already, and Slurm cancels it: nobody asked for that. Its script tells how it ended."""
    cluster = slurm[name]
    logs = list((cluster.folder / "log").glob("slurmd.*.log"))
    for number in range(TRIES):
        folder = tmp_path / str(number)
        backend = SlurmBackend(a_slurm_setting(folder, cluster, allow=AllowList(options=["--hold"])))
        handle = backend.submit(a_job(folder, "sleep 1", native=Native(options=["--hold"])))
        at_ns = save_state(cluster, END_S)
        cluster.run("scontrol", "release", handle.partition("/")[0])
        until(lambda folder=folder: runs(folder), END_S, "it runs")  # type: ignore[misc]
        untold = count(logs, UNHEARD)
        cluster.kill("slurmctld")
        if saved_ns(cluster) == at_ns:
            until(lambda untold=untold: count(logs, UNHEARD) > untold, END_S, "its node could tell nobody of its end")  # type: ignore[misc]
            cluster.heal_daemons()
            if cluster.field(handle.partition("/")[0], "JobState") == "PENDING":
                break
        cluster.heal()  # the machine was slow, and its start is saved

    def is_released() -> bool:
        cluster.run("scontrol", "release", handle.partition("/")[0], check=False)  # a controller just back may refuse
        return cluster.field(handle.partition("/")[0], "Priority") != "0"

    until(is_released, END_S, "it may start")
    found = end_of(backend, handle, timeout_s=END_S)
    cluster.heal()
    assert (found.seen, runs(folder)) == (ObservedState.SUCCEEDED, 1), found


def test_a_launch_that_died_with_its_controller_is_given_back(tmp_path: Path, healed: SlurmCluster) -> None:
    """Slurm saved that it started, and nobody told its node, which comes back without it: a failed node, says Slurm."""
    node, *others = healed.spec.node_names
    healed.run("scontrol", "update", f"NodeName={','.join(others)}", "State=DRAIN", "Reason=test")
    backend = SlurmBackend(a_slurm_setting(tmp_path, healed))
    healed.kill(f"slurmd/{node}")
    handle = backend.submit(a_job(tmp_path))
    number = handle.partition("/")[0]
    until(lambda: healed.field(number, "JobState") == "RUNNING", END_S, "Slurm has started it")
    begun_ns = time.time_ns()
    healed.run("scontrol", "update", f"JobId={number}", "Comment=x")  # so that there is something to save after that
    until(lambda: saved_ns(healed) > begun_ns, END_S, "and saved that")
    healed.kill("slurmctld")
    healed.heal_daemons()
    time.sleep(MISSED_S)  # the time away is the subject
    healed.kill(f"slurmd/{node}")
    healed.restart(f"slurmd/{node}")  # a node says what it runs when it comes
    found = end_of(backend, handle, timeout_s=END_S)
    assert (found.seen, runs(tmp_path)) == (ObservedState.RETURNED, 0), found
    assert found.reason == f"the cluster says that the node of job {number} failed, and it left no sign that it began"


def test_a_task_that_the_site_cancels_as_it_waits_leaves_no_trace_in_slurm(tmp_path: Path, slurm: SlurmBed) -> None:
    cluster = slurm["alpha"]
    backend = SlurmBackend(a_slurm_setting(tmp_path, cluster, allow=AllowList(options=["--hold"])))
    lease = replace(a_job(tmp_path, native=Native(options=["--hold"])), lo=0, hi=1)
    first, second = backend.submit_range([replace(lease, hi=0), replace(lease, lo=1, fence=lease.fence + 1)])
    native = second.partition("/")[0]
    cluster.run("scancel", native)
    status_when(backend, first, lambda status: status.seen is ObservedState.SUBMITTED and status.text == "PENDING")
    found = end_of(backend, second, timeout_s=END_S)
    assert (found.seen, runs(tmp_path)) == (ObservedState.LOST, 0)
    assert found.reason == (
        f"the cluster does not know job {native} any more, and it left no sign that it began; "
        "it knows others of its array: was it cancelled there?"
    )
    cluster.cancel_all()
