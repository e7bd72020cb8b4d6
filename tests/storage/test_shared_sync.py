"""One sync for all that wait: each gets a sync that began after its call, and all who wrote learn of a failed one."""

from __future__ import annotations

import contextlib
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from switchyard.storage import folder_store
from switchyard.storage.folder_store import SharedSync
from tests.processes import PATIENCE_S, until

WRITERS = 6


class SlowDisk:
    """Stands for the file system: a sync takes until the test lets it end, and makes durable what it found."""

    def __init__(self) -> None:
        self.written: set[int] = set()
        self.durable: set[int] = set()
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)
        self.failures = 0
        self.descriptors: list[int] = []

    def sync(self, descriptor: int) -> None:
        self.descriptors.append(descriptor)
        found = set(self.written)
        self.begun.release()
        assert self.may_end.acquire(timeout=PATIENCE_S)
        if self.failures:
            self.failures -= 1
            raise OSError(5, "Input/output error")
        self.durable |= found

    def write(self, number: int, sync: SharedSync) -> None:
        failures = sync.begin()
        self.written.add(number)
        sync.run(failures)
        assert number in self.durable

    def syncs_begun(self) -> int:
        count = 0
        while self.begun.acquire(blocking=False):
            count += 1
        return count


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    disk = SlowDisk()
    monkeypatch.setattr(folder_store, "_sync_file_system", disk.sync)
    return disk


def test_those_who_come_during_a_sync_share_the_next_one(disk: SlowDisk, tmp_path: Path) -> None:
    sync = SharedSync(tmp_path)
    with ThreadPoolExecutor(1 + WRITERS) as threads:
        writing = [threads.submit(disk.write, 0, sync)]
        assert disk.begun.acquire(timeout=PATIENCE_S)
        writing += [threads.submit(disk.write, number, sync) for number in range(1, 1 + WRITERS)]
        until(lambda: len(disk.written) == 1 + WRITERS, PATIENCE_S, "all have written")
        until(lambda: len(sync._change._waiters) == WRITERS, PATIENCE_S, "all wait")  # type: ignore[attr-defined]
        disk.may_end.release(2)
        for done in writing:
            done.result(PATIENCE_S)
    assert disk.syncs_begun() == 1, "besides the first one"


def test_a_sync_that_fails_is_told_to_all_who_wrote_before_it_ended(disk: SlowDisk, tmp_path: Path) -> None:
    """The next sync succeeds, as on Linux: each failed write is reported once."""
    sync = SharedSync(tmp_path)
    disk.failures = 1
    with ThreadPoolExecutor(1 + WRITERS) as threads:
        writing = [threads.submit(disk.write, 0, sync)]
        assert disk.begun.acquire(timeout=PATIENCE_S)
        writing += [threads.submit(disk.write, number, sync) for number in range(1, 1 + WRITERS)]
        until(lambda: len(sync._change._waiters) == WRITERS, PATIENCE_S, "the others wait")  # type: ignore[attr-defined]
        disk.may_end.release(2)
        for done in writing:
            with pytest.raises(OSError, match="Input/output"):
                done.result(PATIENCE_S)
    disk.write(WRITERS + 1, sync)
    assert len(disk.descriptors) == 2
    assert len(set(disk.descriptors)) == 1, "a new descriptor would not be told of a failed write"


def test_one_that_has_written_and_not_yet_asked_is_told_too(disk: SlowDisk, tmp_path: Path) -> None:
    sync = SharedSync(tmp_path)
    failures = sync.begin()
    disk.failures = 1
    disk.may_end.release(1)
    with pytest.raises(OSError, match="Input/output"):
        disk.write(0, sync)
    with pytest.raises(OSError, match="Input/output"):
        sync.run(failures)


def open_folders(folder: Path) -> int:
    links = []
    for number in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the descriptor of this listing
            links.append(number.readlink())
    return links.count(folder)


def test_a_real_sync(tmp_path: Path) -> None:
    sync = SharedSync(tmp_path)
    failures = sync.begin()
    (tmp_path / "file").write_bytes(b"x")
    sync.run(failures)
    sync.run(sync.begin())
    assert open_folders(tmp_path) == 1
    with pytest.raises(FileNotFoundError):
        SharedSync(tmp_path / "nothing").begin()
    sync._device = -1  # as if another file system had been mounted
    assert sync.begin() != failures
    with pytest.raises(OSError, match="mounted"):
        sync.run(failures)
    sync.run(sync.begin())
    assert open_folders(tmp_path) == 1
    del sync
    gc.collect()
    assert open_folders(tmp_path) == 0
