"""Follows a file in a job's folder: from the agent while the attempt runs, from the output files after its end."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from switchyard.errors import BadRequest, Conflict, NotFound, Unavailable, YardError
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
from switchyard.model.files.file_views import FileView, FileViewQuery, ViewState, link_target, split_name
from switchyard.model.files.files import FilesOfJob, OutputSet, OutputState
from switchyard.model.job.job import Job, State
from switchyard.model.wire.api import Chunk, Output
from switchyard.sdk.files.fetch import ObjectReader
from switchyard.sdk.files.file_names import NamePath, show_name
from switchyard.sdk.files.object_calls import ObjectCalls
from switchyard.sdk.files.signed_store import SignedStore
from switchyard.sdk.jobs.follow import FIRST_POLL_S
from switchyard.sdk.transport.calls import ApiCalls, api_path
from switchyard.sdk.transport.transport import Request, Transport
from switchyard.sdk.uploads.patterns import FilePatterns

WAIT_S = 10.0  # of one request for more of a file: an agent looks at the file no longer for a reader who has gone
ANSWER_S = 45.0  # beyond it, for the agent and the server
POLL_S_MIN = 0.2  # between two requests that brought nothing
_NUMBERS = re.compile(r"[0-9]+")
AWAY_S = 2.0  # between two requests while the agent is away
# Requests for the end of a file. An agent that just changes its server may miss one; it keeps the folder for 30 s.
END_TRIES = 3
OUTPUTS_POLL_S_FIRST, OUTPUTS_POLL_S_MAX = 0.1, 1.0  # between two requests for the output files
SILENCE_S = 60.0  # after the end of an attempt: without a word of its agent, no files are waited for
LINKS_MAX = 8  # on the way to one file


class FileOutput(Output, frozen=True, omit_defaults=True):
    """A part of a file. `notice`: what a reader should know before this part, such as that the file begins again."""

    notice: str = ""


class FileFollower:
    """One file of one attempt. Used once."""

    def __init__(
        self,
        transport: Transport,
        job: str,
        file: str | bytes,
        *,
        task: int | None,
        attempt: int | None,
        offset: int,
        follow: bool,
        files_of: Callable[[str], FilesOfJob],
        job_of: Callable[[str], Job],
    ) -> None:
        self._calls = _ViewCalls(transport)
        self._transport = transport
        self._name = file if isinstance(file, bytes) else os.fsencode(file)
        self._path = _split(self._name)
        self._job, self._task, self._attempt, self._offset, self._follow = job, task, attempt, offset, follow
        self._files_of, self._job_of = files_of, job_of
        self._version = ""
        self._has_seen = False  # some of the file came from the agent
        self._is_final = False  # the attempt has ended, and the rest is asked for
        self._end_tries = END_TRIES
        self._end: int | None = None  # of the file when it was first seen
        self._last_notice = ""  # the last notice without its numbers, such as "20 s ago": each is given once
        self._pause_s = 0.0  # before the next request

    def parts(self) -> Iterator[FileOutput]:
        """Yield the file part by part, until the attempt has ended; without `follow` what is there now."""
        while True:
            started_at = time.monotonic()
            view = self._request()
            self._job, self._attempt = view.job, view.attempt
            self._pause_s = 0.0
            if view.state is ViewState.SEEN:
                yield self._part(view)
                self._end = view.size if self._end is None else self._end
                if self._offset >= (view.size if self._follow else self._end) and (view.is_over or not self._follow):
                    return
            elif view.state is ViewState.OVER and self._follow and self._has_seen and not self._is_final:
                self._is_final = True
            elif view.state is ViewState.AWAY and self._is_final and self._end_tries > 1:
                self._end_tries, self._pause_s = self._end_tries - 1, AWAY_S
            elif view.is_over:
                yield from self._collected(view)
                return
            elif not self._follow:
                raise self._refusal(view)
            elif (notice := self._waiting_notice(view)) and (text := _NUMBERS.sub("", notice)) != self._last_notice:
                self._last_notice = text
                yield self._output([], view, notice=notice)
            if not view.data and (self._pause_s or not self._is_final):
                time.sleep(max(self._pause_s, POLL_S_MIN - (time.monotonic() - started_at), 0.0))

    def _request(self) -> FileView:
        query = FileViewQuery(
            name_bytes=self._name,
            task=self._task,
            attempt=self._attempt,
            offset=self._offset,
            version=self._version,
            wait_s=self._wait_s() if self._follow else 0,
            is_final=self._is_final,
        )
        return self._calls.view(self._job, query, retry_s=self._transport.patience_s if self._follow else None)

    def _wait_s(self) -> float:
        return WAIT_S if self._transport.has_answered else FIRST_POLL_S

    def _part(self, view: FileView) -> FileOutput:
        self._last_notice = ""
        notice = ""
        if view.is_restarted:
            notice = f"… {show_name(self._path)} was cut, or replaced by another file: it begins again …"
        self._has_seen, self._version = True, view.version
        self._offset = view.offset + len(view.data)
        chunks = [Chunk(view.offset, view.data)] if view.data else []
        return self._output(chunks, view, notice=notice)

    def _output(self, chunks: list[Chunk], view: FileView, *, notice: str = "", is_over: bool = False) -> FileOutput:
        return FileOutput(
            job=self._job,
            stream=show_name(self._path),
            chunks=chunks,
            size=max(view.size, self._offset),
            next=self._offset,
            attempt=view.attempt,
            is_over=is_over or (view.is_over and self._offset >= view.size),
            notice=notice,
        )

    def _waiting_notice(self, view: FileView) -> str:
        """What to tell a follower; it goes on waiting."""
        if view.state is ViewState.AWAY:
            self._pause_s = AWAY_S
            return f"… {view.why} Waiting for it …"
        if view.state is ViewState.ABSENT and self._has_seen:
            return f"… {show_name(self._path)} was removed. Waiting for a new one …"
        return ""

    def _refusal(self, view: FileView) -> YardError:
        follow = f"`yard logs {view.job} --file {show_name(self._path)} -f` waits for it."
        if view.state is ViewState.AWAY:
            return Unavailable(view.why, next_step=f"{follow} What the job prints is in `yard logs {view.job}`.")
        if view.state is ViewState.ABSENT:
            return NotFound(view.why, next_step=f"Check the name, from the job's folder on; {follow}")
        return NotFound(view.why, next_step=follow)

    def _collected(self, view: FileView) -> Iterator[FileOutput]:
        """What the attempt left, from the present offset on."""
        try:
            file = self._find_collected(view)
        except NotFound as exc:
            if not self._has_seen:
                raise
            why = " ".join(filter(None, (exc.detail, exc.next_step)))
            notice = f"… the attempt has ended and its folder is gone; the last bytes may be missing. {why} …"
            yield self._output([], view, notice=notice, is_over=True)
            return
        notice = ""
        if self._has_seen and file.size < self._offset:
            self._offset = 0
            notice = f"… {show_name(self._path)} was cut, or replaced by another file: it begins again …"
        for begin, data in file.read(self._offset):
            self._offset = begin + len(data)
            yield self._output([Chunk(begin, data)], _sized(view, file.size), notice=notice)
            notice = ""
        yield self._output([], _sized(view, file.size), notice=notice, is_over=True)

    def _find_collected(self, view: FileView) -> CollectedFile:
        job = view.job
        attempt = EndedAttempt(
            job, view.fence, self._task, files_of=lambda: self._files_of(job), job_of=lambda: self._job_of(job)
        )
        return find_collected(self._transport, attempt, self._path)


class _ViewCalls(ApiCalls):
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def view(self, job: str, query: FileViewQuery, *, retry_s: float | None) -> FileView:
        path = api_path("jobs", job, "files", "live")
        request = Request("POST", path, msgspec.json.encode(query), repeatable=True)
        body = self._transport.send(request, timeout_s=query.wait_s + ANSWER_S, retry_s=retry_s)
        return self._answer(body, FileView)


def _sized(view: FileView, size: int) -> FileView:
    return msgspec.structs.replace(view, size=size)


def _split(name: bytes) -> NamePath:
    try:
        return split_name(name)
    except ValueError as exc:
        raise BadRequest(
            f"The file {show_name(name)!r} cannot be looked at: {exc}.",
            next_step="Name a file in the job's folder, such as results/score.csv.",
        ) from exc


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
    pause_s, end = OUTPUTS_POLL_S_FIRST, time.monotonic() + SILENCE_S
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
        pause_s = min(2 * pause_s, OUTPUTS_POLL_S_MAX)


def _never_began(attempt: EndedAttempt) -> bool:
    if not attempt.fence:
        return True
    job = attempt.job_of()
    is_ended_early = job.state in (State.CANCELLED, State.REJECTED, State.FAILED) and job.started_us is None
    return is_ended_early and job.exit_code is None and job.signal is None


def _not_collected(attempt: EndedAttempt, name: NamePath, patterns: list[str], outputs: OutputSet | None) -> NotFound:
    shown = show_name(name)
    reason = next((text for text in outputs.skipped if text.startswith(f"{shown}: ")), "") if outputs else ""
    fetch_step = f"`yard fetch {attempt.job}` gets the files that were kept." if outputs is not None else ""
    if patterns and not reason and _is_wanted(patterns, name):
        return NotFound(
            f"Job {attempt.job} has ended, and left no file {shown}: its --out names the file, and it was not there.",
            next_step=f"`yard logs {attempt.job}` shows what the job printed. {fetch_step}",
        )
    why = f" ({reason})" if reason else ""
    step = f"Submit the job with --out '{shown}' to keep the file; a pattern such as 'results/*' keeps many."
    return NotFound(
        f"Job {attempt.job} has ended, and {shown} is not among the output files that were kept{why}.",
        next_step=f"{step} {fetch_step}".strip() if not reason else fetch_step,
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
