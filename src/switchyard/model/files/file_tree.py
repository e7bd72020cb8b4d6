"""Trees of files by content: the SHA-256 of a tree identifies a folder with everything below it. Pure.

There are two kinds of objects, both identified by the SHA-256 of their bytes:

- a chunk: up to 8 MiB of a file. A file is a list of chunks, and all but the last are full;
- a tree: the entries of one folder, sorted by name. A subfolder is named by the hash of its tree.

Equal folders have equal bytes, so what a server or an agent has already is known by its hash.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta, Struct

CHUNK_BYTES = 8 * 2**20
TREE_BYTES_MAX = 16 * 2**20
FILES_MAX = 1_000_000  # in one tree with all its subfolders
FOLDER_DEPTH_MAX = 128  # folders in folders
FOLDERS_MAX = 200_000  # different folders in one tree
NAME_BYTES_MAX = 255
LINK_BYTES_MAX = 4096
HASH_BYTES = 32
HEADER = b"yard-tree 1\n"
ZEROS = b""  # in the place of a chunk's hash: the chunk has only zeros and is not stored

EntryName = Annotated[bytes, Meta(min_length=1, max_length=NAME_BYTES_MAX)]
Digest = Annotated[bytes, Meta(min_length=HASH_BYTES, max_length=HASH_BYTES)]
ChunkDigest = Annotated[bytes, Meta(max_length=HASH_BYTES)]
Size = Annotated[int, Meta(ge=0, le=2**62)]


class FileEntry(Struct, frozen=True, array_like=True, tag="f", forbid_unknown_fields=True, gc=False):
    """A file. `chunks` has the hash of each 8 MiB; ZEROS stands for a chunk of zeros."""

    name: EntryName
    size: Size
    is_executable: bool
    chunks: list[ChunkDigest]


class LinkEntry(Struct, frozen=True, array_like=True, tag="l", forbid_unknown_fields=True, gc=False):
    """A symbolic link to a place inside the tree."""

    name: EntryName
    target: Annotated[bytes, Meta(min_length=1, max_length=LINK_BYTES_MAX)]


class FolderEntry(Struct, frozen=True, array_like=True, tag="d", forbid_unknown_fields=True, gc=False):
    """A subfolder: its tree, and how many files and bytes are below it."""

    name: EntryName
    tree: Digest
    files: Size
    size: Size


Entry = FileEntry | LinkEntry | FolderEntry


class ChunkSpan(NamedTuple):
    """Where a chunk lies in its file."""

    offset: int
    size: int


class BadTree(ValueError):
    """The bytes are no tree; the text says why."""


def hash_of(data: bytes | bytearray | memoryview) -> bytes:
    return hashlib.sha256(data).digest()


def encode_tree(entries: list[Entry]) -> bytes:
    """The bytes of a tree. Raises BadTree for entries that no folder can have."""
    ordered = sorted(entries, key=lambda entry: entry.name)
    _check(ordered)
    data = HEADER + _encoder.encode(ordered)
    if len(data) > TREE_BYTES_MAX:
        raise BadTree(f"a folder with {len(entries)} entries takes {len(data)} bytes, more than {TREE_BYTES_MAX}")
    return data


def decode_tree(data: bytes) -> list[Entry]:
    """The entries of a tree, checked: each tree has exactly one form, so equal folders have equal hashes."""
    if not data.startswith(HEADER) or len(data) > TREE_BYTES_MAX:
        raise BadTree("this is no tree of files")
    try:
        entries = _decoder.decode(data[len(HEADER) :])
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:  # the latter for a tag that is no text
        raise BadTree(f"this is no tree of files: {exc}") from None
    _check(entries)
    if HEADER + _encoder.encode(entries) != data:
        raise BadTree("the tree is not in its one form")
    return entries


def chunk_spans(size: int) -> list[ChunkSpan]:
    """The chunks of a file of this size, in order."""
    return [ChunkSpan(offset, min(CHUNK_BYTES, size - offset)) for offset in range(0, size, CHUNK_BYTES)]


def is_inside(folder: tuple[bytes, ...], target: bytes) -> bool:
    """Whether a link in `folder` (names from the root of the tree) points to a place inside the tree."""
    return climb_of(target) <= len(folder)


def climb_of(target: bytes) -> int:
    """How many levels above its own folder a link reaches. More than any depth: it is refused in every folder.

    `..` after a name is refused: the name may be another link, and then `..` leads elsewhere than it seems to.
    """
    names = [name for name in target.split(b"/") if name not in (b"", b".")]
    climb = next((count for count, name in enumerate(names) if name != b".."), len(names))
    if target.startswith(b"/") or b"\0" in target or b".." in names[climb:]:
        return FOLDER_DEPTH_MAX + 1
    return climb


def bad_name(name: bytes) -> str:
    """Why no file in a tree can have this name. Empty: it can."""
    if name in (b"", b".", b".."):
        return "it names no file"
    if b"/" in name or b"\0" in name:
        return "it has a slash or a NUL in it"
    return f"it has more than {NAME_BYTES_MAX} bytes" if len(name) > NAME_BYTES_MAX else ""


def _check(entries: list[Entry]) -> None:
    before = b""
    for entry in entries:
        if why := bad_name(entry.name):
            raise BadTree(f"the name {entry.name[:80]!r} is not possible: {why}")
        if entry.name <= before:
            raise BadTree(f"the name {entry.name[:80]!r} is there twice or out of order")
        before = entry.name
        if isinstance(entry, FileEntry):
            _check_chunks(entry)


def _check_chunks(entry: FileEntry) -> None:
    if len(entry.chunks) != -(-entry.size // CHUNK_BYTES):
        raise BadTree(f"{entry.name[:80]!r} has {len(entry.chunks)} chunks, which cannot be {entry.size} bytes")
    for chunk in entry.chunks:
        if chunk and len(chunk) != HASH_BYTES:
            raise BadTree(f"{entry.name[:80]!r} has a chunk without a SHA-256")


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Entry])
