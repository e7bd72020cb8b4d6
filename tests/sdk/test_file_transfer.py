"""Uploads and fetches of files against a server with faults: cut, slow to come back, lying, or hostile."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from switchyard import Client
from switchyard.errors import Conflict, NotFound, Unavailable, YardError
from switchyard.model.files.file_tree import (
    CHUNK_BYTES,
    Entry,
    FileEntry,
    FolderEntry,
    LinkEntry,
    decode_tree,
    encode_tree,
    hash_of,
)
from switchyard.sdk.files.target import PART_SUFFIX
from switchyard.sdk.transport.retry_backoff import ServerOutage
from switchyard.sdk.uploads import hashing, upload
from switchyard.sdk.uploads.patterns import FilePatterns
from tests.processes import free_port
from tests.sdk.file_peer import FilePeer, snapshot
from tests.sdk.peer import a_job

RETRY_S = 30.0


@pytest.fixture
def peer() -> Iterator[FilePeer]:
    with FilePeer() as running:
        running.job = {**a_job(), "state": "SUCCEEDED", "fence": 1, "started_us": 1}
        yield running


@pytest.fixture
def client(peer: FilePeer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("YARD_CONFIG", str(tmp_path / "yard.yaml"))
    with Client(peer.url, retry_s=RETRY_S, outage_s=RETRY_S) as opened:
        yield opened


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A large file, a sparse one, many small ones, a program, a link, an empty folder, odd names."""
    folder = tmp_path / "work"
    (folder / "many" / "none").mkdir(parents=True)
    (folder / "large").write_bytes(os.urandom(2 * CHUNK_BYTES + 5))
    with (folder / "sparse").open("wb") as file:
        file.truncate(5 * CHUNK_BYTES)
        file.seek(2 * CHUNK_BYTES)
        file.write(b"data")
    for number in range(40):
        (folder / "many" / f"{number}").write_bytes(b"%d" % (number % 7))
    (folder / "run").write_text("#!/bin/sh\n")
    (folder / "run").chmod(0o755)
    (folder / "empty").touch()
    (folder / os.fsdecode(b"a\nb\xff")).write_text("odd")
    (folder / "link").symlink_to("many/3")
    return folder


def job_id(peer: FilePeer) -> str:
    return str(peer.job["id"])


def test_a_folder_goes_up_once_and_comes_back_equal(client: Client, peer: FilePeer, work: Path, tmp_path: Path) -> None:
    shown: list[tuple[str, int, int]] = []
    root = client.upload(workdir=work, on_progress=lambda *words: shown.append(words))
    assert bytes.fromhex(root) in peer.sealed
    assert peer.body_bytes_max <= CHUNK_BYTES + 2**16 + 64, "one chunk in a body: a refusal comes at its end"
    assert {step for step, _, _ in shown} == {"hash", "upload"}
    assert shown[-1][1] == shown[-1][2] > 2 * CHUNK_BYTES
    peer.calls.clear()
    assert client.upload(workdir=work) == root
    assert peer.calls == {"files/trees": 1}, "the second time costs one small request"
    (work / "large").write_bytes((work / "large").read_bytes() + b"more")
    peer.sent_bytes = 0
    assert client.upload(workdir=work) != root
    assert peer.sent_bytes < 2 * CHUNK_BYTES, "only what changed is sent"
    peer.serve_outputs(bytes.fromhex(root))
    (work / "large").write_bytes((work / "large").read_bytes()[:-4])
    target = tmp_path / "target"
    fetched = client.fetch(job_id(peer), to=target)
    assert (fetched.files, fetched.unchanged) == (45, 0)
    assert snapshot(target) == snapshot(work)
    assert (target / "sparse").stat().st_blocks * 512 < CHUNK_BYTES + 2**20
    peer.calls.clear()
    again = client.fetch(job_id(peer), to=target)
    assert (again.files, again.unchanged) == (0, 45)
    assert sum(peer.calls.values()) <= 6, "what is there is not fetched again"


