"""Stages the input files of one attempt: walks its trees, fetches what the cache lacks, writes the folder.

Memory is bounded: folders are read level by level in slices, small files are fetched in batches, and large ones chunk
by chunk into their place.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from switchyard.agent.files.content_cache import ContentCache
from switchyard.agent.files.folder_writer import (
    FolderWriter,
    TreePath,
    copy_content,
    is_hole,
    is_zeros,
    read_span,
    show_path,
    write_at,
)
from switchyard.agent.files.object_client import AttemptRights, ObjectStoreCalls, TakeObject
from switchyard.agent.files.transfer_threads import Transfer, TransferThreads
from switchyard.errors import Conflict, Unavailable, YardError
from switchyard.model.file_tree import (
    CHUNK_BYTES,
    DEPTH_MAX,
    FILES_MAX,
    TREE_BYTES_MAX,
    ZEROS,
    BadTree,
    ChunkSpan,
    Digest,
    FileEntry,
    FolderEntry,
    LinkEntry,
    chunk_spans,
    decode_tree,
    hash_of,
    is_inside,
)

BATCH_BYTES = 2 * CHUNK_BYTES  # fetched in one request
BATCH_FILES = 500
FOLDERS_AT_ONCE = 200  # whose entries are in memory
FOLDERS_BYTES = 16 * 2**20  # of their trees, as estimated from the counts in the trees above them
ENTRY_BYTES = 400  # of a file in a tree: at most 255 for its name, a hash, and the numbers
CHUNK_ENTRY_BYTES = 34  # of one more chunk
READ_TRIES = 3  # without an object more; then the staging as a whole waits and begins again
READ_PAUSE_S = 0.2  # before the second try; then twice as long


class FilesUnusable(Conflict):
    """The files of the job cannot be staged; trying again does not help."""


class StagingOver(Unavailable):
    """The attempt is not wanted any more, or the agent ends."""


@dataclass(frozen=True, slots=True)
class StageRequest:
    """The trees of one attempt. `index`: of the array's task; it gets one folder of `task_tree`."""

    rights: AttemptRights
    tree: bytes | None = None
    task_tree: bytes | None = None
    index: int | None = None


@dataclass(slots=True)
class StagingProgress:
    """Written by the staging threads, read by others: numbers for people."""

    files: int = 0
    bytes: int = 0
    bytes_total: int = 0
    fetched_bytes: int = 0


class _Folder(NamedTuple):
    path: TreePath
    digest: bytes
    tree_bytes: int  # estimated


@dataclass(slots=True)
class _SmallFile:
    path: TreePath
    size: int
    is_executable: bool
    is_replacing: bool


@dataclass(slots=True)
class _Batch:
    """Files of at most one chunk, by the hash of the chunk: equal files are fetched once."""

    files: dict[Digest, list[_SmallFile]] = field(default_factory=dict)
    count: int = 0
    bytes: int = 0

    @property
    def is_full(self) -> bool:
        return self.count >= BATCH_FILES or self.bytes >= BATCH_BYTES


