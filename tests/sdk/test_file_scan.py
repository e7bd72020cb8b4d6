"""Scans of local files: what travels, what is refused with its name, and what a second scan costs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from switchyard.errors import BadRequest
from switchyard.model.files.file_tree import CHUNK_BYTES, ZEROS, FileEntry, FolderEntry, LinkEntry, decode_tree, hash_of
from switchyard.sdk.files.file_names import FileContent, default_name, list_sources, parse_name, parse_source
from switchyard.sdk.files.file_request import from_fields, from_texts
from switchyard.sdk.files.links import stays_inside
from switchyard.sdk.uploads import chunks, hashing
from switchyard.sdk.uploads.chunks import ChunkSource, FileChanged, read_chunk
from switchyard.sdk.uploads.hash_cache import FileState, HashCache
from switchyard.sdk.uploads.hashing import MEMORY_FILE_BYTES
from switchyard.sdk.uploads.scan import ScannedTree, scan_sources

MEMORY_MIB_MAX = 80
NO_RIGHTS = """
import os, sys
from switchyard.errors import BadRequest
from switchyard.sdk.uploads.hash_cache import HashCache
from switchyard.sdk.files.file_names import list_sources
from switchyard.sdk.uploads.scan import scan_sources
os.chdir(sys.argv[1])
os.setgroups([]); os.setgid(65534); os.setuid(65534)
for name in ("secret", "closed folder", "."):
    try:
        scan_sources(list_sources({"x": name}), cache=HashCache(None))
    except BadRequest as exc:
        print(exc.detail)
"""


def scan(
    folder: Path, *, cache: HashCache | None = None, warn: Callable[[str], None] | None = None
) -> tuple[ScannedTree, dict[str, FileEntry | LinkEntry | FolderEntry]]:
    """The tree of a folder, and its entries by their names."""
    tree = scan_sources(list_sources((), workdir=folder), cache=cache or HashCache(None), warn=warn)
    return tree, listed(tree)


def listed(tree: ScannedTree) -> dict[str, FileEntry | LinkEntry | FolderEntry]:
    found: dict[str, FileEntry | LinkEntry | FolderEntry] = {}

    def walk(digest: bytes, prefix: bytes) -> None:
        data = tree.objects()[digest]
        assert isinstance(data, bytes)
        for entry in decode_tree(data):
            found[os.fsdecode(prefix + entry.name)] = entry
            if isinstance(entry, FolderEntry):
                walk(entry.tree, prefix + entry.name + b"/")

    walk(tree.root, b"")
    return found


def content(tree: ScannedTree, entry: object) -> bytes:
    assert isinstance(entry, FileEntry)
    parts = []
    for number, digest in enumerate(entry.chunks):
        source = tree.objects()[digest] if digest else bytes(min(CHUNK_BYTES, entry.size - number * CHUNK_BYTES))
        parts.append(read_chunk(source) if isinstance(source, ChunkSource) else source)
    return b"".join(parts)


def test_everything_that_can_travel_is_in_the_tree(tmp_path: Path) -> None:
    strange = os.fsdecode(b"new\nline \xff\xfe")
    (tmp_path / "sub" / "empty folder").mkdir(parents=True)
    (tmp_path / "run.sh").write_bytes(b"#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "empty").touch()
    (tmp_path / strange).write_bytes(b"odd")
    (tmp_path / "sub" / "large").write_bytes(b"a" * CHUNK_BYTES + b"tail")
    (tmp_path / "sub" / "link").symlink_to("../run.sh")
    (tmp_path / "dangling").symlink_to("sub/none")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").touch()
    tree, entries = scan(tmp_path)
    assert sorted(entries) == sorted(
        ["run.sh", "empty", strange, "sub", "sub/empty folder", "sub/large", "sub/link", "dangling"]
    )
    assert (tree.files, tree.size) == (4, 10 + 3 + CHUNK_BYTES + 4)
    assert entries["empty"] == FileEntry(b"empty", 0, False, [])
    assert entries["sub/link"] == LinkEntry(b"link", b"../run.sh")
    assert isinstance(entries["run.sh"], FileEntry)
    assert entries["run.sh"].is_executable
    assert isinstance(entries["sub"], FolderEntry)
    assert (entries["sub"].files, entries["sub"].size) == (1, CHUNK_BYTES + 4)
    assert content(tree, entries["sub/large"]) == b"a" * CHUNK_BYTES + b"tail"
    assert content(tree, entries[strange]) == b"odd"
    copy = tmp_path.parent / "copy"
    subprocess.run(["cp", "-a", str(tmp_path), str(copy)], check=True)
    assert scan(copy)[0].root == tree.root, "equal folders have equal hashes"


def test_holes_and_zeros_are_not_read_nor_stored(tmp_path: Path) -> None:
    sparse, zeros = tmp_path / "sparse", tmp_path / "zeros"
    with sparse.open("wb") as file:
        file.truncate(10 * 2**30)  # ten gigabytes, of which five bytes are data
        file.seek(3 * CHUNK_BYTES + 7)
        file.write(b"hello")
    zeros.write_bytes(bytes(1000))
    _, entries = scan(tmp_path)
    entry = entries["sparse"]
    assert isinstance(entry, FileEntry)
    assert [number for number, digest in enumerate(entry.chunks) if digest != ZEROS] == [3]
    assert entries["zeros"] == FileEntry(b"zeros", 1000, False, [ZEROS])


def test_a_large_file_takes_little_memory(tmp_path: Path) -> None:
    """In a process of its own, whose memory is measured. The file is one block of data many times over."""
    big = tmp_path / "big"
    block = os.urandom(2**20)
    with big.open("wb") as file:
        for _ in range(160):
            file.write(block)
    code = """
