"""Uploads scanned trees: only the objects that the server lacks, several requests at a time, resumable.

Every object is complete on the server or absent. So an upload that was cut continues by asking again what is missing.

Large objects go straight to the object store if the server gives addresses for them. If the store cannot be reached
from here or refuses an address, they go through the server like all others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

from switchyard.errors import BadRequest, MethodNotAllowed, NotFound, Unavailable, YardError
from switchyard.model.files.file_frames import FrameKind, encode_head
from switchyard.model.files.file_tree import CHUNK_BYTES, hash_of
from switchyard.model.files.files import (
    OBJECTS_ASKED_MAX,
    TREES_ANNOUNCED_MAX,
    MissingAnswer,
    SignedUpload,
    TreeAnswer,
    TreeSize,
    UploadQuery,
    UploadRoom,
)
from switchyard.sdk.files.signed_store import SignedStore
from switchyard.sdk.jobs.parallel import run_parallel
from switchyard.sdk.uploads.chunks import ChunkSource, changed, read_chunk
from switchyard.sdk.uploads.scan import ScannedTree

THREADS = 4
BODY_BYTES = CHUNK_BYTES + 2**16  # one full chunk, or many small objects: the pace of a slow uplink suffices for it
BODY_OBJECTS = 1000  # small objects cost the server a file each: several bodies share that work
BATCH_BYTES = 2**30  # of one query: its signed addresses are used before they expire
PUT_TRIES = 2  # of one object: its address may have expired, and then gets a new one
ROUNDS_MAX = 4  # of asking and sending; more only if objects vanish meanwhile
OnTransfer = Callable[[int, int], None]  # bytes done, bytes in all
Objects = Mapping[bytes, bytes | ChunkSource]


class UploadCalls(Protocol):
    """The calls of the server that an upload needs."""

    def seal_tree(self, root: bytes) -> TreeAnswer: ...

    def check_room(self, query: UploadQuery) -> UploadRoom: ...

    def absent_objects(self, digests: Iterable[bytes]) -> set[bytes]: ...

    def missing_objects(self, sizes: Mapping[bytes, int]) -> MissingAnswer: ...

    def send_objects(self, parts: tuple[bytes, ...], *, on_sent: Callable[[int], None] | None = None) -> None: ...


class _Body(NamedTuple):
    """Objects that are sent in one request. `uploads`: the addresses of objects that go to the store before."""

    digests: list[bytes]
    uploads: Mapping[str, SignedUpload]


def upload_trees(
    calls: UploadCalls,
    trees: Iterable[ScannedTree],
    *,
    store: SignedStore,
    on_progress: OnTransfer | None = None,
    project: str | None = None,
) -> None:
    """Make the server keep these trees. A tree that the server has costs one small request.

    Raise LimitReached before the first byte is sent, if the trees do not fit. `project`: of the jobs that need them.
    """
    waiting = list({tree.root: tree for tree in trees}.values())
    for _ in range(ROUNDS_MAX):
        waiting = _unsealed(calls, waiting)
        if not waiting:
            return
        objects: dict[bytes, bytes | ChunkSource] = {}
        for tree in waiting:
            objects.update(tree.objects())
        sizes = [TreeSize(tree.root.hex(), tree.size) for tree in waiting[:TREES_ANNOUNCED_MAX]]
        announce(calls, {digest: size_of(source) for digest, source in objects.items()}, sizes, project)
        _Upload(calls, store, objects, on_progress).run()
    raise Unavailable(
        f"The server still lacks objects of {len(waiting)} trees after {ROUNDS_MAX} uploads.",
        next_step="Try again; if it stays so, its operator should look at the object store.",
    )


def announce(calls: UploadCalls, sizes: Mapping[bytes, int], trees: list[TreeSize], project: str | None) -> None:
    """Tell the server how much is to come. Raise LimitReached if it does not fit."""
    query = UploadQuery(sum(sizes.values()), trees=trees, project=project)
    try:
        room = calls.check_room(query)
    except (NotFound, MethodNotAllowed):  # a server that is older than this call
        return
    tries = ROUNDS_MAX
    while not room.fits and tries:
        tries -= 1
        digests = list(sizes)
        pages = (digests[first : first + OBJECTS_ASKED_MAX] for first in range(0, len(digests), OBJECTS_ASKED_MAX))
        new = sum(sizes[digest] for page in pages for digest in calls.absent_objects(page))
        room = calls.check_room(UploadQuery(new, is_exact=True, trees=trees, project=project))


def _unsealed(calls: UploadCalls, trees: Sequence[ScannedTree]) -> list[ScannedTree]:
    """Ask the server to keep each tree. Return the trees that it lacks objects of."""
    incomplete: list[ScannedTree] = []

    def seal(tree: ScannedTree) -> None:
        if calls.seal_tree(tree.root).missing:
            incomplete.append(tree)

    run_parallel(trees, seal, threads=min(THREADS, len(trees)))
    return incomplete


class _Upload:
    """One round: ask what is missing, send it."""

    def __init__(
        self, calls: UploadCalls, store: SignedStore, objects: Objects, on_progress: OnTransfer | None
    ) -> None:
        self._calls = calls
        self._store = store
        self._objects = objects
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._done_bytes = 0
        self._is_store_away = False  # or its addresses do not work: everything goes through the server
        self._total = sum(size_of(source) for source in objects.values())

    def run(self) -> None:
        for batch in batches(self._objects):
            answer = self._calls.missing_objects({digest: size_of(self._objects[digest]) for digest in batch})
            missing = [digest for text in answer.missing if (digest := bytes.fromhex(text)) in self._objects]
            sent_bytes = sum(size_of(self._objects[digest]) for digest in missing)
            self._count(sum(size_of(self._objects[digest]) for digest in batch) - sent_bytes)
            bodies = list(self._bodies(missing, answer.uploads))
            run_parallel(bodies, self._send, threads=min(THREADS, len(bodies)))

    def _bodies(self, digests: Sequence[bytes], uploads: Mapping[str, SignedUpload]) -> Iterator[_Body]:
        for is_direct in (True, False):
            packed: list[bytes] = []
            packed_bytes = 0
            for digest in digests:
                if (digest.hex() in uploads) is not is_direct:
                    continue
                size = size_of(self._objects[digest])
                if packed and (packed_bytes + size > BODY_BYTES or len(packed) == BODY_OBJECTS):
                    yield _Body(packed, uploads if is_direct else {})
                    packed, packed_bytes = [], 0
                packed.append(digest)
                packed_bytes += size
            if packed:
                yield _Body(packed, uploads if is_direct else {})

    def _send(self, body: _Body) -> None:
        uploaded = {digest for digest in body.digests if body.uploads and self._put(digest, body.uploads)}
        try:
            self._send_frames(body.digests, uploaded)
        except BadRequest:
            if not uploaded:
                raise
            self._send_frames(body.digests, set())  # the store has lost what it took

    def _send_frames(self, digests: Sequence[bytes], uploaded: set[bytes]) -> None:
        contents = {digest: self._read(digest) for digest in digests if digest not in uploaded}
        parts: list[bytes] = []
        for digest in digests:
            kind = FrameKind.UPLOADED if digest in uploaded else FrameKind.CONTENT
            data = contents.get(digest, b"")
            parts += [encode_head(kind, digest, len(data)), data]
        body = tuple(parts) if len(digests) == 1 else (b"".join(parts),)
        try:
            self._calls.send_objects(body, on_sent=_SentBytes(self._count) if contents else None)
        except BadRequest:
            self._refuse_changed(contents)
            raise

    def _put(self, digest: bytes, uploads: Mapping[str, SignedUpload]) -> bool:
        """Send one object straight to the store. False: it must go through the server."""
        data = b""
        address = uploads.get(digest.hex())
        for _ in range(PUT_TRIES):
            if address is None or self._is_store_away:
                return False
            data = data or self._read(digest)
            sent = _SentBytes(self._count)
            try:
                self._store.put(address.url, address.headers, data, on_sent=sent)
            except YardError as exc:
                sent.undo()
                if exc.transient:
                    break
                self._refuse_changed({digest: data})
            else:
                return True
            address = self._calls.missing_objects({digest: len(data)}).uploads.get(digest.hex())
        self._is_store_away = True
        return False

    def _read(self, digest: bytes) -> bytes:
        """Return the bytes of an object. Who takes them compares them with the hash, so that is not done here."""
        source = self._objects[digest]
        return source if isinstance(source, bytes) else read_chunk(source)

    def _refuse_changed(self, contents: Mapping[bytes, bytes]) -> None:
        """Raise FileChanged if these bytes are not those that were hashed. They were refused, perhaps for that."""
        for digest, data in contents.items():
            source = self._objects[digest]
            if isinstance(source, ChunkSource) and hash_of(data) != digest:
                raise changed(source.path)

    def _count(self, more: int) -> None:
        with self._lock:
            self._done_bytes += more
            if self._on_progress:
                self._on_progress(min(self._done_bytes, self._total), self._total)


class _SentBytes:
    """Counts the bytes of one body. A body that is sent again is counted once."""

    def __init__(self, count: Callable[[int], None]) -> None:
        self._count = count
        self._counted = 0

    def __call__(self, sent: int) -> None:
        if sent != self._counted:
            self._count(sent - self._counted)
            self._counted = sent

    def undo(self) -> None:
        self(0)


def size_of(source: bytes | ChunkSource) -> int:
    return len(source) if isinstance(source, bytes) else source.size


def batches(objects: Objects) -> Iterator[list[bytes]]:
    """Divide the objects into queries, bounded in number and in bytes."""
    digests = iter(objects)
    per_batch = OBJECTS_ASKED_MAX
    while batch := list(islice(digests, per_batch)):
        first, taken = 0, 0
        for place, digest in enumerate(batch):
            taken += size_of(objects[digest])
            if taken > BATCH_BYTES and place > first:
                yield batch[first:place]
                first, taken = place, size_of(objects[digest])
        yield batch[first:]
