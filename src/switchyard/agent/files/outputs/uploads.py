"""Uploads the output files of ended attempts in the background, tells the server, and removes the folders.

What is to be done is in the records on the disk: after a restart the upload begins again, and objects that the server
has already are not sent again.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from switchyard.agent.backoff import backoff_s
from switchyard.agent.files.folder_removal import remove_folder
from switchyard.agent.files.inputs.folder_writer import TreePath
from switchyard.agent.files.object_client import AttemptRights
from switchyard.agent.files.outputs.output_budget import LISTING_BYTES, USER, OutputBounds, may_take_more
from switchyard.agent.files.outputs.stage_out import OutputRequest, UploadedOutputs, ask_room, upload_outputs
from switchyard.agent.files.records import FolderRecord, FolderRecords, FolderStage
from switchyard.agent.files.timed_queue import TimedQueue
from switchyard.agent.files.transfer_threads import TransferThreads
from switchyard.agent.journal.attempt import AttemptKey
from switchyard.agent.log import line
from switchyard.agent.site.accounts import find_account
from switchyard.agent.site.site import FilesSite
from switchyard.errors import Conflict, Gone, LimitReached, Resync, Unauthenticated, YardError
from switchyard.model.files.files import AttemptOutputs, OutputState

UPLOADS_AT_ONCE = 2  # attempts; their transfers run on threads of their own
SHORT_TASKS_AT_ONCE = 2
QUEUED_TELL_S = 0.5  # an upload that has not begun after this time is told to the server
RETRY_S_MIN, RETRY_S_MAX = 0.5, 60.0
ROOM_RETRY_S_MIN, ROOM_RETRY_S_MAX = 2.0, 300.0  # of files over a limit of the server: one small request
REMOVAL_RETRY_S_MIN, REMOVAL_RETRY_S_MAX = 5.0, 3600.0  # of a folder of which something was left
READ_TRIES_MAX = 10  # of a folder that the agent cannot read
FOLDER_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})  # the job removed its folder or put a link there
FAILED_KEEP_S = 86_400.0  # a folder whose output files could not be uploaded: somebody may look for them
UPLOAD_ERROR_CHARS_MAX = 1000
FILES_TOLD_MAX = 5

log = logging.getLogger(__name__)


class _Upload:
    """The upload of one attempt in this process. `sent_files`: those at the server, with their sizes."""

    def __init__(self) -> None:
        self.telling = threading.Lock()  # no late word of a queued upload after later ones
        self.is_begun = False
        self.is_told = False  # the server knows that the files are on their way
        self.is_released = False  # the journal has the attempt's end
        self.is_done = False
        self.keep_s: float | None = None  # of the folder, once it is done
        self.sent_files: dict[TreePath, int] = {}
        self.is_failure_told = False  # the server says that the files cannot be had; an upload may still succeed
        self.trouble = ""  # why the last try failed


class Uploads:
    def __init__(
        self,
        records: FolderRecords,
        *,
        transfers: Callable[[], TransferThreads],
        site: FilesSite,
        on_change: Callable[[], None],
        viewed_s: Callable[[AttemptKey], float] = lambda _: 0.0,
    ) -> None:
        """`viewed_s`: how long a folder has to stay for somebody who looks at a file in it."""
        self._records, self._transfers, self._on_change = records, transfers, on_change
        self._bounds = OutputBounds(files=site.out_files, bytes=site.out_bytes_max)
        self._keep_s, self._retry_s, self._viewed_s = site.keep_s, site.out_retry_s, viewed_s
        self._queue = TimedQueue("stage-out", UPLOADS_AT_ONCE)
        self._short_queue = TimedQueue("folder", SHORT_TASKS_AT_ONCE)  # removals do not wait for uploads
        self._is_stopped = threading.Event()
        self._lock = threading.Lock()
        self._uploads: dict[AttemptKey, _Upload] = {}

    @property
    def is_sending(self) -> bool:
        return bool(self._uploads)

    def begin(self, key: AttemptKey) -> None:
        """Upload the output files of an attempt whose end is not reported yet. Its record gets a verdict."""
        self._begin(key, is_released=False)

    def release(self, key: AttemptKey) -> None:
        """The attempt is over here: its folder is removed after the upload."""
        if self._begin(key, is_released=True).is_done:
            self._finish(key)

    def _begin(self, key: AttemptKey, *, is_released: bool) -> _Upload:
        with self._lock:
            upload = self._uploads.get(key)
            if upload is None:
                upload = self._uploads[key] = _Upload()
                self._queue.put(lambda: self._upload(key, tries=1))
                self._short_queue.put(lambda: self._tell_queued(key, tries=1), after_s=QUEUED_TELL_S)
            upload.is_released |= is_released
            return upload

    def remove_later(self, record: FolderRecord, *, keep_s: float | None = None) -> None:
        """Remove the folder after the time of the site's rule."""
        keep_s = max(self._keep_s if keep_s is None else keep_s, self._viewed_s(record.key))
        record = replace(record, stage=FolderStage.REMOVABLE, remove_at_s=time.time() + keep_s)
        self._records.write(record)
        self.schedule_removal(record)

    def schedule_removal(self, record: FolderRecord) -> None:
        after_s = min(max(0.0, record.remove_at_s - time.time()), max(self._keep_s, FAILED_KEEP_S))
        self._short_queue.put(lambda: self._remove(record), after_s=after_s)

    def stop(self) -> None:
        self._is_stopped.set()
        self._queue.stop()
        self._short_queue.stop()

    def _upload(self, key: AttemptKey, *, tries: int) -> None:
        record, upload = self._records.get(key), self._uploads[key]
        if record is None or self._is_stopped.is_set():
            return
        with upload.telling:
            upload.is_begun = True
        if not record.ended_at_s:  # a record of an older agent
            record = replace(record, ended_at_s=time.time())
            self._records.write(record)
        try:
            if not upload.sent_files and not upload.is_failure_told:
                if upload.trouble or not upload.is_told:
                    self._tell_uploading(record, upload.trouble)
                upload.is_told = True
            uploaded = upload_outputs(self._request(record, upload), self._transfers(), is_over=self._is_stopped.is_set)
        except (YardError, OSError) as exc:
            if not self._is_stopped.is_set():
                self._handle_failure(record, exc, tries=tries)
            return
        outputs = uploaded.outputs
        log.info(
            line(
                "uploaded",
                job=record.job,
                fence=record.fence,
                files=outputs.files,
                bytes=outputs.bytes,
                not_taken=len(uploaded.lost_files) or None,
            )
        )
        self._judge(record, _verdict(uploaded))
        if uploaded.needed:
            upload.sent_files = uploaded.taken_files
            self._upload_rest_later(key, uploaded.needed, tries=1)
        else:
            self._end_upload(key)

    def _request(self, record: FolderRecord, upload: _Upload) -> OutputRequest:
        return OutputRequest(
            rights=AttemptRights(record.job, record.fence),
            folder=Path(record.folder),
            patterns=record.out,
            bounds=self._bounds,
            account=find_account(record.account) if record.account else None,
            earlier=upload.sent_files,
            note=self._note(record),
            retry_s=self._retry_left_s(record),
        )

    def _note(self, record: FolderRecord) -> str:
        """What follows the reason of files over a limit."""
        if not self._retry_left_s(record):
            return ""
        return f"; the agent tries again until {_show_time(record.ended_at_s + self._retry_s)}"

    def _retry_left_s(self, record: FolderRecord) -> int:
        """How long files over a limit are tried again from now on; 0: no longer."""
        return max(0, math.ceil(record.ended_at_s + self._retry_s - time.time()))

    def _judge(self, record: FolderRecord, verdict: str) -> None:
        """Note whether required output files are at the server. The first verdict counts: the job's end follows it."""
        latest = self._records.get(record.key)
        if latest is not None and latest.verdict is None and not self._uploads[record.key].is_released:
            self._records.write(replace(latest, verdict=verdict), is_durable=True)
            self._on_change()

    def _upload_rest_later(self, key: AttemptKey, needed: dict[str, int], *, tries: int) -> None:
        after_s = backoff_s(tries, least_s=ROOM_RETRY_S_MIN, most_s=ROOM_RETRY_S_MAX)
        self._queue.put(lambda: self._upload_rest(key, needed, tries=tries), after_s=after_s)

    def _upload_rest(self, key: AttemptKey, needed: dict[str, int], *, tries: int) -> None:
        """Upload files that were over a limit, once there is room for one of them."""
        record = self._records.get(key)
        if record is None or self._is_stopped.is_set():
            return
        if time.time() > record.ended_at_s + self._retry_s:
            log.error(line("upload-incomplete", job=record.job, fence=record.fence, over=",".join(sorted(needed))))
            self._end_upload(key, keep_s=max(self._keep_s, FAILED_KEEP_S))
            return
        try:
            room = ask_room(AttemptRights(record.job, record.fence), self._transfers())
        except YardError as exc:
            log.warning(line("upload-delayed", job=record.job, fence=record.fence, tries=tries, error=exc.detail))
        else:
            if may_take_more(needed, room):
                self._upload(key, tries=tries)
                return
        self._upload_rest_later(key, needed, tries=tries + 1)

    def _handle_failure(self, record: FolderRecord, exc: YardError | OSError, *, tries: int) -> None:
        """Try again while that may help; else tell the server that the files cannot be had."""
        if isinstance(exc, LimitReached) and time.time() < record.ended_at_s + self._retry_s:
            self._retry_refused(record, exc, tries=tries)
            return
        if isinstance(exc, YardError):
            why, is_final = exc.detail, not may_pass(exc)
        else:
            why = f"the agent cannot read the job's folder: {exc.strerror or exc}"
            is_final = exc.errno in FOLDER_GONE or tries >= READ_TRIES_MAX
        ids = {"job": record.job, "fence": record.fence}
        if isinstance(exc, Conflict) and is_final:  # an answer was lost: the server has the files
            log.info(line("outputs-settled", **ids, reason=why))
            self._judge(record, "")
            self._end_upload(record.key)
            return
        if is_final:
            log.error(line("upload-failed", **ids, error=why))
            self._judge(record, f"its output files could not be sent: {why}"[:UPLOAD_ERROR_CHARS_MAX])
            self._tell_failure(record, why, tries=1)
            return
        log.warning(line("upload-delayed", **ids, tries=tries, error=why))
        upload = self._uploads[record.key]
        upload.trouble, upload.is_begun = why[:UPLOAD_ERROR_CHARS_MAX], False
        if not upload.is_told:
            self._short_queue.put(lambda: self._tell_queued(record.key, tries=1), after_s=QUEUED_TELL_S)
        after_s = backoff_s(tries, least_s=RETRY_S_MIN, most_s=RETRY_S_MAX)
        self._queue.put(lambda: self._upload(record.key, tries=tries + 1), after_s=after_s)

    def _retry_refused(self, record: FolderRecord, exc: LimitReached, *, tries: int) -> None:
        """Not even the list of the files fits. Say so now, and try again when there is room."""
        upload = self._uploads[record.key]
        log.warning(line("upload-refused", job=record.job, fence=record.fence, tries=tries, error=exc.detail))
        self._judge(record, f"its output files could not be taken: {exc.detail}"[:UPLOAD_ERROR_CHARS_MAX])
        with contextlib.suppress(YardError):  # else with the next try
            self._tell_failed(record, exc.detail + self._note(record), retry_s=self._retry_left_s(record))
            upload.is_failure_told = True
        self._upload_rest_later(record.key, {USER: LISTING_BYTES}, tries=tries + 1)

    def _tell_queued(self, key: AttemptKey, *, tries: int) -> None:
        """Say that the files will come. Otherwise the server knows nothing of attempts that wait for other uploads."""
        record, upload = self._records.get(key), self._uploads.get(key)
        if record is None or upload is None:
            return
        with upload.telling:
            if upload.is_begun or upload.is_told or self._is_stopped.is_set():
                return
            try:
                self._tell_uploading(record, upload.trouble)
                upload.is_told = True
            except YardError as exc:
                if may_pass(exc):
                    after_s = backoff_s(tries, least_s=RETRY_S_MIN, most_s=RETRY_S_MAX)
                    self._short_queue.put(lambda: self._tell_queued(key, tries=tries + 1), after_s=after_s)

    def _tell_uploading(self, record: FolderRecord, trouble: str) -> None:
        """Say that the files are on their way, and why they were delayed."""
        self._tell(AttemptOutputs(record.job, record.fence, OutputState.UPLOADING, error=trouble))

    def _tell_failure(self, record: FolderRecord, why: str, *, tries: int) -> None:
        try:
            self._tell_failed(record, why)
        except YardError as exc:
            if may_pass(exc):
                after_s = backoff_s(tries, least_s=RETRY_S_MIN, most_s=RETRY_S_MAX)
                self._queue.put(lambda: self._tell_failure(record, why, tries=tries + 1), after_s=after_s)
                return
            log.error(line("outputs-not-wanted", job=record.job, fence=record.fence, error=exc.detail))
        self._end_upload(record.key, keep_s=max(self._keep_s, FAILED_KEEP_S))

    def _tell_failed(self, record: FolderRecord, why: str, *, retry_s: int = 0) -> None:
        error = why[:UPLOAD_ERROR_CHARS_MAX]
        self._tell(AttemptOutputs(record.job, record.fence, OutputState.FAILED, error=error, retry_s=retry_s))

    def _tell(self, outputs: AttemptOutputs) -> None:
        self._transfers().run([lambda calls: calls.tell(outputs)])

    def _end_upload(self, key: AttemptKey, *, keep_s: float | None = None) -> None:
        """Nothing more is uploaded. The folder and its record stay until the journal has the attempt's end."""
        with self._lock:
            upload = self._uploads[key]
            upload.is_done, upload.keep_s, upload.sent_files = True, keep_s, {}
            is_released = upload.is_released
        if is_released:
            self._finish(key)

    def _finish(self, key: AttemptKey) -> None:
        with self._lock:
            upload = self._uploads.pop(key, None)
        record = self._records.get(key)
        if upload is not None and record is not None:
            self.remove_later(record, keep_s=upload.keep_s)

    def _remove(self, record: FolderRecord, *, tries: int = 1) -> None:
        """Remove a folder. If something of it is left, try again later; the record is there for the next start."""
        if remove_folder(Path(record.folder).parent):
            self._records.remove(record.key)
            return
        after_s = min(REMOVAL_RETRY_S_MAX, REMOVAL_RETRY_S_MIN * 2 ** min(tries - 1, 20))
        self._short_queue.put(lambda: self._remove(record, tries=tries + 1), after_s=after_s)


def may_pass(exc: YardError) -> bool:
    """Whether a later try may succeed. Without a valid credential or session the agent ends, or asks for a new one."""
    return exc.transient or isinstance(exc, Unauthenticated | Gone | Resync)


def _verdict(uploaded: UploadedOutputs) -> str:
    """Why required output files have failed the attempt; empty: they are all there."""
    if missing := uploaded.outputs.missing:
        return f"it left no file for {_show_some(list(map(repr, missing)))}, which its output files must have"
    if uploaded.lost_files:
        return f"output files could not be taken: {_show_some(uploaded.lost_files, '; ')}"[:UPLOAD_ERROR_CHARS_MAX]
    return ""


def _show_some(texts: Sequence[str], separator: str = ", ") -> str:
    more = f" and {len(texts) - FILES_TOLD_MAX} more" if len(texts) > FILES_TOLD_MAX else ""
    return separator.join(texts[:FILES_TOLD_MAX]) + more


def _show_time(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at_s))
