"""What every store of objects must do: a folder, a bucket of a real S3 server with and without a prefix."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from switchyard.model.files.file_tree import CHUNK_BYTES, hash_of
from switchyard.server.config.storage_section import open_store
from switchyard.storage import object_store
from switchyard.storage.object_store import ObjectDamaged, ObjectMissing, ObjectStore, StorageOptions
from tests.programs import call
from tests.s3_service import S3Server, s3_running
from tests.storage.object_writer import an_object

NOTHING = bytes(32)  # the hash of no object here


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_running() as server:
        yield server


@pytest.fixture(params=["folder", "s3", "s3-root"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "folder":
        return open_store(StorageOptions(), data=tmp_path)
    server: S3Server = request.getfixturevalue("s3")
    prefix = "deep/files" if request.param == "s3" else ""
    return open_store(server.options(server.create_bucket(), prefix), data=tmp_path)


def test_an_object_comes_back(store: ObjectStore) -> None:
    for size in (0, 1, 4096, CHUNK_BYTES):
        digest, data = an_object(size, size)
        store.put(digest, data)
        assert store.get(digest) == data
        assert store.has([digest, NOTHING]) == {digest}


def test_many_objects_come_back_in_order(store: ObjectStore) -> None:
    objects = [an_object(seed, seed) for seed in range(50)]
    store.put_many(iter(objects))
    store.put_many([])
    answers = list(store.get_many([digest for digest, _ in objects] + [NOTHING]))
    assert answers[:-1] == [data for _, data in objects]
    assert isinstance(answers[-1], ObjectMissing)
    assert store.has(digest for digest, _ in objects) == {digest for digest, _ in objects}


def test_objects_that_the_caller_has_checked_are_not_hashed_again(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = [an_object(seed, seed) for seed in range(20)]
    hashed: list[bytes] = []
    with monkeypatch.context() as patch:
        patch.setattr(object_store, "hash_of", lambda data: hashed.append(data) or hash_of(data))
        store.put_many(objects, are_checked=True)
    assert hashed == []
    assert list(store.get_many([digest for digest, _ in objects])) == [data for _, data in objects]


def test_an_object_that_is_not_there(store: ObjectStore) -> None:
    with pytest.raises(ObjectMissing, match=NOTHING.hex()):
        store.get(NOTHING)
    assert store.has([NOTHING]) == set()
    assert store.has([]) == set()
    store.delete([NOTHING])
    store.delete([])


def test_bytes_with_another_hash_are_refused(store: ObjectStore) -> None:
    digest, data = an_object(1)
    for wrong in (data + b"x", data[:-1], b""):
        with pytest.raises(ObjectDamaged, match=digest.hex()):
            store.put(digest, wrong)
        with pytest.raises(ObjectDamaged, match=digest.hex()):
            store.put_many([an_object(2), (digest, wrong)])
    assert store.has([digest]) == set()
    assert [stored.digest for stored in store.list()] in ([], [an_object(2)[0]])


def test_an_object_twice_is_stored_once(store: ObjectStore) -> None:
    digest, data = an_object(3)
    for _ in range(3):
        store.put(digest, data)
    store.put_many([(digest, data)] * 5)
    assert [(stored.digest, stored.size) for stored in store.list()] == [(digest, 1000)]


def test_delete_removes_only_what_it_names(store: ObjectStore) -> None:
    objects = [an_object(seed) for seed in range(5)]
    store.put_many(objects)
    store.delete([objects[0][0], objects[1][0], NOTHING])
    assert store.has(digest for digest, _ in objects) == {digest for digest, _ in objects[2:]}
    store.put(*objects[0])
    assert store.get(objects[0][0]) == objects[0][1]


def test_list_goes_by_hash_and_goes_on_behind_one(store: ObjectStore) -> None:
    objects = dict(an_object(seed, seed + 1) for seed in range(30))
    store.put_many(objects.items())
    listed = list(store.list())
    assert all(one.digest < other.digest for one, other in pairwise(listed))
    assert {stored.digest: stored.size for stored in listed} == {digest: len(data) for digest, data in objects.items()}
    assert max(stored.modified_us for stored in listed) - min(stored.modified_us for stored in listed) < 3600e6
    for place in (0, 14, 29):
        assert list(store.list(listed[place].digest)) == listed[place + 1 :]
    assert list(store.list(b"\xff" * 32)) == []


def test_two_writers_of_one_object_at_once(store: ObjectStore) -> None:
    digest, data = an_object(4, 300_000)
    at_once([lambda: store.put(digest, data)] * 6 + [lambda: store.put_many([(digest, data), an_object(5)])] * 2)
    assert store.get(digest) == data
    assert [stored.digest for stored in store.list()] == sorted([digest, an_object(5)[0]])


def at_once(calls: Sequence[Callable[[], None]]) -> None:
    """Run all calls at the same time; the first failure is raised here."""
    begin = threading.Barrier(len(calls))
    with ThreadPoolExecutor(len(calls)) as threads:
        for done in [threads.submit(lambda call=call: (begin.wait(), call())) for call in calls]:
            done.result()


def test_an_upload_by_a_signed_address_is_accepted_once_it_is_there(store: ObjectStore) -> None:
    digest, data = an_object(6, 300_000)
    assert store.accept("ann", [digest]) == {}
    assert store.accept("ann", []) == {}
    upload = store.signed_put("ann", digest, len(data), valid_s=600)
    if upload is None:
        store.put(digest, data)
    else:
        assert call("PUT", upload.url, data, headers=upload.headers).status == 200
        assert list(store.list()) == []
        for _ in range(2):  # a server that failed after the first time asks again
            assert store.accept("ann", [digest, NOTHING]) == {digest: len(data)}
    assert [(stored.digest, stored.size) for stored in store.list()] == [(digest, len(data))]
    assert store.get(digest) == data
    store.drop_incoming("ann", [digest, NOTHING])
    assert store.accept("ann", [digest]) == {}, "an object of the store alone tells nothing about who had it"
    assert store.get(digest) == data


def test_abandoned_uploads_are_removed_by_their_age(store: ObjectStore) -> None:
    objects = [an_object(seed, 1000) for seed in range(5)]
    for digest, data in objects:
        upload = store.signed_put("ann", digest, len(data), valid_s=600)
        if upload is None:
            assert store.drop_abandoned(before_us=2**60, limit=9) == 0
            return
        assert call("PUT", upload.url, data, headers=upload.headers).status == 200
    digests = [digest for digest, _ in objects]
    store.put(*objects[0])
    assert store.drop_abandoned(before_us=0, limit=9) == 0
    assert store.drop_abandoned(before_us=2**60, limit=3) == 3
    assert len(store.accept("ann", digests)) == 2
    assert store.drop_abandoned(before_us=2**60, limit=3) == 2
    assert store.accept("ann", digests) == {}
    assert store.get(objects[0][0]) == objects[0][1], "objects of the store stay"


def test_check_passes_and_leaves_nothing(store: ObjectStore) -> None:
    store.check()
    assert list(store.list()) == []
