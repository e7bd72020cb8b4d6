"""The cache of input files, by content: bounded, least recently used out first, shared by threads.

A cached file is named by its content, so it is never changed, only added and removed. It is trusted after its hash was
checked by this process, as long as its status (inode, size, change time) stays the same; else it is checked again, and
fetched again if it is damaged. So nothing here is synced to the disk: after a power cut every file is checked.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from switchyard.agent.log import line
from switchyard.errors import Unavailable
from switchyard.model.files.file_tree import FileEntry

CACHE_WAIT_S = 0.5  # between two looks whether the agent ends, while another thread fetches the same file
FileStatus = tuple[int, int, int]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _CachedFile:
    size: int  # bytes on the disk
    checked: FileStatus | None = None  # the status at which the content was checked; None: not by this process
    pins: int = 0


class ContentCache:
    """`folder` is the agent's alone: a job that could write in it could change the files of later jobs."""

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self._folder, self._bytes_max = folder, bytes_max
        self._new = folder / "new"
        self._top = str(folder)  # names are joined as text: a tree may have a hundred thousand files
        self._parts: set[str] = set()  # folders in it that are there
        self._changed = threading.Condition()
        self._files: OrderedDict[str, _CachedFile] = OrderedDict()  # the least recently used first
        self._fetching: set[str] = set()
        self._bytes = 0
        self._number = 0
        try:
            shutil.rmtree(self._new, ignore_errors=True)  # leftovers of a process that was killed
            self._new.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)
            self._load()
        except OSError as exc:
            raise Unavailable(
                f"The cache of files cannot be kept in {folder}: {exc.strerror}.",
                next_step="Name another folder in the site file: `files: {folder: DIR}`.",
            ) from exc
        self._make_room(0)

    @property
    def bytes(self) -> int:
        return self._bytes

    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def unused_bytes(self) -> int:
        """What `make_free` can remove."""
        with self._changed:
            return sum(cached.size for cached in self._files.values() if not cached.pins)

    def touch(self, name: str) -> bool:
        """Whether a file is cached. It is removed after all that were used earlier."""
        with self._changed:
            if name not in self._files:
                return False
            self._files.move_to_end(name)
            return True

    def takes(self, size: int) -> bool:
        """Whether a file of this size is cached. A larger one goes straight into the job's folder."""
        return size <= self._bytes_max

    @contextlib.contextmanager
    def open(self, name: str, is_intact: Callable[[int], bool]) -> Iterator[int | None]:
        """The number of the open file; None: it is not there, or was damaged. It stays while it is open.

        `is_intact` reads the whole file; it is asked unless the file was checked before and is the same since.
        """
        pinned = self._pin(name)
        if pinned is None:
            yield None
            return
        cached, number = pinned
        try:
            yield number if self._check(name, cached, number, is_intact) else None
        finally:
            os.close(number)
            self._unpin(cached)

    def claim(self, names: Iterable[str]) -> set[str]:
        """The names that the caller must fetch. Other threads fetch the rest: `wait_for` them, then look again.

        Release all claims before waiting, so that two threads never wait for each other.
        """
        with self._changed:
            claimed = {name for name in names if name not in self._fetching}
            self._fetching |= claimed
            return claimed

    def release(self, names: Collection[str]) -> None:
        with self._changed:
            self._fetching.difference_update(names)
            self._changed.notify_all()

    def wait_for(self, names: Collection[str], *, is_over: Callable[[], bool]) -> None:
        """Wait until no other thread fetches these, or `is_over`."""
        with self._changed:
            while self._fetching.intersection(names) and not is_over():
                self._changed.wait(CACHE_WAIT_S)

    @contextlib.contextmanager
    def new_file(self) -> Iterator[NewFile]:
        """A file without a name, to be written and then added. It is removed if it is not added."""
        with self._changed:
            self._number += 1
            new = NewFile(f"{self._top}/new/{self._number}")
        new.number = os.open(new.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            yield new
        finally:
            os.close(new.number)
            if not new.is_added:
                Path(new.path).unlink()

    def add(self, new: NewFile, name: str, size: int) -> None:
        """Keep a complete and verified file under its name. `size`: its bytes without holes."""
        with self._changed:
            if name in self._files:
                return
            self._make_room(size)
            if name[:2] not in self._parts:
                (self._folder / name[:2]).mkdir(mode=0o700, exist_ok=True)
                self._parts.add(name[:2])
            os.rename(new.path, self._place(name))  # noqa: PTH104 - on text, as everything here
            new.is_added = True
            self._files[name] = _CachedFile(size, _status_of(new.number))
            self._bytes += size

    def make_free(self, size: int) -> None:
        """Remove the least recently used files until so many bytes are gone from the disk. Files in use stay."""
        with self._changed:
            wanted = self._bytes - size
            for name in [name for name, cached in self._files.items() if not cached.pins]:
                if self._bytes <= wanted:
                    return
                self._forget(name)

    def clear(self) -> int:
        """Remove everything that is not in use: the disk is full. Returns the removed bytes."""
        with self._changed:
            before = self._bytes
            self._make_room(self._bytes_max + 1)
            return before - self._bytes

    def _place(self, name: str) -> str:
        return f"{self._top}/{name[:2]}/{name}"

    def _load(self) -> None:
        """Find the files of earlier processes. Their access times give the order in which they were used."""
        found: list[tuple[float, str, int]] = []
        for folder in os.scandir(self._folder):
            if len(folder.name) != 2 or not folder.is_dir(follow_symlinks=False):
                continue
            for entry in os.scandir(folder):
                status = entry.stat(follow_symlinks=False)
                if entry.is_file(follow_symlinks=False) and entry.name.startswith(folder.name):
                    found.append((status.st_mtime, entry.name, status.st_blocks * 512))
        for _, name, size in sorted(found):
            self._files[name] = _CachedFile(size)
            self._bytes += size

    def _pin(self, name: str) -> tuple[_CachedFile, int] | None:
        with self._changed:
            cached = self._files.get(name)
            if cached is None:
                return None
            try:
                number = os.open(self._place(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as exc:
                log.warning(line("cached-file-gone", file=name, error=exc.strerror))
                self._forget(name)
                return None
            cached.pins += 1
            self._files.move_to_end(name)
            return cached, number

    def _unpin(self, cached: _CachedFile) -> None:
        with self._changed:
            cached.pins -= 1
            self._make_room(0)

    def _check(self, name: str, cached: _CachedFile, number: int, is_intact: Callable[[int], bool]) -> bool:
        if cached.checked != _status_of(number) and not is_intact(number):
            log.warning(line("cached-file-damaged", file=name))
            with self._changed:
                if self._files.get(name) is cached:
                    self._forget(name)
            return False
        with contextlib.suppress(OSError):
            os.utime(number)  # the order of use, for the next process
        cached.checked = _status_of(number)
        return True

    def _forget(self, name: str) -> None:
        if (cached := self._files.pop(name, None)) is not None:
            self._bytes -= cached.size
        with contextlib.suppress(OSError):
            Path(self._place(name)).unlink()

    def _make_room(self, size: int) -> None:
        """Remove the least recently used files until `size` bytes fit. Files in use stay, also over the bound."""
        if self._bytes + size <= self._bytes_max:
            return
        for name in [name for name, cached in self._files.items() if not cached.pins]:
            self._forget(name)
            if self._bytes + size <= self._bytes_max:
                return


@dataclass(slots=True)
class NewFile:
    """A file of the cache that has no name yet. `number`: of the open file."""

    path: str
    number: int = -1
    is_added: bool = False


def name_of_file(entry: FileEntry) -> str:
    """The name of a file of several chunks in the cache: by its size and the hashes of its chunks."""
    text = b"".join([b"yard-file\n", str(entry.size).encode(), *(chunk.ljust(32, b"\0") for chunk in entry.chunks)])
    return hashlib.sha256(text).hexdigest()


def _status_of(number: int) -> FileStatus:
    status = os.fstat(number)
    return status.st_ino, status.st_size, status.st_ctime_ns
