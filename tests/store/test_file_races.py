"""Files that are used at the very moment at which the leader removes them: one of the two sees the other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from typing import Any

from switchyard.store.engine.database import Database, Tx
from switchyard.store.files import file_collection, file_objects, file_trees
from switchyard.store.files.file_trees import IN, FileRef, TreeRow

ROOT, OBJECT = b"r" * 32, b"o" * 32
OLD_US, CUT_US, NOW_US = 1, 100, 1000
WAIT_S = 60


def meanwhile(url: str, work: Callable[[Tx], Any]) -> Future[Any]:
    """Run a write of another server. It may have to wait for a lock."""
    result: Future[Any] = Future()

    def run() -> None:
        try:
            with closing(Database(url)) as other:
                with other.write() as tx:
                    value = work(tx)
                result.set_result(value)  # after the commit
        except BaseException as exc:  # noqa: BLE001  the test shows it
            result.set_exception(exc)

    threading.Thread(target=run, daemon=True).start()
    return result


def seal(database: Database) -> None:
    with database.write() as tx:
        file_objects.object_put(tx, {OBJECT: 5}, now_us=OLD_US)
        file_objects.holder_put(tx, "ann", [OBJECT], now_us=OLD_US)
        file_trees.tree_put(tx, TreeRow(ROOT, 1, 5, ""), [OBJECT], ["ann"], now_us=OLD_US)


def remove_tree(tx: Tx) -> int:
    return file_collection.tree_owners_delete(tx, {(ROOT, "ann")}, used_before_us=CUT_US)


def test_a_tree_that_a_job_is_about_to_need_stays(store: Database, store_url: str) -> None:
    seal(store)
    with store.write() as tx:
        assert file_trees.trees_for_jobs(tx, [("ann", ROOT)])
        removing = meanwhile(store_url, remove_tree)
        file_trees.ref_put(tx, [FileRef("job", ROOT, IN, "default")])
    assert removing.result(WAIT_S) == 0
    with store.read() as tx:
        assert file_trees.members_among(tx, ROOT, [OBJECT, ROOT]) == {OBJECT}


def test_a_tree_that_is_just_removed_is_unknown_to_a_submit(store: Database, store_url: str) -> None:
    seal(store)
    with store.write() as tx:
        assert remove_tree(tx) == 1
        submitting = meanwhile(store_url, lambda other: file_trees.trees_for_jobs(other, [("ann", ROOT)]))
    assert submitting.result(WAIT_S) == {}


def test_a_tree_that_another_user_seals_stays(store: Database, store_url: str) -> None:
    seal(store)
    with store.write() as tx:
        file_trees.tree_put(tx, TreeRow(ROOT, 1, 5, ""), [OBJECT], ["ben"], now_us=NOW_US)
        removing = meanwhile(store_url, remove_tree)
    assert removing.result(WAIT_S) == 1  # Ann's
    with store.read() as tx:
        assert file_trees.tree_of_owner(tx, "ben", ROOT) is not None
        assert file_trees.members_among(tx, ROOT, [OBJECT]) == {OBJECT}


def test_an_object_that_is_just_uploaded_stays(store: Database, store_url: str) -> None:
    with store.write() as tx:
        file_objects.object_put(tx, {OBJECT: 5}, now_us=OLD_US)
    with store.write() as tx:
        file_objects.object_put(tx, {OBJECT: 5}, now_us=NOW_US)
        removing = meanwhile(store_url, remove_object)
        file_objects.holder_put(tx, "ann", [OBJECT], now_us=NOW_US)
    assert removing.result(WAIT_S) == 0
    with store.read() as tx:
        assert file_objects.held_sizes(tx, "ann", [OBJECT]) == {OBJECT: 5}


def test_an_upload_of_an_object_that_is_just_removed_sees_it(store: Database, store_url: str) -> None:
    with store.write() as tx:
        file_objects.object_put(tx, {OBJECT: 5}, now_us=OLD_US)

    def upload(other: Tx) -> bool:
        file_objects.object_put(other, {OBJECT: 5}, now_us=NOW_US)
        return file_objects.being_removed(other, [OBJECT], since_us=NOW_US)

    with store.write() as tx:
        assert remove_object(tx) == 1
        uploading = meanwhile(store_url, upload)
    assert uploading.result(WAIT_S) is True


def test_a_touch_of_an_object_that_is_just_removed_finds_nothing(store: Database, store_url: str) -> None:
    seal(store)
    with store.write() as tx:
        assert file_collection.holders_delete(tx, [(OBJECT, "ann")], used_before_us=CUT_US) == [(OBJECT, "ann")]
        touching = meanwhile(store_url, lambda other: file_objects.holder_touch(other, "ann", [OBJECT], now_us=NOW_US))
    assert touching.result(WAIT_S) == set()


def remove_object(tx: Tx) -> int:
    return file_collection.objects_delete(tx, [OBJECT], used_before_us=CUT_US, now_us=NOW_US)


def lose(tx: Tx) -> list[bytes]:
    """A read that began long ago has not found the object."""
    return file_objects.loss_put(tx, [OBJECT], read_us=CUT_US, now_us=NOW_US)


def test_an_object_that_is_just_sent_again_is_not_lost(store: Database, store_url: str) -> None:
    seal(store)
    with store.write() as tx:
        file_objects.object_put(tx, {OBJECT: 5}, now_us=NOW_US)
        losing = meanwhile(store_url, lose)
    assert losing.result(WAIT_S) == []
    with store.read() as tx:
        assert file_objects.held_sizes(tx, "ann", [OBJECT]) == {OBJECT: 5}


def test_an_upload_beside_the_note_of_a_loss_takes_the_note_back(store: Database, store_url: str) -> None:
    seal(store)

    def upload(other: Tx) -> None:
        file_objects.object_put(other, {OBJECT: 5}, now_us=NOW_US)

    with store.write() as tx:
        assert lose(tx) == [OBJECT]
        assert file_objects.held_sizes(tx, "ann", [OBJECT]) == {}
        uploading = meanwhile(store_url, upload)
    uploading.result(WAIT_S)
    with store.read() as tx:
        assert file_objects.held_sizes(tx, "ann", [OBJECT]) == {OBJECT: 5}
        assert file_objects.losses(tx, 10) == []


def test_an_object_that_the_leader_removed_is_not_lost(store: Database, store_url: str) -> None:
    with store.write() as tx:
        file_objects.object_put(tx, {OBJECT: 5}, now_us=OLD_US)
        assert lose(tx) == [OBJECT]
        assert lose(tx) == [OBJECT], "two servers note the same loss"
    with store.write() as tx:
        assert remove_object(tx) == 1
        losing = meanwhile(store_url, lose)
    assert losing.result(WAIT_S) == []
    with store.read() as tx:
        assert file_objects.losses(tx, 10) == []
