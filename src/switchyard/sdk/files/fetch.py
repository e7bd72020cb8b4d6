"""Fetches the output files of attempts into a folder of this machine. What is there already is not fetched again."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from switchyard.errors import BadRequest, Conflict, NotFound, Unavailable, YardError
from switchyard.model.files.file_frames import BadFrame, Frame, FrameKind
from switchyard.model.files.file_tree import (
    CHUNK_BYTES,
    FILES_MAX,
    FOLDER_DEPTH_MAX,
    ZEROS,
    BadTree,
    FileEntry,
    FolderEntry,
    LinkEntry,
    chunk_spans,
    decode_tree,
    hash_of,
)
from switchyard.model.files.files import OutputSet, OutputState
from switchyard.sdk.files.fetched_files import FetchedFiles
from switchyard.sdk.files.file_names import NamePath, show_name
from switchyard.sdk.files.links import stays_inside
from switchyard.sdk.files.object_calls import ObjectCalls, ReadObjects
from switchyard.sdk.files.signed_store import SignedStore
from switchyard.sdk.files.target import Present, TargetFolder, write_failure
from switchyard.sdk.jobs.parallel import run_parallel
from switchyard.sdk.transport.retry_backoff import RetryBackoff
from switchyard.sdk.transport.transport import Transport
from switchyard.sdk.uploads.job_uploads import OnFiles, report_step
from switchyard.sdk.uploads.patterns import FilePatterns
from switchyard.sdk.uploads.upload import OnTransfer

THREADS = 4
GROUP_BYTES, GROUP_BYTES_MAX = 8 * 2**20, 64 * 2**20  # of one request: the more there is to fetch, the more
GROUPS_PER_THREAD = 4  # at least, if there is so much: the threads end at about the same time
GROUP_OBJECTS = 1000
TREES_ASKED = 200  # in one request
NAMES_SHOWN = 5


def fetch_outputs(
    transport: Transport,
    job: str,
    outputs: Sequence[OutputSet],
    patterns: FilePatterns,
    *,
    to: str | os.PathLike[str],
    is_one_task: bool = False,
    replace_before: float | None = None,
    on_progress: OnFiles | None = None,
) -> FetchedFiles:
    """Fetch these output files. Those of a task go into a folder named by its index, unless it is the only one."""
    target = TargetFolder(to)
    store = SignedStore(retry_s=0)  # the reader tries again, each time with a new address
    calls = ObjectCalls(transport)
    report = report_step(on_progress, "fetch")
    total, bytes_until = sum(output.bytes for output in outputs if output.state is OutputState.READY), 0
    trees: list[FetchedTree] = []
    failures: list[str] = []  # why a set of files did not come as a whole
    try:
        for output in outputs:
            if output.state is not OutputState.READY or output.root is None:
                continue
            bytes_until += output.bytes
            try:
                root = bytes.fromhex(output.root)
                reader = ObjectReader(calls.reader(job, root), store, transport)
                listing = choose(list_tree(reader, root), patterns)
                under = () if output.task is None or is_one_task else (str(output.task).encode(),)
                trees.append(
                    write_tree(
                        reader,
                        listing,
                        target,
                        under=under,
                        replace_before=replace_before,
                        on_progress=_report_sum(report, until=bytes_until, total=total) if patterns.is_all else report,
                    )
                )
            except OutputGone as exc:
                if len(outputs) == 1:
                    raise
                failures.append(_with_task(output, exc.detail))
    except OSError as exc:
        raise write_failure(target.path, exc) from exc
    finally:
        store.close()
        target.close()
    skipped = tuple(
        _with_task(output, text) for output in outputs for text in output.skipped if _is_asked(text, patterns)
    )
    if not patterns.is_all and trees and not any(tree.files or tree.unchanged for tree in trees):
        text = f"The cluster did not take {skipped[0]}." if skipped else "No output file matches the pattern."
        raise NotFound(text, next_step="Without a pattern, all files are fetched.")
    return FetchedFiles(
        str(target.path),
        sum(tree.files for tree in trees),
        sum(tree.bytes for tree in trees),
        sum(tree.unchanged for tree in trees),
        missing=tuple(
            _with_task(output, text)
            for output in outputs
            for text in output.missing
            if patterns.matches(tuple(os.fsencode(text).split(b"/")))
        ),
        skipped=skipped,
        failed=(
            *(_with_task(output, _why_absent(output)) for output in outputs if output.state is not OutputState.READY),
            *failures,
        ),
    )


def _report_sum(report: OnTransfer | None, *, until: int, total: int) -> OnTransfer | None:
    """Return a callback for one tree of several that reports the bytes of all. `until`: bytes up to its end.

    Files that were there already count as done.
    """
    if report is None:
        return None

    def report_all(done: int, tree_total: int) -> None:
        report(max(until - (tree_total - done), 0), total)

    return report_all


def _is_asked(text: str, patterns: FilePatterns) -> bool:
    """Whether the patterns mean a file that was not taken. `text`: its name as shown, a colon, the reason."""
    if patterns.is_all or text.startswith(("'", '"')):  # of an escaped name it cannot be said
        return True
    ends = [match.start() for match in re.finditer(": ", text)]  # a name may have a colon, too
    return any(patterns.matches(tuple(os.fsencode(text[:end]).split(b"/"))) for end in ends)


def _with_task(output: OutputSet, text: str) -> str:
    return text if output.task is None else f"task {output.task}: {text}"


def _why_absent(output: OutputSet) -> str:
    if output.state is OutputState.UPLOADING:
        return "still on the way"
    return output.error or "the cluster could not send them"


class BadDelivery(Unavailable):
    """The server answered, but an object did not come, or came with other bytes."""


class FetchedTree(NamedTuple):
    """What one fetch did. `unchanged`: files that were there already."""

    files: int
    bytes: int
    unchanged: int


@dataclass(slots=True)
class TreeListing:
    """The content of a tree, with full names."""

    folders: list[NamePath] = field(default_factory=list)
    files: list[tuple[NamePath, FileEntry]] = field(default_factory=list)
    links: dict[NamePath, bytes] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum(entry.size for _, entry in self.files)


class OutputGone(NotFound):
    """The server's store has lost a part of the files."""

    default_next = "Fetch other files by a pattern. Ask the operator of the server whether the store can be repaired."