import resource, sys
from pathlib import Path
from switchyard.sdk.uploads.hash_cache import HashCache
from switchyard.sdk.files.file_names import list_sources
from switchyard.sdk.uploads.scan import scan_sources
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
tree = scan_sources(list_sources([sys.argv[1]]), cache=HashCache(None))
print(tree.size, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", code, str(big)], capture_output=True, text=True, check=True)
    size, grown_mib = map(int, done.stdout.split())
    assert size == 160 * 2**20
    assert grown_mib < MEMORY_MIB_MAX


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(path))


def far_link(path: Path) -> None:
    """Out of the tree by way of another link, although each text alone stays inside."""
    (path.parent / "q").mkdir()
    (path.parent / "p").mkdir()
    (path.parent / "p" / "b").symlink_to("../q")
    (path.parent / "p" / path.name).symlink_to("b/../..")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: os.mkfifo(path), "is a named pipe"),
        (a_socket, "is a socket"),
        (lambda path: path.symlink_to("/etc/passwd"), "is a link to /etc/passwd, outside"),
        (lambda path: path.symlink_to("../x"), "is a link to ../x, outside"),
        (far_link, "is a link to b/../.., outside"),
        pytest.param(
            lambda path: os.mknod(path, 0o600 | 0o020000, os.makedev(1, 3)),
            "is a device file",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="makes a device"),
        ),
    ],
    ids=["pipe", "socket", "absolute link", "link out", "link out by another", "device"],
)
def test_what_cannot_travel_is_refused_with_its_name(tmp_path: Path, make: Callable[[Path], object], says: str) -> None:
    make(tmp_path / "odd one")
    with pytest.raises(BadRequest, match="odd one") as refused:
        scan(tmp_path)
    assert says in refused.value.detail
    assert ".yardignore" in refused.value.next_step
    (tmp_path / ".yardignore").write_text("odd one\n")
    scan(tmp_path)


def test_the_first_of_many_refusals_are_shown_and_the_rest_counted(tmp_path: Path) -> None:
    for number in range(30):
        os.mkfifo(tmp_path / f"pipe-{number:02}")
    with pytest.raises(BadRequest, match="and 20 more") as refused:
        scan(tmp_path)
    assert "pipe-00" in refused.value.detail


@pytest.mark.skipif(os.geteuid() != 0, reason="takes another account")
def test_no_right_to_read_is_refused_with_the_name() -> None:
    """As another account, in a process that has loaded all it needs before it changes its account."""
    with tempfile.TemporaryDirectory() as made:  # the folders of pytest are open to their owner alone
        home = Path(made)
        home.chmod(0o755)
        (home / "closed folder").mkdir(mode=0o700)
        (home / "secret").write_text("x")
        (home / "secret").chmod(0o600)
        done = subprocess.run([sys.executable, "-c", NO_RIGHTS, made], capture_output=True, text=True, check=True)
    first, second, third = done.stdout.splitlines()
    assert "secret cannot be read: Permission denied" in first
    assert "closed folder cannot be read: Permission denied" in second
    assert "closed folder cannot be read" in third


def test_two_names_that_differ_only_by_case_are_told(tmp_path: Path) -> None:
    for name in ("Data", "data", "other"):
        (tmp_path / name).touch()
    warnings: list[str] = []
    _, entries = scan(tmp_path, warn=warnings.append)
    assert {"Data", "data"} <= set(entries)
    assert len(warnings) == 1
    assert "Data and data" in warnings[0]


