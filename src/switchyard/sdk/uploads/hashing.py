"""Hashes the files of a scan, several at a time. What the cache knows is not read."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from switchyard.errors import BadRequest
from switchyard.model.files.file_tree import CHUNK_BYTES, ChunkSpan, chunk_spans
from switchyard.sdk.files.file_names import show_name
from switchyard.sdk.jobs.parallel import run_parallel
from switchyard.sdk.uploads.chunks import ChunkSource, hash_chunks, hash_content, read_unchanged
from switchyard.sdk.uploads.hash_cache import FileState, HashCache

THREADS = min(4, os.cpu_count() or 1)
SPAN_CHUNKS = 4  # of a large file: read by one thread in one go
GROUP_FILES = 100  # small files: read by one thread in one go
LONG_READ_BYTES = 64 * 2**20  # takes a noticeable time
MEMORY_FILE_BYTES = 64 * 2**10  # a file up to this size is sent from memory, and not read a second time
MEMORY_BYTES_MAX = 64 * 2**20  # of all such files of one upload
LEAVE_OUT = "Leave it out: name it in .yardignore, or send a smaller folder."

OnScan = Callable[[int, int], None]  # bytes read, bytes to read


@dataclass(slots=True)
class ScannedFile:
    """A file to send. `content`: its bytes, if they are in memory."""

    path: bytes
    state: FileState
    is_executable: bool
    is_sparse: bool = False
    shard: bytes = b""  # the folder by which the cache knows it
    content: bytes | None = None
    chunks: list[bytes] | None = None

    def add_chunks(self, objects: dict[bytes, bytes | ChunkSource]) -> None:
        """Add the chunks: in memory, or where they lie on disk."""
        chunks = self.chunks or []
        if len(chunks) == 1:  # nearly every file
            if chunks[0] and chunks[0] not in objects:
                objects[chunks[0]] = self.content or ChunkSource(self.path, 0, self.state.size)
            return
        for digest, (offset, size) in zip(chunks, chunk_spans(self.state.size), strict=True):
            if not digest or digest in objects:
                continue
            if self.content is not None:
                objects[digest] = self.content[offset : offset + size]
            else:
                objects[digest] = ChunkSource(self.path, offset, size)


class MemoryBudget:
    """Bounds the bytes of files that stay in memory. All scans of one upload share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used_bytes = 0

    def take(self, size: int) -> bool:
        """Return whether there is room for so many more bytes, and count them if there is."""
        with self._lock:
            if self._used_bytes + size > MEMORY_BYTES_MAX:
                return False
            self._used_bytes += size
            return True


def hash_files(
    files: Iterable[ScannedFile],
    cache: HashCache,
    on_progress: OnScan | None,
    before_long_read: Callable[[], None] | None,
    memory: MemoryBudget,
) -> None:
    """Set the chunks of each file: from the cache, or from its content."""
    unknown = []
    for file in files:
        if file.content is not None:
            file.chunks = hash_content(file.content)
        elif file.state.size == 0:
            file.chunks = []
        else:
            file.chunks = cache.lookup(file.shard, file.path, file.state)
            if file.chunks is None:
                unknown.append(file)
    total = sum(file.state.size for file in unknown)
    if before_long_read and total > LONG_READ_BYTES:
        before_long_read()
    done, lock = 0, threading.Lock()
    pieces: dict[int, dict[int, list[bytes]]] = {}  # of a large file: its hashes by the first chunk

    def read(part: list[ScannedFile] | _LargePart) -> None:
        nonlocal done
        if isinstance(part, _LargePart):
            pieces.setdefault(id(part.file), {})[part.spans[0].offset] = part.hash()
            size = sum(span.size for span in part.spans)
        else:
            size = sum(file.state.size for file in part)
            keep = memory.take(size)
            for file in part:
                _hash_small(file, keep=keep)
        with lock:
            done += size
            if on_progress:
                on_progress(done, total)

    parts = list(_parts(unknown))
    run_parallel(parts, read, threads=min(THREADS, max(1, len(parts))))
    for file in unknown:
        if (digests_by_offset := pieces.get(id(file))) is not None:
            file.chunks = [digest for offset in sorted(digests_by_offset) for digest in digests_by_offset[offset]]
        assert file.chunks is not None
        cache.add(file.shard, file.path, file.state, file.chunks)


class _LargePart(NamedTuple):
    """Some chunks of a large file."""

    file: ScannedFile
    spans: list[ChunkSpan]

    def hash(self) -> list[bytes]:
        with _readable(self.file):
            return hash_chunks(self.file.path, self.file.state, self.spans, is_sparse=self.file.is_sparse)


def _hash_small(file: ScannedFile, *, keep: bool) -> None:
    """Set the chunk of a file that has one. `keep`: it is then sent from memory, if it is not too large."""
    with _readable(file):
        if file.state.size > MEMORY_FILE_BYTES or file.is_sparse:
            spans = chunk_spans(file.state.size)
            file.chunks = hash_chunks(file.path, file.state, spans, is_sparse=file.is_sparse)
            return
        data = read_unchanged(file.path, file.state)
    file.chunks = hash_content(data)
    file.content = data if keep else None


@contextmanager
def _readable(file: ScannedFile) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise BadRequest(f"{show_name(file.path)} cannot be read: {exc.strerror}.", next_step=LEAVE_OUT) from exc


def _parts(files: Iterable[ScannedFile]) -> Iterator[list[ScannedFile] | _LargePart]:
    """Divide the work: many small files in one part, or some chunks of a large one."""
    group: list[ScannedFile] = []
    for file in files:
        if file.state.size > CHUNK_BYTES:
            spans = chunk_spans(file.state.size)
            for first in range(0, len(spans), SPAN_CHUNKS):
                yield _LargePart(file, spans[first : first + SPAN_CHUNKS])
            continue
        group.append(file)
        if len(group) == GROUP_FILES:
            yield group
            group = []
    if group:
        yield group
