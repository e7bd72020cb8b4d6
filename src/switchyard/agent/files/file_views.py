"""Answers readers who look at a file of an attempt while it grows.

Each part is asked for: when nobody asks, nothing is read. An ask has a time; until then the file is looked at twice a
second, and the first news is the answer.

The job may have put anything into its folder. So the path is opened step by step, by folder numbers. A link is read and
not followed; the path goes on where it leads, if that is inside the folder. Only plain files are opened.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from switchyard.agent.files.inputs.folder_writer import FOLDER_FLAGS, TreePath, read_span, show_path
from switchyard.agent.files.object_client import ObjectStoreCalls
from switchyard.agent.files.records import FolderRecord, FolderRecords, FolderStage
from switchyard.agent.files.timed_queue import TimedQueue
from switchyard.agent.files.transfer_threads import TransferThreads
from switchyard.agent.journal.attempt import AttemptKey
from switchyard.agent.log import line
from switchyard.agent.site.accounts import LocalAccount, find_account
from switchyard.errors import YardError
from switchyard.model.files.file_tree import is_inside
from switchyard.model.files.file_views import (
    TAIL_BYTES,
    VIEW_BYTES_MAX,
    VIEW_WAIT_S_MAX,
    FileAnswer,
    FileAsk,
    ViewState,
    link_target,
    split_name,
    version_of,
)
from switchyard.model.job.site_needs import SITE_FOLDER

LOOKS_AT_ONCE = 2  # a file system that hangs holds up one of them
LOOK_EVERY_S = 0.5  # as often as the output of jobs is read
BYTES_PER_S = 8 * 2**20  # of all files together
ASKS_MAX = 256  # that wait at once; a server has far lower bounds for each user
# A reader who asked this long ago has gone. Until then the folder of an ended attempt stays: the end can still be read.
INTEREST_S = 30.0
WHY_CHARS_MAX = 1000
LINKS_MAX = 8  # on the way to one file
FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# The job changes its folder while we look: what was a file or a folder a moment ago is something else, or is gone.
ABSENT_ERRNOS = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE)

log = logging.getLogger(__name__)


class FileViews:
    def __init__(self, records: FolderRecords, *, transfers: Callable[[], TransferThreads]) -> None:
        self._records, self._transfers = records, transfers
        self._queue = TimedQueue("view-file", LOOKS_AT_ONCE)
        self._is_stopped = threading.Event()
        self._lock = threading.Lock()
        self._open: set[str] = set()  # ids of asks: two servers may hand over the same one
        self._asked_at: dict[AttemptKey, float] = {}
        self._caught_up_at: dict[tuple[AttemptKey, bytes], float] = {}  # files whose end was sent
        self._free_at = 0.0  # when the next bytes may be sent

    def ask(self, asks: Sequence[FileAsk]) -> None:
        """Answer these, each within its time. Returns at once."""
        now = time.monotonic()
        with self._lock:
            self._forget(now)
            new = [ask for ask in asks if ask.id not in self._open][: ASKS_MAX - len(self._open)]
            self._open |= {ask.id for ask in new}
            self._asked_at |= {(ask.job, ask.fence): now for ask in new}
        for ask in new:
            until = now + min(ask.wait_s, VIEW_WAIT_S_MAX)
            self._queue.put(partial(self._look, ask, until), after_s=self._pause_s(ask, now))

    def viewed_s(self, key: AttemptKey) -> float:
        """For how long somebody may still read the end of a file of this attempt; 0: nobody looks."""
        with self._lock:
            asked_at = self._asked_at.get(key)
        return 0.0 if asked_at is None else max(0.0, asked_at + INTEREST_S - time.monotonic())

    def stop(self) -> None:
        self._is_stopped.set()
        self._queue.stop()

    def _pause_s(self, ask: FileAsk, now: float) -> float:
        """A reader who has all of a growing file gets what comes in parts of half a second, not in single lines."""
        with self._lock:
            caught_up_at = self._caught_up_at.get(((ask.job, ask.fence), ask.name))
        return 0.0 if caught_up_at is None or not ask.wait_s else max(0.0, caught_up_at + LOOK_EVERY_S - now)

    def _forget(self, now: float) -> None:
        self._asked_at = {key: at for key, at in self._asked_at.items() if now - at < INTEREST_S}
        self._caught_up_at = {key: at for key, at in self._caught_up_at.items() if now - at < LOOK_EVERY_S}

    def _look(self, ask: FileAsk, until: float) -> None:
        if self._is_stopped.is_set():
            return
        now = time.monotonic()
        answer = self._answer(ask)
        # A folder that is not there may be one that is not made yet.
        is_news = bool(answer.data) or answer.is_restarted or answer.state is ViewState.REFUSED
        if not is_news and now < until:
            self._queue.put(partial(self._look, ask, until), after_s=min(LOOK_EVERY_S, until - now))
            return
        with self._lock:
            pause_s = max(0.0, self._free_at - now)
            self._free_at = max(self._free_at, now) + len(answer.data) / BYTES_PER_S
        self._queue.put(partial(self._send, ask, answer), after_s=pause_s)

    def _answer(self, ask: FileAsk) -> FileAnswer:
        record = self._records.get((ask.job, ask.fence))
        try:
            if record is None or record.stage is FolderStage.STAGING:
                raise NotThere
            part = _read(record, ask)
        except NotThere:
            is_gone = record is None or (record.stage is FolderStage.REMOVABLE and not Path(record.folder).is_dir())
            return FileAnswer(id=ask.id, state=ViewState.GONE if is_gone else ViewState.ABSENT)
        except NotViewable as exc:
            return FileAnswer(id=ask.id, state=ViewState.REFUSED, why=str(exc)[:WHY_CHARS_MAX])
        except (OSError, YardError) as exc:
            why = exc.detail if isinstance(exc, YardError) else f"the agent cannot read it: {exc.strerror or exc}"
            return FileAnswer(id=ask.id, state=ViewState.REFUSED, why=why[:WHY_CHARS_MAX])
        if part.is_at_end:
            with self._lock:
                self._caught_up_at[(ask.job, ask.fence), ask.name] = time.monotonic()
        return FileAnswer(
            id=ask.id,
            state=ViewState.SEEN,
            offset=part.offset,
            data=part.data,
            size=part.size,
            version=part.version,
            is_restarted=part.is_restarted,
        )

    def _send(self, ask: FileAsk, answer: FileAnswer) -> None:
        def send(calls: ObjectStoreCalls) -> None:
            calls.answer_view(answer)

        try:
            self._transfers().run([send])
        except YardError as exc:  # the reader asks again
            log.warning(line("view-not-sent", job=ask.job, fence=ask.fence, error=exc.detail))
        finally:
            with self._lock:
                self._open.discard(ask.id)


def _read(record: FolderRecord, ask: FileAsk) -> FilePart:
    account = find_account(record.account) if record.account else None
    return read_part(Path(record.folder), ask.name, offset=ask.offset, version=ask.version, account=account)


class NotViewable(Exception):
    """Nobody may look at this file; the text says why."""


class NotThere(Exception):
    """The folder has no such file now."""


@dataclass(frozen=True, slots=True)
class FilePart:
    """A part of a file. `is_restarted`: it is another file than the reader saw, or it was cut; the part begins at 0."""

    offset: int
    data: bytes
    size: int
    version: str
    is_restarted: bool = False

    @property
    def is_at_end(self) -> bool:
        return self.offset + len(self.data) >= self.size


def read_part(folder: Path, name: bytes, *, offset: int, version: str, account: LocalAccount | None = None) -> FilePart:
    """Read what follows the offset. `version`: of the part before; empty: the reader has seen nothing.

    Raises NotThere and NotViewable, and OSError.
    """
    try:
        path = split_name(name)
    except ValueError as exc:
        raise NotViewable(f"the name is not possible: {exc}") from exc
    uid = account.uid if account is not None and os.geteuid() == 0 else None
    number = _open(folder, path, uid)
    try:
        return _read_from(number, offset, version)
    finally:
        os.close(number)


def _read_from(number: int, offset: int, version: str) -> FilePart:
    status = os.fstat(number)
    is_restarted = bool(version) and (
        status.st_size < offset or version_of(status.st_ino, _tail(number, offset)) != version
    )
    begin = 0 if is_restarted else offset
    data = read_span(number, begin, min(VIEW_BYTES_MAX, max(0, status.st_size - begin)))
    if begin > status.st_size:  # the reader waits for a later part, and has seen nothing
        return FilePart(begin, b"", status.st_size, "")
    tail = (_tail(number, begin) + data)[-TAIL_BYTES:]
    size = max(status.st_size, begin + len(data))
    return FilePart(begin, data, size=size, version=version_of(status.st_ino, tail), is_restarted=is_restarted)


def _tail(number: int, offset: int) -> bytes:
    begin = max(0, offset - TAIL_BYTES)
    return read_span(number, begin, offset - begin)


def _open(folder: Path, path: TreePath, uid: int | None) -> int:
    """Open the file. Each link on the way begins the walk again, at the place where the link leads."""
    for _ in range(LINKS_MAX + 1):
        if path[:1] == (SITE_FOLDER.encode(),):
            raise NotViewable("the site gave it to the job alone")
        found = _walk(folder, path, uid)
        if isinstance(found, int):
            return found
        path = found
    raise NotViewable(f"it is behind more than {LINKS_MAX} links")


def _walk(folder: Path, path: TreePath, uid: int | None) -> int | TreePath:
    """Open the file; or return the path without its first link."""
    try:
        parent = os.open(folder, FOLDER_FLAGS)
    except OSError as exc:
        raise _meaning(exc) from exc
    try:
        for depth, name in enumerate(path):
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
            is_last = depth == len(path) - 1
            if stat.S_ISLNK(status.st_mode):
                target = os.readlink(name, dir_fd=parent)
                if not is_inside(path[:depth], target):
                    raise NotViewable(f"{show_path(path[: depth + 1])} is a link to a place outside the job's folder")
                return (*link_target(path[:depth], target), *path[depth + 1 :])
            if is_last:
                return _open_file(parent, path, status, uid)
            if not stat.S_ISDIR(status.st_mode):
                raise NotViewable(f"{show_path(path[: depth + 1])} is no folder")
            below = os.open(name, FOLDER_FLAGS, dir_fd=parent)
            os.close(parent)
            parent = below
        raise NotViewable("it is a folder")  # a link to the job's folder itself
    except OSError as exc:
        raise _meaning(exc) from exc
    finally:
        os.close(parent)


def _open_file(parent: int, path: TreePath, status: os.stat_result, uid: int | None) -> int:
    _refuse_other(status, uid)  # before it is opened: to open a device may have an effect
    number = os.open(path[-1], FILE_FLAGS, dir_fd=parent)
    try:
        _refuse_other(os.fstat(number), uid)
    except NotViewable:
        os.close(number)
        raise
    return number


def _refuse_other(status: os.stat_result, uid: int | None) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise NotViewable("it is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise NotViewable("it is no plain file, but a pipe, a socket or a device")
    if uid is not None and status.st_uid != uid:
        raise NotViewable("it belongs to another account than the job's")


def _meaning(exc: OSError) -> Exception:
    if exc.errno in ABSENT_ERRNOS:
        return NotThere()
    if isinstance(exc, PermissionError):
        return NotViewable(f"the agent cannot read it: {exc.strerror}")
    return exc
