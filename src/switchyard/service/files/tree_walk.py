"""Walk a tree from its root, and check it: every object is there, sizes and counts are true, links stay inside.

A folder that occurs many times is read once, so a small tree that describes very many files costs little. A cycle is
not possible: the hash of a folder depends on the hashes of its subfolders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from switchyard.errors import BadValue
from switchyard.model.files.file_tree import (
    CHUNK_BYTES,
    FILES_MAX,
    FOLDER_DEPTH_MAX,
    FOLDERS_MAX,
    ZEROS,
    BadTree,
    Entry,
    FileEntry,
    FolderEntry,
    LinkEntry,
    climb_of,
    decode_tree,
)
from switchyard.model.files.files import OBJECTS_ASKED_MAX

LOOKUP_OBJECTS = 2000  # hashes that are looked up together


@dataclass(slots=True)
class WalkedTree:
    """What a walk found. `missing`: objects that must be sent first; there may be more below them."""

    files: int = 0
    size: int = 0  # bytes of all files
    members: set[bytes] = field(default_factory=set)
    indexes: list[int] = field(default_factory=list)  # folders of the root whose names are numbers
    missing: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Folder:
    """The sums of a folder with everything below it. `climb`: levels above this folder that links in it reach."""

    files: int
    bytes: int
    others: int  # folders and links
    height: int
    climb: int


@dataclass(frozen=True, slots=True)
class _OpenFolder:
    """A folder whose subfolders are being visited."""

    digest: bytes
    entries: list[Entry]
    left: Iterator[FolderEntry]


@dataclass(slots=True)
class TreeWalk:
    """`sizes_of`: sizes of those objects that the user holds. `read`: the bytes of an object, None if it is lost.

    `chunk_sizes_of`: the same as `sizes_of` for chunks, which the walk does not read.
    """

    sizes_of: Callable[[Iterable[bytes]], dict[bytes, int]]
    read: Callable[[bytes], bytes | None]
    chunk_sizes_of: Callable[[Iterable[bytes]], dict[bytes, int]]
    found: WalkedTree = field(default_factory=WalkedTree)
    _folders: dict[bytes, _Folder | None] = field(default_factory=dict)  # None: a folder below it is missing
    _missing: set[bytes] = field(default_factory=set)
    _held: set[bytes] = field(default_factory=set)  # folders
    _expected: dict[bytes, int] = field(default_factory=dict)  # chunks to look up, with the size that a file gives them

    def run(self, root: bytes) -> WalkedTree:
        """Raises BadValue for a tree that no client makes."""
        entries = self._load(root) if self.sizes_of([root]) else None
        if entries is None:
            self._missing.add(root)
        else:
            self._walk(root, entries)
            self._check_chunks()
        found = self.found
        found.missing = sorted(self._missing)[:OBJECTS_ASKED_MAX]
        if not found.missing and entries is not None:
            top = self._folders[root]
            assert top is not None
            found.files, found.size = top.files, top.bytes
            if top.climb > 0:
                raise BadValue(
                    "A link in the tree points out of it, or has `..` after a name.",
                    next_step="Link only to files of the tree.",
                )
            found.indexes = sorted(index for entry in entries if (index := _index_of(entry)) is not None)
        return found

    def _walk(self, root: bytes, entries: list[Entry]) -> None:
        """Visit folders depth first, without recursion. A folder is summed up after its subfolders."""
        open_folders = [self._open(root, entries)]
        while open_folders:
            folder = open_folders[-1]
            entry = next(folder.left, None)
            if entry is None:
                open_folders.pop()
                self._sum_up(folder.digest, folder.entries)
                continue
            if entry.tree in self._folders or entry.tree in self._missing:
                continue
            if len(open_folders) >= FOLDER_DEPTH_MAX:
                raise BadValue(f"The tree has more than {FOLDER_DEPTH_MAX} folders in folders.")
            if len(self._folders) >= FOLDERS_MAX:
                raise BadValue(f"The tree has more than {FOLDERS_MAX} different folders.")
            below = self._load(entry.tree)
            if below is not None:
                open_folders.append(self._open(entry.tree, below))

    def _open(self, digest: bytes, entries: list[Entry]) -> _OpenFolder:
        """Look up all subfolders of a folder together."""
        below = [entry for entry in entries if isinstance(entry, FolderEntry)]
        unknown = {entry.tree for entry in below} - self._held - self._missing
        if unknown:
            held = self.sizes_of(unknown)
            self._held.update(held)
            self._missing |= unknown - held.keys()
        return _OpenFolder(digest, entries, iter(below))

    def _load(self, digest: bytes) -> list[Entry] | None:
        """The entries of a folder that the user holds. None: the store has lost it, and it must be sent again."""
        data = self.read(digest)
        if data is None:
            self._missing.add(digest)
            return None
        try:
            entries = decode_tree(data)
        except BadTree as exc:
            raise BadValue(f"The object {digest.hex()} is named as a folder: {exc}.") from None
        self.found.members.add(digest)
        return entries

    def _sum_up(self, digest: bytes, entries: list[Entry]) -> None:
        """Sum up a folder. A folder above a missing one has no sums, so nothing is compared with them."""
        files = size = others = climb = 0
        height, is_whole = 1, True
        for entry in entries:
            if isinstance(entry, FolderEntry):
                below = self._folders.get(entry.tree)
                if below is None:
                    is_whole = False
                    continue
                if (entry.files, entry.size) != (below.files, below.bytes):
                    raise BadValue(
                        f"The folder {entry.name[:80]!r} is said to have {entry.files} files and {entry.size} bytes; "
                        f"it has {below.files} and {below.bytes}."
                    )
                files, size, others = files + below.files, size + below.bytes, others + below.others + 1
                height, climb = max(height, below.height + 1), max(climb, below.climb - 1)
            elif isinstance(entry, LinkEntry):
                others += 1
                climb = max(climb, climb_of(entry.target))
            else:
                files, size = files + 1, size + entry.size
                self._expect(entry)
        if files + others > FILES_MAX:
            raise BadValue(
                f"The tree has more than {FILES_MAX} files, folders and links.", next_step="Pack them into an archive."
            )
        if height > FOLDER_DEPTH_MAX:
            raise BadValue(f"The tree has more than {FOLDER_DEPTH_MAX} folders in folders.")
        self._folders[digest] = _Folder(files, size, others, height, climb) if is_whole else None

    def _expect(self, entry: FileEntry) -> None:
        last = len(entry.chunks) - 1
        for position, chunk in enumerate(entry.chunks):
            if chunk == ZEROS:
                continue
            size = CHUNK_BYTES if position < last else entry.size - last * CHUNK_BYTES
            if self._expected.setdefault(chunk, size) != size:
                raise BadValue(f"The file {entry.name[:80]!r} gives a chunk another size than another file does.")
        if len(self._expected) >= LOOKUP_OBJECTS:
            self._check_chunks()

    def _check_chunks(self) -> None:
        """Look up the chunks of the last files: held by the user, and of the size that their files give them."""
        expected, self._expected = self._expected, {}
        sizes = self.chunk_sizes_of(expected) if expected else {}
        for chunk, size in expected.items():
            actual = sizes.get(chunk)
            if actual is None:
                self._missing.add(chunk)
            elif actual != size:
                raise BadValue(f"The tree gives the object {chunk.hex()} {size} bytes; it has {actual}.")
            else:
                self.found.members.add(chunk)


def _index_of(entry: Entry) -> int | None:
    """The index of an array that a folder of the root stands for: its name is a number in its one form."""
    name = entry.name
    is_number = isinstance(entry, FolderEntry) and name.isdigit() and len(name) <= 10
    return int(name) if is_number and str(int(name)).encode() == name else None
