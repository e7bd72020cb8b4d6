"""Space on the agent's disk for input files: computed before they are fetched, and reserved until they are written.

Jobs that run on the same file system need space for their results: input files leave a reserve free. If the files of a
job and their copies in the cache do not fit together, cached files of other jobs are removed; if that does not help,
the files are staged without a copy in the cache.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from switchyard.agent.files.inputs.content_cache import ContentCache, name_of_file
from switchyard.agent.files.inputs.folder_writer import FICLONE
from switchyard.agent.files.inputs.staging_errors import FilesTooLarge, NoRoomNow
from switchyard.agent.files.object_fetch import ObjectFetch, StagingProgress, TreeFolder, slices, subfolder
from switchyard.model.files.file_tree import (
    FOLDER_DEPTH_MAX,
    ZEROS,
    BadTree,
    FileEntry,
    FolderEntry,
    LinkEntry,
    chunk_spans,
    decode_tree,
)
from switchyard.model.jobspec.quantity import show_bytes

# The reserve if the site names none: a tenth of the file system, for the results and logs of running jobs. More than
# 1 GiB would leave large disks unused; jobs that write more need a site that says so.
RESERVE_PART, RESERVE_BYTES_MAX = 10, 2**30
UNKNOWN_BYTES = 2**62  # of a file system that tells no size
BLOCK_BYTES = 4096  # a file takes whole blocks; of nearly all file systems


class SpaceNeed(NamedTuple):
    """Bytes on the disk for the files of one attempt."""

    folder: int  # in the job's folder, if new content is cached as well
    folder_alone: int  # the same, if no new content is cached
    cache: int  # in the cache


class _Disk(NamedTuple):
    """One file system, as the agent's account sees it. `bytes` are all it can have."""

    device: int
    free: int
    bytes: int

    @staticmethod
    def of(folder: Path | str) -> _Disk:
        status = os.statvfs(folder)
        device = os.stat(folder).st_dev  # noqa: PTH116
        if status.f_blocks == 0:
            return _Disk(device, UNKNOWN_BYTES, UNKNOWN_BYTES)
        only_root = status.f_bfree - status.f_bavail
        return _Disk(device, status.f_bavail * status.f_frsize, (status.f_blocks - only_root) * status.f_frsize)


@dataclass(slots=True)
class _Reservation:
    device: int
    bytes: int
    written_bytes: Callable[[], int]

    @property
    def open_bytes(self) -> int:
        """What is reserved and not written yet: the file system does not count it."""
        return max(0, self.bytes - self.written_bytes())


