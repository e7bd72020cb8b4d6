"""Bad days of the folder store: a full disk, changed bytes, a killed writer, leftovers, a folder that is none."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from switchyard.errors import Unavailable
from switchyard.storage import folder_store
from switchyard.storage.folder_store import FolderStore
from switchyard.storage.object_store import OBJECT_BYTES_MAX, ObjectDamaged, ObjectMissing
from tests.processes import PATIENCE_S, piped
from tests.storage.object_writer import an_object

ROOT = Path(__file__).resolve().parents[2]
KILLS = 4


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "files"


@pytest.fixture
def store(root: Path) -> FolderStore:
    store = FolderStore(root)
    store.prepare()
    return store


def file_of(root: Path, digest: bytes) -> Path:
    return root / digest.hex()[:2] / digest.hex()[2:]


@pytest.mark.parametrize("change", ["flipped", "cut", "longer", "empty", "huge"])
def test_changed_bytes_are_found_and_the_next_upload_heals_them(root: Path, store: FolderStore, change: str) -> None:
    digest, data = an_object(1)
    store.put(digest, data)
    changed = {"flipped": data[:-1] + bytes([data[-1] ^ 1]), "cut": data[:-1], "longer": data + b"x", "empty": b""}
    file = file_of(root, digest)
    if change == "huge":
        os.truncate(file, OBJECT_BYTES_MAX * 1000)  # read within a bound: it is a hole of 16 GB
    else:
        file.write_bytes(changed[change])
    with pytest.raises(ObjectDamaged, match=digest.hex()):
        store.get(digest)
    (answer,) = store.get_many([digest])
    assert isinstance(answer, ObjectDamaged)
    store.put(digest, data)
    assert store.get(digest) == data


@pytest.mark.parametrize("count", [1, 400])
def test_an_upload_of_stored_objects_ends_when_their_names_are_durable(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Whoever stored them first may still be about to sync their names."""
    objects = [an_object(seed) for seed in range(count)]
    store.put_many(objects)
    synced: list[object] = []
    monkeypatch.setattr(folder_store, "sync_folder", synced.append)
    monkeypatch.setattr(folder_store, "_sync_file_system", synced.append)
    store.put_many(objects)
    assert len(synced) == 1


