"""Many objects in one body: frames of a kind, a SHA-256 and bytes, one after the other. Pure."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

from switchyard.model.files.file_tree import HASH_BYTES, TREE_BYTES_MAX

MEDIA = "application/vnd.switchyard.objects"
BODY_BYTES_MAX = 32 * 2**20  # of one upload
OBJECTS_MAX = 10_000  # in one request
SMALL_PIECE_BYTES = 4096  # smaller pieces of a body are joined: one by one, each costs some 200 bytes besides its own
_head = struct.Struct(f">B{HASH_BYTES}sI")


class FrameKind(IntEnum):
    """What the bytes of a frame are."""

    CONTENT = 0  # the object
    ADDRESS = 1  # a signed address to read it from, UTF-8
    ABSENT = 2  # the store does not have it; the bytes say why, UTF-8
    UPLOADED = 3  # it is at the signed address that the server gave for it; without bytes


class Frame(NamedTuple):
    kind: FrameKind
    digest: bytes
    data: bytes


class BadFrame(ValueError):
    """The bytes are no frames; the text says why."""


def encode_frame(kind: FrameKind, digest: bytes, data: bytes) -> bytes:
    return encode_head(kind, digest, len(data)) + data


def encode_head(kind: FrameKind, digest: bytes, size: int) -> bytes:
    """A frame without its bytes, for a sender that does not copy them."""
    return _head.pack(kind, digest, size)


def decode_frames(pieces: Iterable[bytes]) -> Iterator[Frame]:
    """The frames of a body that comes in pieces. At most one frame and one piece are in memory."""
    reader = FrameReader()
    for piece in pieces:
        yield from reader.feed(piece)
    reader.end()


class FrameReader:
    """Takes a body piece by piece. At most one frame and one piece are in memory.

    Each byte is copied once, or twice if it came in a small piece.
    """

    def __init__(self) -> None:
        self._pieces: deque[memoryview] = deque()
        self._small = bytearray()  # small pieces that came after those
        self._unread = 0  # bytes in all pieces
        self._head: tuple[FrameKind, bytes, int] | None = None  # of the frame whose bytes come next

    def feed(self, piece: bytes) -> Iterator[Frame]:
        """The frames that are complete with this piece. Take all of them before the next piece."""
        if len(piece) < SMALL_PIECE_BYTES:
            self._small += piece
        else:
            self._close_small()
            self._pieces.append(memoryview(piece))
        self._unread += len(piece)
        while True:
            if self._head is None:
                if self._unread < _head.size:
                    return
                self._head = _read_head(self._take(_head.size))
            kind, digest, size = self._head
            if self._unread < size:
                return
            self._head = None
            yield Frame(kind, digest, self._take(size))

    def end(self) -> None:
        if self._unread or self._head is not None:
            raise BadFrame("the last object is cut off")

    def _take(self, size: int) -> bytes:
        """The next bytes. So many must be there."""
        self._close_small()
        self._unread -= size
        parts: list[memoryview] = []
        while size:
            piece = self._pieces[0]
            if len(piece) > size:
                self._pieces[0] = piece[size:]
                piece = piece[:size]
            else:
                self._pieces.popleft()
            parts.append(piece)
            size -= len(piece)
        return b"".join(parts)

    def _close_small(self) -> None:
        if self._small:
            self._pieces.append(memoryview(self._small))
            self._small = bytearray()


def _read_head(data: bytes) -> tuple[FrameKind, bytes, int]:
    kind, digest, size = _head.unpack(data)
    if kind not in FrameKind._value2member_map_ or size > TREE_BYTES_MAX:
        raise BadFrame(f"a frame has the kind {kind} and {size} bytes")
    return FrameKind(kind), digest, size
