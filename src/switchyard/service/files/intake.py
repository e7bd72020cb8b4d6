"""Take the objects of an upload: verify their hashes, put them into the store, then record who holds them.

Objects go into the store in groups while the body arrives, so one upload keeps a bounded number of bytes in memory.
What arrived before a mistake or before the connection broke is recorded: the client sends only the rest.

An object that the client has uploaded by a signed address comes as a frame UPLOADED. The store then copies it to its
place, and the bytes do not pass through here. It has checked their hash before.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

from switchyard.errors import BadValue, Busy, Malformed, TooLarge, YardError
from switchyard.model.files.file_frames import BODY_BYTES_MAX, OBJECTS_MAX, BadFrame, Frame, FrameKind, FrameReader
from switchyard.model.files.file_tree import CHUNK_BYTES, HEADER, hash_of
from switchyard.model.files.files import StoredObjects
from switchyard.service.core.agents.agent_calls import AgentAttempt
from switchyard.service.core.context import Context
from switchyard.service.core.file_storage import coarse_room
from switchyard.service.core.writes.batch import Batch
from switchyard.service.files.possession import held_objects, large_write, sender_of
from switchyard.service.files.upload_addresses import agent_limit_refusal, user_limit_refusal
from switchyard.store.files import attempt_uploads, file_objects

GROUP_BYTES = 8 * 2**20  # put into the store together
OTHERS_STORED = "Correct the body and send it again; the objects before the mistake are stored."
UPLOADED_MAX = 1000  # frames UPLOADED in one body: the store gets three small requests for each


@dataclass(slots=True)
class ObjectIntake:
    """One upload. Every call may block: use it on a thread."""

    context: Context
    owner: str
    attempt: AgentAttempt | None = None  # an agent sends the objects for it
    _frames: FrameReader = field(default_factory=FrameReader)
    _group: dict[bytes, bytes] = field(default_factory=dict)
    _group_bytes: int = 0
    _sizes: dict[bytes, int] = field(default_factory=dict)  # of objects in the store
    _uploaded: set[bytes] = field(default_factory=set)  # of frames UPLOADED that the store was not asked for yet
    _incoming: set[bytes] = field(default_factory=set)  # accepted, and to be removed from where they were uploaded
    _began_us: int = -1
    _count: int = 0
    _bytes: int = 0

    def begin(self) -> None:
        """Refuse a user who has no room left."""
        self._began_us = self.context.now_us()
        limit = self.context.files.limits.user_bytes
        with self.context.database.read() as tx:
            used = file_objects.usage_get(tx, self.owner)
            # What the store has lost may be sent again: it is in `used`, so it needs no room.
            left = limit - used if self.attempt is None else coarse_room(limit, used) if limit else 0
            is_full = bool(limit) and left <= 0 and not file_objects.losses(tx, 1)
        if is_full:
            raise (
                user_limit_refusal(self.context, used, 1)
                if self.attempt is None
                else agent_limit_refusal(self.context, 1)
            )

    def feed(self, *pieces: bytes) -> None:
        """Take the next pieces of the body."""
        for piece in pieces:
            self._bytes += len(piece)
            if self._bytes > BODY_BYTES_MAX:
                raise TooLarge(
                    f"The body is over {BODY_BYTES_MAX} bytes.", next_step="Send fewer objects in one request."
                )
            try:
                for frame in self._frames.feed(piece):
                    self._take(frame)
            except BadFrame as exc:
                raise _bad_body(exc) from None

    def end(self) -> StoredObjects:
        try:
            self._frames.end()
        except BadFrame as exc:
            raise _bad_body(exc) from None
        self.flush()
        return self.record()

    def salvage(self) -> None:
        """After a failure: store and record the objects that arrived before it. A second failure says nothing new."""
        with contextlib.suppress(YardError):
            self.flush()
        with contextlib.suppress(YardError):
            self.record()

    def record(self) -> StoredObjects:
        """Record what is in the store."""
        sizes, self._sizes = self._sizes, {}
        incoming, self._incoming = self._incoming, set()
        if sizes:
            large_write(self.context, self.owner, lambda batch: self._record(batch, sizes))
            self.context.files.grants.settle(self.owner, sizes)
        if incoming:
            # Only now: after a failure above the client says again that they are uploaded. If this fails, the leader
            # removes them after a while.
            with contextlib.suppress(YardError):
                self.context.files.store.drop_incoming(sender_of(self.owner, self.attempt), incoming)
        return StoredObjects(len(sizes), sum(sizes.values()))

    def _take(self, frame: Frame) -> None:
        if frame.kind is FrameKind.UPLOADED and not frame.data:
            self._uploaded.add(frame.digest)
            if len(self._uploaded) > UPLOADED_MAX:
                raise TooLarge(f"The body has more than {UPLOADED_MAX} frames of the kind UPLOADED.")
            return
        if frame.kind is not FrameKind.CONTENT:
            raise Malformed(
                f"A frame of the kind {frame.kind.name} with {len(frame.data)} bytes is not an object.",
                next_step=OTHERS_STORED,
            )
        self._count += 1
        if self._count > OBJECTS_MAX:
            raise TooLarge(f"The body has more than {OBJECTS_MAX} objects.")
        if len(frame.data) > CHUNK_BYTES and not frame.data.startswith(HEADER):
            raise BadValue(
                f"The object {frame.digest.hex()} has {len(frame.data)} bytes. A chunk of a file has at most "
                f"{CHUNK_BYTES}; only a tree may have more.",
                next_step=f"Divide the file into chunks of {CHUNK_BYTES} bytes. {OTHERS_STORED}",
            )
        if hash_of(frame.data) != frame.digest:
            raise Malformed(
                f"The object {frame.digest.hex()} has other bytes; the objects before it are stored.",
                next_step="A file changed while it was read, or the network damaged it: hash it and send it again.",
            )
        self._group[frame.digest] = frame.data
        self._group_bytes += len(frame.data)
        if self._group_bytes >= GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Put the objects that have arrived into the store, and accept those that are there already."""
        group, self._group, self._group_bytes = self._group, {}, 0
        if group:
            self.context.files.store.put_many(group.items(), are_checked=True)
            self._sizes.update((digest, len(data)) for digest, data in group.items())
        uploaded, self._uploaded = self._uploaded, set()
        if uploaded:
            self._accept(uploaded)

    def _accept(self, uploaded: set[bytes]) -> None:
        sizes = self.context.files.store.accept(sender_of(self.owner, self.attempt), uploaded)
        self._sizes.update(sizes)
        self._incoming.update(sizes)
        absent = uploaded - sizes.keys()
        # Another request of this user may have recorded an object, and then removed its upload.
        if absent and (lost := absent - held_objects(self.context, self.owner, absent, attempt=self.attempt).keys()):
            raise Malformed(
                f"The object {min(lost).hex()} is not at the address that the server gave for it: nothing was uploaded "
                "there, or the object store refused it because it had other bytes.",
                next_step="Ask for a new address with `POST /v1/files/missing`, or send the object as a frame CONTENT.",
            )

    def _record(self, batch: Batch, sizes: dict[bytes, int]) -> None:
        file_objects.object_put(batch.tx, sizes, now_us=batch.now_us)
        if file_objects.being_removed(batch.tx, sizes, since_us=self._began_us):
            # The leader may have removed one of them after it was found in the store.
            raise Busy("Some of these objects are just being removed because nobody used them for long.")
        new = file_objects.holder_put(batch.tx, self.owner, sizes, now_us=batch.now_us)
        if len(new) < len(sizes):
            file_objects.holder_touch(batch.tx, self.owner, sizes.keys() - set(new), now_us=batch.now_us)
        added = sum(sizes[digest] for digest in new)
        limit = self.context.files.limits.user_bytes
        used = file_objects.usage_get(batch.tx, self.owner)
        if self.attempt is not None:
            self._record_for(batch, self.attempt, sizes, used=used)
        elif added and limit and used + added > limit:
            raise user_limit_refusal(self.context, used, added)
        file_objects.usage_add(batch.tx, {self.owner: added} if added else {})

    def _record_for(self, batch: Batch, attempt: AgentAttempt, sizes: dict[bytes, int], *, used: int) -> None:
        """Record what was sent for an attempt. All of it counts as new: a refusal does not say what the owner holds."""
        limit = self.context.files.limits.user_bytes
        sent = attempt_uploads.sent_objects(batch.tx, attempt.row.id, attempt.fence, sizes)
        asked = sum(size for digest, size in sizes.items() if digest not in sent)
        if asked and limit and asked > coarse_room(limit, used):
            raise agent_limit_refusal(self.context, asked)
        attempt_uploads.upload_put(batch.tx, attempt.row.id, attempt.fence, sizes, now_us=batch.now_us)


def _bad_body(exc: BadFrame) -> Malformed:
    return Malformed(f"The body is not well-formed: {exc}.", next_step=OTHERS_STORED)
