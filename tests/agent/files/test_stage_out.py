"""Output files: what the patterns match is uploaded, what cannot be taken is told."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard.agent.files.object_client import AttemptRights
from switchyard.agent.files.outputs import output_budget
from switchyard.agent.files.outputs.output_budget import OutputBounds, may_take_more
from switchyard.agent.files.outputs.stage_out import OutPatterns, OutputRequest, UploadedOutputs, upload_outputs
from switchyard.agent.files.transfer_threads import TransferThreads
from switchyard.agent.site.accounts import LocalAccount
from switchyard.model.files.file_tree import CHUNK_BYTES, FOLDER_DEPTH_MAX
from switchyard.model.files.files import AttemptOutputs, OutputRoom, RoomLimit
from tests.agent.files.builders import Executable, Objects, Plain, named_in_bytes

RIGHTS = AttemptRights("J" * 26, 1)
BOUNDS = OutputBounds(files=1000, bytes=2**30)

MATCHES = [
    ("*", "a.csv", True),
    ("*", "deep/a.csv", True),  # a folder that matches is taken with all in it
    ("*.csv", "deep/a.csv", False),
    ("**", "deep/er/a.csv", True),
    ("**/*.csv", "a.csv", True),
    ("**/*.csv", "deep/er/a.csv", True),
    ("**/*.csv", "deep/er/a.txt", False),
    ("results", "results/deep/a", True),
    ("results/", "results/a", True),
    ("./results/*", "results/a", True),
    ("results/*", "results/.hidden", True),
    ("results/*", "other/a", False),
    ("a/**/z", "a/z", True),
    ("a/**/z", "a/b/c/z", True),
    ("a/**/z", "a/b/c", False),
    ("run-??.log", "run-01.log", True),
    ("run-??.log", "run-1.log", False),
    ("a*b*c", "aXbXbXc", True),
    ("a*b*c", "aXcXb", False),
    ("[1].txt", "[1].txt", True),
    ("[1].txt", "1.txt", False),
    ("caf\udce9*", "caf\udce9-1", True),
    ("line?break", "line\nbreak", True),
    ("*a" * 100 + "*b", "a" * 250, False),  # ends in time
]


@pytest.mark.parametrize(("pattern", "path", "is_match"), MATCHES)
def test_patterns(pattern: str, path: str, is_match: bool) -> None:
    patterns = OutPatterns([pattern])
    match = patterns.top()
    for name in os.fsencode(path).split(b"/"):
        match = patterns.below(match, name)
    assert bool(match.complete) is is_match


@pytest.fixture
def objects() -> Objects:
    return Objects()


@pytest.fixture
def threads(objects: Objects) -> Iterator[TransferThreads]:
    made = TransferThreads("test", 2, objects.connect)
    yield made
    made.stop()


def request(folder: Path, *patterns: str, bounds: OutputBounds = BOUNDS) -> OutputRequest:
    return OutputRequest(RIGHTS, folder, patterns, bounds)


def upload(wanted: OutputRequest, threads: TransferThreads) -> AttemptOutputs:
    return upload_all(wanted, threads).outputs


def upload_all(wanted: OutputRequest, threads: TransferThreads) -> UploadedOutputs:
    return upload_outputs(wanted, threads, is_over=lambda: False)


def content_of(objects: Objects, outputs: AttemptOutputs) -> Plain:
    assert outputs.root is not None
    return objects.content_of(bytes.fromhex(outputs.root))


def test_what_matches_arrives_and_what_is_missing_is_told(
    tmp_path: Path, objects: Objects, threads: TransferThreads
) -> None:
    large = b"a" * CHUNK_BYTES + bytes(2 * CHUNK_BYTES) + b"z"
    (tmp_path / "results" / "deep").mkdir(parents=True)
    (tmp_path / "results" / "none").mkdir()
    (tmp_path / "results" / "a.csv").write_bytes(b"1,2")
    (tmp_path / "results" / "deep" / "caf\udce9").write_bytes(b"2")
    (tmp_path / "results" / "run.sh").write_bytes(b"#!/bin/sh")
    (tmp_path / "results" / "run.sh").chmod(0o755)
    (tmp_path / "results" / "empty").touch()
    (tmp_path / "results" / "latest").symlink_to("deep")
    (tmp_path / "large").write_bytes(large)
    (tmp_path / "input").write_bytes(b"not asked for")
    (tmp_path / "logs").mkdir()
    wanted = request(tmp_path, "results", "lar*", "logs/*.txt", "gone")
    outputs = upload(wanted, threads)
    expected: Plain = {
        "large": large,
        "results": {
            "a.csv": b"1,2",
            "deep": {"caf\udce9": b"2"},
            "run.sh": Executable(b"#!/bin/sh"),
            "empty": b"",
            "none": {},
            "latest": "deep",
        },
    }
    assert content_of(objects, outputs) == named_in_bytes(expected)
    assert (outputs.files, outputs.bytes) == (5, len(large) + 3 + 1 + 9)
    assert outputs.missing == ["logs/*.txt", "gone"]
    assert outputs.skipped == []
    sent = len(objects.sends)
    assert upload(wanted, threads).root == outputs.root
    assert len(objects.sends) == sent, "what the server has is not sent again"


def test_links_out_special_files_and_files_without_rights_are_skipped_and_told(
    tmp_path: Path, objects: Objects, threads: TransferThreads
) -> None:
    folder = tmp_path / "job"
    (folder / "closed").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_bytes(b"not the job's")
    (folder / "key").symlink_to("../secret/key")
    (folder / "folder").symlink_to(tmp_path / "secret")
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(folder / "socket"))
    (folder / "good").write_bytes(b"1")
    outputs = upload(request(folder, "**", "folder/key"), threads)
    assert content_of(objects, outputs) == {b"good": b"1", b"closed": {}}
    assert outputs.skipped == [
        "folder: it is a link to a place outside the job's folder",
        "key: it is a link to a place outside the job's folder",
        "pipe: it is no plain file",
        "socket: it is no plain file",
    ]
    assert outputs.missing == ["folder/key"]
    if os.geteuid() != 0:
        (folder / "good").chmod(0)
        (folder / "closed").chmod(0)
        skipped = upload(request(folder, "*"), threads).skipped
        (folder / "closed").chmod(0o700)
        assert "good: it cannot be opened: Permission denied" in skipped


@pytest.mark.skipif(os.geteuid() != 0, reason="only an agent of root sees files of other accounts")
def test_an_agent_of_root_takes_only_files_of_the_jobs_account(
    tmp_path: Path, objects: Objects, threads: TransferThreads
) -> None:
    for name, uid in (("own", 4242), ("roots", 0)):
        (tmp_path / name).write_bytes(b"1")
        os.chown(tmp_path / name, uid, uid)
    account = LocalAccount("ada", 4242, 4242, "/nowhere")
    outputs = upload(OutputRequest(RIGHTS, tmp_path, ["*"], BOUNDS, account), threads)
    assert content_of(objects, outputs) == {b"own": b"1"}
    assert outputs.skipped == ["roots: it belongs to another account than the job's"]


def test_bounds_of_files_and_bytes_are_told(tmp_path: Path, objects: Objects, threads: TransferThreads) -> None:
    for number in range(5):
        (tmp_path / str(number)).write_bytes(b"x" * 10)
    few = upload(request(tmp_path, "*", bounds=OutputBounds(files=2, bytes=100)), threads)
    assert (few.files, few.skipped[0]) == (2, "2: this site takes at most 2 files of an attempt")
    small = upload(request(tmp_path, "*", bounds=OutputBounds(files=9, bytes=30)), threads)
    assert (small.bytes, small.skipped[0]) == (30, "3: this site takes at most 30B of an attempt")
    assert sorted(content_of(objects, small)) == [b"0", b"1", b"2"]


def test_more_than_a_hundred_skipped_files_are_counted(tmp_path: Path, threads: TransferThreads) -> None:
    for number in range(150):
        (tmp_path / f"{number:03}").symlink_to("/etc/passwd")
    outputs = upload(request(tmp_path, "*"), threads)
    assert len(outputs.skipped) == 100
    assert outputs.skipped[-1] == "51 more files"
    assert outputs.missing == ["*"]


def test_a_file_that_changes_while_it_is_read_is_skipped(
    tmp_path: Path, objects: Objects, threads: TransferThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that the job left elsewhere goes on writing: no mixture of two contents is kept."""
    from switchyard.agent.files.outputs import stage_out

    (tmp_path / "growing").write_bytes(b"0")
    (tmp_path / "still").write_bytes(b"1")
    read = stage_out.read_span

    def read_and_grow(number: int, offset: int, size: int) -> bytes:
        data = read(number, offset, size)
        if data[:1] == b"0":
            with (tmp_path / "growing").open("ab") as file:
                file.write(b"x")
        return data

    monkeypatch.setattr(stage_out, "read_span", read_and_grow)
    outputs = upload(request(tmp_path, "*"), threads)
    assert content_of(objects, outputs) == {b"still": b"1"}
    assert outputs.skipped == ["growing: it changed while it was read"]


