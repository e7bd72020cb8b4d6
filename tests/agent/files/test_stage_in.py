"""Input files: every kind of entry arrives, once, verified, and nothing is written outside the job's folder."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard.agent.files.inputs.content_cache import ContentCache
from switchyard.agent.files.inputs.folder_writer import FolderWriter, NameTwice
from switchyard.agent.files.inputs.stage_in import StageIn, StageRequest
from switchyard.agent.files.inputs.staging_errors import FilesUnusable, StagingOver
from switchyard.agent.files.inputs.staging_space import SpaceClaim, StagingSpace
from switchyard.agent.files.object_client import AttemptRights
from switchyard.agent.files.object_fetch import READ_TRIES, StagingProgress
from switchyard.agent.files.transfer_threads import TransferThreads
from switchyard.errors import Unavailable
from switchyard.model.files.file_tree import CHUNK_BYTES, FileEntry, FolderEntry, LinkEntry, encode_tree, hash_of
from tests.agent.files.builders import Executable, Objects, Plain, content_of_folder, named_in_bytes

LARGE = bytes(range(256)) * (CHUNK_BYTES // 256) + b"x" * CHUNK_BYTES + b"the end"
SPARSE = bytes(CHUNK_BYTES) + b"middle".ljust(CHUNK_BYTES, b"\1") + bytes(CHUNK_BYTES + 5)


class Bench:
    """One cache and its threads, and as many job folders as a test wants."""

    def __init__(self, place: Path, cache_bytes: int = 2**30) -> None:
        self.objects = Objects()
        self.place, self.cache_folder = place, place / "cache"
        self.cache = ContentCache(self.cache_folder, cache_bytes)
        self.threads = TransferThreads("test", 3, self.objects.connect)
        self.progress = StagingProgress()
        self.over = threading.Event()
        self._count = 0

    def stage(
        self, tree: bytes | None, task_tree: bytes | None = None, index: int | None = None, *, to: Path | None = None
    ) -> Path:
        self._count += 1
        folder = to or self.place / f"job{self._count}"
        folder.mkdir(exist_ok=True)
        writer = FolderWriter(folder)
        request = StageRequest(AttemptRights("J" * 26, 1), tree, task_tree, index)
        claim = SpaceClaim(StagingSpace(), self.cache, folder, self.progress)
        try:
            StageIn(
                self.cache,
                self.threads,
                writer,
                request,
                space=claim,
                is_over=self.over.is_set,
                progress=self.progress,
            ).run()
        finally:
            writer.close()
        return folder

    def restart(self, cache_bytes: int = 2**30) -> None:
        self.cache = ContentCache(self.cache_folder, cache_bytes)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.threads.stop()


def test_every_kind_of_entry_arrives(bench: Bench) -> None:
    content: Plain = {
        "train.py": b"print()",
        "run.sh": Executable(b"#!/bin/sh\n"),
        "empty": b"",
        "none": {},
        "same": b"print()",
        "zeros": bytes(3 * CHUNK_BYTES),
        "sparse": SPARSE,
        "large": LARGE,
        "link": "deep/er/file",
        "deep": {"up": "../train.py", "er": {"file": b"1", "line\nbreak": b"2", b"caf\xe9": b"3", " ": b"4"}},
    }
    folder = bench.stage(bench.objects.put_tree(content))
    assert content_of_folder(folder) == named_in_bytes(content)
    assert (folder / "sparse").stat().st_blocks * 512 < 2 * CHUNK_BYTES, "holes stay holes"
    assert (folder / "zeros").stat().st_blocks == 0
    assert (folder / "train.py").stat().st_nlink == 1, "a second name would share the cached file"
    assert bench.progress.bytes == bench.progress.bytes_total == 3 * CHUNK_BYTES + len(SPARSE) + len(LARGE) + 28


def test_the_second_time_nothing_is_fetched_also_after_a_restart(bench: Bench) -> None:
    root = bench.objects.put_tree({"a": b"1", "large": LARGE, "deep": {"b": b"2"}})
    bench.stage(root)
    bench.objects.reads.clear()
    first = bench.stage(root)
    (first / "a").write_bytes(b"changed by the job")
    bench.restart()
    assert (bench.stage(root) / "a").read_bytes() == b"1"
    assert bench.objects.reads == []


@pytest.mark.parametrize("size", [1, len(LARGE)])
def test_a_damaged_cached_file_is_noticed_and_fetched_again(bench: Bench, size: int) -> None:
    content = LARGE[-size:]
    root = bench.objects.put_tree({"file": content})
    bench.stage(root)
    for path in bench.cache_folder.glob("??/*"):
        status = path.stat()
        with path.open("r+b") as file:
            file.write(b"\xff")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    bench.objects.reads.clear()
    assert (bench.stage(root) / "file").read_bytes() == content
    assert len(bench.objects.reads) == (2 if size == 1 else 4)
    bench.restart()
    assert (bench.stage(root) / "file").read_bytes() == content


def test_threads_that_want_the_same_file_fetch_it_once(bench: Bench) -> None:
    root = bench.objects.put_tree({"a": b"1", "large": LARGE, "deep": {"b": b"2"}})
    bench.objects.gate.clear()
    folders = [bench.place / f"together{number}" for number in range(3)]
    threads = [threading.Thread(target=bench.stage, args=(root,), kwargs={"to": folder}) for folder in folders]
    for thread in threads:
        thread.start()
    bench.objects.gate.set()
    for thread in threads:
        thread.join(60)
    assert all((folder / "large").read_bytes() == LARGE for folder in folders)
    assert len(bench.objects.reads) == len(set(bench.objects.reads)) == 7


def test_the_cache_keeps_its_bound_and_drops_the_least_recently_used(tmp_path: Path) -> None:
    bench = Bench(tmp_path, cache_bytes=3000)
    roots = [bench.objects.put_tree({"file": bytes([65 + number]) * 900}) for number in range(4)]
    bench.stage(roots[0])
    bench.stage(roots[1])
    bench.stage(roots[0])  # used again: the other one is older now
    for root in roots[2:]:
        bench.stage(root)
        assert bench.cache.bytes <= 3000
    bench.objects.reads.clear()
    bench.stage(roots[0])
    assert hash_of(b"A" * 900) not in bench.objects.reads
    bench.stage(roots[1])
    assert hash_of(b"B" * 900) in bench.objects.reads
    bench.threads.stop()


@pytest.mark.parametrize("cache_bytes", [0, 5 * 2**20])
def test_files_larger_than_the_cache_arrive_all_the_same(tmp_path: Path, cache_bytes: int) -> None:
    bench = Bench(tmp_path, cache_bytes)
    root = bench.objects.put_tree({"large": LARGE, "small": b"1"})
    assert (bench.stage(root) / "large").read_bytes() == LARGE
    assert bench.cache.bytes <= cache_bytes
    bench.threads.stop()


def test_leftovers_of_a_killed_process_are_removed(bench: Bench) -> None:
    (bench.cache_folder / "new" / "7").write_bytes(b"half a file")
    bench.restart()
    assert list((bench.cache_folder / "new").iterdir()) == []
    assert bench.cache.bytes == 0


def test_a_task_gets_its_own_files_over_the_shared_ones(bench: Bench) -> None:
    shared = bench.objects.put_tree({"train.py": b"shared", "deep": {"a": b"shared", "b": b"shared"}})
    tasks = bench.objects.put_tree({"3": {"input": b"three", "deep": {"b": b"three"}}, "4": {"input": b"four"}})
    expected = {b"train.py": b"shared", b"input": b"three", b"deep": {b"a": b"shared", b"b": b"three"}}
    assert content_of_folder(bench.stage(shared, tasks, 3)) == expected
    assert content_of_folder(bench.stage(None, tasks, 4)) == {b"input": b"four"}
    with pytest.raises(FilesUnusable, match="no files for the index 5"):
        bench.stage(None, tasks, 5)


def bad_tree(objects: Objects, case: str) -> bytes:
    chunk = objects.put(b"1")
    if case == "link out":
        return objects.put(encode_tree([LinkEntry(b"out", b"../../etc/passwd")]))
    if case == "absolute link":
        return objects.put(encode_tree([LinkEntry(b"out", b"/etc/passwd")]))
    if case == "wrong size":
        return objects.put(encode_tree([FileEntry(b"file", 2, False, [chunk])]))
    if case == "wrong large size":
        return objects.put(encode_tree([FileEntry(b"file", CHUNK_BYTES + 1, False, [chunk, chunk])]))
    if case == "no tree":
        return chunk
    root = objects.put(encode_tree([]))
    for _ in range(130):
        root = objects.put(encode_tree([FolderEntry(b"d", root, 0, 0)]))
    return root


@pytest.mark.parametrize("case", ["link out", "absolute link", "wrong size", "wrong large size", "no tree", "too deep"])
def test_a_bad_tree_is_refused_for_good(bench: Bench, case: str) -> None:
    with pytest.raises(FilesUnusable, match="The job's files cannot be read"):
        bench.stage(bad_tree(bench.objects, case))


def test_a_name_that_is_there_already_is_told_and_no_link_is_followed(bench: Bench) -> None:
    """What a file system that treats upper and lower case alike does: the second name is there already."""
    folder = bench.place / "taken"
    folder.mkdir()
    (folder / "README").write_bytes(b"other")
    with pytest.raises(NameTwice, match="'README' cannot be made: another file of the job has this name"):
        bench.stage(bench.objects.put_tree({"README": b"1"}), to=folder)
    outside = bench.place / "outside"
    outside.mkdir()
    (folder / "deep").symlink_to(outside)
    with pytest.raises(NameTwice, match="'deep' cannot be made"):
        bench.stage(bench.objects.put_tree({"deep": {"x": b"1"}}), to=folder)
    assert list(outside.iterdir()) == []


def test_an_error_and_an_end_leave_nothing_claimed(bench: Bench) -> None:
    root = bench.objects.put_tree({"a": b"1", "large": LARGE})
    for _ in range(2):
        bench.objects.errors = [Unavailable("the store is away")] * READ_TRIES
        with pytest.raises(Unavailable, match="the store is away"):
            bench.stage(root)
    bench.over.set()
    with pytest.raises(StagingOver):
        bench.stage(root)
    bench.over.clear()
    assert (bench.stage(root) / "large").read_bytes() == LARGE


def test_one_lost_answer_does_not_begin_a_large_file_anew(bench: Bench) -> None:
    root = bench.objects.put_tree({"large": LARGE})
    bench.objects.errors = [Unavailable("an address has expired")] * (READ_TRIES - 1)
    assert (bench.stage(root) / "large").read_bytes() == LARGE
    assert len(bench.objects.reads) == len(set(bench.objects.reads))


def test_what_the_site_gives_is_closed_even_if_the_top_folder_is_not(tmp_path: Path) -> None:
    with contextlib.closing(FolderWriter(tmp_path)) as writer:
        for folder in ((b".switchyard",), (b".switchyard", b"secrets"), (b"own",)):
            writer.make_folder(folder)
        for file in ((b".switchyard", b"env"), (b".switchyard", b"secrets", b"key"), (b"own", b"file")):
            with writer.new_file(file, is_executable=False):
                pass
    modes = {str(path.relative_to(tmp_path)): stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == {
        ".switchyard": 0o700,
        ".switchyard/secrets": 0o700,
        ".switchyard/env": 0o600,
        ".switchyard/secrets/key": 0o600,
        "own": 0o755,
        "own/file": 0o644,
    }