class ObjectReader:
    """Reads objects and checks their hashes, with bounded retries for the ones that did not arrive."""

    def __init__(self, read: ReadObjects, store: SignedStore, transport: Transport) -> None:
        self._read = read
        self._store = store
        self._transport = transport  # of the server, for its retries

    def read(self, digests: Sequence[bytes], take: Callable[[bytes, bytes], None]) -> None:
        """Call `take` with the hash and the bytes of each object, in any order."""
        left = dict.fromkeys(digests)
        # A server that is away is waited for. A damaged object stays damaged: its error is raised soon.
        outage, damage = self._backoffs()
        while left:
            count = len(left)
            try:
                self._read_once(list(left), left, take)
                continue
            except BadFrame as exc:
                error: YardError = BadDelivery(f"The server's answer is damaged: {exc}.")
            except YardError as exc:
                if not exc.transient:
                    raise
                error = exc
            if len(left) < count:
                outage, damage = self._backoffs()
            backoff = damage if isinstance(error, BadDelivery) else outage
            pause_s = backoff.next_pause_s(0.0)
            if pause_s is None:
                raise error
            self._transport.pause(error, pause_s, backoff)

    def _backoffs(self) -> tuple[RetryBackoff, RetryBackoff]:
        return RetryBackoff(self._transport.patience_s), RetryBackoff(self._transport.retry_s)

    def _read_once(
        self, digests: Sequence[bytes], left: dict[bytes, None], take: Callable[[bytes, bytes], None]
    ) -> None:
        addresses = self._read_frames(self._read(digests), left, take)
        doubtful: list[bytes] = []
        error: YardError | None = None
        for digest, address in addresses:
            try:
                data = self._store.get(address)
                _check_hash(digest, data)
            except (NotFound, BadDelivery) as exc:
                doubtful.append(digest)
                error = exc
            except Unavailable as exc:
                raise BadDelivery(exc.detail, next_step=exc.next_step) from exc
            else:
                take(digest, data)
                del left[digest]
        if error is not None:
            self._read_doubtful(doubtful, error, left, take)
        if left:
            raise BadDelivery(f"The server left out {len(left)} of {len(digests)} objects.")

    def _read_doubtful(
        self,
        digests: Sequence[bytes],
        error: YardError,
        left: dict[bytes, None],
        take: Callable[[bytes, bytes], None],
    ) -> None:
        """Let the server read objects that were not at their addresses: it notes what its store has lost."""
        try:
            addresses = self._read_frames(self._read(digests, is_read_by_server=True), left, take)
        except BadRequest:
            raise error from None  # a server of an older version
        if addresses:
            raise error

    def _read_frames(
        self, frames: Iterator[Frame], left: dict[bytes, None], take: Callable[[bytes, bytes], None]
    ) -> list[tuple[bytes, str]]:
        """Take the objects of an answer. Returns the addresses of others."""
        addresses: list[tuple[bytes, str]] = []
        for frame in frames:
            if frame.digest not in left:
                continue
            if frame.kind is FrameKind.ABSENT:
                why = frame.data.decode(errors="replace")[:200]
                raise OutputGone(f"The server does not have an object of these files any more: {why or 'removed'}.")
            if frame.kind is FrameKind.ADDRESS:
                addresses.append((frame.digest, frame.data.decode(errors="replace")))
            else:
                _check_hash(frame.digest, frame.data)
                take(frame.digest, frame.data)
                del left[frame.digest]
        return addresses