def test_an_empty_match_is_an_empty_tree(tmp_path: Path, objects: Objects, threads: TransferThreads) -> None:
    outputs = upload(request(tmp_path, "nothing/*"), threads)
    assert content_of(objects, outputs) == {}
    assert (outputs.files, outputs.missing) == (0, ["nothing/*"])


LIMITS = ["tree", "project", "user"]


def room(limit: str, left: int) -> OutputRoom:
    return OutputRoom(**{limit: RoomLimit(left, f"over the limit {limit}")})


@pytest.mark.parametrize("limit", LIMITS)
def test_what_fits_into_the_servers_room_is_taken_and_the_rest_named(
    tmp_path: Path, objects: Objects, threads: TransferThreads, limit: str
) -> None:
    for name, size in (("a", 1000), ("b", 50_000), ("c", 2000), ("d", 3000)):
        (tmp_path / name).write_bytes(os.urandom(size))
    objects.room_left = room(limit, 10_000)
    first = upload_all(request(tmp_path, "*"), threads)
    assert sorted(content_of(objects, first.outputs)) == [b"a", b"c", b"d"]
    assert first.outputs.skipped == first.lost_files == [f"b: over the limit {limit}"]
    assert objects.told[-1].root == first.outputs.root
    assert not may_take_more(first.needed, objects.room(RIGHTS))
    objects.room_left = room(limit, 70_000)
    assert may_take_more(first.needed, objects.room(RIGHTS))
    second = upload_all(request(tmp_path, "*"), threads)
    assert (second.outputs.files, second.lost_files, second.needed) == (4, [], {})


