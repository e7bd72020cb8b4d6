"""A disk that is full or nearly so: the agent lives, takes nothing, and goes on by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from switchyard.model.job.job import Limits
from switchyard.model.job.lifecycle import ObservedState
from tests.agent.builders import a_counted_job, a_lease, count_runs, fill_disk
from tests.agent.conftest import Starter
from tests.agent.peer import Peer
from tests.processes import PATIENCE_S, until


def test_full_disk_stops_new_work_and_space_brings_it_back(tmp_path: Path, peer: Peer, agent: Starter) -> None:
    running = agent(peer.url, "--free-bytes-min", "0", tmpfs="4m")
    peer.wait_parked(want=64)
    going = a_counted_job(tmp_path, "1")
    peer.lease(going)
    peer.wait_seen(going, ObservedState.RUNNING)
    filler = Path(f"/proc/{running.pid}/root{tmp_path}/data/filler")  # the disk is the agent's alone
    fill_disk(filler)
    blocked = a_counted_job(tmp_path, "0.1", env={"PADDING": "x" * 120_000})
    peer.lease(blocked)
    running.wait_for(lambda: "leases-forgotten" in running.log, PATIENCE_S, "the lease cannot be written down")
    until(lambda: peer.polls[-1].load and peer.polls[-1].load.trouble.startswith("disk full"), PATIENCE_S, "it says so")
    assert peer.polls[-1].want == 0
    assert peer.wait_end(going).seen is ObservedState.SUCCEEDED, "what runs goes on, and its end is told"
    assert count_runs(tmp_path, blocked) == 0
    assert running.is_running
    filler.unlink()
    assert peer.wait_end(blocked).seen is ObservedState.SUCCEEDED, "it goes on by itself"
    assert count_runs(tmp_path, blocked) == 1


def test_low_disk_is_told_and_no_work_is_asked_for(peer: Peer, agent: Starter) -> None:
    running = agent(peer.url, "--free-bytes-min", str(2**62))
    parked = peer.wait_parked()
    assert parked.want == 0
    assert parked.load is not None
    assert parked.load.trouble.startswith("disk full: ")
    assert running.is_running


def test_a_job_that_fills_the_disk_does_not_keep_later_jobs_from_running(peer: Peer, agent: Starter) -> None:
    """The journal writes into room that is held for it, and the ended job's folder makes room for the next."""
    running = agent(peer.url, "--free-bytes-min", str(8 * 2**20), tmpfs="40m")
    peer.wait_parked(want=64)
    greedy = a_lease("sh", "-c", "until ! head -c 65536 /dev/zero; do :; done; cat /dev/zero")
    peer.lease(greedy)
    assert peer.wait_end(greedy).seen is ObservedState.FAILED
    peer.wait_parked(want=64)  # it asks for work again
    later = a_lease("true")
    peer.lease(later)
    assert peer.wait_end(later).seen is ObservedState.SUCCEEDED
    assert "journal-behind" not in running.log
    assert "disk-short removed=1" in running.log


OPEN_ON_A_FULL_DISK = """
import sys
from pathlib import Path
from switchyard.agent.journal.journal import Journal
from tests.agent.builders import a_lease, fill_disk
folder = Path(sys.argv[1])
Journal(folder / "journal.db").close()
fill_disk(folder / "filler")
journal = Journal(folder / "journal.db")
journal.take([a_lease() for _ in range(9)])
journal.close()
print(len(Journal(folder / "journal.db").attempts()))
"""


def test_a_journal_is_opened_and_written_on_a_disk_that_was_filled_meanwhile(tmp_path: Path) -> None:
    """As a second start of the agent does, after a job has taken all room."""
    space = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    mount = 'mount -t tmpfs -o size=40m tmpfs "$0" && exec "$@"'
    program = [sys.executable, "-c", OPEN_ON_A_FULL_DISK, str(tmp_path)]
    done = subprocess.run(
        [*space, "sh", "-c", mount, str(tmp_path), *program],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.stdout.strip(), done.returncode) == ("9", 0), done.stderr


def test_a_job_whose_output_is_over_the_bound_is_ended(tmp_path: Path, peer: Peer, agent: Starter) -> None:
    site = tmp_path / "site.yaml"
    site.write_text("local: {output_max: 2MiB}\n")
    agent(peer.url, "--config", str(site))
    much = "head -c 4194304 /dev/zero >&2; sleep 60"
    over_site, over_own, within = (
        a_lease("sh", "-c", much),
        a_lease("sh", "-c", much, resources={"limits": Limits(ephemeral_storage="1MiB")}),
        a_lease("sh", "-c", "head -c 1048576 /dev/zero"),
    )
    peer.lease(over_site, over_own, within)
    ends = {lease.job: peer.wait_end(lease) for lease in (over_site, over_own, within)}
    assert ends[within.job].seen is ObservedState.SUCCEEDED
    assert ends[over_site.job].seen is ends[over_own.job].seen is ObservedState.FAILED
    assert "its output is over 2MiB (the site's local.output_max)" in ends[over_site.job].reason
    assert "its output is over 1MiB (its own limits.ephemeral_storage)" in ends[over_own.job].reason