class StagingSpace:
    """The space of one agent. `reserve_bytes`: what input files leave free; None: by the size of the file system."""

    def __init__(self, *, reserve_bytes: int | None = None, bytes_min: int = 0) -> None:
        """`bytes_min`: below it the agent takes no jobs with files, so the reserve is never less."""
        self._reserve_bytes, self._bytes_min = reserve_bytes, bytes_min
        self.lock = threading.Lock()
        self.reservations: list[_Reservation] = []
        self._clones: dict[tuple[int, int], bool] = {}

    def reserve_of(self, disk_bytes: int) -> int:
        by_size = min(disk_bytes // RESERVE_PART, RESERVE_BYTES_MAX)
        return max(by_size if self._reserve_bytes is None else self._reserve_bytes, self._bytes_min)

    def room(self, disk: _Disk) -> int:
        """What may still be written. Call it with the lock."""
        is_open = sum(reservation.open_bytes for reservation in self.reservations if reservation.device == disk.device)
        return disk.free - self.reserve_of(disk.bytes) - is_open

    def can_clone(self, cache: Path | str, work: Path | str) -> bool:
        """Whether a file in the job's folder can share its blocks with a cached file. Tried once per file system."""
        devices = (os.stat(cache).st_dev, os.stat(work).st_dev)  # noqa: PTH116
        if devices not in self._clones:
            self._clones[devices] = _try_clone(f"{cache}/new/clone", f"{work}/.yard-clone")
        return self._clones[devices]


class SpaceClaim:
    """The space of one attempt: how much it needs, and what is reserved for it. Used by one thread."""

    def __init__(self, space: StagingSpace, cache: ContentCache, work: Path, progress: StagingProgress) -> None:
        self._space, self._cache, self._work, self._progress = space, cache, work, progress
        self._reservations: list[_Reservation] = []
        self.need: SpaceNeed | None = None  # as all folders say, once they were read

    @property
    def can_clone(self) -> bool:
        return self._space.can_clone(self._cache.folder, self._work)

    def take_if_ample(self, need: SpaceNeed) -> bool:
        """Reserve space if all of it is free, without removing anything from the cache."""
        with self._space.lock:
            work, cache = _Disk.of(self._work), _Disk.of(self._cache.folder)
            if self._space.room(work) < need.folder + (need.cache if work.device == cache.device else 0):
                return False
            if self._space.room(cache) < need.cache:
                return False
            self._reserve(work, cache, need.folder, need.cache)
            return True

    def take(self, need: SpaceNeed) -> bool:
        """Reserve space; cached files of other jobs make room. Returns whether new content may be cached.

        Raises FilesTooLarge or NoRoomNow.
        """
        with self._space.lock:
            work, cache = _Disk.of(self._work), _Disk.of(self._cache.folder)
            self._refuse_too_large(work, need)
            if work.device != cache.device:
                if self._space.room(work) < need.folder_alone:
                    raise self._no_room(work, need)
                is_caching = self._make_room(self._cache.folder, need.cache)
            elif self._make_room(self._work, need.folder + need.cache):
                is_caching = True
            elif self._make_room(self._work, need.folder_alone):
                is_caching = False
            else:
                raise self._no_room(work, need)
            folder = need.folder if is_caching else need.folder_alone
            self._reserve(work, cache, folder, need.cache if is_caching else 0)
            return is_caching

    def release(self) -> None:
        with self._space.lock:
            for reservation in self._reservations:
                self._space.reservations.remove(reservation)
            self._reservations = []

    def _make_room(self, folder: Path | str, wanted: int) -> bool:
        """Whether so much may be written; cached files that no job uses make room, if that is enough."""
        lacking = wanted - self._space.room(_Disk.of(folder))
        if lacking <= 0:
            return True
        if self._cache.unused_bytes < lacking:
            return False
        self._cache.make_free(lacking)
        return self._space.room(_Disk.of(folder)) >= wanted  # blocks that a job's file shares were not freed

    def _reserve(self, work: _Disk, cache: _Disk, folder_bytes: int, cache_bytes: int) -> None:
        progress = self._progress
        self._reservations = [
            _Reservation(work.device, folder_bytes, lambda: progress.folder_written_bytes),
            _Reservation(cache.device, cache_bytes, lambda: progress.cache_written_bytes),
        ]
        self._space.reservations += self._reservations

    def _refuse_too_large(self, disk: _Disk, need: SpaceNeed) -> None:
        reserve = self._space.reserve_of(disk.bytes)
        if need.folder_alone > disk.bytes - reserve:
            raise FilesTooLarge(
                f"they take {show_bytes(need.folder_alone)}, and the disk of the cluster's agent has "
                f"{show_bytes(disk.bytes)} in all, of which {show_bytes(reserve)} stay free for running jobs"
            )

    def _no_room(self, disk: _Disk, need: SpaceNeed) -> NoRoomNow:
        return NoRoomNow(
            f"they take {show_bytes(need.folder_alone)}, and the disk of the cluster's agent has "
            f"{show_bytes(max(0, self._space.room(disk)))} for them now, besides "
            f"{show_bytes(self._space.reserve_of(disk.bytes))} that stay free for running jobs"
        )


def _try_clone(source: str, target: str) -> bool:
    """Clone one small file. What cannot be tried counts as no: then more space is reserved than is needed."""
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    numbers: list[int] = []
    try:
        for place in (source, target):
            numbers.append(os.open(place, flags, 0o600))
        os.write(numbers[0], b"switchyard")
        fcntl.ioctl(numbers[1], FICLONE, numbers[0])
    except OSError:
        return False
    finally:
        for number, place in zip(numbers, (source, target), strict=False):
            os.close(number)
            os.unlink(place)  # noqa: PTH108
    return True


def rough_need(data: bytes) -> SpaceNeed:
    """At most so much is needed for the files of a tree, by the sums in its root."""
    entries = [entry for entry in decode_tree(data) if not isinstance(entry, LinkEntry)]
    size = sum(entry.size for entry in entries)
    files = sum(entry.files if isinstance(entry, FolderEntry) else 1 for entry in entries)
    most = size + files * BLOCK_BYTES
    return SpaceNeed(most, most, most)


def total_need(needs: list[SpaceNeed]) -> SpaceNeed:
    return SpaceNeed(
        sum(need.folder for need in needs),
        sum(need.folder_alone for need in needs),
        sum(need.cache for need in needs),
    )


class SpacePlan:
    """The exact need of a tree, from all its folders. The sums in the root count zeros, and what the cache has.

    `can_clone`: a file in the job's folder shares the blocks of a cached file.
    """

    def __init__(self, fetch: ObjectFetch, cache: ContentCache, *, can_clone: bool) -> None:
        self._fetch, self._cache, self._can_clone = fetch, cache, can_clone

    def need(self, root: bytes, top: bytes) -> SpaceNeed:
        folder = alone = cache = 0
        level = [TreeFolder((), top)]
        for _ in range(FOLDER_DEPTH_MAX + 1):
            below: list[TreeFolder] = []
            for folders in slices(level):
                self._fetch.check_wanted()
                for (path, _, _), data in zip(folders, self._fetch.read_trees(root, folders), strict=True):
                    for entry in decode_tree(data):
                        if isinstance(entry, FolderEntry):
                            below.append(subfolder(path, entry))
                        elif isinstance(entry, FileEntry):
                            more = self._need_of_file(entry)
                            folder, alone, cache = folder + more.folder, alone + more.folder_alone, cache + more.cache
            if not below:
                return SpaceNeed(folder, alone, cache)
            level = below
        raise BadTree(f"it has more than {FOLDER_DEPTH_MAX} folders in folders")

    def _need_of_file(self, entry: FileEntry) -> SpaceNeed:
        spans = zip(chunk_spans(entry.size), entry.chunks, strict=True)
        stored = sum(-(-span.size // BLOCK_BYTES) * BLOCK_BYTES for span, chunk in spans if chunk != ZEROS)
        if not stored:
            return SpaceNeed(0, 0, 0)
        is_large = len(entry.chunks) > 1
        is_cached = self._cache.touch(name_of_file(entry) if is_large else entry.chunks[0].hex())
        is_to_be_cached = not is_cached and self._cache.takes(stored)
        # A small file that is fetched is written twice; a large one is assembled in the cache, and cloned from there.
        is_shared = self._can_clone and (is_cached or (is_large and is_to_be_cached))
        return SpaceNeed(
            0 if is_shared else stored,
            0 if self._can_clone and is_cached else stored,
            stored if is_to_be_cached else 0,
        )
