"""Trees and bodies that no client makes are refused, in bounded time; what came before a mistake is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from switchyard.errors import BadValue, LimitReached, Malformed, TooLarge, YardError
from switchyard.model.files.file_frames import OBJECTS_MAX, FrameKind, encode_frame
from switchyard.model.files.file_tree import (
    CHUNK_BYTES,
    FOLDER_DEPTH_MAX,
    HEADER,
    TREE_BYTES_MAX,
    ZEROS,
    FileEntry,
    FolderEntry,
    LinkEntry,
    climb_of,
    encode_tree,
    hash_of,
)
from switchyard.server.config.config import Config, FilesSection
from switchyard.service.files.intake import ObjectIntake
from switchyard.service.files.outputs import files_usage
from switchyard.service.files.possession import missing_objects
from switchyard.service.files.seal import seal_tree
from tests.service.files.trees import Link, Tree, a_tree, frames, send
from tests.service.rig import ADMIN, Rig, running

OWNER = ADMIN.id


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder: Path = tmp_path_factory.mktemp("files")
    section = FilesSection(tree_bytes="1Gi")
    with running(f"sqlite:///{folder / 'yard.db'}", folder, config=Config(files=section)) as rig:
        yield rig


def raw(tree: Tree, *entries: object) -> Tree:
    """A tree whose root has these entries, unchecked."""
    tree.root = tree.add(HEADER + msgspec.msgpack.encode(list(entries)))
    return tree


def nested(depth: int, inner: dict[str, object]) -> Tree:
    folder = inner
    for _ in range(depth):
        folder = {"d": folder}
    return a_tree(folder)


def lying(files: int, size: int) -> Tree:
    tree = a_tree({"x": b"12345"})
    return raw(tree, FolderEntry(b"d", tree.root, files, size))


def wrong_chunk_size() -> Tree:
    tree = Tree()
    return raw(tree, FileEntry(b"x", 10, False, [tree.add(b"12345")]))


def short_chunk_inside() -> Tree:
    tree = Tree()
    return raw(tree, FileEntry(b"x", CHUNK_BYTES + 5, False, [tree.add(b"abcde"), tree.add(b"abcde")]))


def one_chunk_two_sizes() -> Tree:
    tree = Tree()
    chunk = tree.add(b"12345")
    return raw(tree, FileEntry(b"x", 5, False, [chunk]), FileEntry(b"y", 6, False, [chunk]))


def bomb() -> Tree:
    """2 to the power of 100 files in 100 small folders."""
    tree = a_tree({"x": b"1"})
    digest, files = tree.root, 1
    for _ in range(61):
        files *= 2
        entries = [FolderEntry(name, digest, files // 2, files // 2) for name in (b"a", b"b")]
        digest = tree.add(encode_tree(list(entries)))
    tree.root = digest
    return tree


def bomb_of_folders() -> Tree:
    """2 to the power of 60 empty folders, described by 60 small ones."""
    tree = Tree()
    digest = tree.add(encode_tree([]))
    for _ in range(60):
        digest = tree.add(encode_tree([FolderEntry(name, digest, 0, 0) for name in (b"a", b"b")]))
    tree.root = digest
    return tree


def a_chunk_as_folder() -> Tree:
    tree = Tree()
    return raw(tree, FolderEntry(b"d", tree.add(b"no folder"), 0, 0))


def too_large_tree() -> Tree:
    tree = Tree()
    return raw(tree, FileEntry(b"zeros", 2 * 2**30, False, [ZEROS] * 256))


BAD: dict[str, tuple[Callable[[], Tree], type[YardError], str]] = {
    "a name with a way up": (lambda: raw(Tree(), LinkEntry(b"..", b"x")), BadValue, "not possible"),
    "a name with a slash": (lambda: raw(Tree(), LinkEntry(b"../x", b"x")), BadValue, "not possible"),
    "an absolute name": (lambda: raw(Tree(), LinkEntry(b"/etc/passwd", b"x")), BadValue, "not possible"),
    "a name twice": (lambda: raw(Tree(), LinkEntry(b"x", b"y"), LinkEntry(b"x", b"y")), BadValue, "twice"),
    "names out of order": (lambda: raw(Tree(), LinkEntry(b"y", b"y"), LinkEntry(b"x", b"y")), BadValue, "order"),
    "a bomb of empty folders": (bomb_of_folders, BadValue, "more than"),
    "a link that leads out by way of another": (
        lambda: a_tree({"d": {"up": Link("..")}, "x": Link("d/up/../etc")}),
        BadValue,
        "points out",
    ),
    "a link out of the tree": (lambda: a_tree({"x": Link("../x")}), BadValue, "points out"),
    "an absolute link": (lambda: a_tree({"d": {"x": Link("/etc/passwd")}}), BadValue, "points out"),
    "a link out and in again": (lambda: a_tree({"d": {"x": Link("../../yard/d/x")}}), BadValue, "points out"),
    "a link out from deep inside": (lambda: nested(5, {"x": Link("../" * 6)}), BadValue, "points out"),
    "too few files": (lambda: lying(0, 5), BadValue, "is said to have"),
    "too many bytes": (lambda: lying(1, 6), BadValue, "is said to have"),
    "a chunk of another size": (wrong_chunk_size, BadValue, "it has 5"),
    "a short chunk inside": (short_chunk_inside, BadValue, "another size"),
    "a chunk of two sizes": (one_chunk_two_sizes, BadValue, "another size"),
    "too many folders in folders": (lambda: nested(FOLDER_DEPTH_MAX, {"x": b"x"}), BadValue, "folders in folders"),
    "very many files in few folders": (bomb, BadValue, "more than"),
    "a chunk as a folder": (a_chunk_as_folder, BadValue, "no tree"),
    "more bytes than a tree may have": (too_large_tree, LimitReached, "files.tree_bytes"),
}


@pytest.mark.parametrize("name", list(BAD))
def test_a_tree_that_lies_is_not_sealed(rig: Rig, name: str) -> None:
    make, error, words = BAD[name]
    tree = make()
    send(rig.context, OWNER, tree.frames())
    with pytest.raises(error, match=words):
        seal_tree(rig.context, OWNER, tree.name)


GOOD: dict[str, Callable[[], Tree]] = {
    "an empty folder": lambda: a_tree({}),
    "an empty file": lambda: a_tree({"x": b""}),
    "zeros are not stored": lambda: a_tree({"x": bytes(CHUNK_BYTES), "y": bytes(10)}),
    "as deep as possible": lambda: nested(FOLDER_DEPTH_MAX - 1, {"x": b"x"}),
    "a link up inside the tree": lambda: nested(3, {"x": Link("../../../d"), "y": Link("..")}),
    "folders that occur twice": lambda: a_tree({"a": {"b": {"x": b"x"}}, "c": {"b": {"x": b"x"}}}),
    "odd names": lambda: a_tree({"a\nb": b"1", "\x7f": b"2", " ": b"3"}),
    "names that no text has": lambda: raw(Tree(), LinkEntry(b"\xff\xfe", b"x")),
}


@pytest.mark.parametrize("name", list(GOOD))
def test_an_unusual_tree_is_sealed(rig: Rig, name: str) -> None:
    tree = GOOD[name]()
    send(rig.context, OWNER, tree.frames())
    answer = seal_tree(rig.context, OWNER, tree.name)
    assert (answer.missing, answer.files, answer.bytes) == ([], tree.files, tree.size)


def test_a_hundred_thousand_files_are_sealed_with_few_rows(rig: Rig) -> None:
    """All of them small, and of few contents: the objects of a folder are what grows."""
    tree = Tree()
    contents = [tree.add(b"%d" % number) for number in range(200)]
    folders = []
    for number in range(100):
        files = [
            FileEntry(b"%05d" % place, len(b"%d" % (place % 200)), False, [contents[place % 200]])
            for place in range(number, 1000 + number)
        ]
        folders.append(
            FolderEntry(b"%03d" % number, tree.add(encode_tree(list(files))), 1000, sum(file.size for file in files))
        )
    tree.root = tree.add(encode_tree(list(folders)))
    send(rig.context, OWNER, tree.frames())
    answer = seal_tree(rig.context, OWNER, tree.name)
    assert (answer.files, answer.missing) == (100_000, [])


def frame(data: bytes, digest: bytes | None = None, kind: int = FrameKind.CONTENT) -> bytes:
    return encode_frame(FrameKind(kind), digest or hash_of(data), data)


BODIES: dict[str, tuple[bytes, type[YardError]]] = {
    "no object": (frame(b"where", kind=FrameKind.ADDRESS), Malformed),
    "an unknown kind": (b"\x07" + frame(b"x")[1:], Malformed),
    "a frame over the bound": (b"\0" + bytes(32) + (TREE_BYTES_MAX + 1).to_bytes(4, "big"), Malformed),
    "not frames at all": (b"{}" * 100, Malformed),
    "another hash": (frame(b"x", bytes(32)), Malformed),
    "a chunk over the bound": (frame(b"x" * (CHUNK_BYTES + 1)), BadValue),
    "more bytes than a body has": (frame(bytes(CHUNK_BYTES)) * 5, TooLarge),
    "too many objects": (frame(b"x") * (OBJECTS_MAX + 1), TooLarge),
}


@pytest.mark.parametrize("name", list(BODIES))
def test_objects_before_a_mistake_are_stored(rig: Rig, name: str) -> None:
    body, error = BODIES[name]
    good = b"good, before: " + name.encode()
    with pytest.raises(error) as caught:
        sent(rig, frame(good) + body)
    assert "nothing was stored" not in caught.value.next_step
    assert missing_objects(rig.context, OWNER, [hash_of(good).hex()]).missing == []


def test_a_tree_may_be_larger_than_a_chunk(rig: Rig) -> None:
    names = (b"%0250d" % number for number in range(2 * CHUNK_BYTES // 500))
    folder = Tree()
    entries = [FileEntry(name, 0, False, []) for name in names]
    folder.root = folder.add(encode_tree(list(entries)))
    assert len(folder.objects[folder.root]) > CHUNK_BYTES
    send(rig.context, OWNER, folder.frames())
    assert seal_tree(rig.context, OWNER, folder.name).files == len(entries)


def sent(rig: Rig, body: bytes, owner: str = OWNER) -> None:
    """Send a body as the server reads it."""
    intake = ObjectIntake(rig.context, owner)
    intake.begin()
    try:
        for start in range(0, len(body), 2**20):
            intake.feed(body[start : start + 2**20])
        intake.end()
    except YardError:
        intake.salvage()
        raise


def test_a_body_cut_at_any_byte_stores_the_objects_that_are_whole(rig: Rig) -> None:
    objects = [b"cut %d" % number for number in range(3)]
    body = b"".join(map(frame, objects))
    size = len(body) // 3
    names = [hash_of(data).hex() for data in objects]
    for end in range(1, len(body)):
        whole, owner = end // size, f"user {end}"
        with pytest.raises(Malformed, match="cut off") if end % size else nullcontext():
            sent(rig, body[:end], owner)
        assert missing_objects(rig.context, owner, names).missing == names[whole:]


def test_uploads_over_the_limit_of_a_user_are_refused_with_the_rule(tmp_path: Path) -> None:
    section = FilesSection(user_bytes=1000)
    with running(f"sqlite:///{tmp_path / 'yard.db'}", tmp_path, config=Config(files=section)) as rig:
        first = a_tree({"x": b"x" * 800})
        send(rig.context, "ann", first.frames())
        send(rig.context, "ann", first.frames())  # the same again takes nothing more
        used = sum(map(len, first.objects.values()))
        with pytest.raises(LimitReached, match=r"files\.user_bytes.*config file") as refusal:
            send(rig.context, "ann", frames({hash_of(b"y" * 300): b"y" * 300}))
        assert refusal.value.limit == "files.user_bytes"
        assert files_usage(rig.context, replace(ADMIN, user_id="ann"), None).user.bytes == used
        assert missing_objects(rig.context, "ann", [hash_of(b"y" * 300).hex()]).missing
        send(rig.context, "ben", frames({hash_of(b"y" * 300): b"y" * 300}))  # others have limits of their own
        assert rig.context.tally.uploads_refused.read() == {("user_bytes",): 1}


@pytest.mark.parametrize(
    ("target", "levels"),
    [
        (b"x", 0),
        (b"..", 1),
        (b"../../a", 2),
        (b"./x//", 0),
        (b"./../.", 1),
        (b"a/..", FOLDER_DEPTH_MAX + 1),
        (b"../a/../b", FOLDER_DEPTH_MAX + 1),
        (b"/etc", FOLDER_DEPTH_MAX + 1),
        (b"a\0b", FOLDER_DEPTH_MAX + 1),
    ],
)
def test_how_far_a_link_climbs(target: bytes, levels: int) -> None:
    assert climb_of(target) == levels
