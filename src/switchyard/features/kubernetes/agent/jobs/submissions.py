"""Records of submitted Jobs, one file each, written before the Job is created so that it is found after a crash.

A file has the record as it was added, then a line for each change: the end of one task of an array costs one short
line, not the whole record again. A line that a crash cut is skipped.

What a power cut may take: a change that was not synced, and then the cluster is asked again. So a change is synced
where the cluster cannot tell it a second time:

- The new record, before the Job is created: nothing else tells that it may have been.
- The uid, before the journal has the attempt as submitted: without it, the agent does not end or remove the Job.
- The pods that may start, before their gates are lifted (start_gates.py): such a pod may run and be gone.
- Ends and the agent's own stop orders, before the Job is deleted (`sync`): nothing else tells how it ended.

Not synced are orders to cancel (the journal has them), settled attempts and removed files: they come up again with
their uid, and are settled again.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from switchyard.agent.backends import Status, marker_of
from switchyard.agent.private_files import replace_file
from switchyard.errors import Unavailable
from switchyard.features.kubernetes.agent.jobs.job_status import CANCELLED, StopOrder
from switchyard.features.kubernetes.agent.jobs.submitted_job import (
    RecordChange,
    RecordedStop,
    SubmittedJob,
    record_end,
    with_changes,
)


class SubmissionStore:
    """All records, in one folder. Used by several threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._jobs: dict[str, SubmittedJob] = {}
        self._names: dict[str, tuple[str, int]] = {}  # a task's marker → the name of its Job, and its fence
        self._unsynced: set[str] = set()  # names of Jobs with an end or an order that only the page cache has
        for path in sorted(folder.glob("*.json")):
            with contextlib.suppress(msgspec.DecodeError):  # skip a damaged file
                self._know(_read_record(path.read_bytes()))

    def get(self, name: str) -> SubmittedJob | None:
        return self._jobs.get(name)

    def of_marker(self, marker: str) -> tuple[SubmittedJob, int] | None:
        """The Job of a task's marker, and the task's fence."""
        name, fence = self._names.get(marker, ("", 0))
        job = self._jobs.get(name)
        return None if job is None else (job, fence)

    def of_native(self, native_id: str) -> tuple[SubmittedJob, int] | None:
        """The Job of a native id, and the task's fence."""
        name, _, index = native_id.partition("/")
        job = self._jobs.get(name)
        if job is None or (index and not index.isdecimal()) or int(index or 0) >= job.size:
            return None
        return job, job.lease.fence + int(index or 0)

    def all(self) -> list[SubmittedJob]:
        with self._lock:
            return list(self._jobs.values())

    def add(self, job: SubmittedJob) -> None:
        """Write a new record, which survives a power cut: nothing else tells that the Job may have been created."""
        try:  # outside the lock: several new records are written at the same time
            replace_file(self._path(job.name), msgspec.json.encode(job))
        except OSError as exc:
            raise _unwritable(self._path(job.name), exc) from exc
        with self._lock:
            self._know(job)

    def note_created(self, name: str, uid: str, *, refuted: Collection[int] = ()) -> None:
        """Record that the Job was created, without the tasks that are refuted. Survives a power cut."""
        with self._lock:
            job = self._jobs.get(name)
            if job is None:
                return
            wanted = tuple(set(job.refuted).difference(refuted))
            self._append(job, RecordChange(uid=uid, refuted=tuple(refuted), wanted=wanted))
        self._sync_file(name)

    def note_seen(self, name: str) -> None:
        """Record that an agent with another folder created the Job. Survives a power cut."""
        self._change(name, RecordChange(is_seen=True))
        self._sync_file(name)

    def note_starts(self, name: str, uids: Mapping[int, str]) -> bool:
        """Record which pods may start, by completion index. Survives a power cut. False: there is no such record."""
        self._change(name, RecordChange(starts=dict(uids)))
        self._sync_file(name)
        return name in self._jobs

    def note_removed(self, name: str) -> None:
        """Record that the Job was deleted after its end."""
        self._change(name, RecordChange(is_removed=True))

    def end(self, name: str, statuses: Mapping[int, Status]) -> None:
        """Record the ends of tasks, by fence. The first end of a task stays."""
        with self._lock:
            job = self._jobs.get(name)
            if job is None:
                return
            ends = {fence: record_end(status) for fence, status in statuses.items() if fence not in job.ends}
            if ends:
                self._append(job, RecordChange(ends=ends))
                self._unsynced.add(name)

    def stop(self, name: str, orders: Mapping[int, StopOrder]) -> bool:
        """Record that the agent ends these attempts, by fence. The first order stays. True: there was a new one."""
        with self._lock:
            job = self._jobs.get(name)
            if job is None:
                return False
            new = {f: order for f, order in orders.items() if f not in job.stops and f not in job.ends}
            if not new:
                return False
            stops = {f: RecordedStop(order.seen, order.reason, order.cause, order.failure) for f, order in new.items()}
            self._append(job, RecordChange(stops=stops))
            if any(order != CANCELLED for order in new.values()):
                self._unsynced.add(name)
            return True

    def refute(self, name: str, fences: Collection[int], *, is_refuted: bool = True) -> SubmittedJob | None:
        """Note that these tasks were not created, or are wanted after all. Returns the record as it is now."""
        with self._lock:
            job = self._jobs.get(name)
            if job is None:
                return None
            known = set(job.refuted)
            new = tuple(set(fences).difference(known) if is_refuted else known.intersection(fences))
            if not new:
                return job
            return self._append(job, RecordChange(refuted=new) if is_refuted else RecordChange(wanted=new))

    def forget(self, name: str, fence: int) -> SubmittedJob | None:
        """Note that an attempt is settled. Returns the record as it is now."""
        with self._lock:
            job = self._jobs.get(name)
            if job is None or fence in job.forgotten:
                return job
            return self._append(job, RecordChange(forgotten=(fence,)))

    def sync(self, name: str) -> None:
        """Make ends and orders of a Job survive a power cut, before the Job is deleted."""
        with self._lock:
            is_synced = name not in self._unsynced
            self._unsynced.discard(name)
        if is_synced:
            return
        try:
            self._sync_file(name)
        except BaseException:
            self._unsynced.add(name)
            raise

    def remove(self, name: str) -> None:
        with self._lock:
            self._path(name).unlink(missing_ok=True)
            self._unsynced.discard(name)
            job = self._jobs.pop(name, None)
            for lease in job.leases() if job is not None else ():
                self._names.pop(marker_of(lease), None)

    def _change(self, name: str, change: RecordChange) -> None:
        with self._lock:
            if (job := self._jobs.get(name)) is not None:
                self._append(job, change)

    def _append(self, job: SubmittedJob, change: RecordChange) -> SubmittedJob:
        """Change a record. The line begins with a newline, so that it is whole even after one that was cut."""
        path = self._path(job.name)
        try:
            number = os.open(path, os.O_WRONLY | os.O_APPEND)
            try:
                _write_whole(number, b"\n" + msgspec.json.encode(change))
            finally:
                os.close(number)
        except OSError as exc:
            raise _unwritable(path, exc) from exc
        job = with_changes(job, [change])
        self._know(job)
        return job

    def _sync_file(self, name: str) -> None:
        """Outside the lock: a disk takes its time."""
        path = self._path(name)
        try:
            number = os.open(path, os.O_RDONLY)
            try:
                os.fsync(number)
            finally:
                os.close(number)
        except FileNotFoundError:
            return  # removed meanwhile
        except OSError as exc:
            raise _unwritable(path, exc) from exc

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def _know(self, job: SubmittedJob) -> None:
        known, self._jobs[job.name] = self._jobs.get(job.name), job
        if known is None:  # not again for a change of one task: there may be a thousand markers
            self._names.update({marker_of(lease): (job.name, lease.fence) for lease in job.leases()})


def _read_record(content: bytes) -> SubmittedJob:
    first, *rows = content.split(b"\n")
    changes: list[RecordChange] = []
    for row in rows:
        with contextlib.suppress(msgspec.DecodeError):  # a crash cut it
            changes.append(msgspec.json.decode(row, type=RecordChange))
    return with_changes(msgspec.json.decode(first, type=SubmittedJob), changes)


def _write_whole(number: int, data: bytes) -> None:
    """Write all of a line. A full disk may take only its beginning, which is skipped when the file is read."""
    while data:
        data = data[os.write(number, data) :]


def _unwritable(path: Path, exc: OSError) -> Unavailable:
    return Unavailable(f"{path} cannot be written: {exc.strerror}.")
