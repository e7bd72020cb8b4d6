"""Input files and the agent's disk, on a real small one: what does not fit is not fetched, and is told in numbers."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from switchyard.agent.files.inputs import stagings
from switchyard.agent.loop import runner
from switchyard.agent.site.site import FilesSite
from switchyard.model.cluster.poll import Lease
from switchyard.model.files.file_tree import CHUNK_BYTES, decode_tree
from switchyard.model.files.files import JobFiles
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause
from tests.agent.files.builders import Site, wait_until
from tests.agent.files.small_disk import free_bytes, small_disk

MIB = 2**20
DISK = 64 * MIB
RESERVE = 8 * MIB
ENOUGH_S = 0.3  # the patience of tests in which it ends


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(runner, "REPORT_EVERY_S", 0.0)
    monkeypatch.setattr(stagings, "RETRY_S_MAX", 0.5)
    (tmp_path / "disk").mkdir()
    with small_disk(tmp_path / "disk", f"{DISK}") as disk:
        made = Site(disk, tmp_path)  # SQLite would resolve the link to the disk by itself, and miss it
        made.site = FilesSite(reserve=RESERVE)
        made.restart()
        yield made
        made.objects.gate.set()
        made.stop()


def content(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def lease_of(site: Site, size: int, *, seed: int = 1, script: str = "true") -> Lease:
    return site.lease(script, JobFiles(tree=site.objects.put_tree({"file": content(size, seed)}).hex()))


def with_patience(site: Site, patience_s: float) -> None:
    site.patience_s = patience_s
    site.restart()


def fill(site: Site, *, leave: int) -> Path:
    """A file of somebody else that leaves so much space."""
    filler = site.directory / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free_bytes(site.directory) - leave)
    return filler


def fetched(site: Site) -> int:
    """The bytes of files that were asked for; folders do not count."""
    return sum(len(site.objects.stored[digest]) for digest in site.objects.reads if not _is_tree(site, digest))


def _is_tree(site: Site, digest: bytes) -> bool:
    try:
        decode_tree(site.objects.stored[digest])
    except ValueError:
        return False
    return True


def told(site: Site, lease: Lease, words: str) -> Callable[[], bool]:
    def is_told() -> bool:
        site.turn()
        return any(words in report.reason for report in site.reports(lease))

    return is_told


def test_files_that_never_fit_are_refused_at_once_with_the_numbers(site: Site) -> None:
    before = free_bytes(site.directory)
    lease = lease_of(site, DISK - RESERVE + MIB)
    end = site.end_of(lease)
    assert (end.seen, end.cause) == (ObservedState.FAILED, Cause.CLUSTER), "the server tries another cluster"
    assert end.reason == (
        "its files could not be staged: they take 57MiB, and the disk of the cluster's agent has 64MiB in all, "
        "of which 8MiB stay free for running jobs"
    )
    assert fetched(site) == 0
    wait_until(lambda: site.record(lease) is None and not site.folder(lease).parent.exists(), "cleaned")
    assert before - free_bytes(site.directory) < MIB


def test_files_that_may_fit_later_wait_and_leave_the_reserve(site: Site) -> None:
    filler = fill(site, leave=RESERVE + 20 * MIB)
    lease = lease_of(site, 21 * MIB)
    wait_until(told(site, lease, "they take 21MiB, and the disk"), "the lack of room is told")
    assert "besides 8MiB that stay free for running jobs" in site.reports(lease)[-1].reason
    assert fetched(site) == 0
    assert free_bytes(site.directory) > RESERVE + 19 * MIB
    filler.unlink()
    assert site.end_of(lease).seen is ObservedState.SUCCEEDED


def test_files_that_do_not_fit_for_long_are_given_back(site: Site) -> None:
    with_patience(site, ENOUGH_S)
    fill(site, leave=RESERVE + MIB)
    lease = lease_of(site, 20 * MIB)
    end = site.end_of(lease)
    assert (end.seen, end.cause) == (ObservedState.RETURNED, Cause.CLUSTER), "it may start here later"
    assert end.reason.startswith("its files could not be staged: they take 20MiB")
    assert fetched(site) == 0
    wait_until(lambda: site.record(lease) is None and not site.folder(lease).parent.exists(), "cleaned")


def test_one_copy_that_fits_goes_without_the_cache(site: Site) -> None:
    size = 40 * MIB  # twice is more than the disk
    for _ in range(2):
        lease = lease_of(site, size, script=f"test $(stat -c %s file) = {size}")
        assert site.end_of(lease).seen is ObservedState.SUCCEEDED
        wait_until(lambda lease=lease: not site.folder(lease).parent.exists(), "the folder is removed")
    assert fetched(site) == 2 * size


def test_cached_files_of_other_jobs_make_room(site: Site) -> None:
    for seed, size in ((1, 10 * MIB), (2, 15 * MIB), (3, 20 * MIB), (2, 15 * MIB)):
        lease = lease_of(site, size, seed=seed)
        assert site.end_of(lease).seen is ObservedState.SUCCEEDED
        wait_until(lambda lease=lease: not site.folder(lease).parent.exists(), "the folder is removed")
    assert fetched(site) == (10 + 15 + 20) * MIB, "the least recently used one had to go, and no other"


def test_zeros_take_no_space(site: Site) -> None:
    large = bytes(2 * DISK) + b"the end"
    root = site.objects.put_tree({"deep": {"sparse": large}, "small": b"1"})
    lease = site.lease(f"test $(stat -c %s deep/sparse) = {len(large)}", JobFiles(tree=root.hex()))
    assert site.end_of(lease).seen is ObservedState.SUCCEEDED


def test_attempts_that_are_staged_together_do_not_share_their_space(site: Site) -> None:
    site.objects.gate.clear()
    leases = [lease_of(site, 30 * MIB, seed=seed) for seed in (1, 2)]
    wait_until(lambda: (site.turn(), all(site.folder(lease).exists() for lease in leases))[1], "both are begun")
    site.objects.gate.set()
    least = DISK

    def are_over() -> bool:
        nonlocal least
        site.turn()
        least = min(least, free_bytes(site.directory))
        return not any(attempt.is_live for attempt in site.journal.attempts())

    wait_until(are_over, "both ends")
    for lease in leases:
        assert site.reports(lease)[-1].seen is ObservedState.SUCCEEDED
    assert least >= RESERVE - MIB, "journal and records take little"


@pytest.mark.parametrize("is_mended", [True, False])
def test_a_disk_that_others_fill_meanwhile_is_left_clean_and_ends_the_patience(
    site: Site, caplog: pytest.LogCaptureFixture, is_mended: bool
) -> None:
    with_patience(site, 60 if is_mended else ENOUGH_S)
    objects = site.objects
    size = 2 * CHUNK_BYTES
    read = objects.read
    fillers: list[Path] = []

    def fill_then_read(*args: object) -> None:
        if args[2] != [root] and not fillers:
            fillers.append(fill(site, leave=MIB))
        read(*args)  # type: ignore[arg-type]

    root = objects.put_tree({"file": content(size)})
    objects.read = fill_then_read  # type: ignore[assignment,method-assign]
    lease = site.lease("true", JobFiles(tree=root.hex()))
    full = "the agent's disk is full: No space left on device"
    wait_until(lambda: (site.turn(), full in caplog.text)[1], "the disk is full in the middle")
    assert free_bytes(site.directory) >= MIB / 2, "what was written is gone"
    if is_mended:
        fillers[0].unlink()
        assert site.end_of(lease).seen is ObservedState.SUCCEEDED
    else:
        assert site.end_of(lease).seen is ObservedState.RETURNED
        assert fetched(site) <= 2 * size, "what does not fit is not fetched again and again"