class StageIn:
    """One run for one attempt; `is_over` ends it early."""

    def __init__(
        self,
        cache: ContentCache,
        threads: TransferThreads,
        writer: FolderWriter,
        request: StageRequest,
        *,
        is_over: Callable[[], bool],
        progress: StagingProgress,
    ) -> None:
        self._cache, self._threads, self._writer, self._request = cache, threads, writer, request
        self._is_over, self._progress = is_over, progress
        self._root = b""  # of the tree that is being staged
        self._is_replacing = False

    def run(self) -> None:
        """Raises FilesUnusable, OSError, or a transient YardError after which a new run may succeed."""
        try:
            if self._request.tree is not None:
                self._root = self._request.tree
                self._stage(self._root)
            if self._request.task_tree is not None:
                self._root, self._is_replacing = self._request.task_tree, True
                self._stage(self._task_folder())
        except BadTree as exc:
            raise FilesUnusable(f"The job's files cannot be read: {exc}.") from exc

    def _task_folder(self) -> bytes:
        """The tree of this task's own files: the folder with its index as the name."""
        name = str(self._request.index).encode()
        [data] = self._read_trees([self._root])
        for entry in decode_tree(data):
            if isinstance(entry, FolderEntry) and entry.name == name:
                return entry.tree
        raise FilesUnusable(f"The job has no files for the index {self._request.index}.")

    def _stage(self, top: bytes) -> None:
        level = [_Folder((), top, FOLDERS_BYTES)]
        for depth in range(DEPTH_MAX + 1):
            below: list[_Folder] = []
            for folders in _slices(level):
                below += self._stage_folders(folders, is_top=depth == 0)
            if not below:
                return
            level = below
        raise BadTree(f"it has more than {DEPTH_MAX} folders in folders")

    def _stage_folders(self, folders: list[_Folder], *, is_top: bool) -> list[_Folder]:
        """Stage the files of these folders. Returns their subfolders."""
        below: list[_Folder] = []
        large: list[tuple[TreePath, FileEntry]] = []
        trees = self._read_trees([folder.digest for folder in folders])
        self._threads.run(self._small_files(folders, trees, below, large, is_top=is_top))
        for path, entry in large:
            self._stage_large(path, entry)
        return below

    def _small_files(
        self,
        folders: list[_Folder],
        trees: list[bytes],
        below: list[_Folder],
        large: list[tuple[TreePath, FileEntry]],
        *,
        is_top: bool,
    ) -> Iterator[Transfer]:
        """Make subfolders, links and empty files; give the transfers of small files; leave the others in `large`."""
        batch = _Batch()
        for (folder, _, _), data in zip(folders, trees, strict=True):
            self._check_wanted()
            entries = decode_tree(data)
            if is_top:
                self._progress.bytes_total += sum(e.size for e in entries if not isinstance(e, LinkEntry))
            for entry in entries:
                path = (*folder, entry.name)
                if isinstance(entry, FolderEntry):
                    self._writer.make_folder(path)
                    size = entry.files * ENTRY_BYTES + entry.size // CHUNK_BYTES * CHUNK_ENTRY_BYTES
                    below.append(_Folder(path, entry.tree, size))
                elif isinstance(entry, LinkEntry):
                    if not is_inside(folder, entry.target):
                        raise BadTree(f"the link {show_path(path)!r} leaves the job's folder")
                    self._writer.make_link(path, entry.target, is_replacing=self._is_replacing)
                elif all(chunk == ZEROS for chunk in entry.chunks):
                    self._write_zeros(path, entry)
                elif len(entry.chunks) > 1:
                    large.append((path, entry))
                else:
                    places = batch.files.setdefault(entry.chunks[0], [])
                    batch.bytes += 0 if places else entry.size
                    batch.count += 1
                    places.append(_SmallFile(path, entry.size, entry.is_executable, self._is_replacing))
                    if batch.is_full:
                        yield partial(self._stage_small, batch.files)
                        batch = _Batch()
                self._count_entry()
        if batch.files:
            yield partial(self._stage_small, batch.files)

    def _write_zeros(self, path: TreePath, entry: FileEntry) -> None:
        with self._writer.new_file(path, is_executable=entry.is_executable, is_replacing=self._is_replacing) as number:
            os.ftruncate(number, entry.size)
        self._progress.bytes += entry.size

    def _count_entry(self) -> None:
        self._progress.files += 1
        if self._progress.files > FILES_MAX:
            raise BadTree(f"it has more than {FILES_MAX} files")

    def _read_trees(self, digests: list[bytes]) -> list[bytes]:
        trees: dict[bytes, bytes] = {}

        def keep(digest: bytes, content: bytes | int) -> None:
            trees[digest] = content if isinstance(content, bytes) else read_span(content, 0, TREE_BYTES_MAX)

        self._threads.run([partial(self._fetch, set(digests), keep)])
        return [trees[digest] for digest in digests]

    def _stage_small(self, files: dict[Digest, list[_SmallFile]], calls: ObjectStoreCalls) -> None:
        def write(digest: bytes, content: bytes | int) -> None:
            for file in files[digest]:
                with self._writer.new_file(
                    file.path, is_executable=file.is_executable, is_replacing=file.is_replacing
                ) as number:
                    if isinstance(content, bytes):
                        write_at(number, content, 0)
                    else:
                        copy_content(content, number)
                    if os.fstat(number).st_size != file.size:
                        raise BadTree(f"{show_path(file.path)!r} has another size than its chunk")
                self._progress.bytes += file.size

        self._fetch(set(files), write, calls)

    def _fetch(
        self, digests: Iterable[bytes], deliver: Callable[[bytes, bytes | int], None], calls: ObjectStoreCalls
    ) -> None:
        """Deliver each object, from the cache (the number of a file) or from the server (its bytes)."""
        waiting = set(digests)

        def take(digest: bytes, data: bytes) -> None:
            self._check_wanted()
            self._progress.fetched_bytes += len(data)
            deliver(digest, data)
            waiting.discard(digest)
            if self._cache.takes(len(data)):
                with self._cache.new_file() as new:
                    write_at(new.number, data, 0)
                    self._cache.add(new, digest.hex(), len(data))

        while waiting:
            self._check_wanted()
            for digest in list(waiting):
                with self._cache.open(digest.hex(), partial(_is_object, digest)) as number:
                    if number is not None:
                        deliver(digest, number)
                        waiting.discard(digest)
            claimed = self._cache.claim(digest.hex() for digest in waiting)
            try:
                if mine := [digest for digest in waiting if digest.hex() in claimed]:
                    self._read_objects(mine, take, calls)
            finally:
                self._cache.release(claimed)
            # Others are fetched by another attempt: wait for them with nothing claimed, then look again.
            self._cache.wait_for({digest.hex() for digest in waiting}, is_over=self._is_over)

    def _stage_large(self, path: TreePath, entry: FileEntry) -> None:
        """A file of several chunks: assembled once in the cache, or in its place if it is too large for the cache."""
        stored = sum(span.size for span, chunk in _chunks_of(entry))
        name = _name_of(entry)
        with self._writer.new_file(path, is_executable=entry.is_executable, is_replacing=self._is_replacing) as target:
            if not self._cache.takes(stored):
                self._assemble(entry, target)
                self._progress.bytes += entry.size
                return
            while True:
                self._check_wanted()
                with self._cache.open(name, partial(_is_file, entry)) as number:
                    if number is not None:
                        copy_content(number, target)
                        self._progress.bytes += entry.size
                        return
                if not self._cache.claim([name]):
                    self._cache.wait_for([name], is_over=self._is_over)
                    continue
                try:
                    with self._cache.new_file() as new:
                        self._assemble(entry, new.number)
                        copy_content(new.number, target)
                        self._cache.add(new, name, stored)
                finally:
                    self._cache.release([name])
                self._progress.bytes += entry.size
                return

    def _assemble(self, entry: FileEntry, number: int) -> None:
        os.ftruncate(number, entry.size)
        spans: dict[bytes, list[ChunkSpan]] = {}
        for span, digest in _chunks_of(entry):
            spans.setdefault(digest, []).append(span)

        def fetch(digests: list[bytes], calls: ObjectStoreCalls) -> None:
            def take(digest: bytes, data: bytes) -> None:
                self._check_wanted()
                self._progress.fetched_bytes += len(data)
                for span in spans[digest]:
                    if len(data) != span.size:
                        raise BadTree(f"a chunk of {entry.name[:80]!r} has another size than the file says")
                    write_at(number, data, span.offset)

            self._read_objects(digests, take, calls)

        several = list(spans)
        self._threads.run(partial(fetch, several[first : first + 2]) for first in range(0, len(several), 2))

    def _read_objects(self, digests: list[bytes], take: TakeObject, calls: ObjectStoreCalls) -> None:
        """Read these objects, and ask again for those that did not come.

        One lost answer must not begin a large file anew. And an address of the object store expires: each request
        brings a new one.
        """
        left = dict.fromkeys(digests)
        tries = 0

        def take_one(digest: bytes, data: bytes) -> None:
            take(digest, data)
            del left[digest]

        while left:
            count = len(left)
            try:
                calls.read(self._request.rights, self._root, list(left), take_one)
            except YardError as exc:
                tries = 1 if len(left) < count else tries + 1
                if not exc.transient or isinstance(exc, StagingOver) or tries == READ_TRIES:
                    raise
                self._check_wanted()
                time.sleep(READ_PAUSE_S * 2 ** (tries - 1))

    def _check_wanted(self) -> None:
        if self._is_over():
            raise StagingOver


