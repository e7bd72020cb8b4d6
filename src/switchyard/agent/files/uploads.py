"""Uploads the output files of ended attempts in the background, tells the server, and removes the folders.

What is to be done is in the records on the disk: after a restart the upload begins again, and objects that the server
has already are not sent again.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from switchyard.agent.accounts import find_account
from switchyard.agent.attempt import AttemptKey
from switchyard.agent.files.folder_removal import remove_folder
from switchyard.agent.files.object_client import AttemptRights, ObjectStoreCalls
from switchyard.agent.files.records import FolderRecord, FolderRecords, FolderStage
from switchyard.agent.files.stage_out import OutputBounds, OutputRequest, find_missing, upload_outputs
from switchyard.agent.files.timed_queue import TimedQueue
from switchyard.agent.files.transfer_threads import TransferThreads
from switchyard.agent.log import line
from switchyard.errors import Gone, Unauthenticated, YardError
from switchyard.model.files import MISSING_LISTED_MAX, AttemptOutputs, OutputState

UPLOADS_AT_ONCE = 2  # attempts; their transfers run on threads of their own
SHORT_TASKS_AT_ONCE = 2
RETRY_S_MIN, RETRY_S_MAX = 0.5, 60.0
REMOVAL_RETRY_S_MIN, REMOVAL_RETRY_S_MAX = 5.0, 3600.0  # of a folder of which something was left
READ_TRIES_MAX = 10  # of a folder that the agent cannot read
FAILED_KEEP_S = 86_400.0  # a folder whose output files could not be uploaded: somebody may look for them
ERROR_CHARS_MAX = 1000

log = logging.getLogger(__name__)


class Uploads:
    def __init__(
        self,
        records: FolderRecords,
        *,
        transfers: Callable[[], TransferThreads],
        bounds: OutputBounds,
        keep_s: float,
        on_change: Callable[[], None],
        viewed_s: Callable[[AttemptKey], float] = lambda _: 0.0,
    ) -> None:
        """`viewed_s`: how long a folder has to stay for somebody who looks at a file in it."""
        self._records, self._transfers, self._on_change = records, transfers, on_change
        self._bounds, self._keep_s, self._viewed_s = bounds, keep_s, viewed_s
        self._queue = TimedQueue("stage-out", UPLOADS_AT_ONCE)
        self._short_queue = TimedQueue("folder", SHORT_TASKS_AT_ONCE)  # ends and removals do not wait for uploads
        self._is_stopped = threading.Event()
        self._lock = threading.Lock()
        self._matches: dict[AttemptKey, list[str] | None] = {}  # patterns without a file; None: being looked for

    def missing_of(self, record: FolderRecord) -> list[str] | None:
        """The patterns for which the attempt left nothing; None: not known yet. Returns at once."""
        with self._lock:
            if record.key not in self._matches:
                self._matches[record.key] = None
                self._short_queue.put(lambda: self._match(record))
            return self._matches[record.key]

    def upload(self, key: AttemptKey) -> None:
        with self._lock:
            self._matches.pop(key, None)
        self._queue.put(lambda: self._upload(key, tries=1))

    def remove_later(self, record: FolderRecord, *, keep_s: float | None = None) -> None:
        """Remove the folder after the time of the site's rule."""
        with self._lock:
            self._matches.pop(record.key, None)
        keep_s = max(self._keep_s if keep_s is None else keep_s, self._viewed_s(record.key))
        record = replace(record, stage=FolderStage.KEPT, remove_at_s=time.time() + keep_s)
        self._records.write(record)
        self.schedule_removal(record)

    def schedule_removal(self, record: FolderRecord) -> None:
        after_s = min(max(0.0, record.remove_at_s - time.time()), max(self._keep_s, FAILED_KEEP_S))
        self._short_queue.put(lambda: self._remove(record), after_s=after_s)

    def stop(self) -> None:
        self._is_stopped.set()
        self._queue.stop()
        self._short_queue.stop()

    def _match(self, record: FolderRecord) -> None:
        try:
            missing = find_missing(self._request(record))
        except (OSError, YardError) as exc:
            log.warning(line("outputs-unreadable", job=record.job, fence=record.fence, error=exc))
            missing = list(record.out)
        with self._lock:
            self._matches[record.key] = missing
        self._on_change()

    def _request(self, record: FolderRecord) -> OutputRequest:
        return OutputRequest(
            rights=AttemptRights(record.job, record.fence),
            folder=Path(record.folder),
            patterns=record.out,
            bounds=self._bounds,
            account=find_account(record.account) if record.account else None,
        )

    def _upload(self, key: AttemptKey, *, tries: int) -> None:
        record = self._records.get(key)
        if record is None or self._is_stopped.is_set():
            return
        state = _outputs_of(record, OutputState.UPLOADING, missing=record.missing[:MISSING_LISTED_MAX])
        try:
            self._tell(state)
            outputs = upload_outputs(self._request(record), self._transfers(), is_over=self._is_stopped.is_set)
            self._tell(outputs)
        except (YardError, OSError) as exc:
            if not self._is_stopped.is_set():
                self._failed(record, exc, tries=tries)
            return
        log.info(line("uploaded", job=record.job, fence=record.fence, files=outputs.files, bytes=outputs.bytes))
        self.remove_later(record)

    def _failed(self, record: FolderRecord, exc: YardError | OSError, *, tries: int) -> None:
        """Try again while that may help; else tell the server that the files cannot be had."""
        if isinstance(exc, YardError):
            why, is_final = exc.detail, not exc.transient and not isinstance(exc, Unauthenticated | Gone)
        else:
            why = f"the agent cannot read the job's folder: {exc.strerror or exc}"
            is_final = isinstance(exc, FileNotFoundError) or tries >= READ_TRIES_MAX
        ids = {"job": record.job, "fence": record.fence}
        if is_final:
            log.error(line("upload-failed", **ids, error=why))
            self._tell_failure(record, why, tries=1)
        else:
            log.warning(line("upload-delayed", **ids, tries=tries, error=why))
            self._queue.put(lambda: self._upload(record.key, tries=tries + 1), after_s=_pause_s(tries))

    def _tell_failure(self, record: FolderRecord, why: str, *, tries: int) -> None:
        failure = _outputs_of(record, OutputState.FAILED, error=why[:ERROR_CHARS_MAX])
        try:
            self._tell(failure)
        except YardError as exc:
            if exc.transient or isinstance(exc, Unauthenticated | Gone):
                self._queue.put(lambda: self._tell_failure(record, why, tries=tries + 1), after_s=_pause_s(tries))
                return
            log.error(line("outputs-not-wanted", job=record.job, fence=record.fence, error=exc.detail))
        self.remove_later(record, keep_s=max(self._keep_s, FAILED_KEEP_S))

    def _tell(self, outputs: AttemptOutputs) -> None:
        def tell(calls: ObjectStoreCalls) -> None:
            calls.tell(outputs)

        self._transfers().run([tell])

    def _remove(self, record: FolderRecord, *, tries: int = 1) -> None:
        """Remove a folder. If something of it is left, try again later; the record is there for the next start."""
        if remove_folder(Path(record.folder).parent):
            self._records.remove(record.key)
            return
        after_s = min(REMOVAL_RETRY_S_MAX, REMOVAL_RETRY_S_MIN * 2 ** min(tries - 1, 20))
        self._short_queue.put(lambda: self._remove(record, tries=tries + 1), after_s=after_s)


def _outputs_of(
    record: FolderRecord, state: OutputState, *, missing: list[str] | None = None, error: str = ""
) -> AttemptOutputs:
    return AttemptOutputs(job=record.job, fence=record.fence, state=state, missing=missing or [], error=error)


def _pause_s(tries: int) -> float:
    bound = min(RETRY_S_MAX, RETRY_S_MIN * 2 ** min(tries - 1, 20))
    return random.uniform(bound / 2, bound)  # noqa: S311 - jitter, not a secret
