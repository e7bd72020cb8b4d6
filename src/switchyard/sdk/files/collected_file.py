"""Reads one file of an ended attempt from its output files, part by part. Memory is bounded by one chunk."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from switchyard.errors import BadRequest, Conflict, NotFound
from switchyard.model.files.file_tree import (
    ZEROS,
    BadTree,
    Entry,
    FileEntry,
    FolderEntry,
    LinkEntry,
    chunk_spans,
    decode_tree,
    is_inside,
)
from switchyard.model.files.file_views import link_target
from switchyard.model.files.files import FilesOfJob, OutputSet, OutputState
from switchyard.model.job.job import Job, State
from switchyard.sdk.files.fetch import ObjectReader
from switchyard.sdk.files.file_names import NamePath, show_name
from switchyard.sdk.files.object_calls import ObjectCalls
from switchyard.sdk.files.signed_store import SignedStore
from switchyard.sdk.transport.transport import Transport
from switchyard.sdk.uploads.patterns import FilePatterns

POLL_S_FIRST, POLL_S_MAX = 0.1, 1.0
SILENCE_S = 60.0  # after the end of an attempt: without a word of its agent, no files are waited for
LINKS_MAX = 8  # on the way to one file


@dataclass(frozen=True, slots=True)
class CollectedFile:
    """A file among the output files of one attempt."""

    size: int
    read: Callable[[int], Iterator[tuple[int, bytes]]]  # from an offset on: offsets and bytes


@dataclass(frozen=True, slots=True)
class EndedAttempt:
    """An ended attempt, and the calls that find its output files. `fence` 0: it was never leased."""

    job: str
    fence: int
    task: int | None
    files_of: Callable[[], FilesOfJob]
    job_of: Callable[[], Job]


def find_collected(transport: Transport, attempt: EndedAttempt, name: NamePath) -> CollectedFile:
    """Find the file. Raises NotFound, with what to do, if it was not kept."""
    patterns, outputs = _wait_for_outputs(attempt, name)
    assert outputs.root is not None
    root = bytes.fromhex(outputs.root)
    store = SignedStore(retry_s=0)  # the reader tries again, each time with a new address
    reader = ObjectReader(ObjectCalls(transport).reader(attempt.job, root), store, transport)
    entry = _find_entry(reader, root, name)
    if entry is None:
        store.close()
        raise _not_collected(attempt, name, patterns, outputs)

    def read(offset: int) -> Iterator[tuple[int, bytes]]:
        try:
            yield from _read(reader, entry, offset)
        finally:
            store.close()

    return CollectedFile(entry.size, read)


def _wait_for_outputs(attempt: EndedAttempt, name: NamePath) -> tuple[list[str], OutputSet]:
    """Return the patterns that the job keeps, and what it left, once that is at the server."""
    pause_s, end = POLL_S_FIRST, time.monotonic() + SILENCE_S
    while True:
        files = attempt.files_of()
        if not files.out:
            raise _not_collected(attempt, name, [], None)
        outputs = next((found for found in files.outputs if found.fence == attempt.fence), None)
        if outputs is not None and outputs.state is OutputState.READY and outputs.root is not None:
            return files.out, outputs
        if outputs is not None and outputs.state is OutputState.FAILED:
            raise NotFound(
                f"The output files of job {attempt.job} cannot be had: {outputs.error or 'its cluster lost them'}.",
                next_step=f"`yard show {attempt.job}` says what became of it.",
            )
        if outputs is None and (_never_began(attempt) or time.monotonic() > end):
            raise NotFound(
                f"There are no output files of job {attempt.job}: it never began, or its cluster has not sent them.",
                next_step=f"`yard show {attempt.job}` says what became of it.",
            )
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, POLL_S_MAX)


def _never_began(attempt: EndedAttempt) -> bool:
    if not attempt.fence:
        return True
    job = attempt.job_of()
    is_ended_early = job.state in (State.CANCELLED, State.REJECTED, State.FAILED) and job.started_us is None
    return is_ended_early and job.exit_code is None and job.signal is None


def _not_collected(attempt: EndedAttempt, name: NamePath, patterns: list[str], outputs: OutputSet | None) -> NotFound:
    shown = show_name(name)
    said = next((text for text in outputs.skipped if text.startswith(f"{shown}: ")), "") if outputs else ""
    gets_kept = f"`yard fetch {attempt.job}` gets the files that were kept." if outputs is not None else ""
    if patterns and not said and _is_wanted(patterns, name):
        return NotFound(
            f"Job {attempt.job} has ended, and left no file {shown}: its --out names the file, and it was not there.",
            next_step=f"`yard logs {attempt.job}` shows what the job printed. {gets_kept}",
        )
    why = f" ({said})" if said else ""
    step = f"Submit the job with --out '{shown}' to keep the file; a pattern such as 'results/*' keeps many."
    return NotFound(
        f"Job {attempt.job} has ended, and {shown} is not among the output files that were kept{why}.",
        next_step=f"{step} {gets_kept}".strip() if not said else gets_kept,
    )


def _is_wanted(patterns: list[str], name: NamePath) -> bool:
    """Whether the job was to keep this file."""
    try:
        return FilePatterns(patterns).matches(name)
    except BadRequest:  # a pattern that another client wrote
        return False


def _find_entry(reader: ObjectReader, root: bytes, name: NamePath) -> FileEntry | None:
    """The file; links are followed inside the tree. None: there is no such file."""
    for _ in range(LINKS_MAX + 1):
        tree = root
        for depth, part in enumerate(name):
            entry = _entries(reader, tree).get(part)
            if isinstance(entry, LinkEntry) and is_inside(name[:depth], entry.target):
                name = (*link_target(name[:depth], entry.target), *name[depth + 1 :])
                break
            if isinstance(entry, FolderEntry) and depth < len(name) - 1:
                tree = entry.tree
                continue
            if isinstance(entry, FolderEntry):
                raise _is_folder(name)
            return entry if isinstance(entry, FileEntry) and depth == len(name) - 1 else None
        else:
            raise _is_folder(name)  # a link to the job's folder itself
    return None


def _is_folder(name: NamePath) -> Conflict:
    return Conflict(
        f"{show_name(name) or '.'} is a folder.", next_step="Name one file in it; `yard fetch` gets whole folders."
    )


def _entries(reader: ObjectReader, tree: bytes) -> dict[bytes, Entry]:
    entries: dict[bytes, Entry] = {}

    def take(_: bytes, data: bytes) -> None:
        try:
            entries.update({entry.name: entry for entry in decode_tree(data)})
        except BadTree as exc:
            raise Conflict(f"A folder of the output files cannot be read: {exc}.") from exc

    reader.read([tree], take)
    return entries


def _read(reader: ObjectReader, entry: FileEntry, offset: int) -> Iterator[tuple[int, bytes]]:
    for (begin, size), digest in zip(chunk_spans(entry.size), entry.chunks, strict=True):
        if begin + size <= offset:
            continue
        content = [bytes(size)] if digest == ZEROS else []
        if not content:
            reader.read([digest], lambda _, data, content=content: content.append(data))  # type: ignore[misc]
        first = max(begin, offset)
        yield first, content[0][first - begin :]
