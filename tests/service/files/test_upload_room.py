"""Unused uploads of a user are released when they are in the way, and never an object that a tree gets meanwhile."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from switchyard.errors import Busy, LimitReached, Unavailable
from switchyard.model.files.files import AttemptOutputs, JobFiles, OutputState, TreeSize, UploadQuery, UploadRoom
from switchyard.server.config.config import Config, FilesSection
from switchyard.service.files import seal, upload_room
from switchyard.service.files.outputs import files_usage, record_outputs
from switchyard.service.files.possession import missing_objects
from switchyard.service.files.upload_room import check_upload, release_unused
from switchyard.storage import folder_store
from switchyard.store.files import file_collection, file_objects
from tests.service.files.trees import Tree, a_tree, send, with_files
from tests.service.rig import ADMIN, Rig, running
from tests.storage.object_writer import an_object

OWNER = ADMIN.id


class DiskUsage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture
def rig(store_url: str, tmp_path: Path) -> Iterator[Rig]:
    with running(store_url, tmp_path, config=Config(files=FilesSection(user_bytes=1000))) as rig:
        rig.cluster("c")
        yield rig


def used(rig: Rig) -> int:
    return files_usage(rig.context, ADMIN, None).user.bytes


def size_of(tree: Tree) -> int:
    return sum(map(len, tree.objects.values()))


def check(rig: Rig, new_bytes: int, **more: Any) -> UploadRoom:
    return check_upload(rig.context, ADMIN, UploadQuery(new_bytes, **more))


def test_what_fits_is_said_and_what_is_too_much_refused_with_the_numbers(rig: Rig) -> None:
    assert check(rig, 1000) == UploadRoom(fits=True)
    assert check(rig, 1001) == UploadRoom(fits=False), "only an exact count is refused"
    with pytest.raises(LimitReached, match=r"files\.user_bytes.*these take 1001B more.*config file"):
        check(rig, 1001, is_exact=True)
    rig.context.files.limits = FilesSection(tree_bytes=10).limits
    with pytest.raises(LimitReached, match=r"files\.tree_bytes"):
        check(rig, 1, trees=[TreeSize("0" * 64, 11)])


def test_what_the_disk_of_the_server_has_no_room_for_is_refused_before_its_first_byte(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, it filled the disk on which the database may be, too."""
    rig.context.files.limits = FilesSection().limits
    disk = DiskUsage(total=100 * 2**20, used=55 * 2**20, free=45 * 2**20)  # 5 MiB of it are a reserve
    monkeypatch.setattr(folder_store.shutil, "disk_usage", lambda _: disk)
    assert check(rig, 40 * 2**20, is_exact=True) == UploadRoom(fits=True)
    assert check(rig, 40 * 2**20 + 1) == UploadRoom(fits=False), "only an exact count is refused"
    with pytest.raises(LimitReached, match="disk of the server that keeps files has room for 40MiB"):
        check(rig, 40 * 2**20 + 1, is_exact=True)
    monkeypatch.setattr(folder_store.shutil, "disk_usage", lambda _: disk._replace(free=5 * 2**20))
    tree = a_tree({"x": b"late"})
    with pytest.raises(Unavailable, match="disk that keeps files is full"):
        send(rig.context, OWNER, tree.frames())
    monkeypatch.undo()


def test_a_store_that_was_removed_is_asked_for_no_room(tmp_path: Path) -> None:
    """The next upload makes it again."""
    store = folder_store.FolderStore(tmp_path / "files")
    store.prepare()
    shutil.rmtree(tmp_path / "files")
    assert store.free_bytes() is None
    store.put(*an_object(1))
    assert (store.free_bytes() or 0) > 0


def test_loose_objects_go_first_then_unused_trees_and_what_a_job_needs_stays(rig: Rig) -> None:
    needed, unused, loose = (a_tree({"x": letter * 200}) for letter in (b"a", b"b", b"c"))
    for tree in (needed, unused, loose):
        send(rig.context, OWNER, tree.frames())
    for tree in (needed, unused):
        assert seal.seal_tree(rig.context, OWNER, tree.name).missing == []
    rig.submit(with_files(JobFiles(tree=needed.name)))
    new = 1000 - size_of(needed)
    with pytest.raises(Busy, match="released within 30 s"):
        check(rig, 1000 - size_of(needed) - size_of(unused), is_exact=True)
    rig.clock.wait(31)
    assert check(rig, new, is_exact=True).released == size_of(loose)
    assert used(rig) == size_of(needed) + size_of(unused)
    assert check(rig, new, is_exact=True).released == size_of(unused)
    assert check(rig, new, is_exact=True).fits
    assert used(rig) == size_of(needed)
    with pytest.raises(LimitReached):
        check(rig, new + 1, is_exact=True)
    assert missing_objects(rig.context, OWNER, [digest.hex() for digest in needed.objects]).missing == []
    assert set(missing_objects(rig.context, OWNER, [digest.hex() for digest in loose.objects]).missing)
    send(rig.context, OWNER, needed.frames())