@pytest.mark.parametrize(
    ("lines", "sent"),
    [
        ("", [".yardignore", "a.log", "build/x", "keep/a.log", "src/deep/b.log", "src/main.py"]),
        ("*.log", [".yardignore", "build/x", "src/main.py"]),
        ("*.log\n!keep/a.log", [".yardignore", "build/x", "keep/a.log", "src/main.py"]),
        ("/build/\n# a comment\n*.log", [".yardignore", "src/main.py"]),
        ("src/**/b.log", [".yardignore", "a.log", "build/x", "keep/a.log", "src/main.py"]),
        ("*\n!*.py\n!src/", ["src/main.py"]),
        ("!.git", [".git", ".yardignore", "a.log", "build/x", "keep/a.log", "src/deep/b.log", "src/main.py"]),
    ],
)
def test_an_ignore_file_has_the_syntax_of_git(tmp_path: Path, lines: str, sent: list[str]) -> None:
    for name in ("a.log", "build/x", "keep/a.log", "src/deep/b.log", "src/main.py", ".git"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / ".yardignore").write_text(lines)
    _, entries = scan(tmp_path)
    assert sorted(name for name, entry in entries.items() if isinstance(entry, FileEntry)) == sent


def test_a_deeper_ignore_file_wins_and_a_named_file_is_never_ignored(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("a.log", "sub/a.log", "sub/b.txt"):
        (tmp_path / name).write_text("x")
    (tmp_path / ".yardignore").write_text("*.log\n")
    (tmp_path / "sub" / ".yardignore").write_text("!a.log\nb.txt\n")
    _, entries = scan(tmp_path)
    assert {"sub/a.log"} == {name for name in entries if name.endswith((".log", ".txt"))}
    tree = scan_sources(list_sources({"a.log": tmp_path / "a.log"}), cache=HashCache(None))
    assert list(listed(tree)) == ["a.log"]


def test_a_second_scan_reads_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("switchyard.sdk.uploads.hash_cache.FINE_MARGIN_NS", -(10**18))
    monkeypatch.setattr("switchyard.sdk.uploads.hash_cache.COARSE_MARGIN_NS", -(10**18))
    folder, kept = tmp_path / "work", tmp_path / "cache"
    (folder / "sub").mkdir(parents=True)
    for name in ("a", "sub/b"):
        (folder / name).write_text(name)
    first, _ = scan(folder, cache=HashCache(kept))
    read: list[bytes] = []
    real = chunks.read_unchanged

    def counted(path: bytes, state: FileState) -> bytes:
        read.append(path)
        return real(path, state)

    monkeypatch.setattr(hashing, "read_unchanged", counted)
    assert scan(folder, cache=HashCache(kept))[0].root == first.root
    assert read == []
    (folder / "sub/b").write_text("B")
    assert scan(folder, cache=HashCache(kept))[0].root != first.root
    assert [os.path.basename(path) for path in read] == [b"b"]  # noqa: PTH119
    for file in kept.iterdir():
        file.write_bytes(b"yard-hashes 1\n\xff damaged")
    scan(folder, cache=HashCache(kept))
    assert len(read) == 3


def test_a_file_that_changed_a_moment_ago_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("switchyard.sdk.uploads.hash_cache.FINE_MARGIN_NS", 10**18)
    monkeypatch.setattr("switchyard.sdk.uploads.hash_cache.COARSE_MARGIN_NS", 10**18)
    (tmp_path / "a").write_text("a")
    scan(tmp_path, cache=HashCache(tmp_path.parent / "kept"))
    assert not (tmp_path.parent / "kept").exists()


@pytest.mark.parametrize("size", [100, MEMORY_FILE_BYTES + 1], ids=["kept in memory", "read again"])
def test_a_file_that_changes_while_it_is_read_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    growing = tmp_path / "growing"
    growing.write_bytes(b"x" * size)

    def after(real: Callable[..., object]) -> Callable[..., object]:
        def grow(*args: object, **rest: object) -> object:
            found = real(*args, **rest)
            with growing.open("ab") as file:
                file.write(b"more")
            return found

        return grow

    monkeypatch.setattr(chunks, "hash_handle", after(chunks.hash_handle))
    monkeypatch.setattr(os, "pread", after(os.pread))
    with pytest.raises(FileChanged, match="growing changes while it is read"):
        scan(tmp_path)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("../x", "leaves the job's folder"),
        ("a/../../x", "leaves the job's folder"),
        ("/etc/x", "is absolute"),
        ("", "names no file"),
        ("a\0b", "slash or a NUL"),
        ("x" * 256, "more than 255 bytes"),
        ("/".join("d" * 200), "more than 128 folders"),
    ],
)
def test_a_name_that_leaves_the_folder_is_refused(name: str, says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        parse_name(name)
    with pytest.raises(BadRequest, match=says):
        from_fields({"files": {name: b"content"}})


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("train.py", "train.py"),
        ("./src/train.py", "src/train.py"),
        ("src/", "src"),
        (".", ""),
        ("../train.py", "train.py"),
        ("/data/set/x.csv", "x.csv"),
        ("train.py:run.py", "run.py"),
        ("data:in/put", "in/put"),
        ("data:.", ""),
    ],
)
def test_the_name_of_a_source(text: str, name: str) -> None:
    assert os.fsdecode(b"/".join(parse_source(text).name)) == name