@pytest.mark.parametrize("is_signed", [False, True], ids=["by the server", "by signed addresses"])
def test_a_cut_upload_and_a_cut_fetch_go_on(
    client: Client, peer: FilePeer, work: Path, tmp_path: Path, is_signed: bool
) -> None:
    peer.signs = is_signed
    peer.cut_up = [0, 36, 37, CHUNK_BYTES // 2]
    peer.busy = [503, 429]
    root = client.upload(workdir=work)
    assert not peer.cut_up
    assert bytes.fromhex(root) in peer.sealed
    peer.serve_outputs(bytes.fromhex(root))
    peer.cut_down = [0, 30, 41, CHUNK_BYTES // 2]
    peer.busy = [502]
    target = tmp_path / "target"
    client.fetch(job_id(peer), to=target)
    assert snapshot(target) == snapshot(work)


def test_a_transfer_that_has_begun_outlasts_an_outage(
    client: Client, peer: FilePeer, work: Path, tmp_path: Path
) -> None:
    """A first contact that fails is told at once. After it, nothing is given up for a while."""
    with Client(f"http://127.0.0.1:{free_port()}", retry_s=0.0) as hasty, pytest.raises(Unavailable):
        hasty.upload(workdir=work)
    told: list[ServerOutage] = []
    with Client(peer.url, retry_s=0.0, outage_s=60.0, on_outage=told.append) as patient:
        peer.cut_up = [0, 0]
        root = patient.upload(workdir=work)
        assert not peer.cut_up
        assert 0 < len(told) <= 2
        assert all(outage.left_s > 50 for outage in told)
        peer.serve_outputs(bytes.fromhex(root))
        peer.cut_down = [0, 30]
        patient.fetch(job_id(peer), to=tmp_path / "target")
        assert not peer.cut_down
        assert len(told) > 2, "the retries of a fetch are told too"
    assert snapshot(tmp_path / "target") == snapshot(work)


def test_a_wrong_address_fails_before_much_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YARD_CONFIG", str(tmp_path / "yard.yaml"))
    monkeypatch.setattr(hashing, "LONG_READ_BYTES", 10)
    (tmp_path / "file").write_bytes(b"more than ten bytes")
    read: list[int] = []
    with Client(f"http://127.0.0.1:{free_port()}", retry_s=0.0) as hasty, pytest.raises(Unavailable):
        hasty.upload([str(tmp_path / "file")], on_progress=lambda *words: read.append(words[1]))
    assert read == []


def test_an_upload_that_failed_continues_where_it_stopped(
    client: Client, peer: FilePeer, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "THREADS", 1)
    with Client(peer.url, retry_s=0.0, outage_s=0.0) as hasty:
        peer.cut_up = [1 << 30, 100]  # the first body arrives, the second is cut
        with pytest.raises(Unavailable):
            hasty.upload(workdir=work)
    first_bytes = peer.sent_bytes
    assert first_bytes > 0
    peer.cut_up.clear()
    client.upload(workdir=work)
    total = sum(map(len, peer.objects.values()))
    assert peer.sent_bytes < total + 100 * len(peer.objects), "no object was sent twice"


@pytest.mark.parametrize(
    ("statuses", "is_direct"),
    [([], True), ([403], True), ([403, 403], False), ([503], True), ([500, 400], False)],
    ids=["taken", "expired", "expired again", "busy for a moment", "refused"],
)
def test_an_upload_goes_to_the_store_or_else_through_the_server(
    client: Client, peer: FilePeer, work: Path, monkeypatch: pytest.MonkeyPatch, statuses: list[int], is_direct: bool
) -> None:
    monkeypatch.setattr(upload, "THREADS", 1)
    peer.signs = True
    peer.put_statuses = statuses
    root = client.upload(workdir=work)
    assert bytes.fromhex(root) in peer.sealed
    large = {hash_of((work / "large").read_bytes()[place : place + CHUNK_BYTES]) for place in (0, CHUNK_BYTES)}
    assert (large <= peer.incoming.keys()) is is_direct
    assert peer.sent_bytes < sum(map(len, peer.objects.values())) + CHUNK_BYTES * len(statuses) + 2**20


def test_an_upload_to_a_store_that_cannot_be_reached_goes_through_the_server(
    client: Client, peer: FilePeer, work: Path
) -> None:
    peer.signs = True
    peer.signed_base = "http://127.0.0.1:9"
    with Client(peer.url, retry_s=1.0) as hasty:
        assert bytes.fromhex(hasty.upload(workdir=work)) in peer.sealed
    assert not peer.incoming


def test_an_upload_that_the_store_lost_is_sent_again(client: Client, peer: FilePeer, work: Path) -> None:
    peer.signs = peer.loses_uploads = True
    assert bytes.fromhex(client.upload(workdir=work)) in peer.sealed


def test_a_fetch_that_failed_keeps_the_chunks_it_has(
    client: Client, peer: FilePeer, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer.serve_outputs(bytes.fromhex(client.upload(workdir=work)))
    digests = [hash_of((work / "large").read_bytes()[place : place + CHUNK_BYTES]) for place in (0, CHUNK_BYTES)]
    peer.absent = {digests[1]}
    target = tmp_path / "target"
    with pytest.raises(NotFound, match="collected"):
        client.fetch(job_id(peer), "large", to=target)
    assert not (target / "large").exists()
    assert [path.name.encode().endswith(PART_SUFFIX) for path in target.iterdir()] == [True]
    link_part = target / f".link-{'0' * 16}.yard-part"
    link_part.symlink_to("large")
    (target / "mine.yard-part").write_text("named by the user")
    sent = decode_tree(peer.objects[bytes.fromhex(client.upload(workdir=target))])
    assert [entry.name for entry in sent] == [b"mine.yard-part"], "the parts of a cut fetch are not sent"
    for name in (link_part, target / "mine.yard-part"):
        name.unlink()
    peer.absent.clear()
    asked: list[bytes] = []
    real = peer.objects

    class Counting(dict[bytes, bytes]):
        def __getitem__(self, digest: bytes) -> bytes:
            asked.append(digest)
            return real[digest]

    peer.objects = Counting(real)
    client.fetch(job_id(peer), "large", to=target)
    assert (target / "large").read_bytes() == (work / "large").read_bytes()
    assert [path.name for path in target.iterdir()] == ["large"]
    assert digests[1] in asked


def test_a_store_that_lies_about_a_hash_is_not_believed(
    peer: FilePeer, client: Client, work: Path, tmp_path: Path
) -> None:
    peer.serve_outputs(bytes.fromhex(client.upload({"run": work / "run"})))
    digest = hash_of((work / "run").read_bytes())
    peer.lies = {digest: b"#!/bin/ev\n"}
    with Client(peer.url, retry_s=0.5) as hasty, pytest.raises(Unavailable, match="other bytes than its hash"):
        hasty.fetch(job_id(peer), to=tmp_path / "target")
    assert not (tmp_path / "target" / "run").exists()
    peer.lies_left = 2
    client.fetch(job_id(peer), to=tmp_path / "target")
    assert (tmp_path / "target" / "run").read_bytes() == (work / "run").read_bytes()


@pytest.mark.parametrize("is_signed", [False, True], ids=["by the server", "by signed addresses"])
def test_a_file_that_changes_before_it_is_sent_is_read_again_once(
    client: Client, peer: FilePeer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_signed: bool
) -> None:
    monkeypatch.setattr(hashing, "MEMORY_BYTES_MAX", 0)  # otherwise the bytes that were hashed are sent from memory
    peer.signs = is_signed
    file = tmp_path / "growing"
    file.write_text("0")
    real = upload.read_chunk
    changes = iter([True, False])

    def read(source: object) -> bytes:
        if next(changes, False):
            file.write_text("1")
        return real(source)  # type: ignore[arg-type]

    monkeypatch.setattr(upload, "read_chunk", read)
    root = client.upload({"growing": file})
    assert hash_of(b"1") in peer.objects
    assert bytes.fromhex(root) in peer.sealed
    file.write_text("2")
    endless = iter(range(100, 200))
    monkeypatch.setattr(upload, "read_chunk", lambda source: (file.write_text(str(next(endless))), real(source))[1])
    with pytest.raises(Conflict, match="growing changes while it is read"):
        client.upload({"growing": file})


def test_files_that_are_there_and_differ_are_kept_without_force(
    client: Client, peer: FilePeer, work: Path, tmp_path: Path
) -> None:
    peer.serve_outputs(bytes.fromhex(client.upload(workdir=work)))
    target = tmp_path / "target"
    target.mkdir()
    (target / "run").write_text("mine")
    (target / "link").symlink_to("elsewhere")
    with pytest.raises(Conflict, match="other files already: run, link") as refused:
        client.fetch(job_id(peer), to=target)
    assert "--force" in refused.value.next_step
    assert sorted(path.name for path in target.iterdir()) == ["link", "run"], "nothing was written"
    client.fetch(job_id(peer), to=target, force=True)
    assert snapshot(target) == snapshot(work)
    (target / "run").chmod(0o644)
    assert client.fetch(job_id(peer), to=target).files == 0
    assert stat.S_IMODE((target / "run").stat().st_mode) & 0o100


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda target, out: (target / "many").symlink_to(out),
        lambda target, out: (target / "many").write_text("a file"),
        lambda target, out: (target / "run").mkdir(),
        lambda target, out: os.mkfifo(target / "run"),
    ],
    ids=["link to a folder", "file for a folder", "folder for a file", "pipe for a file"],
)
def test_nothing_is_written_through_a_link_or_over_a_folder(
    client: Client, peer: FilePeer, work: Path, tmp_path: Path, make: Callable[[Path, Path], object], force: bool
) -> None:
    peer.serve_outputs(bytes.fromhex(client.upload(workdir=work)))
    target, outside = tmp_path / "target", tmp_path / "outside"
    target.mkdir()
    outside.mkdir()
    make(target, outside)
    with pytest.raises(Conflict, match=r"in the way|is a link or a file"):
        client.fetch(job_id(peer), to=target, force=force)
    assert list(outside.iterdir()) == []


def link(name: bytes, target: bytes) -> LinkEntry:
    return LinkEntry(name, target)


def hostile_trees() -> list[tuple[str, list[bytes]]]:
    """The last object is the root. `encode_tree` refuses bad names: they are put in afterwards, of the same length."""
    content = b"evil"
    plain = encode_tree([FileEntry(b"aa", 4, False, [hash_of(content)])])
    below = encode_tree([FileEntry(b"x", 4, False, [hash_of(content)])])
    two: list[Entry] = [link(b"a", b"b/.."), FolderEntry(b"b", hash_of(below), 1, 4)]
    return [
        ("name ..", [content, plain.replace(b"aa", b"..")]),
        (
            "name with a slash",
            [content, encode_tree([FileEntry(b"abc", 4, False, [hash_of(content)])]).replace(b"abc", b"/bc")],
        ),
        ("link out", [encode_tree([link(b"a", b"../x")])]),
        ("absolute link", [encode_tree([link(b"a", b"/etc/passwd")])]),
        ("link out by another", [encode_tree([link(b"a", b"."), link(b"b", b"a/..")])]),
        ("a link and a folder of one name", [content, below, encode_tree(two).replace(b"\xa1b", b"\xa1a")]),
        ("not a tree", [b"yard-tree 1\nnonsense"]),
        ("a chunk of another size", [content, encode_tree([FileEntry(b"a", 5, False, [hash_of(content)])])]),
    ]


@pytest.mark.parametrize("objects", [row[1] for row in hostile_trees()], ids=[row[0] for row in hostile_trees()])
def test_a_hostile_server_cannot_write_outside(
    client: Client, peer: FilePeer, tmp_path: Path, objects: list[bytes]
) -> None:
    root = [peer.store(data) for data in objects][-1]
    peer.serve_outputs(root)
    target = tmp_path / "deep" / "target"
    before = snapshot(tmp_path)
    try:
        client.fetch(job_id(peer), to=target)
    except YardError:
        pass
    else:
        assert all(path.resolve().is_relative_to(target) for path in target.rglob("*")), snapshot(target)
        assert decode_tree(objects[-1])
    outside = {name: value for name, value in snapshot(tmp_path).items() if not name.startswith("deep")}
    assert outside == before


def test_patterns_choose_and_tasks_have_folders(client: Client, peer: FilePeer, work: Path, tmp_path: Path) -> None:
    root = bytes.fromhex(client.upload(workdir=work))
    target = tmp_path / "target"
    peer.serve_outputs(root, task=0, missing=["none*"])
    peer.outputs.append({"fence": 1, "state": "failed", "task": 1, "error": "the disk was full"})
    peer.outputs.append({"fence": 0, "state": "failed", "task": 0, "error": "an earlier attempt"})
    peer.job |= {"array": "0-1", "tasks": {"total": 2, "ok": 2, "failed": 0, "cancelled": 0, "live": 0, "waiting": 0}}
    peer.tasks = [{"index": index, "state": "SUCCEEDED", "fence": 1} for index in (0, 1)]
    fetched = client.fetch(job_id(peer), ["run", "many/1*"], to=target)
    assert fetched.missing == (), "nobody asked for it"
    assert fetched.failed == ("task 1: the disk was full",)
    assert sorted(path.name for path in (target / "0").iterdir()) == ["many", "run"]
    assert len(list((target / "0" / "many").iterdir())) == 11
    client.fetch(job_id(peer), "**/3", to=target, tasks=0)
    assert (target / "many" / "3").exists()
    with pytest.raises(NotFound, match="No output file matches"):
        client.fetch(job_id(peer), "nothing", to=target)


@pytest.mark.parametrize(
    ("pattern", "name", "does"),
    [
        ("results/*", "results/a.csv", True),
        ("results/*", "results/deep/a.csv", True),
        ("results", "results/deep/a.csv", True),
        ("*.csv", "results/a.csv", False),
        ("**/*.csv", "a.csv", True),
        ("**/*.csv", "x/y/a.csv", True),
        ("x/**/a.csv", "x/a.csv", True),
        ("x/**", "x/y/z", True),
        ("x/**", "x", False),
        ("[ab]?.txt", "b1.txt", True),
        ("[!ab]?.txt", "b1.txt", False),
        ("[z-a]", "z", False),
        ("a[", "a[", True),
        ("./a", "a", True),
        ("a*b", "a\nb", True),
        ("é", "é", True),
    ],
)
def test_a_pattern_means_a_name_or_not(pattern: str, name: str, does: bool) -> None:
    assert FilePatterns([pattern]).matches(tuple(os.fsencode(name).split(b"/"))) == does


@pytest.mark.parametrize("pattern", ["", "/etc/*", "../x", "a/../../b", "x" * 2000])
def test_a_pattern_that_leaves_the_folder_is_refused(pattern: str) -> None:
    with pytest.raises(YardError, match="no pattern"):
        FilePatterns([pattern])
