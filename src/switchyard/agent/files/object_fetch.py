"""Reads objects of a job's trees: from the cache, else from the server, and then into the cache."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from switchyard.agent.files.inputs.content_cache import ContentCache
from switchyard.agent.files.inputs.folder_writer import TreePath, read_span, show_path, write_at
from switchyard.agent.files.inputs.staging_errors import ObjectLost, StagingOver
from switchyard.agent.files.object_client import AttemptRights, ObjectStoreCalls, TakeObject
from switchyard.agent.files.transfer_threads import TransferThreads
from switchyard.agent.log import line
from switchyard.errors import YardError
from switchyard.model.files.file_tree import CHUNK_BYTES, TREE_BYTES_MAX, FolderEntry, hash_of

READ_TRIES = 3  # without an object more; then the staging as a whole waits and begins again
READ_PAUSE_S = 0.2  # before the second try; then twice as long
FULL_DISK_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
TakeContent = Callable[[bytes, bytes | int], None]  # a digest, and the bytes or the number of an open file
FOLDERS_AT_ONCE = 200  # whose entries are in memory
FOLDERS_BYTES = 16 * 2**20  # of their trees, as estimated from the counts in the trees above them
ENTRY_BYTES = 400  # of a file in a tree: at most 255 for its name, a hash, and the numbers
CHUNK_ENTRY_BYTES = 34  # of one more chunk

log = logging.getLogger(__name__)


@dataclass(slots=True)
class StagingProgress:
    """Written by the staging threads, read by others: numbers for people, and for the space that is still needed."""

    files: int = 0
    bytes: int = 0
    bytes_total: int = 0
    fetched_bytes: int = 0  # of all tries together
    folder_written_bytes: int = 0
    cache_written_bytes: int = 0

    def count_folder(self, written: int) -> None:
        self.folder_written_bytes += written

    def count_cache(self, written: int) -> None:
        self.cache_written_bytes += written

    def begin(self) -> None:
        """Begin a try."""
        self.files = self.bytes = self.bytes_total = self.folder_written_bytes = self.cache_written_bytes = 0


class ObjectFetch:
    """Reads objects for one attempt. `is_over` ends it early; `is_caching`: what comes from the server is cached."""

    def __init__(
        self,
        cache: ContentCache,
        threads: TransferThreads,
        rights: AttemptRights,
        *,
        is_over: Callable[[], bool],
        progress: StagingProgress,
    ) -> None:
        self._cache, self._threads, self._rights = cache, threads, rights
        self._is_over, self._progress = is_over, progress
        self.is_caching = True

    def check_wanted(self) -> None:
        if self._is_over():
            raise StagingOver

    def read_trees(self, root: bytes, folders: list[TreeFolder]) -> list[bytes]:
        trees: dict[bytes, bytes] = {}
        paths: dict[bytes, TreePath] = {folder.digest: folder.path for folder in folders}

        def keep(digest: bytes, content: bytes | int) -> None:
            trees[digest] = content if isinstance(content, bytes) else read_span(content, 0, TREE_BYTES_MAX)

        try:
            self._threads.run([partial(self.fetch, root, set(paths), keep)])
        except ObjectLost as exc:
            raise exc.of_file(show_path(paths[exc.digest]) + "/") from exc
        return [trees[folder.digest] for folder in folders]

    def read_again(self, lost: ObjectLost) -> None:
        """Ask for an object that was lost in the try before. Until it is there, nothing else need be fetched."""

        def ignore(digest: bytes, data: bytes) -> None:
            pass

        try:
            self._threads.run([partial(self.read_objects, lost.root, [lost.digest], ignore)])
        except ObjectLost as exc:
            raise exc.of_file(lost.name) from exc

    def fetch(self, root: bytes, digests: Iterable[bytes], deliver: TakeContent, calls: ObjectStoreCalls) -> None:
        """Deliver each object, from the cache (the number of a file) or from the server (its bytes)."""
        waiting = set(digests)

        def take(digest: bytes, data: bytes) -> None:
            self.check_wanted()
            self._progress.fetched_bytes += len(data)
            deliver(digest, data)
            waiting.discard(digest)
            if self.is_caching and self._cache.takes(len(data)):
                self._keep(digest, data)

        while waiting:
            self.check_wanted()
            for digest in list(waiting):
                with self._cache.open(digest.hex(), partial(_is_object, digest)) as number:
                    if number is not None:
                        deliver(digest, number)
                        waiting.discard(digest)
            claimed = self._cache.claim(digest.hex() for digest in waiting)
            try:
                if mine := [digest for digest in waiting if digest.hex() in claimed]:
                    self.read_objects(root, mine, take, calls)
            finally:
                self._cache.release(claimed)
            # Others are fetched by another attempt: wait for them with nothing claimed, then look again.
            self._cache.wait_for({digest.hex() for digest in waiting}, is_over=self._is_over)

    def _keep(self, digest: bytes, data: bytes) -> None:
        """Add an object to the cache. On a full disk the staging goes on without: the job has its copy."""
        try:
            with self._cache.new_file() as new:
                write_at(new.number, data, 0)
                self._cache.add(new, digest.hex(), len(data))
            self._progress.count_cache(len(data))
        except OSError as exc:
            if exc.errno not in FULL_DISK_ERRNOS:
                raise
            self.is_caching = False
            log.warning(line("not-cached", object=digest.hex()[:12], error=exc.strerror))

    def read_objects(self, root: bytes, digests: list[bytes], take: TakeObject, calls: ObjectStoreCalls) -> None:
        """Read these objects from the server, and ask again for those that did not come.

        One lost answer must not begin a large file anew. And an address of the object store expires: each request
        brings a new one.
        """
        left = dict.fromkeys(digests)
        tries = 0

        def take_one(digest: bytes, data: bytes) -> None:
            take(digest, data)
            del left[digest]

        while left:
            count = len(left)
            try:
                calls.read(self._rights, root, list(left), take_one)
            except YardError as exc:
                tries = 1 if len(left) < count else tries + 1
                if not exc.transient or isinstance(exc, StagingOver | ObjectLost) or tries == READ_TRIES:
                    raise
                self.check_wanted()
                time.sleep(READ_PAUSE_S * 2 ** (tries - 1))


def _is_object(digest: bytes, number: int) -> bool:
    size = os.fstat(number).st_size
    return size <= TREE_BYTES_MAX and hash_of(read_span(number, 0, size)) == digest


class TreeFolder(NamedTuple):
    """A folder of a tree. `tree_bytes`: the estimated size of its object."""

    path: TreePath
    digest: bytes
    tree_bytes: int = FOLDERS_BYTES


def subfolder(path: TreePath, entry: FolderEntry) -> TreeFolder:
    tree_bytes = entry.files * ENTRY_BYTES + entry.size // CHUNK_BYTES * CHUNK_ENTRY_BYTES
    return TreeFolder((*path, entry.name), entry.tree, tree_bytes)


def slices(folders: list[TreeFolder]) -> Iterator[list[TreeFolder]]:
    """Folders whose trees are read together."""
    together: list[TreeFolder] = []
    tree_bytes = 0
    for folder in folders:
        if together and (len(together) >= FOLDERS_AT_ONCE or tree_bytes >= FOLDERS_BYTES):
            yield together
            together, tree_bytes = [], 0
        together.append(folder)
        tree_bytes += folder.tree_bytes
    if together:
        yield together
