"""Writes files below one folder of this machine: under temporary names first, and never through a link."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path

from switchyard.errors import Conflict, YardError
from switchyard.model.files.file_tree import CHUNK_BYTES, ZEROS, FileEntry, chunk_spans, hash_of
from switchyard.sdk.files.file_names import NamePath, show_name
from switchyard.sdk.uploads.chunks import FileChanged, hash_handle

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
PART_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC
PART_SUFFIX = b".yard-part"
PART_PATTERN = re.compile(rb"\.(?:[0-9a-f]{24}|link-[0-9a-f]{16})\.yard-part")
SPARE_CHUNKS = 64  # hashed in one go when a file is compared


class Present(Enum):
    """What stands in the place of a file that is to be written."""

    NOTHING = "nothing"
    EQUAL = "equal"
    DIFFERENT = "different"  # another file or link: may be replaced
    IN_THE_WAY = "in the way"  # a folder, a device, or a link on the way: never replaced


class TargetFolder:
    """A folder of this machine that files are fetched into. Threads may share it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as exc:
            raise write_failure(self.path, exc) from exc
        self._last: dict[int, tuple[NamePath, int]] = {}  # by thread: the folder of its last file, open
        self._part_inodes: dict[NamePath, tuple[int, int]] = {}  # device and inode of each temporary file

    def close(self) -> None:
        for _, handle in self._last.values():
            os.close(handle)
        os.close(self._handle)

    def compare(self, name: NamePath, entry: FileEntry) -> Present:
        """Compare what is there with a file of a tree. Changes nothing but an executable bit of an equal file."""
        seen, present = self._look(name)
        if seen is None or not stat.S_ISREG(seen.st_mode):
            return present
        if seen.st_size != entry.size or not self._has_content(name, entry):
            return Present.DIFFERENT
        mode = stat.S_IMODE(seen.st_mode)
        wanted = mode | ((mode & 0o444) >> 2) if entry.is_executable else mode & ~0o111
        if mode != wanted and bool(mode & 0o111) != entry.is_executable:
            with self._opened(name, READ_FLAGS) as handle:
                os.fchmod(handle, wanted)
        return Present.EQUAL

    def compare_link(self, name: NamePath, target: bytes) -> Present:
        seen, present = self._look(name)
        if seen is None or not stat.S_ISLNK(seen.st_mode):
            return present
        with self._folder(name[:-1]) as folder:
            return Present.EQUAL if os.readlink(name[-1], dir_fd=folder) == target else Present.DIFFERENT

    def compare_folder(self, name: NamePath) -> Present:
        seen, present = self._look(name)
        if seen is None:
            return present
        return Present.EQUAL if stat.S_ISDIR(seen.st_mode) else Present.IN_THE_WAY

    def changed_at(self, name: NamePath) -> float:
        """When the file or link was last changed, in seconds since 1970; 0: there is none."""
        seen, _ = self._look(name)
        return seen.st_mtime if seen is not None else 0.0

    def make_folder(self, name: NamePath) -> None:
        with self._folder(name, make=True):
            pass

    def begin(self, name: NamePath, entry: FileEntry) -> list[int]:
        """Make the temporary file. Return the chunks that it lacks: an earlier try may have left some."""
        wanted = [number for number, digest in enumerate(entry.chunks) if digest != ZEROS]
        mode = 0o777 if entry.is_executable else 0o666
        part = part_name(entry)
        with self._folder(name[:-1], make=True) as folder:
            while True:
                handle = os.open(part, PART_FLAGS | os.O_RDWR | os.O_CREAT, mode, dir_fd=folder)
                try:
                    _lock(handle)  # another fetch may begin the same file: only one of them may cut it
                    if not _has_name(handle, part, folder):
                        continue  # another fetch has just finished it
                    found = os.fstat(handle)
                    if found.st_size == 0 and entry.size and self.compare(name, entry) is Present.EQUAL:
                        os.unlink(part, dir_fd=folder)  # another fetch had finished it before this one began
                        return []
                    self._part_inodes[name] = (found.st_dev, found.st_ino)
                    if found.st_size == entry.size and len(entry.chunks) > 1:
                        return _lacking(handle, entry, wanted)
                    os.ftruncate(handle, 0)
                    os.ftruncate(handle, entry.size)
                    return wanted
                finally:
                    os.close(handle)

    def write_whole(self, name: NamePath, entry: FileEntry, data: bytes) -> None:
        """Write a file of one chunk, and give it its name."""
        mode = 0o777 if entry.is_executable else 0o666
        part, folder = part_name(entry), self._last_folder(name[:-1])
        is_written = False
        while not is_written:
            handle = os.open(part, PART_FLAGS | os.O_WRONLY | os.O_CREAT, mode, dir_fd=folder)
            try:
                _lock(handle)
                if is_written := _has_name(handle, part, folder):  # else another fetch has just finished it
                    os.ftruncate(handle, 0)
                    _write_at(handle, data, 0)
                    os.rename(part, name[-1], src_dir_fd=folder, dst_dir_fd=folder)
            finally:
                os.close(handle)

    def write_chunk(self, name: NamePath, entry: FileEntry, number: int, data: bytes) -> None:
        with self._begun_part(name, entry) as handle:
            if handle is not None:
                _write_at(handle, data, number * CHUNK_BYTES)

    def finish(self, name: NamePath, entry: FileEntry) -> None:
        """Give the complete file its name. Whatever file or link has the name is replaced."""
        part = part_name(entry)
        with self._folder(name[:-1]) as folder, self._begun_part(name, entry) as handle:
            if handle is not None:
                _lock(handle)
                if _has_name(handle, part, folder):
                    os.rename(part, name[-1], src_dir_fd=folder, dst_dir_fd=folder)
                    return
        if self.compare(name, entry) is not Present.EQUAL:
            where = show_name((os.fsencode(self.path), *name))
            raise Conflict(
                f"{where} was removed or changed by another program while it was written.",
                next_step="Fetch again when no other program writes into this folder.",
            )

    def make_link(self, name: NamePath, target: bytes) -> None:
        own = hash_of(target + b"\0%d %d" % (os.getpid(), threading.get_ident()))  # other fetches have another name
        fresh = b".link-" + own[:8].hex().encode() + PART_SUFFIX
        with self._folder(name[:-1], make=True) as folder:
            with suppress(FileNotFoundError):
                os.unlink(fresh, dir_fd=folder)
            os.symlink(target, fresh, dir_fd=folder)
            os.rename(fresh, name[-1], src_dir_fd=folder, dst_dir_fd=folder)

    def _look(self, name: NamePath) -> tuple[os.stat_result | None, Present]:
        """Return what has this name. Without: whether the way there is free. With: what it is if it is no file."""
        try:
            with self._folder(name[:-1]) as folder:
                seen = os.stat(name[-1], dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return None, Present.NOTHING
        except (NotADirectoryError, Conflict):
            return None, Present.IN_THE_WAY
        is_replaceable = stat.S_ISREG(seen.st_mode) or stat.S_ISLNK(seen.st_mode)
        return seen, Present.DIFFERENT if is_replaceable else Present.IN_THE_WAY

    def _has_content(self, name: NamePath, entry: FileEntry) -> bool:
        try:
            with self._opened(name, READ_FLAGS) as handle:
                return _hashes_of(handle, entry) == entry.chunks
        except FileChanged:
            return False

    @contextmanager
    def _begun_part(self, name: NamePath, entry: FileEntry) -> Iterator[int | None]:
        """Open the temporary file that `begin` saw. None: another fetch has finished it, and a third may have begun."""
        try:
            with self._folder(name[:-1]) as folder:
                handle = os.open(part_name(entry), PART_FLAGS | os.O_WRONLY, dir_fd=folder)
        except FileNotFoundError:
            yield None
            return
        try:
            opened = os.fstat(handle)
            yield handle if self._part_inodes.get(name) == (opened.st_dev, opened.st_ino) else None
        finally:
            os.close(handle)

    @contextmanager
    def _opened(self, name: NamePath, flags: int) -> Iterator[int]:
        with self._folder(name[:-1]) as folder:
            handle = os.open(name[-1], flags, dir_fd=folder)
        try:
            yield handle
        finally:
            os.close(handle)

    def _last_folder(self, name: NamePath) -> int:
        """Make and open a folder. It stays open until this thread needs another one: files come folder by folder."""
        thread = threading.get_ident()
        last = self._last.get(thread)
        if last is not None and last[0] == name:
            return last[1]
        with self._folder(name, make=True) as folder:
            handle = os.dup(folder)
        self._last[thread] = (name, handle)
        if last is not None:
            os.close(last[1])
        return handle

    @contextmanager
    def _folder(self, name: NamePath, *, make: bool = False) -> Iterator[int]:
        """Open a folder step by step from the target, so that no link on the way is followed."""
        handle = os.dup(self._handle)
        try:
            for depth, part in enumerate(name, start=1):
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, dir_fd=handle)
                try:
                    inner = os.open(part, FOLDER_FLAGS, dir_fd=handle)
                except OSError as exc:
                    if exc.errno not in (errno.ELOOP, errno.ENOTDIR):
                        raise
                    where = show_name((os.fsencode(self.path), *name[:depth]))
                    raise Conflict(
                        f"{where} is a link or a file, where a folder is needed; nothing is written through a link.",
                        next_step="Fetch into another folder with --to DIR, or move it away.",
                    ) from exc
                os.close(handle)
                handle = inner
            yield handle
        finally:
            os.close(handle)