def test_a_path_with_a_colon_that_exists_is_a_path(tmp_path: Path) -> None:
    (tmp_path / "a:b").touch()
    assert parse_source("a:b", folder=str(tmp_path)).name == (b"a:b",)
    assert parse_source("a:b:c", folder=str(tmp_path)).name == (b"c",)
    assert default_name("a:b") == (b"a:b",)


def test_several_sources_become_one_tree(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_text("x")
    (tmp_path / "y").write_text("y")
    tree = scan_sources(
        list_sources({"data": tmp_path / "data", "data/y": tmp_path / "y", "made": b"in memory"}), cache=HashCache(None)
    )
    assert sorted(listed(tree)) == ["data", "data/x", "data/y", "made"]
    scan_sources(list_sources({"data/x": tmp_path / "data/x"}, workdir=tmp_path), cache=HashCache(None))
    conflicts: list[dict[str, FileContent]] = [
        {"data": tmp_path / "data", "data/x": tmp_path / "y"},
        {"y": tmp_path / "y", "y/z": b""},
    ]
    for files in conflicts:
        with pytest.raises(BadRequest, match="two different files"):
            scan_sources(list_sources(files), cache=HashCache(None))
    for missing in ({"x": tmp_path / "none"}, {".": tmp_path / "y"}):
        with pytest.raises(BadRequest, match=r"cannot be read|is a file"):
            scan_sources(list_sources(missing), cache=HashCache(None))


def test_files_of_array_tasks(tmp_path: Path) -> None:
    for index in (0, 7):
        (tmp_path / f"part-{index:02}.csv").write_text(str(index))
    request = from_texts(
        ["part-{index:02}.csv:input.csv"], workdir=None, out=(), is_out_required=False, folder=str(tmp_path)
    )
    tree = scan_sources(request.task_sources("0,7%1"), cache=HashCache(None))
    assert sorted(listed(tree)) == ["0", "0/input.csv", "7", "7/input.csv"]
    same = from_fields({"files": {"input.csv": tmp_path / "part-{index:02}.csv"}})
    assert scan_sources(same.task_sources("0,7"), cache=HashCache(None)).root == tree.root
    with pytest.raises(BadRequest, match="no array"):
        request.task_sources(None)
    with pytest.raises(BadRequest, match=r"part-01\.csv cannot be read"):
        scan_sources(request.task_sources("0-7"), cache=HashCache(None))
    plain = from_texts(["part-{index:02}.csv"], workdir=None, out=(), is_out_required=False)
    assert [source.name for source in plain.task_sources("7")] == [(b"7", b"part-07.csv")]


def test_links_are_followed_as_far_as_linux_does() -> None:
    links = {(b"a",): b"b", (b"b",): b"a", (b"d", b"up"): b"..", (b"out",): b"d/up/..", (b"fine",): b"d/up/x"}
    assert [stays_inside(links, link) for link in links] == [True, True, True, False, True]


def test_a_writer_in_another_thread_never_makes_a_mixed_file(tmp_path: Path) -> None:
    """Whatever the moment: the scan has one of the two contents, or refuses."""
    target = tmp_path / "f"
    contents = [letter * 200_000 for letter in (b"a", b"b")]
    target.write_bytes(contents[0])
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for data in contents:
                target.write_bytes(data)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(20):
            try:
                _, entries = scan(tmp_path)
            except FileChanged:
                continue
            entry = entries["f"]
            assert isinstance(entry, FileEntry)
            if entry.size == 200_000:
                assert entry.chunks[0] in {hash_of(data) for data in contents}
    finally:
        stop.set()
        writer.join()
