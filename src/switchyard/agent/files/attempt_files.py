"""The files of attempts, as the runner sees them: staged before the start, collected at the end, then let go.

    prepare   may the attempt start? stages its files in the background
    collect   the end of an attempt, with what its output files say about it
    release   the attempt is over here: upload what it left, or remove its folder
    view      somebody looks at a file of an attempt

No call waits. The records on the disk say after a restart how far each folder has come (records.py).
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from msgspec.structs import replace

from switchyard.agent.backends import Backend, Status
from switchyard.agent.files.file_views import FileViews
from switchyard.agent.files.inputs.content_cache import ContentCache
from switchyard.agent.files.inputs.room import FilesRoom
from switchyard.agent.files.inputs.sibling_tasks import SiblingTasks
from switchyard.agent.files.inputs.staging_space import StagingSpace
from switchyard.agent.files.inputs.stagings import PATIENCE_S, GiftsOf, Preparation, Stagings
from switchyard.agent.files.object_client import ObjectStoreCalls
from switchyard.agent.files.outputs.uploads import Uploads
from switchyard.agent.files.records import FolderRecord, FolderRecords, FolderStage
from switchyard.agent.files.transfer_threads import TransferThreads
from switchyard.agent.journal.attempt import Attempt, AttemptKey, Stage
from switchyard.agent.loop.need import spec_of
from switchyard.agent.site.site import FilesSite
from switchyard.errors import YardError
from switchyard.model.failures.failure_kind import FailureKind
from switchyard.model.files.file_views import FileAsk
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause

FETCHES_AT_ONCE = 4
SENDS_AT_ONCE = 3  # other than fetches: a large upload does not delay the start of jobs
VIEWS_AT_ONCE = 1  # nor does it delay somebody who looks at a file

READY = Preparation(is_ready=True)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FilesPlaces:
    """Where files lie, below the agent's own folder, in the cache, and below the folders where jobs run.

    Jobs with files are taken while `free_bytes_min` are free in all of them.
    """

    directory: Path
    cache: Path
    work_roots: Sequence[Path] = ()
    free_bytes_min: int = 0


class AttemptFiles:
    def __init__(
        self,
        backend: Backend,
        places: FilesPlaces,
        *,
        site: FilesSite,
        connect: Callable[[], ObjectStoreCalls],
        on_change: Callable[[], None],
        patience_s: float = PATIENCE_S,
        gifts: GiftsOf = lambda _lease, _work: {},
    ) -> None:
        """`gifts`: what the site gives to an attempt, as files."""
        self._connect = connect
        self._is_range_submitted = backend.range_max > 1
        self._siblings = SiblingTasks()
        self._is_started = False
        self._cache_folder, self._site = places.cache, site
        self._lock = threading.Lock()
        self._opened_cache: ContentCache | None = None
        self._transfers: dict[str, TransferThreads] = {}
        self._records = FolderRecords(places.directory / "files" / "records")
        self._stagings = Stagings(
            backend,
            self._records,
            cache=self._cache,
            transfers=lambda: self._threads("fetch", FETCHES_AT_ONCE),
            space=StagingSpace(reserve_bytes=site.reserve_bytes, bytes_min=places.free_bytes_min),
            on_change=on_change,
            patience_s=patience_s,
            gifts=gifts,
        )
        self._views = FileViews(self._records, transfers=lambda: self._threads("view", VIEWS_AT_ONCE))
        self._room = FilesRoom(
            places.cache, places.work_roots, bytes_min=places.free_bytes_min, empty_cache=self._empty_cache
        )
        self._uploads = Uploads(
            self._records,
            transfers=lambda: self._threads("send", SENDS_AT_ONCE),
            site=site,
            viewed_s=self._views.viewed_s,
            on_change=on_change,
        )

    def start(self, live: Collection[AttemptKey]) -> None:
        """Go on with what earlier processes left. `live`: attempts that run or are to run; their folders stay."""
        if self._is_started:  # the runner begins again after an unexpected error
            return
        self._is_started = True
        for record in self._records.all():
            if record.stage is FolderStage.REMOVABLE:
                self._uploads.schedule_removal(record)
            elif record.key not in live:
                self._let_go(record)

    def stop(self) -> None:
        self._stagings.stop()
        self._views.stop()
        self._uploads.stop()
        with self._lock:
            for threads in self._transfers.values():
                threads.stop()

    @property
    def trouble(self) -> str:
        """Why no jobs with files are taken now; empty: they are taken."""
        return self._room.trouble

    def look_at_room(self) -> bool:
        """Look at the file systems again; may hang. Returns whether the trouble began or ended."""
        return self._room.look()

    def begin_round(self) -> None:
        """Called once before the starts of a round."""
        self._siblings.begin_round(self._stagings.jobs() if self._is_range_submitted else set())

    def may_start(self, attempt: Attempt) -> bool:
        """Whether its folder is complete, and no neighbouring task is worth waiting for."""
        return self.is_staged(attempt) and not (attempt.lease.lo is not None and self._siblings.is_held(attempt.key[0]))

    def is_staged(self, attempt: Attempt) -> bool:
        """Whether a job may have started in the attempt's folder. A job without files has no such folder."""
        return spec_of(attempt.lease).files is None or self._stagings.is_staged(attempt.key)

    def prepare(self, attempt: Attempt) -> Preparation:
        return READY if spec_of(attempt.lease).files is None else self._stagings.prepare(attempt)

    def collect(self, attempt: Attempt, status: Status) -> Status | None:
        """The end to report; None: ask again, required output files are still on their way to the server."""
        files = spec_of(attempt.lease).files
        record = self._records.get(attempt.key) if files is not None else None
        if files is None or record is None or not files.out or attempt.is_stopped or not _has_begun(attempt, status):
            return status
        is_judged = files.out_required and status.seen is ObservedState.SUCCEEDED
        if record.stage not in (FolderStage.ENDED, FolderStage.REMOVABLE):
            # Before the journal has the end: after a kill in between, the end is seen again and the record is here.
            record = replace(record, stage=FolderStage.ENDED, ended_at_s=time.time())
            self._records.write(record, is_durable=True)
        if not is_judged or record.verdict == "":
            return status
        if record.verdict:
            return dataclasses.replace(
                status, seen=ObservedState.FAILED, reason=record.verdict, cause=Cause.JOB, failure=FailureKind.OTHER
            )
        if attempt.is_cancel_asked:
            reason = "cancelled while its output files were sent"
            return dataclasses.replace(status, seen=ObservedState.CANCELLED, reason=reason)
        self._uploads.begin(attempt.key)
        return None

    @property
    def is_sending(self) -> bool:
        """Whether output files are on their way, or wait to be sent again."""
        return self._uploads.is_sending

    def view(self, asks: Sequence[FileAsk]) -> None:
        """Answer readers who look at files of attempts."""
        self._views.ask(asks)

    def release(self, key: AttemptKey) -> None:
        if not self._stagings.release(key) and (record := self._records.get(key)) is not None:
            self._let_go(record)

    def _let_go(self, record: FolderRecord) -> None:
        if record.stage is FolderStage.ENDED:
            self._uploads.release(record.key)
        elif record.stage is FolderStage.STAGED:
            self._uploads.remove_later(record)
        elif record.stage is FolderStage.STAGING:
            self._uploads.remove_later(record, keep_s=0)

    def _cache(self) -> ContentCache:
        with self._lock:
            if self._opened_cache is None:
                self._opened_cache = ContentCache(self._cache_folder, self._site.cache_bytes)
            return self._opened_cache

    def _empty_cache(self) -> int:
        try:
            return self._cache().clear() if self._cache_folder.is_dir() else 0
        except YardError:  # the cache cannot be opened
            return 0

    def _threads(self, name: str, count: int) -> TransferThreads:
        with self._lock:
            if name not in self._transfers:
                self._transfers[name] = TransferThreads(name, count, self._connect)
            return self._transfers[name]


def _has_begun(attempt: Attempt, status: Status) -> bool:
    if status.seen is ObservedState.RETURNED or status.is_unbegun:
        return False
    return (
        attempt.stage is Stage.RUNNING
        or status.began_ago_us is not None
        or status.seen in (ObservedState.SUCCEEDED, ObservedState.FAILED)
    )
