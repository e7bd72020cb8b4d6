"""Reads local files in chunks and hashes them, in bounded memory. It notices a file that changes meanwhile."""

from __future__ import annotations

import os
from typing import NamedTuple

from switchyard.errors import Conflict
from switchyard.model.files.file_tree import CHUNK_BYTES, ZEROS, ChunkSpan, chunk_spans, hash_of
from switchyard.sdk.files.file_names import show_name
from switchyard.sdk.uploads.hash_cache import FileState

# A file that was replaced by a link or a pipe since it was listed is neither followed nor waited for.
OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NO_BYTES = bytes(CHUNK_BYTES)


class FileChanged(Conflict):
    """A file changed while it was read."""

    default_next = "Wait until its writer has finished, or send a copy of it; then submit again."


class ChunkSource(NamedTuple):
    """Where the bytes of a chunk lie on this machine. `path` may be a link that the user named."""

    path: bytes
    offset: int
    size: int


def changed(path: bytes) -> FileChanged:
    return FileChanged(f"{show_name(path)} changes while it is read.")


def hash_chunks(path: bytes, state: FileState, spans: list[ChunkSpan], *, is_sparse: bool = False) -> list[bytes]:
    """Return the hash of each chunk, ZEROS for chunks of zeros. Raise FileChanged if the file is not as it was."""
    handle = os.open(path, OPEN_FLAGS)
    try:
        if FileState.of(os.fstat(handle)) != state:
            raise changed(path)
        hashes = hash_handle(handle, path, spans, is_sparse=is_sparse)
        if FileState.of(os.fstat(handle)) != state:
            raise changed(path)
    finally:
        os.close(handle)
    return hashes


def read_unchanged(path: bytes, state: FileState) -> bytes:
    """Return the bytes of a small file. Raise FileChanged if the file is not as it was."""
    handle = os.open(path, OPEN_FLAGS)
    try:
        is_same = FileState.of(os.fstat(handle)) == state
        data = os.pread(handle, state.size, 0) if is_same else b""
        if len(data) != state.size or FileState.of(os.fstat(handle)) != state:
            raise changed(path)
    finally:
        os.close(handle)
    return data


def is_made_up(path: bytes) -> bool:
    """Whether a small file has another content than its size says, as files of the kernel have. Reads it."""
    try:
        handle = os.open(path, OPEN_FLAGS)
        try:
            size = os.fstat(handle).st_size
            count = 0
            while count <= size and (data := os.read(handle, size + 1 - count)):
                count += len(data)
            return count != size and os.fstat(handle).st_size == size  # else it grows
        finally:
            os.close(handle)
    except OSError:  # the scan says so
        return False


def hash_handle(handle: int, path: bytes, spans: list[ChunkSpan], *, is_sparse: bool = False) -> list[bytes]:
    """Return the hash of each chunk of an open file."""
    buffer = memoryview(bytearray(max((span.size for span in spans), default=0)))
    return [_hash_chunk(handle, path, span, buffer, is_sparse=is_sparse) for span in spans]


def read_chunk(source: ChunkSource) -> bytes:
    """Return the bytes of a chunk. Raise FileChanged if the file has become shorter."""
    try:
        handle = os.open(source.path, OPEN_FLAGS)
        try:
            data = os.pread(handle, source.size, source.offset)
            while 0 < len(data) < source.size:
                more = os.pread(handle, source.size - len(data), source.offset + len(data))
                data = data + more if more else b""
        finally:
            os.close(handle)
    except OSError as exc:
        raise changed(source.path) from exc
    if len(data) != source.size:
        raise changed(source.path)
    return data


def hash_content(data: bytes) -> list[bytes]:
    """Return the hashes of content in memory."""
    if 0 < len(data) <= CHUNK_BYTES:
        return [_hash_of_bytes(data)]
    return [_hash_of_bytes(memoryview(data)[offset : offset + size]) for offset, size in chunk_spans(len(data))]


def is_zeros(data: bytes | memoryview) -> bool:
    if data and data[0]:  # nearly all content
        return False
    return data == (_NO_BYTES if len(data) == CHUNK_BYTES else memoryview(_NO_BYTES)[: len(data)])


def _hash_chunk(handle: int, path: bytes, span: ChunkSpan, buffer: memoryview, *, is_sparse: bool) -> bytes:
    if is_sparse and _is_hole(handle, span):
        return ZEROS
    done = 0
    while done < span.size:
        count = os.preadv(handle, [buffer[done : span.size]], span.offset + done)
        if count == 0:
            raise changed(path)
        done += count
    return _hash_of_bytes(buffer[: span.size])


def _hash_of_bytes(data: bytes | memoryview) -> bytes:
    return ZEROS if is_zeros(data) else hash_of(data)


def _is_hole(handle: int, span: ChunkSpan) -> bool:
    try:
        return os.lseek(handle, span.offset, os.SEEK_DATA) >= span.offset + span.size
    except OSError:  # ENXIO: no data from there to the end
        return True
