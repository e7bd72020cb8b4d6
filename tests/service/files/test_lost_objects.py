"""Objects that the store has lost: the server asks for them again, and the next upload heals jobs that need them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from switchyard.errors import Unavailable
from switchyard.model.files.file_frames import FrameKind, decode_frames
from switchyard.model.files.files import JobFiles, ObjectsQuery
from switchyard.server.config.storage_section import open_store
from switchyard.service.core.context import Context
from switchyard.service.core.file_storage import SIGNED_FROM_BYTES, FileLimits, FileStorage
from switchyard.service.files import possession
from switchyard.service.files.outputs import files_usage
from switchyard.service.files.possession import missing_objects
from switchyard.service.files.reading import object_frames, plan_job_read
from switchyard.service.files.seal import seal_tree
from switchyard.storage.folder_store import FolderStore
from switchyard.store.files import file_objects
from tests.builders import a_request
from tests.s3_service import S3Server, s3_running
from tests.service.files.trees import Tree, a_tree, send
from tests.service.rig import ADMIN, Rig

Damage = Callable[[Path], None]


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_running() as server:
        yield server


class Place:
    """A server on one store, and where the store keeps its objects."""

    def __init__(self, rig: Rig, context: Context, root: Path, *, is_folder: bool) -> None:
        self.rig, self.context, self.root, self.is_folder = rig, context, root, is_folder

    def path_of(self, digest: bytes) -> Path:
        name = digest.hex()
        return self.root / name[:2] / name[2:] if self.is_folder else self.root / name

    def lose(self, digest: bytes, damage: Damage = Path.unlink) -> None:
        """Take an object away from the store. The clock of tests stands still: an upload is before this."""
        self.rig.clock.wait(1)
        damage(self.path_of(digest))

    def sealed(self, tree: Tree) -> Tree:
        send(self.context, ADMIN.id, tree.frames())
        assert seal_tree(self.context, ADMIN.id, tree.name).missing == []
        return tree

    def job_with(self, tree: Tree) -> str:
        request = a_request()
        files = JobFiles(tree=tree.name)
        spec = msgspec.structs.replace(request.spec, files=files)
        return self.rig.submit(msgspec.structs.replace(request, spec=spec)).id

    def read(self, job: str, tree: Tree, *digests: bytes, is_read_by_server: bool = False) -> list[FrameKind]:
        """What a reader gets for each object."""
        names = [digest.hex() for digest in digests]
        query = ObjectsQuery(tree.name, names, is_read_by_server=is_read_by_server)
        plan = plan_job_read(self.context, ADMIN, job, query)
        parts, end = object_frames(self.context, plan, 0, bytes_max=2**26)
        assert end == len(digests)
        return [frame.kind for frame in decode_frames(parts)]

    def missing(self, *digests: bytes) -> set[bytes]:
        answer = missing_objects(self.context, ADMIN.id, [digest.hex() for digest in digests])
        return {bytes.fromhex(name) for name in answer.missing}


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, rig: Rig, tmp_path: Path) -> Place:
    rig.cluster("c")
    if request.param == "folder":
        folder = FolderStore(tmp_path / "kept")
        folder.prepare()
        files = FileStorage(lambda: folder, FileLimits())
        return Place(rig, replace(rig.context, files=files), tmp_path / "kept", is_folder=True)
    s3: S3Server = request.getfixturevalue("s3")
    bucket = s3.create_bucket()
    store = open_store(s3.options(bucket), data=tmp_path)
    context = replace(rig.context, files=FileStorage(lambda: store, FileLimits()))
    return Place(rig, context, s3.buckets / bucket / "files", is_folder=False)


def change_one_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [Path.unlink, change_one_byte])
def test_a_lost_object_is_asked_for_again_and_heals(place: Place, damage: Damage) -> None:
    tree = place.sealed(a_tree({"data": {"a": b"one"}, "b": b"two"}))
    other = place.sealed(a_tree({"same": b"one"}))
    job = place.job_with(tree)
    used = files_usage(place.context, ADMIN, None).user.bytes
    lost = next(digest for digest, data in tree.objects.items() if data == b"one")
    place.lose(lost, damage)
    assert place.missing(lost) == set(), "nobody has looked yet"
    assert place.read(job, tree, lost) == [FrameKind.ABSENT]
    assert place.missing(*tree.objects) == {lost}
    for name in (tree.name, other.name):
        assert seal_tree(place.context, ADMIN.id, name).missing == [lost.hex()]
    send(place.context, ADMIN.id, tree.frames(lost))
    assert place.missing(*tree.objects) == set()
    assert seal_tree(place.context, ADMIN.id, tree.name).files == tree.files
    assert place.read(job, tree, *tree.objects) == [FrameKind.CONTENT] * len(tree.objects)
    assert files_usage(place.context, ADMIN, None).user.bytes == used, "it is counted once"


@pytest.mark.parametrize("damage", [Path.unlink, change_one_byte])
def test_a_lost_folder_is_asked_for_again(place: Place, damage: Damage) -> None:
    tree = a_tree({"data": {"a": b"one"}, "b": b"two"})
    send(place.context, ADMIN.id, tree.frames())
    place.lose(tree.root, damage)
    assert seal_tree(place.context, ADMIN.id, tree.name).missing == [tree.name]
    assert place.missing(*tree.objects) == {tree.root}, "the client sends it"
    send(place.context, ADMIN.id, tree.frames(tree.root))
    assert seal_tree(place.context, ADMIN.id, tree.name).files == 2


def test_folders_above_a_lost_folder_have_no_sums_that_could_be_wrong(place: Place) -> None:
    tree = place.sealed(a_tree({"a": {"b": {"x": b"one"}, "y": b"two"}, "z": b"three"}))
    inner = a_tree({"x": b"one"}).root
    place.lose(inner)
    place.rig.clock.wait(1)
    possession.note_losses(place.context, [inner], read_us=place.context.now_us())
    assert seal_tree(place.context, ADMIN.id, tree.name).missing == [inner.hex()]


def test_a_tree_of_a_store_that_was_emptied_is_asked_for_as_a_whole(place: Place) -> None:
    tree = place.sealed(a_tree({"a": {"b": {"x": b"one"}, "y": b"two"}, "z": b"three"}))
    other = a_tree({"a": {"b": {"x": b"one"}, "y": b"two"}, "z": b"changed"})
    place.rig.clock.wait(1)
    for digest in tree.objects:
        place.path_of(digest).unlink()
    assert seal_tree(place.context, ADMIN.id, tree.name).missing == [tree.name], "nobody has read it yet"
    assert place.missing(*tree.objects) == set(tree.objects)
    send(place.context, ADMIN.id, tree.frames())
    assert seal_tree(place.context, ADMIN.id, tree.name).files == tree.files
    assert place.missing(*other.objects) == set(other.objects) - set(tree.objects)


def test_the_walk_asks_the_store_for_chunks_once_a_folder_is_lost(place: Place) -> None:
    old = place.sealed(a_tree({"a": {"x": b"one"}, "z": b"two"}))
    new = a_tree({"a": {"x": b"one"}, "z": b"two", "new": b"three"})
    send(place.context, ADMIN.id, new.frames(*(set(new.objects) - set(old.objects))))
    place.rig.clock.wait(1)
    for digest in old.objects:
        place.path_of(digest).unlink()
    lost = {digest.hex() for digest in old.objects if digest != old.root and old.objects[digest] != b"one"}
    assert set(seal_tree(place.context, ADMIN.id, new.name).missing) == lost, "`one` is below a lost folder"


def test_a_store_that_is_away_does_not_hold_up_a_sealed_tree(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = place.sealed(a_tree({"a": b"one"}))

    def away(*_: object) -> set[bytes]:
        raise Unavailable("The store is away.")

    monkeypatch.setattr(type(place.context.files.store), "has", away)
    assert seal_tree(place.context, ADMIN.id, tree.name).files == 1


def test_a_large_object_of_a_bucket_is_read_by_the_server_on_request(place: Place) -> None:
    tree = place.sealed(a_tree({"large": os.urandom(SIGNED_FROM_BYTES)}))
    job = place.job_with(tree)
    lost = next(digest for digest, data in tree.objects.items() if len(data) >= SIGNED_FROM_BYTES)
    place.lose(lost)
    if not place.is_folder:
        assert place.read(job, tree, lost) == [FrameKind.ADDRESS], "the server did not look"
        assert place.missing(lost) == set()
    assert place.read(job, tree, lost, is_read_by_server=True) == [FrameKind.ABSENT]
    assert place.missing(lost) == {lost}
    assert place.read(job, tree, lost) == [FrameKind.ABSENT], "no address of an object that is known to be lost"


def test_an_object_that_is_found_again_is_not_asked_for(place: Place) -> None:
    tree = place.sealed(a_tree({"a": b"one"}))
    job = place.job_with(tree)
    lost = next(digest for digest in tree.objects if digest != tree.root)
    data = place.path_of(lost).read_bytes()
    place.lose(lost)
    assert place.read(job, tree, lost) == [FrameKind.ABSENT]
    assert place.missing(lost) == {lost}
    place.path_of(lost).write_bytes(data)  # an operator restored it
    assert place.read(job, tree, lost) == [FrameKind.CONTENT]
    assert place.missing(lost) == set()


def test_an_upload_while_a_read_misses_the_object_is_not_noted_as_lost(place: Place) -> None:
    tree = place.sealed(a_tree({"a": b"one"}))
    lost = next(digest for digest in tree.objects if digest != tree.root)
    read_us = place.context.now_us()
    place.rig.clock.wait(1)
    send(place.context, ADMIN.id, tree.frames(lost))
    possession.note_losses(place.context, [lost], read_us=read_us)
    assert place.missing(lost) == set()


def test_many_losses_make_every_tree_be_walked(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(possession, "LOSSES_CHECKED_MAX", 1)
    tree, whole = place.sealed(a_tree({"a": b"one", "b": b"two"})), place.sealed(a_tree({"c": b"three"}))
    chunks = sorted(digest for digest in tree.objects if digest != tree.root)
    place.rig.clock.wait(1)
    possession.note_losses(place.context, chunks, read_us=place.context.now_us())
    assert seal_tree(place.context, ADMIN.id, tree.name).missing == [chunk.hex() for chunk in chunks]
    assert seal_tree(place.context, ADMIN.id, whole.name).files == 1
    with place.context.database.read() as tx:
        assert file_objects.losses(tx, 10) == chunks
