"""Jobs that Flux gives to a node that cannot run them: what has not begun is returned, and the rest fails."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from msgspec.structs import replace

from switchyard.agent.backends import marker_of
from switchyard.agent.backends.shared.returns import ATTEMPTS_MAX, NotTakenNow
from switchyard.features.flux.agent.backend import FluxBackend
from switchyard.features.flux.agent.submit.start_guard import WITHDRAWN
from switchyard.model.cluster.poll import Lease
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause
from tests.agent.builders import a_lease, end_of, status_when
from tests.agent.flux.builders import Make
from tests.flux_bed import FluxInstance
from tests.processes import PATIENCE_S, until

pytestmark = [pytest.mark.flux, pytest.mark.xdist_group("flux")]

EVERYWHERE = {"nodes": 3, "tasks": 3}


def folder_of(backend: FluxBackend, lease: Lease) -> Path:
    known = backend._register.of(marker_of(lease))
    assert known is not None
    return Path(backend._files.folder(known[0].folder))


def test_a_job_on_a_node_that_has_just_failed_is_returned(make: Make, instance: FluxInstance, tmp_path: Path) -> None:
    """Flux places jobs on a node that hangs, and then the node fails: nothing of them has begun.

    A job fails if it has begun before, if it was returned too often, and if its folder is broken: then the agent cannot
    keep a late start of it from running.
    """
    backend = make()
    notes = tmp_path / "notes"
    begun = backend.submit(a_lease("sh", "-c", "echo begun; exec sleep 600", resources=EVERYWHERE))
    until(lambda: backend.output(begun, "stdout", offset=0, size=99).data, PATIENCE_S, "its command has begun")
    leases = [a_lease("sh", "-c", f"echo ran >> {notes}", resources=EVERYWHERE) for _ in range(3)]
    leases[1] = replace(leases[1], attempt=ATTEMPTS_MAX)
    broker = instance.broker(2)
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        handles = [backend.submit(lease) for lease in leases]
        for handle in handles:
            status_when(backend, handle, lambda status: status.text == "ALLOC")
        folder = folder_of(backend, leases[2])
        folder.rename(folder.with_suffix(".away"))
        folder.touch()
        broker.kill()
        returned, last, broken, ended = [end_of(backend, handle) for handle in (*handles, begun)]
        claim = folder_of(backend, leases[0]) / "started"
    finally:
        instance.stop()
        instance.start()
    assert (returned.seen, returned.cause, returned.began_ago_us) == (ObservedState.RETURNED, Cause.CLUSTER, None)
    assert returned.reason.startswith("it could not be launched"), returned
    assert str(claim.readlink()) == WITHDRAWN, "a late start of it runs nothing"
    assert last.reason.endswith("it was handed over 20 times"), last
    assert [(one.seen, one.cause) for one in (last, broken, ended)] == [(ObservedState.FAILED, Cause.CLUSTER)] * 3
    assert not notes.exists()


def test_a_node_that_does_not_see_the_folder_runs_nothing(make: Make, instance: FluxInstance) -> None:
    backend = make()
    assert end_of(backend, backend.submit(a_lease("sh", "-c", "exit 96"))).reason == "exit code 96", "its own"
    again = end_of(backend, backend.submit(a_lease("sh", "-c", ": >../started.again; exit 96")))
    assert (again.exit_code, "a second time" in again.reason) == (None, True), "as the guard leaves it after a crash"
    instance.flux("queue", "stop", "--all")
    try:
        lease = a_lease("true")
        handle = backend.submit(lease)
        folder = folder_of(backend, lease)
        (folder / "work").rmdir()
        folder.rmdir()
        folder.touch()  # so that Flux does not make it again for the output
    finally:
        instance.flux("queue", "start", "--all")
    ended = end_of(backend, handle)
    assert (ended.seen, ended.cause) == (ObservedState.FAILED, Cause.CLUSTER), ended


def test_a_job_whose_folder_is_gone_is_not_withdrawn(make: Make, instance: FluxInstance) -> None:
    """The nodes may see a folder that the agent does not see. Other jobs are withdrawn all the same."""
    backend = make()
    instance.flux("queue", "stop", "--all")
    try:
        leases = [a_lease("true") for _ in range(2)]
        handles = [backend.submit(lease) for lease in leases]
        folder = folder_of(backend, leases[0])
        folder.rename(folder.with_suffix(".away"))
        assert backend.withdraw(handles) == handles[1:]
        folder.with_suffix(".away").rename(folder)
    finally:
        instance.flux("queue", "start", "--all")
    ends = [end_of(backend, handle) for handle in handles]
    assert [end.seen for end in ends] == [ObservedState.SUCCEEDED, ObservedState.RETURNED]


def test_a_folder_that_cannot_be_made_gives_the_job_back(make: Make) -> None:
    """As on a full disk: the job never reached Flux, so another cluster may have it."""
    backend = make()
    root = Path(backend._files.folder("any")).parent
    aside = root.rename(root.with_name("aside"))
    root.touch()
    with pytest.raises(NotTakenNow, match="cannot be made"):
        backend.submit(a_lease("true"))
    root.unlink()
    aside.rename(root)
    assert backend.held() == []
