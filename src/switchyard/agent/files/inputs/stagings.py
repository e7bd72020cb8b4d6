"""Stages the files of attempts before they start, on threads of its own, and tries again while something is away."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from switchyard.agent.backends import Backend, WorkFolder
from switchyard.agent.backoff import backoff_s
from switchyard.agent.files.folder_removal import remove_folder
from switchyard.agent.files.inputs.content_cache import ContentCache
from switchyard.agent.files.inputs.folder_writer import (
    FolderWriter,
    TreePath,
    give_top_folder,
    make_top_folder,
    write_at,
)
from switchyard.agent.files.inputs.stage_in import StageIn, StageRequest
from switchyard.agent.files.inputs.staging_errors import NoRoomNow, ObjectLost, StagingOver
from switchyard.agent.files.inputs.staging_space import SpaceClaim, StagingSpace
from switchyard.agent.files.object_client import AttemptRights
from switchyard.agent.files.object_fetch import FULL_DISK_ERRNOS, StagingProgress
from switchyard.agent.files.records import FolderRecord, FolderRecords, FolderStage
from switchyard.agent.files.timed_queue import TimedQueue
from switchyard.agent.files.transfer_threads import TransferThreads
from switchyard.agent.journal.attempt import Attempt, AttemptKey, task_index
from switchyard.agent.log import line
from switchyard.agent.loop.clock import boot_id
from switchyard.agent.loop.need import spec_of
from switchyard.agent.server.client import ServerUnreachable
from switchyard.errors import Gone, PolicyRefused, Resync, Unauthenticated, YardError
from switchyard.model.cluster.poll import Lease
from switchyard.model.files.files import JobFiles
from switchyard.model.jobspec.quantity import show_bytes

STAGINGS_AT_ONCE = 4  # attempts; each waits for transfers most of the time
RETRY_S_MIN, RETRY_S_MAX = 0.5, 30.0
# Without progress, though the server answers. While the server is away nothing is given up: no report would arrive.
PATIENCE_S = 300.0

GiftsOf = Callable[[Lease, WorkFolder], Mapping[TreePath, bytes]]  # files that the site gives to an attempt there

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Preparation:
    """Whether an attempt may start. `failure`: why it does not start here; `text`: what it waits for.

    `is_given_back`: it failed for a lack of room, so it may start here later.
    """

    is_ready: bool
    failure: str = ""
    text: str = ""
    is_given_back: bool = False


class _Staging:
    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.progress = StagingProgress()
        self.is_over = threading.Event()
        self.trouble = ""
        self.failure = ""
        self.is_given_back = False
        self.tries = 0
        self.failing_since: float | None = None
        self.space: SpaceClaim | None = None
        self.lost_object: ObjectLost | None = None  # asked for first in the next try

    @property
    def text(self) -> str:
        if self.trouble:
            return f"staging files; trying again: {self.trouble}"
        total, done = self.progress.bytes_total, self.progress.bytes
        return f"staging files: {show_bytes(done)} of {show_bytes(total)}" if total else "staging files"


class Stagings:
    """`prepare` and `release` return at once; the runner calls them in every round."""

    def __init__(
        self,
        backend: Backend,
        records: FolderRecords,
        *,
        cache: Callable[[], ContentCache],
        transfers: Callable[[], TransferThreads],
        space: StagingSpace,
        on_change: Callable[[], None],
        patience_s: float = PATIENCE_S,
        gifts: GiftsOf = lambda _lease, _work: {},
    ) -> None:
        self._backend, self._records = backend, records
        self._cache, self._transfers, self._on_change = cache, transfers, on_change
        self._space, self._patience_s = space, patience_s
        self._gifts = gifts
        self._lock = threading.Lock()
        self._stagings: dict[AttemptKey, _Staging] = {}
        self._queue = TimedQueue("stage-in", STAGINGS_AT_ONCE)
        self._is_stopped = threading.Event()

    def is_staged(self, key: AttemptKey) -> bool:
        """Whether the folder is complete. Of another boot it may not be: a power cut loses what was not synced."""
        record = self._records.get(key)
        return record is not None and record.stage is not FolderStage.STAGING and record.boot == boot_id()

    def jobs(self) -> set[str]:
        """The jobs of which attempts are being staged."""
        with self._lock:
            return {job for job, _ in self._stagings}

    def prepare(self, attempt: Attempt) -> Preparation:
        with self._lock:
            if self.is_staged(attempt.key):
                return Preparation(is_ready=True)
            staging = self._stagings.get(attempt.key)
            if staging is None:
                staging = self._stagings[attempt.key] = _Staging(attempt)
                self._queue.put(lambda: self._stage(staging))
        return Preparation(False, staging.failure, staging.text, is_given_back=staging.is_given_back)

    def release(self, key: AttemptKey) -> bool:
        """The attempt is over. True: it is being staged; the thread that does that removes the folder."""
        with self._lock:
            staging = self._stagings.pop(key, None)
            if staging is not None:
                staging.is_over.set()
            return staging is not None and not staging.failure

    def stop(self) -> None:
        self._is_stopped.set()
        self._queue.stop()

    def _is_over(self, staging: _Staging) -> bool:
        return staging.is_over.is_set() or self._is_stopped.is_set()

    def _stage(self, staging: _Staging) -> None:
        """Try once. After a failure that may pass, the next try is queued, so that other attempts go on."""
        fetched = staging.progress.fetched_bytes
        try:
            if not self._is_over(staging):
                self._stage_once(staging)
        except (YardError, OSError) as exc:
            if self._is_over(staging):
                pass
            elif self._is_final(staging, exc, has_fetched=staging.progress.fetched_bytes > fetched):
                staging.is_given_back = _is_lack_of_room(exc)
                staging.failure = f"its files could not be staged: {staging.trouble}"
                log.error(line("staging-failed", **_ids(staging), error=staging.trouble))
            else:
                log.warning(line("staging-delayed", **_ids(staging), tries=staging.tries, error=staging.trouble))
                pause_s = backoff_s(staging.tries, least_s=RETRY_S_MIN, most_s=RETRY_S_MAX)
                self._queue.put(lambda: self._stage(staging), after_s=pause_s)
        if staging.is_over.is_set() and not self._is_stopped.is_set():
            self._discard(staging)
        self._on_change()

    def _is_final(self, staging: _Staging, exc: YardError | OSError, *, has_fetched: bool) -> bool:
        """Note why a try failed. True: trying again does not help, or has not helped for long."""
        now = time.monotonic()
        staging.lost_object = exc if isinstance(exc, ObjectLost) else None
        # Objects that are fetched again and again do not mend a disk, nor bring back one that is lost.
        has_progress = has_fetched and not isinstance(exc, OSError | NoRoomNow | ObjectLost)
        staging.tries = 1 if has_progress else staging.tries + 1
        if isinstance(exc, OSError):
            staging.trouble = self._os_trouble(staging, exc)
        else:
            staging.trouble = exc.detail
        # Without a valid credential the agent ends by itself; the next start stages again.
        is_server_away = isinstance(exc, ServerUnreachable | Unauthenticated | Gone | Resync)
        if is_server_away or has_progress or staging.failing_since is None:
            staging.failing_since = now
        if isinstance(exc, YardError) and not exc.transient and not is_server_away:
            return True
        return now - staging.failing_since > self._patience_s

    def _os_trouble(self, staging: _Staging, exc: OSError) -> str:
        place = f" ({exc.filename!r})" if exc.filename else ""
        if exc.errno not in FULL_DISK_ERRNOS:
            return f"the agent cannot write the job's folder: {exc.strerror}{place}"
        record = self._records.get(staging.attempt.key)
        if record is not None and record.stage is FolderStage.STAGING:
            remove_folder(Path(record.folder).parent)  # at once: jobs that run need the space
        freed = self._cache().clear()
        return f"the agent's disk is full: {exc.strerror}{place}; {show_bytes(freed)} of its cache were removed"

    def _stage_once(self, staging: _Staging) -> None:
        attempt, lease = staging.attempt, staging.attempt.lease
        work = self._backend.work_folder(attempt.lease)
        files = spec_of(lease).files or JobFiles()
        record = FolderRecord(
            job=lease.job,
            fence=lease.fence,
            marker=attempt.marker,
            folder=str(work.path),
            stage=FolderStage.STAGING,
            account=work.account.name if work.account else "",
            out=files.out,
        )
        self._records.write(record)  # before the folder: a start after a kill finds it by the record
        if not remove_folder(work.path.parent):
            raise PolicyRefused(f"a folder of an earlier try cannot be removed: {work.path.parent}")
        make_top_folder(work.path, work.account)
        index = task_index(lease)
        request = StageRequest(
            rights=AttemptRights(lease.job, lease.fence),
            tree=bytes.fromhex(files.tree) if files.tree else None,
            task_tree=bytes.fromhex(files.task_tree) if files.task_tree else None,
            index=None if index < 0 else index,
        )
        staging.progress.begin()
        if request.tree is not None or request.task_tree is not None:
            self._write_files(staging, work, request)
        self._write_gifts(lease, work)
        give_top_folder(work.path, work.account)
        with self._lock:
            if self._is_over(staging):
                raise StagingOver
            # Last of all: a folder with this record is complete.
            self._records.write(replace(record, stage=FolderStage.STAGED, boot=boot_id()))
            self._stagings.pop(attempt.key, None)
        log.info(line("staged", **_ids(staging), files=staging.progress.files, bytes=staging.progress.bytes))

    def _write_files(self, staging: _Staging, work: WorkFolder, request: StageRequest) -> None:
        if staging.space is None:
            staging.space = SpaceClaim(self._space, self._cache(), work.path, staging.progress)
        with contextlib.closing(FolderWriter(work.path, work.account)) as writer:
            StageIn(
                self._cache(),
                self._transfers(),
                writer,
                request,
                space=staging.space,
                is_over=lambda: self._is_over(staging),
                progress=staging.progress,
                lost_object=staging.lost_object,
            ).run()

    def _write_gifts(self, lease: Lease, work: WorkFolder) -> None:
        """Write what the site gives to this attempt. A tree of the job with such a folder is refused."""
        gifts = self._gifts(lease, work)
        if not gifts:
            return
        with contextlib.closing(FolderWriter(work.path, work.account)) as writer:
            for folder in sorted({path[:depth] for path in gifts for depth in range(1, len(path))}):
                writer.make_folder(folder)
            for path, content in gifts.items():
                with writer.new_file(path, is_executable=False) as number:
                    write_at(number, content, 0)

    def _discard(self, staging: _Staging) -> None:
        record = self._records.get(staging.attempt.key)
        if record is None or record.stage is not FolderStage.STAGING:
            return
        if remove_folder(Path(record.folder).parent):  # else the next start finds the record
            self._records.remove(record.key)


def _is_lack_of_room(exc: YardError | OSError) -> bool:
    return isinstance(exc, NoRoomNow) or (isinstance(exc, OSError) and exc.errno in FULL_DISK_ERRNOS)


def _ids(staging: _Staging) -> dict[str, object]:
    return {"job": staging.attempt.lease.job, "fence": staging.attempt.lease.fence}
