"""Follows a file in a job's folder: from the agent while the attempt runs, from the output files after its end."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator

import msgspec

from switchyard.errors import BadRequest, NotFound, Unavailable, YardError
from switchyard.model.files.file_views import FileView, FileViewQuery, ViewState, split_name
from switchyard.model.files.files import FilesOfJob
from switchyard.model.job.job import Job
from switchyard.model.wire.api import Chunk, Output
from switchyard.sdk.files.collected_file import CollectedFile, EndedAttempt, find_collected
from switchyard.sdk.files.file_names import NamePath, show_name
from switchyard.sdk.jobs.follow import FIRST_POLL_S
from switchyard.sdk.transport.calls import ApiCalls, api_path
from switchyard.sdk.transport.transport import Request, Transport

WAIT_S = 10.0  # of one request for more of a file: an agent looks at the file no longer for a reader who has gone
ANSWER_S = 45.0  # beyond it, for the agent and the server
POLL_S_MIN = 0.2  # between two requests that brought nothing
_NUMBERS = re.compile(r"[0-9]+")
AWAY_S = 2.0  # between two requests while the agent is away
# Requests for the end of a file. An agent that just changes its server may miss one; it keeps the folder for 30 s.
END_TRIES = 3


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
        self._told = ""  # the last notice without its numbers, such as "20 s ago": each is given once
        self._pause_s = 0.0  # before the next request

    def parts(self) -> Iterator[FileOutput]:
        """Yield the file part by part, until the attempt has ended; without `follow` what is there now."""
        while True:
            begun = time.monotonic()
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
            elif (notice := self._waiting_notice(view)) and (told := _NUMBERS.sub("", notice)) != self._told:
                self._told = told
                yield self._output([], view, notice=notice)
            if not view.data and (self._pause_s or not self._is_final):
                time.sleep(max(self._pause_s, POLL_S_MIN - (time.monotonic() - begun), 0.0))

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
        self._told = ""
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
