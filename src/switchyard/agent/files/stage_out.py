"""Collects the output files of one attempt and uploads them: read once, chunk by chunk, with bounded memory.

The job may have put anything into its folder. So folders are walked by their numbers, links are not followed, and only
plain files are opened. An agent of root takes only files of the job's own account: another file could have got here by
a second name.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from switchyard.agent.accounts import LocalAccount
from switchyard.agent.files.folder_writer import FOLDER_FLAGS, TreePath, is_hole, is_zeros, read_span, show_path
from switchyard.agent.files.object_client import AttemptRights, ObjectStoreCalls
from switchyard.agent.files.out_patterns import OutPatterns, PatternMatch
from switchyard.agent.files.transfer_threads import Transfer, TransferThreads
from switchyard.errors import Unavailable
from switchyard.model.file_tree import (
    CHUNK_BYTES,
    DEPTH_MAX,
    ZEROS,
    BadTree,
    Entry,
    FileEntry,
    FolderEntry,
    LinkEntry,
    chunk_spans,
    encode_tree,
    hash_of,
    is_inside,
)
from switchyard.model.files import MISSING_LISTED_MAX, AttemptOutputs, OutputState
from switchyard.model.quantity import show_bytes

BATCH_BYTES = 2 * CHUNK_BYTES  # sent in one request
BATCH_OBJECTS = 500
READ_TRIES = 3  # of a file that changes while it is read
SEAL_TRIES = 3  # the server may have removed an object since it said that it has it
SENT_REMEMBERED_MAX = 100_000
SKIPPED_CHARS_MAX = 1000

Walk = Generator[Transfer, None, Entry | None]


@dataclass(frozen=True, slots=True)
class OutputBounds:
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class OutputRequest:
    """What to collect, from where, and in whose name."""

    rights: AttemptRights
    folder: Path
    patterns: Sequence[str]
    bounds: OutputBounds
    account: LocalAccount | None = None


@dataclass(slots=True)
class _Counts:
    files: int = 0
    bytes: int = 0
    matched: set[int] = field(default_factory=set)  # numbers of patterns
    skipped: list[str] = field(default_factory=list)
    skipped_count: int = 0

    def skip(self, path: TreePath, why: str) -> None:
        self.skipped_count += 1
        if len(self.skipped) < MISSING_LISTED_MAX:
            self.skipped.append(f"{show_path(path)[-SKIPPED_CHARS_MAX:]}: {why}")


def find_missing(request: OutputRequest) -> list[str]:
    """The patterns for which the attempt left nothing. Reads no file."""
    walk = _OutputWalk(request, is_over=lambda: False, is_reading=False)
    for _ in walk.run():
        pass
    return walk.missing()


def upload_outputs(request: OutputRequest, threads: TransferThreads, *, is_over: Callable[[], bool]) -> AttemptOutputs:
    """Upload what the patterns match and seal it. Raises a YardError or OSError; a new call goes on where it ended."""
    rights = request.rights
    for _ in range(SEAL_TRIES):
        walk = _OutputWalk(request, is_over=is_over, is_reading=True)
        threads.run(walk.run())
        root = walk.root
        missing: list[str] = []

        def seal(calls: ObjectStoreCalls, root: bytes = root, missing: list[str] = missing) -> None:
            missing += calls.seal(rights, root).missing

        threads.run([seal])
        if not missing:
            return AttemptOutputs(
                job=rights.job,
                fence=rights.fence,
                state=OutputState.READY,
                root=root.hex(),
                files=walk.counts.files,
                bytes=walk.counts.bytes,
                missing=walk.missing()[:MISSING_LISTED_MAX],
                skipped=walk.skipped(),
            )
    raise Unavailable("The server lost objects of the output files while they were uploaded.")


class _OutputWalk:
    """One walk over the job's folder. `run` gives the uploads, as the walk goes on."""

    def __init__(self, request: OutputRequest, *, is_over: Callable[[], bool], is_reading: bool) -> None:
        self._request, self._is_over, self._is_reading = request, is_over, is_reading
        self._patterns = OutPatterns(request.patterns)
        self._uid = request.account.uid if request.account is not None and os.geteuid() == 0 else None
        self._batch: dict[bytes, bytes] = {}
        self._batch_bytes = 0
        self._sent: set[bytes] = set()
        self.counts = _Counts()
        self.root = b""

    def missing(self) -> list[str]:
        return [text for number, text in enumerate(self._request.patterns) if number not in self.counts.matched]

    def skipped(self) -> list[str]:
        listed, more = self.counts.skipped, self.counts.skipped_count - len(self.counts.skipped)
        return [*listed[:-1], f"{more + 1} more files"] if more else listed

    def run(self) -> Iterator[Transfer]:
        number = os.open(self._request.folder, FOLDER_FLAGS)
        try:
            top = yield from self._folder(number, (), self._patterns.top())
        finally:
            os.close(number)
        if not self._is_reading:
            return
        assert isinstance(top, FolderEntry)
        self.root = top.tree
        if self._batch:
            yield self._flush()

    def _folder(self, number: int, path: TreePath, match: PatternMatch) -> Walk:
        """The folder with what the patterns match in it; None: that is nothing."""
        if self._is_over():
            raise Unavailable("The agent ends.")
        entries: list[Entry] = []
        for name, status in _list_folder(number):
            below = self._patterns.below(match, name)
            if not below.states and not below.complete:
                continue
            entry = yield from self._entry(number, (*path, name), status, below)
            if entry is not None:
                entries.append(entry)
        self.counts.matched |= match.complete
        if not entries and not match.complete and path:
            return None
        if not self._is_reading:
            return FolderEntry(path[-1] if path else b".", b"", 0, 0)
        try:
            data = encode_tree(entries)
        except BadTree as exc:
            self.counts.skip(path, str(exc))
            data = encode_tree([])
        yield from self._send(digest := hash_of(data), data)
        sizes = [entry for entry in entries if not isinstance(entry, LinkEntry)]
        files = sum(entry.files if isinstance(entry, FolderEntry) else 1 for entry in sizes)
        return FolderEntry(path[-1] if path else b".", digest, files, sum(entry.size for entry in sizes))

    def _entry(self, parent: int, path: TreePath, status: os.stat_result, match: PatternMatch) -> Walk:
        name = path[-1]
        if stat.S_ISDIR(status.st_mode):
            return (yield from self._subfolder(parent, path, match))
        if not match.complete:
            return None
        if self._uid is not None and status.st_uid != self._uid:
            self.counts.skip(path, "it belongs to another account than the job's")
        elif stat.S_ISLNK(status.st_mode):
            target = os.readlink(name, dir_fd=parent)
            if is_inside(path[:-1], target):
                self.counts.matched |= match.complete
                return LinkEntry(name, target)
            self.counts.skip(path, "it is a link to a place outside the job's folder")
        elif not stat.S_ISREG(status.st_mode):
            self.counts.skip(path, "it is no plain file")
        elif not self._is_reading:
            self.counts.matched |= match.complete
        else:
            entry = yield from self._file(parent, path, status)
            self.counts.matched |= match.complete if entry is not None else set()
            return entry
        return None

    def _subfolder(self, parent: int, path: TreePath, match: PatternMatch) -> Walk:
        if len(path) > DEPTH_MAX:
            self.counts.skip(path, f"it has more than {DEPTH_MAX} folders above it")
            return None
        try:
            number = os.open(path[-1], FOLDER_FLAGS, dir_fd=parent)
        except OSError as exc:
            self.counts.skip(path, f"it cannot be opened: {exc.strerror}")
            return None
        try:
            return (yield from self._folder(number, path, match))
        except PermissionError as exc:
            self.counts.skip(path, f"it cannot be read: {exc.strerror}")
            return None
        finally:
            os.close(number)

    def _file(self, parent: int, path: TreePath, status: os.stat_result) -> Walk:
        bounds, counts = self._request.bounds, self.counts
        if counts.files >= bounds.files:
            counts.skip(path, f"this site takes at most {bounds.files} files of an attempt")
            return None
        if counts.bytes + status.st_size > bounds.bytes:
            counts.skip(path, f"this site takes at most {show_bytes(bounds.bytes)} of an attempt")
            return None
        try:
            number = os.open(path[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
        except OSError as exc:
            counts.skip(path, f"it cannot be opened: {exc.strerror}")
            return None
        try:
            for _ in range(READ_TRIES):
                entry = yield from self._read_file(number, path[-1])
                if entry is not None:
                    counts.files, counts.bytes = counts.files + 1, counts.bytes + entry.size
                    return entry
        except OSError as exc:
            counts.skip(path, f"it cannot be read: {exc.strerror}")
            return None
        finally:
            os.close(number)
        counts.skip(path, "it changed while it was read")
        return None

    def _read_file(self, number: int, name: bytes) -> Generator[Transfer, None, FileEntry | None]:
        """The file's entry; None: it changed meanwhile."""
        before = os.fstat(number)
        if not stat.S_ISREG(before.st_mode) or (self._uid is not None and before.st_uid != self._uid):
            return None
        chunks: list[bytes] = []
        for offset, size in chunk_spans(before.st_size):
            if self._is_over():
                raise Unavailable("The agent ends.")
            if is_hole(number, offset, size):
                chunks.append(ZEROS)
                continue
            data = read_span(number, offset, size)
            if len(data) != size:
                return None
            if is_zeros(data):
                chunks.append(ZEROS)
                continue
            chunks.append(hash_of(data))
            yield from self._send(chunks[-1], data)
        after = os.fstat(number)
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            return None
        return FileEntry(name, before.st_size, bool(before.st_mode & 0o100), chunks)

    def _send(self, digest: bytes, data: bytes) -> Iterator[Transfer]:
        if digest in self._sent:
            return
        if self._batch and (self._batch_bytes + len(data) > BATCH_BYTES or len(self._batch) >= BATCH_OBJECTS):
            yield self._flush()
        self._batch[digest] = data
        self._batch_bytes += len(data)
        if len(self._sent) < SENT_REMEMBERED_MAX:
            self._sent.add(digest)

    def _flush(self) -> Transfer:
        batch, self._batch, self._batch_bytes = self._batch, {}, 0
        return partial(_send_missing, self._request.rights, batch)


def _send_missing(rights: AttemptRights, objects: dict[bytes, bytes], calls: ObjectStoreCalls) -> None:
    answer = calls.missing(rights, {digest: len(data) for digest, data in objects.items()})
    missing = [bytes.fromhex(text) for text in answer.missing]
    if wanted := {digest: objects[digest] for digest in missing if digest in objects}:
        calls.send(rights, wanted, answer.uploads)


def _list_folder(number: int) -> list[tuple[bytes, os.stat_result]]:
    """Names and statuses, in order of the names. A file that is gone meanwhile is left out."""
    entries: list[tuple[bytes, os.stat_result]] = []
    for name in os.listdir(number):
        try:
            entries.append((os.fsencode(name), os.stat(name, dir_fd=number, follow_symlinks=False)))
        except FileNotFoundError:
            continue
    return sorted(entries, key=lambda entry: entry[0])