def test_a_file_that_was_taken_stays_when_a_larger_one_would_fit_before_it(
    tmp_path: Path, objects: Objects, threads: TransferThreads
) -> None:
    for name, size in (("a", 9000), ("b", 5000), ("c", 6000)):
        (tmp_path / name).write_bytes(os.urandom(size))
    objects.room_left = room("project", 6000)
    first = upload_all(request(tmp_path, "*"), threads)
    assert sorted(first.taken_files) == [(b"b",)]
    objects.room_left = room("project", 12_000)
    again = OutputRequest(RIGHTS, tmp_path, ["*"], BOUNDS, earlier=first.taken_files)
    assert sorted(upload_all(again, threads).taken_files) == [(b"b",), (b"c",)]


def test_files_that_the_owner_holds_already_take_no_room(
    tmp_path: Path, objects: Objects, threads: TransferThreads
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(os.urandom(4000))
    (tmp_path / "zeros").write_bytes(bytes(100_000))
    first = upload_all(request(tmp_path, "*"), threads)
    objects.sends.clear()
    objects.room_left = room("user", 0)
    second = upload_all(request(tmp_path, "*"), threads)
    assert (second.outputs.root, second.lost_files) == (first.outputs.root, [])
    (tmp_path / "new").write_bytes(os.urandom(10))
    third = upload_all(request(tmp_path, "*"), threads)
    assert third.lost_files == ["new: over the limit user"]
    assert third.outputs.root == first.outputs.root


def test_the_servers_bounds_of_a_tree_leave_out_what_is_beyond(
    tmp_path: Path, objects: Objects, threads: TransferThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / "d"
    for _ in range(FOLDER_DEPTH_MAX):
        deep = deep / "d"
    deep.mkdir(parents=True)
    (deep / "x").write_bytes(b"x")
    (tmp_path / "top").write_bytes(b"y")
    outputs = upload(request(tmp_path, "**"), threads)
    assert outputs.files == 1
    assert outputs.skipped[0].endswith("d: the server takes at most 128 folders in folders")
    found, levels = content_of(objects, outputs), 0
    while isinstance(found, dict) and b"d" in found:
        found, levels = found[b"d"], levels + 1  # type: ignore[assignment]
    assert levels == FOLDER_DEPTH_MAX - 1, "the top counts as one"
    monkeypatch.setattr(output_budget, "FILES_MAX", 3)
    for name in "abcef":
        (tmp_path / name).write_bytes(b"x")
    outputs = upload(request(tmp_path, "?"), threads)
    assert "f: the server takes at most 3 files, folders and links of an attempt" in outputs.skipped


def test_a_folder_with_more_names_than_a_tree_takes_keeps_the_first_ones(
    tmp_path: Path, objects: Objects, threads: TransferThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    from switchyard.agent.files.outputs import stage_out

    monkeypatch.setattr(stage_out, "TREE_BYTES_MAX", 1000)
    for number in range(50):
        (tmp_path / f"{number:02}").write_bytes(b"x")
    outputs = upload(request(tmp_path, "*"), threads)
    assert 5 < outputs.files < 50
    assert outputs.files == len(content_of(objects, outputs))
    assert outputs.skipped[0].endswith("the server takes at most 1000B for the list of one folder")


def test_what_the_site_gave_to_the_job_is_no_output_file(
    tmp_path: Path, objects: Objects, threads: TransferThreads
) -> None:
    (tmp_path / ".switchyard").mkdir()
    (tmp_path / ".switchyard" / "env").write_text("export WORD=sesame")
    (tmp_path / "result").write_text("42")
    outputs = upload(request(tmp_path, "**", ".switchyard/*"), threads)
    assert content_of(objects, outputs) == {b"result": b"42"}
