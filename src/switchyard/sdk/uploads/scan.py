"""Scans local files and folders into a tree by content. Nothing is sent."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from switchyard.errors import BadRequest
from switchyard.model.files.file_tree import (
    FILES_MAX,
    FOLDER_DEPTH_MAX,
    LINK_BYTES_MAX,
    BadTree,
    Entry,
    FileEntry,
    FolderEntry,
    LinkEntry,
    bad_name,
    encode_tree,
    hash_of,
)
from switchyard.sdk.files.file_names import FileSource, NamePath, show_name
from switchyard.sdk.files.links import stays_inside
from switchyard.sdk.files.target import is_part_name
from switchyard.sdk.uploads.chunks import ChunkSource, is_made_up
from switchyard.sdk.uploads.hash_cache import FileState, HashCache
from switchyard.sdk.uploads.hashing import LEAVE_OUT, MemoryBudget, OnScan, ScannedFile, hash_files

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec


REFUSALS_SHOWN = 10
MADE_UP_BYTES_MAX = 2**16  # files of /sys say 4096 bytes, those of /proc none
WARNINGS_MAX = 10
KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device file",
    stat.S_IFBLK: "a device file",
}

Warn = Callable[[str], None]


@dataclass(slots=True)
class ScannedTree:
    """A tree by content. `trees` has the objects of its folders."""

    root: bytes
    files: int
    size: int
    trees: dict[bytes, bytes]
    _files: list[ScannedFile]

    def objects(self) -> dict[bytes, bytes | ChunkSource]:
        """All objects of the tree: in memory, or where they lie on disk. Only an upload needs them."""
        objects: dict[bytes, bytes | ChunkSource] = {}
        for file in self._files:
            file.add_chunks(objects)
        objects.update(self.trees)
        return objects


@dataclass(slots=True)
class _Folder:
    entries: dict[bytes, _Folder | ScannedFile | bytes] = field(default_factory=dict)  # bytes: the target of a link


def scan_sources(
    sources: Sequence[FileSource],
    *,
    cache: HashCache,
    on_progress: OnScan | None = None,
    warn: Warn | None = None,
    before_long_read: Callable[[], None] | None = None,
    memory: MemoryBudget | None = None,
) -> ScannedTree:
    """Return the tree of these files and folders. Raise FileChanged if one of them changes while it is read.

    `before_long_read` is called before much is read. `memory`: what other scans of the same upload leave of it.
    Raise BadRequest, with names, for what cannot travel: devices, pipes, sockets, links out of the tree, and files
    that cannot be read.
    """
    walk = _Walk(warn)
    for source in sources:
        walk.add(source)
    walk.refuse_if_any()
    if len(sources) > 1:
        walk.warn_of_merged_twins()
    files = list(_files_of(walk.root))
    if len(files) > FILES_MAX:
        raise BadRequest(f"These are {len(files):,} files, more than {FILES_MAX:,}.", next_step=LEAVE_OUT)
    hash_files(
        files, cache, on_progress=on_progress, before_long_read=before_long_read, memory=memory or MemoryBudget()
    )
    cache.save()
    trees: dict[bytes, bytes] = {}
    root = _encode(walk.root, (), trees)
    return ScannedTree(root.tree, root.files, size=root.size, trees=trees, _files=files)


class _Walk:
    """Lists files, and collects what is wrong with them, so that the user sees all of it at once."""

    def __init__(self, warn: Warn | None) -> None:
        self.root = _Folder()
        self._warn = warn
        self._warned: set[tuple[NamePath, bytes, bytes]] = set()
        self._links: dict[NamePath, bytes] = {}
        self._refusals: list[tuple[str, str]] = []
        self._count = 0

    def add(self, source: FileSource) -> None:
        if source.content is not None:
            state = FileState(len(source.content), 0, 0, 0)
            self._put(source.name, ScannedFile(b"", state, False, content=source.content))
            return
        path = source.path.rstrip(b"/") or b"/"
        try:
            status = os.stat(path)  # noqa: PTH116 — bytes: names need not be UTF-8
        except OSError as exc:
            self._refuse(path, f"cannot be read: {exc.strerror}", "Check the name; it begins at the present folder.")
            return
        absolute = os.path.realpath(path)
        if stat.S_ISDIR(status.st_mode):
            folder = self._folder_at(source.name)
            if folder is not None:
                self._list(folder, absolute, source.name, IgnoreRules(), absolute)
        elif not source.name:
            self._refuse(path, "is a file, where a folder is asked for", "Name a folder, or give the file a name.")
        elif stat.S_ISREG(status.st_mode):
            if not self._refuse_made_up(absolute, status):
                self._put(source.name, _file_of(absolute, status, absolute.rpartition(b"/")[0]))
        else:
            self._refuse_kind(path, status.st_mode)

    def refuse_if_any(self) -> None:
        for link in self._links:
            if not stays_inside(self._links, link):
                where = show_name(self._links[link])
                advice = "Make it relative and inside, replace it by a copy, or name it in .yardignore."
                self._refuse(b"/".join(link), f"is a link to {where}, outside of the files that are sent", advice)
        if self._refusals:
            lines = [text for text, _ in self._refusals[:REFUSALS_SHOWN]]
            more = len(self._refusals) - len(lines)
            lines += [f"and {more} more"] if more else []
            steps = dict.fromkeys(advice for _, advice in self._refusals[:REFUSALS_SHOWN])
            raise BadRequest("; ".join(lines) + ".", next_step=" ".join(steps))

    def _list(self, folder: _Folder, path: bytes, name: NamePath, rules: IgnoreRules, shard: bytes) -> None:
        if len(name) >= FOLDER_DEPTH_MAX:
            self._refuse(path, f"is more than {FOLDER_DEPTH_MAX} folders deep", LEAVE_OUT)
            return
        try:
            with os.scandir(path) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as exc:
            self._refuse(path, f"cannot be read: {exc.strerror}", LEAVE_OUT)
            return
        if any(entry.name == IGNORE_FILE and entry.is_file() for entry in entries):
            rules = rules.deeper(path)
        names: list[bytes] = []
        for entry in entries:
            try:
                is_folder = entry.is_dir(follow_symlinks=False)
                if rules.ignores(entry.path, entry.name, is_folder=is_folder):
                    continue
                names.append(entry.name)
                self._add_entry(folder, entry, name, rules, shard, is_folder=is_folder)
            except OSError as exc:
                self._refuse(entry.path, f"cannot be read: {exc.strerror}", LEAVE_OUT)
        self._warn_of_twins(name, names, path)

    def _add_entry(
        self,
        folder: _Folder,
        entry: os.DirEntry[bytes],
        folder_name: NamePath,
        rules: IgnoreRules,
        shard: bytes,
        *,
        is_folder: bool,
    ) -> None:
        self._count += 1
        if self._count > 2 * FILES_MAX:
            raise BadRequest(f"There are more than {FILES_MAX:,} files.", next_step=LEAVE_OUT)
        # Nearly every entry is a file: it is tried first.
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISREG(status.st_mode):
            if self._refuse_made_up(entry.path, status):
                return
            item = _file_of(entry.path, status, shard)
            earlier = folder.entries.setdefault(entry.name, item)
            if earlier is not item and not _is_same(earlier, item):
                self._refuse_two((*folder_name, entry.name))
            return
        name = (*folder_name, entry.name)
        if is_folder:
            inner = folder.entries.setdefault(entry.name, _Folder())
            if not isinstance(inner, _Folder):
                self._refuse_two(name)
                return
            self._list(inner, entry.path, name, rules, shard)
            return
        if entry.is_symlink():
            target = os.readlink(entry.path)  # noqa: PTH115 — bytes
            if len(target) > LINK_BYTES_MAX:
                self._refuse(entry.path, f"is a link of more than {LINK_BYTES_MAX} bytes", LEAVE_OUT)
                return
            self._links[name] = target
            self._set(folder, entry.name, target, name)
            return
        self._refuse_kind(entry.path, status.st_mode)

    def _set(self, folder: _Folder, last: bytes, item: ScannedFile | bytes, name: NamePath) -> None:
        earlier = folder.entries.setdefault(last, item)
        if earlier is not item and not _is_same(earlier, item):
            self._refuse_two(name)

    def _put(self, name: NamePath, item: ScannedFile) -> None:
        folder = self._folder_at(name[:-1])
        if folder is not None:
            self._set(folder, name[-1], item, name)

    def _folder_at(self, name: NamePath) -> _Folder | None:
        folder = self.root
        for depth, part in enumerate(name, start=1):
            if why := bad_name(part):
                raise BadRequest(f"The name {show_name(name)} is not possible: {why}.")
            inner = folder.entries.setdefault(part, _Folder())
            if not isinstance(inner, _Folder):
                self._refuse_two(name[:depth])
                return None
            folder = inner
        return folder

    def _refuse_made_up(self, path: bytes, status: os.stat_result) -> bool:
        """Refuse a file of /proc or /sys: its size says nothing about its content. Returns whether it is one."""
        if status.st_blocks or status.st_size > MADE_UP_BYTES_MAX or not is_made_up(path):
            return False
        self._refuse(
            path,
            f"has another content than its size of {status.st_size} bytes says: the kernel makes it for each reader",
            "Copy it into a plain file (`cat FILE > COPY`), and send the copy.",
        )
        return True

    def _refuse_two(self, name: NamePath) -> None:
        text = f"two different files would be {show_name(name)} in the job's folder"
        self._refusals.append((text, "Give one of them another name: --in PATH:NAME."))

    def _refuse_kind(self, path: bytes, mode: int) -> None:
        self._refuse(path, f"is {KINDS.get(stat.S_IFMT(mode), 'neither a file nor a folder')}", LEAVE_OUT)

    def _refuse(self, path: bytes, why: str, advice: str) -> None:
        self._refusals.append((f"{show_name(path)} {why}", advice))

    def warn_of_merged_twins(self) -> None:
        """Warn of names that differ only by case and come from different sources."""
        folders: list[tuple[NamePath, _Folder]] = [((), self.root)]
        while folders:
            name, folder = folders.pop()
            self._warn_of_twins(name, list(folder.entries))
            folders += [((*name, part), item) for part, item in folder.entries.items() if isinstance(item, _Folder)]

    def _warn_of_twins(self, folder: NamePath, names: list[bytes], path: bytes = b"") -> None:
        """Warn of names that differ only by case. Most folders have none, which one quick look shows.

        `path`: where the folder is on this machine; empty: the names come from several places.
        """
        together = b"/".join(names)
        if together.isascii() and len(set(together.lower().split(b"/"))) >= len(names):
            return
        folded: dict[str, bytes] = {}
        for name in sorted(names):
            twin = folded.setdefault(os.fsdecode(name).casefold(), name)
            if twin != name and (folder, twin, name) not in self._warned:
                self._warned.add((folder, twin, name))
                where = show_name(path) if path else show_name(folder) if folder else "the job's folder"
                self._say_twins(f"{show_name(twin)} and {show_name(name)} in {where}")

    def _say_twins(self, pair: str) -> None:
        if self._warn and len(self._warned) <= WARNINGS_MAX:
            self._warn(f"{pair} differ only by case: some file systems keep one of them.")


def _file_of(path: bytes, status: os.stat_result, shard: bytes) -> ScannedFile:
    is_sparse = status.st_blocks * 512 < status.st_size
    return ScannedFile(
        path, FileState.of(status), is_executable=bool(status.st_mode & 0o111), is_sparse=is_sparse, shard=shard
    )


def _is_same(earlier: _Folder | ScannedFile | bytes, item: ScannedFile | bytes) -> bool:
    """Whether a name that two sources give is one file: a folder, and a file in it that is also named by itself."""
    if isinstance(earlier, ScannedFile) and isinstance(item, ScannedFile):
        return earlier.path == item.path and earlier.content == item.content
    return isinstance(earlier, bytes) and earlier == item


def _files_of(folder: _Folder) -> Iterator[ScannedFile]:
    for item in folder.entries.values():
        if isinstance(item, ScannedFile):
            yield item
        elif isinstance(item, _Folder):
            yield from _files_of(item)


def _encode(folder: _Folder, name: NamePath, trees: dict[bytes, bytes]) -> FolderEntry:
    """Encode a folder with all below it. Returns its entry, with the name of the folder or `.` for the root."""
    entries: list[Entry] = []
    files = size = 0
    for last, item in folder.entries.items():
        if isinstance(item, _Folder):
            inner = _encode(item, (*name, last), trees)
            files, size = files + inner.files, size + inner.size
            entries.append(inner)
        elif isinstance(item, bytes):
            entries.append(LinkEntry(last, item))
        else:
            assert item.chunks is not None
            files, size = files + 1, size + item.state.size
            entries.append(FileEntry(last, item.state.size, item.is_executable, item.chunks))
    try:
        data = encode_tree(entries)
    except BadTree as exc:
        where = show_name(name) or "the job's folder"
        raise BadRequest(f"{where}: {exc}.", next_step="Divide the folder into several.") from exc
    digest = hash_of(data)
    trees[digest] = data
    return FolderEntry(name[-1] if name else b".", digest, files, size)


IGNORE_FILE = b".yardignore"
IGNORE_BYTES_MAX = 2**20
FOLDER_MARK = "ps_d"  # pathspec's name of the slash after a folder that a line means
ALWAYS_IGNORED = frozenset({b".git"})  # unless a line `!.git` asks for it: it is large, and it holds old content


class IgnoreRules:
    """The ignore files from the scanned folder down to this one. A deeper file wins, and in a file the last line."""

    def __init__(self, levels: tuple[tuple[bytes, GitIgnoreSpec], ...] = ()) -> None:
        self._levels = levels

    def deeper(self, path: bytes) -> IgnoreRules:
        """Return the rules of this folder, which has an ignore file."""
        return IgnoreRules(((path, _read_rules(path + b"/" + IGNORE_FILE)), *self._levels))

    def ignores(self, path: bytes, name: bytes, *, is_folder: bool) -> bool:
        """Whether the file at this path, with this last part, stays here. Not asked below an ignored folder."""
        for folder, rules in self._levels:
            inner = os.fsdecode(path[len(folder) + 1 :]) + ("/" if is_folder else "")
            verdict = _last_verdict(rules, inner)
            if verdict is not None:
                return verdict
        return name in ALWAYS_IGNORED or is_part_name(name)


def _last_verdict(rules: GitIgnoreSpec, path: str) -> bool | None:
    """Whether the last line that means this path ignores it, as git asks at each level. None: no line means it.

    `check_file` of pathspec judges a path by its folders too. Here these were judged before, so a match of a folder
    above does not count.
    """
    for pattern in reversed(rules.patterns):
        if pattern.include is None or pattern.regex is None:
            continue
        for match in pattern.regex.finditer(path):
            if match.groupdict().get(FOLDER_MARK) is None or match.end(FOLDER_MARK) == len(path):
                return pattern.include
    return None


def _read_rules(file: bytes) -> GitIgnoreSpec:
    try:
        with Path(os.fsdecode(file)).open("rb") as opened:
            data = opened.read(IGNORE_BYTES_MAX + 1)
    except OSError as exc:
        raise BadRequest(
            f"Cannot read {show_name(file)}: {exc.strerror}.", next_step="Without it, files would be sent by mistake."
        ) from exc
    if len(data) > IGNORE_BYTES_MAX:
        raise BadRequest(f"{show_name(file)} has more than {IGNORE_BYTES_MAX} bytes.")
    from pathspec import GitIgnoreSpec  # costs 30 ms, so only where there is such a file

    try:
        return GitIgnoreSpec.from_lines(os.fsdecode(data).splitlines())
    except ValueError as exc:
        raise BadRequest(f"{show_name(file)}: {exc}", next_step="The lines are those of a .gitignore.") from exc