def _check_hash(digest: bytes, data: bytes) -> None:
    if hash_of(data) != digest:
        raise BadDelivery(
            "An object came with other bytes than its hash says.",
            next_step="The object store or the way to it is damaged: tell the server's operator.",
        )


def list_tree(reader: ObjectReader, root: bytes) -> TreeListing:
    """Return all entries of a tree. Raise if a name or a link would lead out of it: the server is not believed."""
    listing = TreeListing()
    level: list[tuple[NamePath, bytes]] = [((), root)]
    while level:
        level = _list_level(reader, listing, level)
    for name in listing.links:
        if not stays_inside(listing.links, name):
            raise Conflict(f"The link {show_name(name)} leads out of the files; they are not fetched.")
    return listing


def _list_level(
    reader: ObjectReader, listing: TreeListing, level: Sequence[tuple[NamePath, bytes]]
) -> list[tuple[NamePath, bytes]]:
    """Read these folders, add their entries, and return their subfolders. Equal folders are read once."""
    names: dict[bytes, list[NamePath]] = {}
    for name, digest in level:
        names.setdefault(digest, []).append(name)
    deeper: list[tuple[NamePath, bytes]] = []

    def take(digest: bytes, data: bytes) -> None:
        for name in names[digest]:
            deeper.extend(_add_entries(listing, name, data))

    digests = list(names)
    for first in range(0, len(digests), TREES_ASKED):
        reader.read(digests[first : first + TREES_ASKED], take)
    return deeper


def _add_entries(listing: TreeListing, name: NamePath, data: bytes) -> Iterator[tuple[NamePath, bytes]]:
    """Add the entries of one folder. Yield its subfolders."""
    try:
        entries = decode_tree(data)
    except BadTree as exc:
        raise Conflict(f"The folder {show_name(name) or '.'} cannot be read: {exc}.") from exc
    if len(name) >= FOLDER_DEPTH_MAX or len(listing.files) + len(entries) > 2 * FILES_MAX:
        raise Conflict(f"The files are more than {FILES_MAX:,}, or more than {FOLDER_DEPTH_MAX} folders deep.")
    for entry in entries:
        full = (*name, entry.name)
        if isinstance(entry, FolderEntry):
            listing.folders.append(full)
            yield full, entry.tree
        elif isinstance(entry, LinkEntry):
            listing.links[full] = entry.target
        else:
            listing.files.append((full, entry))


def choose(listing: TreeListing, patterns: FilePatterns) -> TreeListing:
    """Return the part of the listing that the patterns mean. Folders are made for what is in them."""
    if patterns.is_all:
        return listing
    return TreeListing(
        [],
        [(name, entry) for name, entry in listing.files if patterns.matches(name)],
        {name: target for name, target in listing.links.items() if patterns.matches(name)},
    )


def write_tree(
    reader: ObjectReader,
    listing: TreeListing,
    target: TargetFolder,
    *,
    under: NamePath = (),
    replace_before: float | None = None,
    on_progress: OnTransfer | None = None,
) -> FetchedTree:
    """Write the listed files below `under` in the target.

    A file there that differs is replaced if it was last changed before `replace_before`; else nothing is written.
    """
    plan = _Plan.make(listing, target, under, replace_before=replace_before)
    for name in listing.folders:
        target.make_folder((*under, *name))
    transfer = _Transfer(reader, target, plan.files, on_progress, total=sum(entry.size for _, entry in plan.files))
    transfer.run()
    for name, link in plan.links:
        target.make_link(name, link)
    return FetchedTree(len(plan.files), sum(entry.size for _, entry in plan.files), plan.unchanged)


