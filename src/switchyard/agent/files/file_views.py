"""Answers readers who look at a file of an attempt while it grows.

Each part is asked for: when nobody asks, nothing is read. An ask has a time; until then the file is looked at twice a
second, and the first news is the answer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from switchyard.agent.files.object_client import ObjectStoreCalls
from switchyard.agent.files.records import FolderRecord, FolderRecords, FolderStage
from switchyard.agent.files.timed_queue import TimedQueue
from switchyard.agent.files.transfer_threads import TransferThreads
from switchyard.agent.files.view_reads import FilePart, NotThere, NotViewable, read_part
from switchyard.agent.journal.attempt import AttemptKey
from switchyard.agent.log import line
from switchyard.agent.site.accounts import find_account
from switchyard.errors import YardError
from switchyard.model.files.file_views import VIEW_WAIT_S_MAX, FileAnswer, FileAsk, ViewState

LOOKS_AT_ONCE = 2  # a file system that hangs holds up one of them
LOOK_EVERY_S = 0.5  # as often as the output of jobs is read
BYTES_PER_S = 8 * 2**20  # of all files together
ASKS_MAX = 256  # that wait at once; a server has far lower bounds for each user
# A reader who asked this long ago has gone. Until then the folder of an ended attempt stays: the end can still be read.
INTEREST_S = 30.0
WHY_CHARS_MAX = 1000

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
