"""A disk that is full or nearly so: the agent lives, takes nothing, and goes on by itself."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from switchyard.model.lifecycle import ObservedState
from tests.agent.conftest import Starter
from tests.agent.peer import Peer
from tests.agent.test_loop import count, runs_counted
from tests.processes import PATIENCE_S, until


def test_full_disk_stops_new_work_and_space_brings_it_back(tmp_path: Path, peer: Peer, agent: Starter) -> None:
    running = agent(peer.url, "--free-bytes-min", "0", tmpfs="4m")
    peer.wait_parked(want=64)
    going = runs_counted(tmp_path, "1")
    peer.lease(going)
    peer.wait_seen(going, ObservedState.RUNNING)
    filler = Path(f"/proc/{running.pid}/root{tmp_path}/data/filler")  # the disk is the agent's alone
    fill(filler)
    blocked = runs_counted(tmp_path, "0.1", env={"PADDING": "x" * 120_000})
    peer.lease(blocked)
    running.wait_for(lambda: "leases-forgotten" in running.log, PATIENCE_S, "the lease cannot be written down")
    until(lambda: peer.polls[-1].load and peer.polls[-1].load.trouble.startswith("disk full"), PATIENCE_S, "it says so")
    assert peer.polls[-1].want == 0
    assert peer.wait_end(going).seen is ObservedState.SUCCEEDED, "what runs goes on, and its end is told"
    assert count(tmp_path, blocked) == 0
    assert running.is_running
    filler.unlink()
    assert peer.wait_end(blocked).seen is ObservedState.SUCCEEDED, "it goes on by itself"
    assert count(tmp_path, blocked) == 1


def fill(path: Path) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        while True:
            os.write(fd, bytes(4096))
    os.close(fd)


def test_low_disk_is_told_and_no_work_is_asked_for(peer: Peer, agent: Starter) -> None:
    running = agent(peer.url, "--free-bytes-min", str(2**62))
    parked = peer.wait_parked()
    assert parked.want == 0
    assert parked.load is not None
    assert parked.load.trouble.startswith("disk full: ")
    assert running.is_running