@dataclass(slots=True)
class _Plan:
    """What has to be written."""

    files: list[tuple[NamePath, FileEntry]] = field(default_factory=list)
    links: list[tuple[NamePath, bytes]] = field(default_factory=list)
    unchanged: int = 0

    @staticmethod
    def make(listing: TreeListing, target: TargetFolder, under: NamePath, *, replace_before: float | None) -> _Plan:
        plan = _Plan()
        in_the_way: list[NamePath] = []
        different: list[NamePath] = []
        outcomes = {Present.IN_THE_WAY: in_the_way, Present.DIFFERENT: different}
        absent: set[NamePath] = set()  # folders; what is in them need not be looked for
        for name in listing.folders:
            full = (*under, *name)
            present = target.compare_folder(full)
            if present is Present.NOTHING:
                absent.add(full)
            outcomes.get(present, []).append(full)
        for name, entry in listing.files:
            full = (*under, *name)
            present = Present.NOTHING if full[:-1] in absent else target.compare(full, entry)
            outcomes.get(present, []).append(full)
            plan.unchanged += present is Present.EQUAL
            if present is not Present.EQUAL:
                plan.files.append((full, entry))
        for name, link in listing.links.items():
            full = (*under, *name)
            present = target.compare_link(full, link)
            outcomes.get(present, []).append(full)
            if present is not Present.EQUAL:
                plan.links.append((full, link))
        if in_the_way:
            raise Conflict(
                f"In {target.path}, no file can be written at {_show_names(in_the_way)}: "
                "a folder, a link or something else is in the way.",
                next_step="Fetch into another folder with --to DIR, or move it away.",
            )
        unreplaced = [name for name in different if replace_before is None or target.changed_at(name) >= replace_before]
        if unreplaced:
            raise Conflict(
                f"In {target.path} there are other files already: {_show_names(unreplaced)}.",
                next_step="Fetch into another folder with --to DIR, or replace the files with --force.",
            )
        return plan


def _show_names(names: Sequence[NamePath]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(map(show_name, names[:NAMES_SHOWN])) + more


class _Transfer:
    """Reads the chunks of files, several requests at a time, and writes each where it belongs."""

    def __init__(
        self,
        reader: ObjectReader,
        target: TargetFolder,
        files: Sequence[tuple[NamePath, FileEntry]],
        on_progress: OnTransfer | None,
        *,
        total: int,
    ) -> None:
        self._reader = reader
        self._target = target
        self._files = files
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._done_bytes = 0
        self._total = total
        self._chunks_left: list[int] = [0] * len(files)  # chunks that each file still lacks
        self._places: dict[bytes, list[tuple[int, int]]] = {}  # by chunk: the files and the numbers in them
        self._sizes: dict[bytes, int] = {}

    def run(self) -> None:
        for place, (name, entry) in enumerate(self._files):
            is_one_chunk = len(entry.chunks) == 1 and entry.chunks[0] != ZEROS
            lacking = [0] if is_one_chunk else self._target.begin(name, entry)
            self._chunks_left[place] = len(lacking)
            spans = chunk_spans(entry.size)
            self._count(entry.size - sum(spans[number].size for number in lacking))
            for number in lacking:
                digest = entry.chunks[number]
                assert digest != ZEROS
                self._places.setdefault(digest, []).append((place, number))
                self._sizes[digest] = spans[number].size
            if not lacking:
                self._target.finish(name, entry)
        groups = list(self._groups())
        run_parallel(groups, self._read_group, threads=min(THREADS, len(groups)))

    def _groups(self) -> Iterator[list[bytes]]:
        group: list[bytes] = []
        group_bytes = 0
        share = sum(self._sizes.values()) // (THREADS * GROUPS_PER_THREAD)
        bytes_max = min(max(GROUP_BYTES, share), GROUP_BYTES_MAX)
        for digest, size in self._sizes.items():
            if group and (group_bytes + size > bytes_max or len(group) == GROUP_OBJECTS):
                yield group
                group, group_bytes = [], 0
            group.append(digest)
            group_bytes += size
        if group:
            yield group

    def _read_group(self, digests: list[bytes]) -> None:
        self._reader.read(digests, self._write)

    def _write(self, digest: bytes, data: bytes) -> None:
        for place, number in self._places[digest]:
            name, entry = self._files[place]
            if len(data) != min(CHUNK_BYTES, entry.size - number * CHUNK_BYTES):
                raise Conflict(f"A chunk of {show_name(name)} has {len(data)} bytes, which its size does not allow.")
            if len(entry.chunks) == 1:
                self._target.write_whole(name, entry, data)
                self._count(len(data))
                continue
            self._target.write_chunk(name, entry, number, data)
            with self._lock:
                self._chunks_left[place] -= 1
                is_complete = self._chunks_left[place] == 0
            if is_complete:
                self._target.finish(name, entry)
            self._count(len(data))

    def _count(self, more: int) -> None:
        with self._lock:
            self._done_bytes += more
            if self._on_progress:
                self._on_progress(self._done_bytes, self._total)