def test_a_seal_that_meets_a_release_is_busy(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = a_tree({"x": b"x"})
    send(rig.context, OWNER, tree.frames())
    rig.clock.wait(31)
    write = seal.large_write

    def release_then_write(*args: Any) -> Any:
        monkeypatch.setattr(seal, "large_write", write)
        assert release_unused(rig.context, OWNER).bytes == size_of(tree)
        return write(*args)

    monkeypatch.setattr(seal, "large_write", release_then_write)
    with pytest.raises(Busy, match="released while"):
        seal.seal_tree(rig.context, OWNER, tree.name)
    assert seal.seal_tree(rig.context, OWNER, tree.name).missing == [tree.name]


def test_a_release_that_meets_a_seal_is_undone(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = a_tree({"x": b"x"})
    send(rig.context, OWNER, tree.frames())
    rig.clock.wait(31)
    find = upload_room._in_trees

    def find_then_seal(*args: Any, **named: Any) -> set[bytes]:
        found = find(*args, **named)
        assert seal.seal_tree(rig.context, OWNER, tree.name).missing == []
        return found

    monkeypatch.setattr(upload_room, "_in_trees", find_then_seal)
    with pytest.raises(Busy, match="ended at this moment"):
        release_unused(rig.context, OWNER)
    assert used(rig) == size_of(tree)
    assert missing_objects(rig.context, OWNER, [digest.hex() for digest in tree.objects]).missing == []


def test_a_lost_object_is_released_with_the_others(rig: Rig) -> None:
    tree = a_tree({"x": b"x"})
    send(rig.context, OWNER, tree.frames())
    rig.clock.wait(31)
    now_us = rig.context.now_us()
    with rig.context.database.write() as tx:
        assert file_objects.loss_put(tx, [tree.root], read_us=now_us, now_us=now_us) == [tree.root]
    assert release_unused(rig.context, OWNER).bytes == size_of(tree)
    assert used(rig) == 0


def test_a_release_reads_no_tree_of_other_users_and_leaves_the_objects_to_the_leader(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, others, loose = (a_tree({"x": letter * 200}) for letter in (b"a", b"b", b"c"))
    for owner, tree in ((OWNER, mine), ("somebody else", others)):
        send(rig.context, owner, tree.frames())
        assert seal.seal_tree(rig.context, owner, tree.name).missing == []
    send(rig.context, OWNER, loose.frames())
    rig.clock.wait(31)
    read: set[bytes] = set()
    parts_between = file_collection.parts_between

    def read_and_note(*args: Any, **named: Any) -> list[file_collection.PartRow]:
        parts = parts_between(*args, **named)
        read.update(part.root for part in parts)
        return parts

    monkeypatch.setattr(file_collection, "parts_between", read_and_note)
    assert release_unused(rig.context, OWNER).bytes == size_of(loose)
    assert read == {mine.root}
    with rig.context.database.read() as tx:
        assert file_objects.object_sizes(tx, loose.objects).keys() == loose.objects.keys()
        assert file_objects.holdings(tx, OWNER, loose.objects) == set()


def test_a_user_has_one_release_at_a_time_and_a_pause_after_a_slow_one(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = a_tree({"x": b"x"})
    send(rig.context, OWNER, tree.frames())
    rig.clock.wait(31)
    find = upload_room._in_trees

    def find_slowly(*args: Any) -> set[bytes]:
        with pytest.raises(Busy, match="just looked"):
            release_unused(rig.context, OWNER)
        assert release_unused(rig.context, "somebody else").bytes == 0
        rig.clock.wait(1)
        return find(*args)

    monkeypatch.setattr(upload_room, "_in_trees", find_slowly)
    assert release_unused(rig.context, OWNER).bytes == size_of(tree)
    rig.clock.wait(19)
    with pytest.raises(Busy, match="just looked"):
        release_unused(rig.context, OWNER)
    rig.clock.wait(1)
    assert release_unused(rig.context, OWNER).bytes == 0


def test_what_a_client_was_told_to_be_there_is_not_released(rig: Rig) -> None:
    told, unused = a_tree({"x": b"x"}), a_tree({"y": b"y"})
    for tree in (told, unused):
        send(rig.context, OWNER, tree.frames())
    rig.clock.wait(31)
    assert missing_objects(rig.context, OWNER, [digest.hex() for digest in told.objects]).missing == []
    assert release_unused(rig.context, OWNER) == (size_of(unused), size_of(told))
    assert used(rig) == size_of(told)


def test_objects_of_output_files_that_are_on_their_way_are_not_released(rig: Rig) -> None:
    agent = rig.join("c", "a")
    agent.sync()
    abandoned, output = a_tree({"x": b"x"}), a_tree({"y": b"y"})
    send(rig.context, OWNER, abandoned.frames())
    rig.clock.wait(1)
    job = rig.submit(with_files(JobFiles(out=["*"])))
    lease = agent.lease_one()
    entry = rig.context.snapshots.fleet.agents[agent.id]
    record_outputs(rig.context, entry, AttemptOutputs(job.id, lease.fence, OutputState.UPLOADING))
    send(rig.context, OWNER, output.frames())
    rig.clock.wait(300)
    agent.sync()
    assert release_unused(rig.context, OWNER) == (size_of(abandoned), size_of(output))
    record_outputs(rig.context, entry, AttemptOutputs(job.id, lease.fence, OutputState.FAILED, error="no room"))
    assert release_unused(rig.context, OWNER) == (size_of(output), 0)