def _slices(folders: list[_Folder]) -> Iterator[list[_Folder]]:
    """Folders whose trees are read together."""
    together: list[_Folder] = []
    for folder in folders:
        is_full = len(together) >= FOLDERS_AT_ONCE or sum(f.tree_bytes for f in together) >= FOLDERS_BYTES
        if together and is_full:
            yield together
            together = []
        together.append(folder)
    if together:
        yield together


def _chunks_of(entry: FileEntry) -> Iterator[tuple[ChunkSpan, bytes]]:
    """The chunks that are stored, with their places."""
    return ((span, chunk) for span, chunk in zip(chunk_spans(entry.size), entry.chunks, strict=True) if chunk != ZEROS)


def _name_of(entry: FileEntry) -> str:
    """The name of a whole file in the cache: by its size and the hashes of its chunks."""
    text = b"".join([b"yard-file\n", str(entry.size).encode(), *(chunk.ljust(32, b"\0") for chunk in entry.chunks)])
    return hashlib.sha256(text).hexdigest()


def _is_object(digest: bytes, number: int) -> bool:
    size = os.fstat(number).st_size
    return size <= TREE_BYTES_MAX and hash_of(read_span(number, 0, size)) == digest


def _is_file(entry: FileEntry, number: int) -> bool:
    if os.fstat(number).st_size != entry.size:
        return False
    return all(
        (is_hole(number, *span) or is_zeros(read_span(number, *span)))
        if chunk == ZEROS
        else hash_of(read_span(number, *span)) == chunk
        for span, chunk in zip(chunk_spans(entry.size), entry.chunks, strict=True)
    )
