"""Fetches of a part of the files, of a job that never began, and of several programs at once."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from switchyard import Client
from switchyard.errors import BadRequest, Conflict, NotFound, TimedOut
from switchyard.model.files.file_tree import CHUNK_BYTES, FileEntry, hash_of
from switchyard.sdk.files.file_names import list_sources
from switchyard.sdk.files.target import PART_SUFFIX, TargetFolder
from switchyard.sdk.uploads.hash_cache import HashCache
from switchyard.sdk.uploads.scan import scan_sources
from tests.processes import PATIENCE_S
from tests.sdk.file_peer import FilePeer, snapshot
from tests.sdk.peer import a_job


@pytest.fixture
def peer() -> Iterator[FilePeer]:
    with FilePeer() as running:
        running.job = {**a_job(), "state": "SUCCEEDED", "fence": 1, "started_us": 1}
        yield running


@pytest.fixture
def client(peer: FilePeer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("YARD_CONFIG", str(tmp_path / "yard.yaml"))
    with Client(peer.url) as opened:
        yield opened


def test_a_pattern_asks_for_no_word_about_other_files(client: Client, peer: FilePeer, tmp_path: Path) -> None:
    root = bytes.fromhex(client.upload({"r/ok": b"ok"}))
    peer.serve_outputs(root, missing=["r/none", "other"], skipped=["passwd: it is a link", "r/x: y: it is a device"])
    job = str(peer.job["id"])
    assert client.fetch(job, "r/ok", to=tmp_path / "a").skipped == ()
    fetched = client.fetch(job, "r/*", to=tmp_path / "b")
    assert (fetched.missing, fetched.skipped) == (("r/none",), ("r/x: y: it is a device",))
    fetched = client.fetch(job, to=tmp_path / "c")
    assert (len(fetched.missing), len(fetched.skipped)) == (2, 2)
    with pytest.raises(NotFound, match="did not take passwd: it is a link"):
        client.fetch(job, "passwd", to=tmp_path / "d")


def test_files_of_a_job_that_never_began_are_not_waited_for(client: Client, peer: FilePeer, tmp_path: Path) -> None:
    peer.job = {**a_job(), "state": "FAILED", "fence": 1}
    began = time.monotonic()
    with pytest.raises(NotFound, match="it never began"):
        client.fetch(str(peer.job["id"]), to=tmp_path / "target")
    assert time.monotonic() - began < PATIENCE_S / 2


def an_array(peer: FilePeer, *tasks: Mapping[str, object]) -> str:
    """The peer's job is an ended array with these tasks."""
    peer.tasks = [{"index": index, "state": "SUCCEEDED", "cluster": "c", **task} for index, task in enumerate(tasks)]
    failed = sum(task["state"] == "FAILED" for task in peer.tasks)
    counts = {"total": len(tasks), "ok": len(tasks) - failed, "failed": failed}
    peer.job |= {"array": f"0-{len(tasks) - 1}", "tasks": counts}
    return str(peer.job["id"])


def test_tasks_that_failed_before_their_start_are_named_at_once(client: Client, peer: FilePeer, tmp_path: Path) -> None:
    root = bytes.fromhex(client.upload({"out": b"1"}))
    unbegun = {"fence": 6, "state": "FAILED", "is_unbegun": True, "reason": "no room"}
    job = an_array(peer, {"fence": 5}, unbegun, {**unbegun, "fence": 8})
    peer.serve_outputs(root, task=0, fence=5)
    peer.serve_outputs(root, task=2, fence=7)  # of an attempt before the one that never began
    fetched = client.fetch(job, to=tmp_path, timeout_s=0.0)
    assert fetched.failed == ("task 1: the task failed before its start: no room",)
    assert [path.name for path in sorted(tmp_path.glob("*/out"))] == ["out", "out"]
    with pytest.raises(NotFound, match="no output files of tasks 1"):
        client.fetch(job, to=tmp_path, tasks=1, timeout_s=0.0)


def test_only_the_tasks_that_are_asked_for_are_waited_for(client: Client, peer: FilePeer, tmp_path: Path) -> None:
    root = bytes.fromhex(client.upload({"out": b"1"}))
    job = an_array(peer, *({"fence": 5 + index} for index in range(12)))
    for task in range(11):
        peer.serve_outputs(root, task=task, fence=5 + task)
    for asked, count in (("0,2", 2), ("0-10", 11), ("3", 1)):
        assert client.fetch(job, to=tmp_path / asked, tasks=asked, timeout_s=0.0).files == count
    with pytest.raises(TimedOut, match="The output files of task 11 of job"):
        client.fetch(job, to=tmp_path / "all", timeout_s=0.0)
    peer.job["array"] = peer.job["tasks"] = None
    with pytest.raises(BadRequest, match="is not an array"):
        client.fetch(job, to=tmp_path / "plain", tasks="0,2")


def test_a_lost_object_keeps_back_no_files_of_other_tasks(client: Client, peer: FilePeer, tmp_path: Path) -> None:
    job = an_array(peer, *({"fence": 5 + index} for index in range(3)))
    for index in range(3):
        peer.serve_outputs(bytes.fromhex(client.upload({"out": b"%d" % index})), task=index, fence=5 + index)
    peer.absent = {hash_of(b"1")}
    fetched = client.fetch(job, to=tmp_path)
    assert {path.parent.name: path.read_bytes() for path in tmp_path.glob("*/out")} == {"0": b"0", "2": b"2"}
    assert fetched.failed == ("task 1: The server does not have an object of these files any more: collected.",)
    with pytest.raises(NotFound, match="does not have an object of these files any more") as lost:
        client.fetch(job, to=tmp_path, tasks=1)
    assert "Ask the operator of the server" in (lost.value.next_step or "")


