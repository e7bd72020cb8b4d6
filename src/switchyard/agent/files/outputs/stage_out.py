"""Collects the output files of one attempt and uploads them: read once, chunk by chunk, with bounded memory.

The job may have put anything into its folder. So folders are walked by their numbers, links are not followed, and only
plain files are opened. An agent of root takes only files of the job's own account: another file could have got here by
a second name.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from switchyard.agent.files.inputs.folder_writer import FOLDER_FLAGS, TreePath, is_hole, is_zeros, read_span
from switchyard.agent.files.object_client import AttemptRights, ObjectStoreCalls
from switchyard.agent.files.outputs.output_budget import (
    FOLDER_ENTRY_BYTES,
    LISTING_BYTES,
    OutputBounds,
    OutputBudget,
    UserRoomShort,
    entry_bytes,
    folder_bytes,
)
from switchyard.agent.files.transfer_threads import Transfer, TransferThreads
from switchyard.agent.site.accounts import LocalAccount
from switchyard.errors import LimitReached, Unavailable
from switchyard.model.files.file_tree import (
    CHUNK_BYTES,
    TREE_BYTES_MAX,
    ZEROS,
    Entry,
    FileEntry,
    FolderEntry,
    LinkEntry,
    chunk_spans,
    encode_tree,
    hash_of,
    is_inside,
)
from switchyard.model.files.files import MISSING_LISTED_MAX, AttemptOutputs, OutputRoom, OutputState
from switchyard.model.job.site_needs import SITE_FOLDER
from switchyard.model.jobspec.quantity import show_bytes

BATCH_BYTES = 2 * CHUNK_BYTES  # sent in one request
BATCH_OBJECTS = 500
READ_TRIES = 3  # of a file that changes while it is read
ROUNDS_MAX = 4  # the server may have less room by now, or have removed an object since it said that it has it
SENT_REMEMBERED_MAX = 100_000

Walk = Generator[Transfer, None, Entry | None]


@dataclass(frozen=True, slots=True)
class OutputRequest:
    """What to collect, from where, and in whose name.

    `earlier`: files that an earlier upload took, with their sizes. `note`: follows the reason of files over a limit,
    which the agent tries again for `retry_s`.
    """

    rights: AttemptRights
    folder: Path
    patterns: Sequence[str]
    bounds: OutputBounds
    account: LocalAccount | None = None
    earlier: Mapping[TreePath, int] = field(default_factory=dict)
    note: str = ""
    retry_s: int = 0


@dataclass(frozen=True, slots=True)
class UploadedOutputs:
    """A sealed tree of output files. `lost_files` are not in it, with the reason; `taken_files` are.

    `needed`: limits of the server that files are over, with the bytes that must be left so that one more fits.
    """

    outputs: AttemptOutputs
    lost_files: list[str]
    needed: dict[str, int]
    taken_files: dict[TreePath, int]


def upload_outputs(request: OutputRequest, threads: TransferThreads, *, is_over: Callable[[], bool]) -> UploadedOutputs:
    """Upload what the patterns match and what fits, seal it, and tell the server.

    Raises a YardError or OSError; a new call continues where it ended.
    """
    rights = request.rights
    room, refused = ask_room(rights, threads), None
    refusal: LimitReached | None = None
    for _ in range(ROUNDS_MAX):
        budget = OutputBudget(request.bounds, room, refused=refused, earlier=request.earlier, note=request.note)
        walk = _OutputWalk(request, budget, is_over=is_over)
        try:
            threads.run(walk.run())
            if _seal(rights, walk.root, threads):
                refusal = None
                continue
            uploaded = UploadedOutputs(walk.outputs(), budget.lost_files, budget.needed(), budget.taken_files)
            _tell(uploaded.outputs, threads)
        except (UserRoomShort, LimitReached) as exc:
            # Others use the same room at the same time: ask again how much there is, and count what is new.
            refusal = exc if isinstance(exc, LimitReached) else None
            room = ask_room(rights, threads)
            refused = plan_uploads(request, room, threads, is_over=is_over)
        else:
            return uploaded
    raise refusal or Unavailable("The server lost objects of the output files while they were uploaded.")


def ask_room(rights: AttemptRights, threads: TransferThreads) -> OutputRoom:
    rooms: list[OutputRoom] = []
    threads.run([lambda calls: rooms.append(calls.room(rights))])
    return rooms[0]


def plan_uploads(
    request: OutputRequest, room: OutputRoom, threads: TransferThreads, *, is_over: Callable[[], bool]
) -> frozenset[TreePath]:
    """Hash all files without sending them. Returns those for whose new objects the owner of the job has no room."""
    if room.user is None:
        return frozenset()
    budget = OutputBudget(request.bounds, room, refused=frozenset(), earlier=request.earlier)

    def find_new(digests: Sequence[bytes]) -> set[bytes]:
        new: set[bytes] = set()
        threads.run([lambda calls: new.update(calls.absent(request.rights, digests))])
        return new

    plan = UploadPlan(room.user.left, find_new)
    walk = _OutputWalk(request, budget, is_over=is_over, plan=plan)
    for _ in walk.run():
        pass
    return plan.refused_paths()


def _seal(rights: AttemptRights, root: bytes, threads: TransferThreads) -> list[str]:
    """Seal the tree. Returns the objects that the server lacks."""
    missing: list[str] = []
    threads.run([lambda calls: missing.extend(calls.seal(rights, root).missing)])
    return missing


def _tell(outputs: AttemptOutputs, threads: TransferThreads) -> None:
    threads.run([lambda calls: calls.tell(outputs)])


class _OutputWalk:
    """One walk over the job's folder. `run` gives the uploads, as the walk goes on; with a plan, there are none."""

    def __init__(
        self,
        request: OutputRequest,
        budget: OutputBudget,
        *,
        is_over: Callable[[], bool],
        plan: UploadPlan | None = None,
    ) -> None:
        self._request, self._budget, self._is_over, self._plan = request, budget, is_over, plan
        self._patterns = OutPatterns(request.patterns)
        self._uid = request.account.uid if request.account is not None and os.geteuid() == 0 else None
        self._batch: dict[bytes, bytes] = {}
        self._batch_bytes = 0
        self._sent: set[bytes] = set()
        self._planned: dict[bytes, int] = {}  # objects of the present file
        self._matched: set[int] = set()  # numbers of patterns
        self.root = b""

    def outputs(self) -> AttemptOutputs:
        missing = [text for number, text in enumerate(self._request.patterns) if number not in self._matched]
        return AttemptOutputs(
            job=self._request.rights.job,
            fence=self._request.rights.fence,
            state=OutputState.READY,
            root=self.root.hex(),
            files=self._budget.files,
            bytes=self._budget.bytes,
            missing=missing[:MISSING_LISTED_MAX],
            skipped=self._budget.listed_skipped(),
            retry_s=self._request.retry_s if self._budget.needed() else 0,
        )

    def run(self) -> Iterator[Transfer]:
        number = os.open(self._request.folder, FOLDER_FLAGS)
        try:
            top = yield from self._folder(number, (), self._patterns.top())
        finally:
            os.close(number)
        assert isinstance(top, FolderEntry)
        self.root = top.tree
        if self._batch:
            yield self._flush()

    def _folder(self, number: int, path: TreePath, match: PatternMatch) -> Walk:
        """The folder with what the patterns match in it; None: that is nothing."""
        if self._is_over():
            raise Unavailable("The agent ends.")
        entries: list[Entry] = []
        listing_bytes = LISTING_BYTES
        for name, status in _list_folder(number):
            if not path and name == SITE_FOLDER.encode():
                continue  # what the site gave to the job alone
            below = self._patterns.below(match, name)
            if not below.states and not below.complete:
                continue
            entry = yield from self._entry(number, (*path, name), status, below)
            if entry is None:
                continue
            listing_bytes += _listed_bytes(entry)
            if listing_bytes > TREE_BYTES_MAX:
                self._leave_out(entry, (*path, name))
                listing_bytes -= _listed_bytes(entry)
                continue
            entries.append(entry)
        self._matched |= match.complete
        if not entries and not match.complete and path:
            return None
        self._budget.take_folder(path)
        data = encode_tree(entries)
        yield from self._send(digest := hash_of(data), data)
        if self._plan is not None:
            self._plan.add(None, self._planned, folder_bytes(path))
            self._planned = {}
        sizes = [entry for entry in entries if not isinstance(entry, LinkEntry)]
        files = sum(entry.files if isinstance(entry, FolderEntry) else 1 for entry in sizes)
        return FolderEntry(path[-1] if path else b".", digest, files, sum(entry.size for entry in sizes))

    def _leave_out(self, entry: Entry, path: TreePath) -> None:
        if isinstance(entry, FileEntry):
            self._budget.give_back_file(path)
        self._budget.skip(path, f"the server takes at most {show_bytes(TREE_BYTES_MAX)} for the list of one folder")

    def _entry(self, parent: int, path: TreePath, status: os.stat_result, match: PatternMatch) -> Walk:
        name = path[-1]
        if stat.S_ISDIR(status.st_mode):
            return (yield from self._subfolder(parent, path, match))
        if not match.complete:
            return None
        budget = self._budget
        if self._uid is not None and status.st_uid != self._uid:
            budget.skip(path, "it belongs to another account than the job's", is_lost=False)
        elif stat.S_ISLNK(status.st_mode):
            target = os.readlink(name, dir_fd=parent)
            if not is_inside(path[:-1], target):
                budget.skip(path, "it is a link to a place outside the job's folder", is_lost=False)
            elif budget.has_room_for_link(path):
                budget.entries += 1
                self._matched |= match.complete
                return LinkEntry(name, target)
        elif not stat.S_ISREG(status.st_mode):
            budget.skip(path, "it is no plain file", is_lost=False)
        else:
            self._matched |= match.complete  # also if the file cannot be taken: that is told by its name
            if budget.has_room_for_file(path, status.st_size):
                return (yield from self._file(parent, path))
        return None

    def _subfolder(self, parent: int, path: TreePath, match: PatternMatch) -> Walk:
        if not self._budget.has_room_for_folder(path):
            return None
        try:
            number = os.open(path[-1], FOLDER_FLAGS, dir_fd=parent)
        except OSError as exc:
            self._budget.skip(path, f"it cannot be opened: {exc.strerror}")
            return None
        try:
            return (yield from self._folder(number, path, match))
        except PermissionError as exc:
            self._budget.skip(path, f"it cannot be read: {exc.strerror}")
            return None
        finally:
            os.close(number)

    def _file(self, parent: int, path: TreePath) -> Walk:
        budget = self._budget
        try:
            number = os.open(path[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
        except OSError as exc:
            budget.skip(path, f"it cannot be opened: {exc.strerror}")
            return None
        try:
            for _ in range(READ_TRIES):
                self._planned = {}
                entry = yield from self._read_file(number, path[-1])
                if entry is None:
                    continue
                if self._plan is not None:
                    self._plan.add(path, self._planned, entry_bytes(path, entry.size))
                    self._planned = {}
                budget.take_file(path, entry.size)
                return entry
        except OSError as exc:
            budget.skip(path, f"it cannot be read: {exc.strerror}")
            return None
        finally:
            os.close(number)
        budget.skip(path, "it changed while it was read")
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
        if self._plan is not None:
            self._planned[digest] = len(data)
            return
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


def _listed_bytes(entry: Entry) -> int:
    """The bytes that an entry takes at most in the list of its folder."""
    name = (entry.name,)
    if isinstance(entry, FileEntry):
        return entry_bytes(name, entry.size)
    return FOLDER_ENTRY_BYTES + len(entry.name) + (len(entry.target) if isinstance(entry, LinkEntry) else 0)


def _list_folder(number: int) -> list[tuple[bytes, os.stat_result]]:
    """Names and statuses, in order of the names. A file that is gone meanwhile is left out."""
    entries: list[tuple[bytes, os.stat_result]] = []
    for name in os.listdir(number):
        try:
            entries.append((os.fsencode(name), os.stat(name, dir_fd=number, follow_symlinks=False)))
        except FileNotFoundError:
            continue
    return sorted(entries, key=lambda entry: entry[0])


ASKED_OBJECTS = 5000  # looked up in one request


class UploadPlan:
    """Which files have room, counted by their new objects, in the order of the walk. Objects are looked up in pages."""

    def __init__(self, left: int, find_new: Callable[[Sequence[bytes]], set[bytes]]) -> None:
        self.left = left
        self.find_new = find_new  # those of some objects that the owner does not hold
        self._page: list[tuple[TreePath, dict[bytes, int], int]] = []
        self._page_objects = 0
        self._counted: set[bytes] = set()  # of files that have room
        self._seen: set[bytes] = set()
        self._refused: set[TreePath] = set()
        self._new_bytes = 0  # of files that have room, with their places in the lists of folders
        self._all_bytes = 0  # of all new objects

    def add(self, path: TreePath | None, objects: dict[bytes, int], extra_bytes: int) -> None:
        """Add a file, or the list of a folder (no path). `extra_bytes`: at most so many in the lists of folders."""
        self._page.append((path or (), objects, extra_bytes))
        self._page_objects += len(objects)
        if self._page_objects >= ASKED_OBJECTS:
            self._settle()

    def refused_paths(self) -> frozenset[TreePath]:
        self._settle()
        # If there is room for everything, the estimate of the folders' lists does not count.
        return frozenset() if self._all_bytes <= self.left else frozenset(self._refused)

    def _settle(self) -> None:
        page, self._page, self._page_objects = self._page, [], 0
        sizes = {digest: size for _, objects, _ in page for digest, size in objects.items()}
        new: set[bytes] = set()
        for first in range(0, len(sizes), ASKED_OBJECTS):
            new |= self.find_new(list(sizes)[first : first + ASKED_OBJECTS])
        self._all_bytes += sum(size for digest, size in sizes.items() if digest in new and digest not in self._seen)
        self._seen.update(sizes)
        for path, objects, extra_bytes in page:
            cost = sum(size for digest, size in objects.items() if digest in new and digest not in self._counted)
            if path and cost and self._new_bytes + cost + extra_bytes > self.left:
                self._refused.add(path)
                continue
            self._new_bytes += (cost if path else 0) + extra_bytes
            self._counted.update(objects)


# The patterns that name a job's output files: `*` and `?` within a name, `**` for any number of folders. Pure.
#
# A pattern that matches a folder takes everything in it. Names that begin with a dot match like all others.

ANY_FOLDERS = b"**"


@dataclass(frozen=True, slots=True)
class PatternMatch:
    """How far the patterns match a path. `complete`: numbers of the patterns that match all of it."""

    states: frozenset[tuple[int, int]]  # number of a pattern, and of its first part that is not matched
    complete: frozenset[int]


class OutPatterns:
    def __init__(self, patterns: Sequence[str]) -> None:
        self._parts = [
            [_part(part) for part in os.fsencode(text).split(b"/") if part not in (b"", b".")] for text in patterns
        ]

    def top(self) -> PatternMatch:
        """The match of the job's folder itself: `.` and `**` take all of it."""
        return self._closed({(number, 0) for number in range(len(self._parts))})

    def below(self, match: PatternMatch, name: bytes) -> PatternMatch:
        """The match of an entry of this name in a folder with that match."""
        states: set[tuple[int, int]] = set()
        for number, at in match.states:
            if at == len(self._parts[number]):
                continue
            part = self._parts[number][at]
            if part is None:
                states.add((number, at))
            elif part.fullmatch(name):
                states.add((number, at + 1))
        closed = self._closed(states)
        return PatternMatch(closed.states, closed.complete | match.complete)

    def _closed(self, states: set[tuple[int, int]]) -> PatternMatch:
        """Add the states in which `**` matches no folder."""
        closed = set(states)
        for number, begin in states:
            at = begin
            while at < len(self._parts[number]) and self._parts[number][at] is None:
                at += 1
                closed.add((number, at))
        return PatternMatch(
            frozenset(closed), frozenset(number for number, at in closed if at == len(self._parts[number]))
        )


def _part(text: bytes) -> re.Pattern[bytes] | None:
    """The expression for one part of a pattern; None: `**`."""
    if text == ANY_FOLDERS:
        return None
    first, *others = [_literal(piece) for piece in re.split(rb"\*+", text)]
    if not others:
        return re.compile(first, re.DOTALL)
    # Each piece between two stars is looked for once, from the left: an atomic group is not tried again, so no pattern
    # takes longer than its length times that of the name.
    middle = b"".join(b"(?>.*?" + piece + b")" for piece in others[:-1])
    return re.compile(first + middle + b".*" + others[-1], re.DOTALL)


def _literal(text: bytes) -> bytes:
    return b".".join(map(re.escape, text.split(b"?")))