def test_a_failed_sync_fails_every_upload_that_had_begun(store: FolderStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the second upload begins and ends within the first one. Its own sync is the one that is told."""
    objects = [an_object(seed) for seed in range(100)]
    synced: list[int] = []

    def fail_once(descriptor: int) -> None:
        synced.append(descriptor)
        if len(synced) == 1:
            raise OSError(5, "Input/output error")

    def arriving() -> Iterator[tuple[bytes, bytes]]:
        yield from objects[:50]
        with pytest.raises(Unavailable):
            store.put_many(objects[50:])

    monkeypatch.setattr(folder_store, "_sync_file_system", fail_once)
    with pytest.raises(Unavailable):
        store.put_many(arriving())
    assert store.has(digest for digest, _ in objects) == set()
    store.put_many(objects)
    assert store.has(digest for digest, _ in objects) == {digest for digest, _ in objects}


def test_a_writer_that_is_killed_leaves_whole_objects(root: Path) -> None:
    """Killed after so many lines, so at any place in the writes behind them. What it printed is stored."""
    for seed in range(KILLS):
        words = [sys.executable, "-m", "tests.storage.object_writer", str(root), str(seed)]
        with piped(words, env={**os.environ, "PYTHONPATH": str(ROOT)}) as writer:
            assert writer.stdout is not None
            printed = [bytes.fromhex(writer.stdout.readline()) for _ in range(1 + 5 * seed)]
            writer.kill()
            writer.wait(PATIENCE_S)
        leftover = root / "new" / f"{seed:016x}"
        leftover.mkdir()
        (leftover / f"{seed:064x}").write_bytes(b"half of an obj")
        store = FolderStore(root)
        store.prepare()
        assert list((root / "new").iterdir()) == []
        assert store.has(printed) == set(printed)
        assert all(len(store.get(stored.digest)) == stored.size for stored in store.list())


def test_a_start_leaves_alone_what_is_being_written(root: Path, store: FolderStore) -> None:
    busy = root / "new" / "0123456789abcdef"
    busy.mkdir()
    with (busy / "lock").open("xb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        FolderStore(root).prepare()
        assert busy.exists()
    FolderStore(root).prepare()
    assert not busy.exists()
    assert list(store.list()) == []


def test_starts_of_other_servers_disturb_no_writer(root: Path, store: FolderStore) -> None:
    objects = [an_object(seed, 2000) for seed in range(300)]
    with ThreadPoolExecutor(2) as threads:
        writing = [threads.submit(store.put_many, half) for half in (objects[:200], objects[100:])]
        while not all(done.done() for done in writing):
            FolderStore(root).prepare()
        for done in writing:
            done.result()
    assert [stored.digest for stored in store.list()] == sorted(digest for digest, _ in objects)


def test_folders_that_an_operator_removed_come_back(root: Path, store: FolderStore) -> None:
    (root / "new").rmdir()
    digest, data = an_object(2)
    store.put(digest, data)
    file_of(root, digest).unlink()
    with pytest.raises(ObjectMissing):
        store.get(digest)
    file_of(root, digest).parent.rmdir()
    assert list(store.list()) == []
    store.put(digest, data)
    assert store.get(digest) == data


def test_files_of_others_are_not_listed(root: Path, store: FolderStore) -> None:
    digest, data = an_object(3)
    store.put(digest, data)
    folder = file_of(root, digest).parent
    for name in ("notes.txt", "F" * 62, "0" * 61, "0" * 63, "lost+found"):
        (folder / name).write_bytes(b"")
    (folder / ("0" * 62)).mkdir()
    (folder / ("1" * 62)).symlink_to("/etc/passwd")
    assert [stored.digest for stored in store.list()] == [digest]


def test_objects_are_for_the_server_alone(root: Path, store: FolderStore) -> None:
    digest, data = an_object(4)
    store.put(digest, data)
    modes = {
        path.stat().st_mode & 0o077 for path in [root / "new", file_of(root, digest), file_of(root, digest).parent]
    }
    assert modes == {0}


@pytest.mark.parametrize("blocked", ["", "new"])
def test_a_folder_that_is_none(root: Path, blocked: str) -> None:
    """The reason is told to the operator alone: a user must not learn the paths of the server."""
    place = root / blocked
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(b"")
    for call in (FolderStore(root).prepare, FolderStore(root).check, lambda: FolderStore(root).put(*an_object(5))):
        with pytest.raises(Unavailable) as caught:
            call()
        assert str(root) not in caught.value.detail
        assert str(root) in caught.value.inner


FULL_DISK = """
import sys
from pathlib import Path
from switchyard.errors import Unavailable
from switchyard.log_pace import LogPace
from switchyard.storage import folder_store
from switchyard.storage.folder_store import FolderStore
from tests.storage.object_writer import an_object

folder_store._FULL_DISK = LogPace(every_s=1e9)
root = Path(sys.argv[1])
store = FolderStore(root)
store.prepare()
small, large = an_object(1, 1000), [an_object(seed, 700_000) for seed in (2, 3, 4)]
store.put(*small)
store.put(*large[0])
for call in (lambda: store.put(*large[1]), lambda: store.put_many(large)):
    try:
        call()
    except Unavailable as exc:
        assert "full" in exc.detail and "space" in exc.next_step and "No space" in exc.inner, exc.inner
    else:
        raise AssertionError("stored on a full disk")
assert list((root / "new").iterdir()) == []
assert store.has(digest for digest, _ in [small, *large]) == {small[0], large[0][0]}
assert store.get(small[0]) == small[1] and store.get(large[0][0]) == large[0][1]
store.put(*small)  # what is there needs no room
store.delete([large[0][0]])
store.put(*large[1])
assert store.get(large[1][0]) == large[1][1]
print("all good")
"""


def test_a_full_disk_stores_nothing_by_halves(tmp_path: Path) -> None:
    mount = 'mount -t tmpfs -o size=1m,mode=700 tmpfs "$0" && exec "$@"'
    own_mounts = ["unshare", "--mount", *([] if os.getuid() == 0 else ["--map-root-user"])]
    words = [*own_mounts, "sh", "-c", mount, str(tmp_path), sys.executable, "-c", FULL_DISK, str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=ROOT, env=env)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["all good"]), done.stderr
    told = [line for line in done.stdout.splitlines() if "the disk that keeps files is full" in line]
    assert len(told) == 1, "two failures within the time are one line"
    assert re.search(r"free_bytes=[0-9]+ ", told[0])
    assert f"path={tmp_path}" in told[0]
