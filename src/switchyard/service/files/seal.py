"""Seal a tree: check that all of it is stored and held by the user, then keep it for the jobs to come.

A sealed tree has a row of its own, so a submit checks one row. The check and the write are not one transaction, because
a tree may have a million objects. The leader removes nothing in between: objects of the tree count as used for at least
half of the grace, and a seal that takes longer is refused.

The walk reads a folder that occurs many times once, so a small tree that describes very many files costs little. A
cycle is not possible: the hash of a folder depends on the hashes of its subfolders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from switchyard.errors import BadValue, Busy, Unavailable
from switchyard.model.cluster.idset import INDEX_MAX, IdSet
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
from switchyard.model.files.files import OBJECTS_ASKED_MAX, TreeAnswer
from switchyard.model.jobspec.quantity import show_bytes
from switchyard.service.core.agents.agent_calls import AgentAttempt
from switchyard.service.core.context import Context
from switchyard.service.core.file_storage import files_refusal
from switchyard.service.core.writes.batch import Batch
from switchyard.service.files.possession import has_losses, held_objects, large_write, note_losses, stored_objects
from switchyard.storage.object_store import ObjectDamaged, ObjectMissing
from switchyard.store.files import attempt_uploads, file_objects, file_trees
from switchyard.store.files.file_trees import TreeRow

LOOKUP_OBJECTS = 2000  # hashes that are looked up together


def seal_tree(context: Context, owner: str, root: str, *, attempt: AgentAttempt | None = None) -> TreeAnswer:
    """Seal a tree for a user, or say what must be sent first. A sealed tree costs one read and one look.

    `attempt`: an agent seals outputs for it. Each object of the tree must be one that the attempt may name, whatever
    the owner has sealed before.
    """
    digest = bytes.fromhex(root)
    sealed = _sealed_already(context, owner, digest) if attempt is None else None
    if sealed is not None:
        return TreeAnswer(root, sealed.files, sealed.size)
    began_us = context.now_us()
    walk = TreeWalk(
        partial(held_objects, context, owner, attempt=attempt),
        partial(_read, context),
        partial(stored_objects, context, owner, attempt=attempt),
    )
    walked = walk.run(digest)
    if walked.missing:
        return TreeAnswer(root, missing=[missing.hex() for missing in walked.missing])
    limit = context.files.limits.tree_bytes
    if limit and walked.size > limit:
        context.tally.uploads_refused.add("tree_bytes")
        raise files_refusal("tree_bytes", limit, f"the files of this tree take {show_bytes(walked.size)}")

    def write(batch: Batch) -> None:
        _seal(batch, context=context, owner=owner, began_us=began_us, walked=walked, root=digest)
        if attempt is not None:
            attempt_uploads.upload_seal(batch.tx, attempt.row.id, attempt.fence, digest, now_us=batch.now_us)

    large_write(context, owner, write)
    return TreeAnswer(root, walked.files, walked.size)


def _sealed_already(context: Context, owner: str, root: bytes) -> TreeRow | None:
    with context.database.read() as tx:
        tree = file_trees.tree_of_owner(tx, owner, root)
        if tree is not None and has_losses(tx, root):
            return None  # the walk says what must be sent again
    if tree is not None and not _is_root_stored(context, root):
        return None
    if tree is None or tree.used_us >= context.now_us() - context.files.limits.stale_us:
        return tree
    is_kept = context.committer.call(lambda batch: file_trees.tree_touch(batch.tx, owner, root, now_us=batch.now_us))
    return tree if is_kept else None


def _is_root_stored(context: Context, root: bytes) -> bool:
    """Whether the store still has the root: a store that was emptied is noticed here. True if the store is away."""
    try:
        return bool(context.files.store.has([root]))
    except Unavailable:
        return True


def _seal(batch: Batch, *, context: Context, owner: str, began_us: int, walked: WalkedTree, root: bytes) -> None:
    if batch.now_us - began_us > context.files.limits.stale_us:
        raise Busy("The check of the tree took so long that its objects may be removed meanwhile.")
    if file_objects.usage_is_released_since(batch.tx, owner, began_us):
        raise Busy("Objects of this user were released while the tree was checked.")
    indexes = str(IdSet.of(index for index in walked.indexes if index <= INDEX_MAX))
    tree = TreeRow(root, walked.files, walked.size, indexes)
    file_trees.tree_put(batch.tx, tree, sorted(walked.members), [owner], now_us=batch.now_us)


def _read(context: Context, digest: bytes) -> bytes | None:
    """The bytes of a folder. None: the store has lost it, and the client sends it again."""
    read_us = context.now_us()
    try:
        return context.files.store.get(digest)
    except (ObjectMissing, ObjectDamaged):
        note_losses(context, [digest], read_us=read_us)
        return None


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
    """Walks a tree from its root: every object is there, sizes and counts are true, links stay inside.

    `sizes_of`: sizes of those objects that the user holds. `read`: the bytes of an object, None if it is lost.

    `chunk_sizes_of`: the same as `sizes_of` for chunks, which the walk does not read.
    """

    sizes_of: Callable[[Iterable[bytes]], dict[bytes, int]]
    read: Callable[[bytes], bytes | None]
    chunk_sizes_of: Callable[[Iterable[bytes]], dict[bytes, int]]
    walked: WalkedTree = field(default_factory=WalkedTree)
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
        walked = self.walked
        walked.missing = sorted(self._missing)[:OBJECTS_ASKED_MAX]
        if not walked.missing and entries is not None:
            top = self._folders[root]
            assert top is not None
            walked.files, walked.size = top.files, top.bytes
            if top.climb > 0:
                raise BadValue(
                    "A link in the tree points out of it, or has `..` after a name.",
                    next_step="Link only to files of the tree.",
                )
            walked.indexes = sorted(index for entry in entries if (index := _index_of(entry)) is not None)
        return walked

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
        self.walked.members.add(digest)
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
                self.walked.members.add(chunk)


def _index_of(entry: Entry) -> int | None:
    """The index of an array that a folder of the root stands for: its name is a number in its one form."""
    name = entry.name
    is_number = isinstance(entry, FolderEntry) and name.isdigit() and len(name) <= 10
    return int(name) if is_number and str(int(name)).encode() == name else None