def part_name(entry: FileEntry) -> bytes:
    """The temporary name of a file, by its name and content: a later try finds what an earlier one has fetched."""
    key = hash_of(entry.name + f"\0{entry.size} {entry.is_executable} ".encode() + b",".join(entry.chunks))
    return b"." + key[:12].hex().encode() + PART_SUFFIX


def is_part_name(name: bytes) -> bool:
    """Whether a name is that of a file or link which a fetch has not finished."""
    return name.endswith(PART_SUFFIX) and PART_PATTERN.fullmatch(name) is not None


def _hashes_of(handle: int, entry: FileEntry) -> list[bytes]:
    spans = chunk_spans(entry.size)
    return [
        digest
        for first in range(0, len(spans), SPARE_CHUNKS)
        for digest in hash_handle(handle, entry.name, spans[first : first + SPARE_CHUNKS], is_sparse=True)
    ]


def _lacking(handle: int, entry: FileEntry, wanted: list[int]) -> list[int]:
    """Return the wanted chunks that the open file lacks. A hole with bytes in it is made empty again."""
    hashes = _hashes_of(handle, entry)
    if any(found != ZEROS for found, digest in zip(hashes, entry.chunks, strict=True) if digest == ZEROS):
        os.ftruncate(handle, 0)
        os.ftruncate(handle, entry.size)
        return wanted
    return [number for number in wanted if hashes[number] != entry.chunks[number]]


def _lock(handle: int) -> None:
    """Keep other fetches from writing the same file until it is closed. Some network file systems have no locks."""
    with suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_EX)


def _has_name(handle: int, name: bytes, folder: int) -> bool:
    """Whether the open file still has this name."""
    try:
        named = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    opened = os.fstat(handle)
    return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)


def _write_at(handle: int, data: bytes, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(handle, memoryview(data)[done:], offset + done)


def write_failure(path: Path, exc: OSError) -> YardError:
    return YardError(f"Cannot write into {path}: {exc.strerror}.", next_step="Check the folder and its free space.")