def test_tasks_that_have_not_ended_are_named(client: Client, peer: FilePeer, tmp_path: Path) -> None:
    root = bytes.fromhex(client.upload({"out": b"1"}))
    running = {"fence": 6, "state": "RUNNING"}
    job = an_array(peer, {"fence": 5}, running, {"fence": 0, "state": "PENDING"}, {"fence": 8, "state": "RUNNING"})
    peer.job["state"] = "RUNNING"
    peer.serve_outputs(root, task=0, fence=5)
    peer.serve_outputs(root, task=3, fence=7)  # of an attempt before the one that runs
    unended = [(1, "RUNNING"), (2, "PENDING"), (3, "RUNNING")]
    texts = tuple(f"task {task}: the task is {state}; its files come at its end" for task, state in unended)
    for tasks, failed in ((None, texts), ("0,1", texts[:1]), (0, ())):
        fetched = client.fetch(job, to=tmp_path / str(tasks), tasks=tasks)
        assert (fetched.files, fetched.failed) == (1, failed)
    with pytest.raises(Conflict, match="is RUNNING; its files come at its end"):
        client.fetch(job, to=tmp_path, tasks=1)


@pytest.mark.parametrize("tasks", [None, 0])
def test_files_of_an_earlier_attempt_are_not_those_of_the_last_one(
    client: Client, peer: FilePeer, tmp_path: Path, tasks: int | None
) -> None:
    job = an_array(peer, {"fence": 6, "attempts": 2})
    peer.serve_outputs(bytes.fromhex(client.upload({"out": b"old"})), task=0, fence=5)
    last = bytes.fromhex(client.upload({"out": b"new"}))
    fetched = client.fetch(job, to=tmp_path, tasks=tasks, on_wait=lambda _: peer.serve_outputs(last, task=0, fence=6))
    assert (fetched.files, fetched.failed) == (1, ())
    assert [path.read_bytes() for path in tmp_path.rglob("out")] == [b"new"]


def test_several_fetches_write_the_same_files_at_once(client: Client, peer: FilePeer, tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "many").mkdir(parents=True)
    for number in range(300):
        (work / "many" / str(number)).write_bytes(b"%d" % number)
        (work / f"link-{number}").symlink_to(f"many/{number}")
    (work / "large").write_bytes(os.urandom(2 * CHUNK_BYTES + 5))
    peer.serve_outputs(bytes.fromhex(client.upload(workdir=work)))
    target = tmp_path / "new" / "target"

    def fetch(_: int) -> None:
        with Client(peer.url) as own:
            own.fetch(str(peer.job["id"]), to=target)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(fetch, range(4)))
    assert snapshot(target) == snapshot(work)


def test_a_file_that_another_fetch_finished_is_taken_and_a_lost_one_is_told(tmp_path: Path) -> None:
    data = os.urandom(CHUNK_BYTES + 5)
    chunks = [data[:CHUNK_BYTES], data[CHUNK_BYTES:]]
    entry = FileEntry(b"large", len(data), False, [hash_of(chunk) for chunk in chunks])
    name = (b"large",)
    first, second = TargetFolder(tmp_path), TargetFolder(tmp_path)
    for target in (first, second):
        target.begin(name, entry)
    for number, chunk in enumerate(chunks):
        first.write_chunk(name, entry, number, chunk)
    assert second.begin(name, entry) == [], "a second fetch cuts nothing that the first one wrote"
    first.finish(name, entry)
    for number, chunk in enumerate(chunks):
        second.write_chunk(name, entry, number, chunk)
    second.finish(name, entry)
    assert (tmp_path / "large").read_bytes() == data
    assert not list(tmp_path.glob(f"*{PART_SUFFIX.decode()}"))
    (tmp_path / "large").unlink()
    with pytest.raises(Conflict, match="removed or changed by another program"):
        second.finish(name, entry)
    first.close()
    second.close()


def test_a_fetch_that_begins_late_takes_the_finished_file(tmp_path: Path) -> None:
    """It planned before the file was there. A slower fetch must not take its empty temporary file for its own."""
    data = os.urandom(CHUNK_BYTES + 5)
    chunks = [data[:CHUNK_BYTES], data[CHUNK_BYTES:]]
    entry = FileEntry(b"large", len(data), False, [hash_of(chunk) for chunk in chunks])
    name = (b"large",)
    slow, fast, late = (TargetFolder(tmp_path) for _ in range(3))
    for target in (slow, fast):
        assert target.begin(name, entry) == [0, 1]
    slow.write_chunk(name, entry, 0, chunks[0])
    for number, chunk in enumerate(chunks):
        fast.write_chunk(name, entry, number, chunk)
    fast.finish(name, entry)
    assert late.begin(name, entry) == []
    slow.write_chunk(name, entry, 1, chunks[1])
    for target in (slow, late):
        target.finish(name, entry)
        target.close()
    fast.close()
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [data]


def test_names_of_two_sources_that_differ_only_by_case_are_told(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name.title()).touch()
    (tmp_path / "three" / "three").touch()
    warnings: list[str] = []
    files = {"A": tmp_path / "one", "a": tmp_path / "two", "b": tmp_path / "three"}
    scan_sources(list_sources(files), cache=HashCache(None), warn=warnings.append)
    assert [text.partition(" differ")[0] for text in warnings] == [
        f"Three and three in {tmp_path / 'three'}",
        "A and a in the job's folder",
    ]
