"""Uploads by signed addresses: who holds what, limits, and uploads that nobody confirms. On a real S3 server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from switchyard.errors import Busy, LimitReached, Malformed, YardError
from switchyard.model.files.file_frames import FrameKind, encode_frame
from switchyard.model.files.file_tree import hash_of
from switchyard.server.config.storage_section import open_store
from switchyard.service.core.context import Context
from switchyard.service.core.file_storage import SIGNED_FROM_BYTES, FileLimits, FileStorage, UploadGrants
from switchyard.service.files.intake import ObjectIntake
from switchyard.service.files.possession import missing_objects, note_losses
from switchyard.service.upkeep.collect_files import FileCollection
from switchyard.store.files import file_collection, file_objects
from tests.programs import call
from tests.s3_service import S3Server, s3_running
from tests.service.files.trees import frames, send
from tests.service.rig import Rig, running

SIGNED_S = 600
LIMIT = 4 * SIGNED_FROM_BYTES
HOUR = 3600.0


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_running() as server:
        yield server


@pytest.fixture
def rig(store_url: str, tmp_path: Path) -> Iterator[Rig]:
    with running(store_url, tmp_path) as rig:
        yield rig


@pytest.fixture
def context(rig: Rig, s3: S3Server, tmp_path: Path) -> Context:
    store = open_store(s3.options(s3.create_bucket()), data=tmp_path)
    return replace(rig.context, files=FileStorage(lambda: store, FileLimits(user_bytes=LIMIT), signed_s=SIGNED_S))


def an_object() -> tuple[bytes, bytes]:
    data = os.urandom(SIGNED_FROM_BYTES)
    return hash_of(data), data


def ask(context: Context, owner: str, *digests: bytes, size: int = SIGNED_FROM_BYTES) -> set[str]:
    """The objects that get addresses."""
    names = [digest.hex() for digest in digests]
    return set(missing_objects(context, owner, names, [size] * len(names)).uploads)


def put(context: Context, owner: str, digest: bytes, data: bytes) -> None:
    upload = missing_objects(context, owner, [digest.hex()], [len(data)]).uploads[digest.hex()]
    assert call("PUT", upload.url, data, headers=upload.headers).status == 200


def confirm(context: Context, owner: str, *digests: bytes) -> int:
    """Say that these are uploaded, as the endpoint does. Returns how many are recorded."""
    intake = ObjectIntake(context, owner)
    intake.begin()
    intake.feed(b"".join(encode_frame(FrameKind.UPLOADED, digest, b"") for digest in digests))
    try:
        return intake.end().objects
    except YardError:
        intake.salvage()
        raise


def holds(context: Context, owner: str, digest: bytes) -> bool:
    return missing_objects(context, owner, [digest.hex()]).missing == []


def test_only_who_had_the_content_holds_the_object(context: Context) -> None:
    (digest, data), (other, other_data) = an_object(), an_object()
    put(context, "ann", digest, data)
    for owner in ("ann", "ben"):
        with pytest.raises(Malformed, match="nothing was uploaded there"):
            confirm(context, owner, other)
    with pytest.raises(Malformed, match=digest.hex()):
        confirm(context, "ben", digest)  # while it waits, too, it is not ben's
    assert confirm(context, "ann", digest) == 1
    with pytest.raises(Malformed, match=digest.hex()):
        confirm(context, "ben", digest)  # the store has it, and ben knows its hash
    assert (holds(context, "ann", digest), holds(context, "ben", digest)) == (True, False)
    assert confirm(context, "ann", digest) == 0, "again: it is held already"
    put(context, "ben", digest, data)
    put(context, "ben", other, other_data)
    with pytest.raises(Malformed, match="0" * 64):
        confirm(context, "ben", digest, other, bytes(32))
    assert holds(context, "ben", digest), "what is there counts"
    assert holds(context, "ben", other)
    assert context.files.store.get(digest) == data
    small = b"in one body with the others"
    body = frames({hash_of(small): small}) + encode_frame(FrameKind.UPLOADED, digest, b"")
    assert send(context, "ann", body).objects == 1
    assert holds(context, "ann", hash_of(small))


def test_an_upload_survives_a_failure_between_copy_and_record(rig: Rig, context: Context) -> None:
    digest, data = an_object()
    put(context, "ann", digest, data)
    gone = {digest: len(data)}
    rig.committer.call(lambda batch: file_collection.objects_adopt(batch.tx, gone))
    rig.committer.call(
        lambda batch: file_collection.objects_delete(batch.tx, gone, used_before_us=batch.now_us, now_us=batch.now_us)
    )
    with pytest.raises(Busy):
        confirm(context, "ann", digest)  # the leader is about to remove the old object
    assert not holds(context, "ann", digest)
    context.files.store.delete(gone)
    rig.clock.wait(1.0)
    rig.committer.call(lambda batch: file_collection.removals_settle(batch.tx, gone, now_us=batch.now_us))
    rig.clock.wait(1.0)
    assert confirm(context, "ann", digest) == 1
    assert context.files.store.get(digest) == data


def test_the_limit_holds_before_an_address_is_given(rig: Rig, context: Context) -> None:
    objects = [an_object() for _ in range(6)]
    digests = [digest for digest, _ in objects]
    assert len(ask(context, "ann", *digests[:4])) == 4
    assert len(ask(context, "ann", *digests[:4])) == 4, "the same again takes nothing more"
    with pytest.raises(LimitReached, match=r"files\.user_bytes"):
        ask(context, "ann", digests[4])
    with pytest.raises(LimitReached):
        ask(context, "ben", *digests[:5])
    assert ask(context, "ben", digests[4]), "others have limits of their own"
    put(context, "ann", *objects[0])
    confirm(context, "ann", digests[0])
    with pytest.raises(LimitReached):
        ask(context, "ann", digests[4])
    rig.clock.wait(SIGNED_S + 1)
    assert len(ask(context, "ann", *digests[1:4])) == 3, "addresses that have ended count no more"
    with pytest.raises(LimitReached):
        ask(context, "ann", digests[4])
    assert context.tally.uploads_refused.read() == {("user_bytes",): 4}


def test_small_objects_and_stores_without_addresses_get_none(rig: Rig, context: Context) -> None:
    digest, _ = an_object()
    assert ask(context, "ann", digest, size=SIGNED_FROM_BYTES - 1) == set()
    assert missing_objects(context, "ann", [digest.hex()]).uploads == {}, "an older client names no sizes"
    assert ask(rig.context, "ann", digest) == set(), "a folder"
    with pytest.raises(Malformed):
        confirm(rig.context, "ann", digest)


def test_uploads_that_nobody_confirms_are_removed(rig: Rig, context: Context) -> None:
    (digest, data), (confirmed, confirmed_data) = an_object(), an_object()
    put(context, "ann", digest, data)
    put(context, "ann", confirmed, confirmed_data)
    confirm(context, "ann", confirmed)
    rig.leader.take(rig.context)
    FileCollection().go(context, rig.leader)
    assert set(context.files.store.accept("ann", [digest])) == {digest}, "a client may still be at work"
    context.files.store.delete([digest])
    rig.clock.wait(HOUR + 2 * SIGNED_S)
    rig.leader.take(rig.context)
    chore = FileCollection()
    chore.go(context, rig.leader)
    assert chore.removed == {"abandoned uploads": 1}
    with pytest.raises(Malformed):
        confirm(context, "ann", digest)
    assert holds(context, "ann", confirmed)
    assert context.files.store.get(confirmed) == confirmed_data
    put(context, "ann", digest, data)
    assert confirm(context, "ann", digest) == 1
    with rig.context.database.read() as tx:
        assert file_objects.usage_get(tx, "ann") == 2 * SIGNED_FROM_BYTES


def test_open_uploads_are_counted_by_object_and_end() -> None:
    grants = UploadGrants()
    terms = {"room": 100, "valid_us": 10}
    assert grants.reserve("ann", {b"1": 60, b"2": 40}, now_us=0, **terms) == 0
    assert grants.reserve("ann", {b"1": 60, b"3": 1}, now_us=1, **terms) == 1
    assert grants.reserve("ann", {b"1": 50}, now_us=5, **terms) == 0
    assert grants.reserve("ann", {b"3": 11}, now_us=5, **terms) == 1
    assert grants.reserve("ann", {b"3": 50}, now_us=10, **terms) == 0, "the address of 2 has ended"
    grants.settle("ann", [b"1", b"unknown"])
    grants.settle("nobody", [b"1"])
    assert grants.reserve("ann", {b"4": 50}, now_us=11, **terms) == 0
    assert grants.reserve("ann", {b"5": 100}, now_us=99, **terms) == 0


def test_a_user_at_the_limit_can_send_a_lost_object_again(context: Context, rig: Rig) -> None:
    objects = dict(an_object() for _ in range(LIMIT // SIGNED_FROM_BYTES))
    send(context, "ann", frames(objects))
    lost = min(objects)
    rig.clock.wait(1)
    context.files.store.delete([lost])
    note_losses(context, [lost], read_us=context.now_us())
    put(context, "ann", lost, objects[lost])
    assert confirm(context, "ann", lost) == 1
    assert missing_objects(context, "ann", [digest.hex() for digest in objects]).missing == []
    assert context.files.store.get(lost) == objects[lost]
    with pytest.raises(LimitReached):
        send(context, "ann", frames(dict([an_object()])))
    with context.database.read() as tx:
        assert file_objects.usage_get(tx, "ann") == LIMIT
