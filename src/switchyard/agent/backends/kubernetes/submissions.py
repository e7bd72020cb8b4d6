"""Records of submitted Jobs, one file each, written before the Job is created so that it is found after a crash.

A record keeps what the cluster does not keep: that a Job was created although it is gone, that the agent asked to
cancel it, and how it ended once its output was taken.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from switchyard.agent.attempt import split_ranges
from switchyard.agent.backends import Status, marker_of
from switchyard.agent.backends.kubernetes.job_status import StopOrder
from switchyard.agent.private_files import replace_file
from switchyard.errors import Unavailable
from switchyard.model.job import Usage
from switchyard.model.lifecycle import ObservedState
from switchyard.model.poll import Lease
from switchyard.model.retry import Cause


class RecordedEnd(Struct, frozen=True, omit_defaults=True):
    """The end of one attempt, with the time at which it was recorded by the agent's clock."""

    at_ns: int
    seen: ObservedState
    text: str = ""
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None
    ago_us: int = 0  # at `at_ns`
    began_ago_us: int | None = None
    cause: Cause = Cause.JOB
    usage: Usage | None = None

    def status(self) -> Status:
        older_us = max(0, time.time_ns() - self.at_ns) // 1000
        return Status(
            seen=self.seen,
            text=self.text,
            reason=self.reason,
            exit_code=self.exit_code,
            signal=self.signal,
            ago_us=self.ago_us + older_us,
            began_ago_us=None if self.began_ago_us is None else self.began_ago_us + older_us,
            cause=self.cause,
            usage=self.usage,
        )


class RecordedStop(Struct, frozen=True, omit_defaults=True):
    """The agent ends an attempt: what its end is called when it is gone."""

    seen: ObservedState
    reason: str
    cause: Cause = Cause.CLUSTER

    @property
    def order(self) -> StopOrder:
        return StopOrder(seen=self.seen, reason=self.reason, cause=self.cause)


def record_end(status: Status) -> RecordedEnd:
    return RecordedEnd(
        at_ns=time.time_ns(),
        seen=status.seen,
        text=status.text,
        reason=status.reason,
        exit_code=status.exit_code,
        signal=status.signal,
        ago_us=status.ago_us,
        began_ago_us=status.began_ago_us,
        cause=status.cause,
        usage=status.usage,
    )


class SubmittedJob(Struct, frozen=True, omit_defaults=True):
    """One Job: an attempt, or a range of an array's tasks. Tasks are named by their fences."""

    lease: Lease  # of a range: with lo and hi, and the fence of the first task
    namespace: str
    uid: str = ""  # once Kubernetes answered; empty: perhaps it was not created
    stops: dict[int, RecordedStop] = {}  # attempts that the agent ends, by fence
    ends: dict[int, RecordedEnd] = {}  # by fence
    forgotten: tuple[int, ...] = ()  # fences of settled attempts
    refuted: tuple[int, ...] = ()  # fences of tasks of which `find` said that they were not created
    is_removed: bool = False  # the Job was deleted after its end
    is_seen: bool = False  # the Job was created by an agent with another folder: it is never created again

    @property
    def name(self) -> str:
        return marker_of(self.lease).lower()

    @property
    def size(self) -> int:
        lo, hi = self.lease.lo, self.lease.hi
        return 1 if lo is None or hi is None else hi - lo + 1

    @property
    def is_refuted(self) -> bool:
        """Whether `find` said of every task that it was not created: a Job that comes up later is removed."""
        return len(self.refuted) == self.size

    @property
    def is_over(self) -> bool:
        return len(self.ends.keys() | set(self.refuted)) == self.size

    @property
    def is_unwanted(self) -> bool:
        """Whether the agent ends every attempt of it that has not ended."""
        return not self.is_over and len(self.stops.keys() | self.ends.keys() | set(self.refuted)) == self.size

    @property
    def is_forgotten(self) -> bool:
        return len(self.forgotten) == self.size

    def leases(self) -> Iterator[Lease]:
        """One lease per task, each with its own fence."""
        return split_ranges([self.lease])

    def fences(self) -> range:
        return range(self.lease.fence, self.lease.fence + self.size)

    def native_id(self, fence: int) -> str:
        return self.name if self.size == 1 else f"{self.name}/{fence - self.lease.fence}"


class SubmissionStore:
    """All records, in one folder. Used by several threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._jobs: dict[str, SubmittedJob] = {}
        self._names: dict[str, tuple[str, int]] = {}  # a task's marker → the name of its Job, and its fence
        for path in sorted(folder.glob("*.json")):
            with contextlib.suppress(msgspec.DecodeError):  # skip a damaged file
                self._know(msgspec.json.decode(path.read_bytes(), type=SubmittedJob))

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
        self._write_file(job, is_durable=True)  # outside the lock: several new records are written at the same time
        with self._lock:
            self._know(job)

    def update(self, name: str, **changes: object) -> SubmittedJob | None:
        """Change a record, if it is still there. Returns it as it is now."""
        with self._lock:
            job = self._jobs.get(name)
            if job is None:
                return None
            job = replace(job, **changes)
            self._write(job)
            return job

    def end(self, name: str, statuses: Mapping[int, Status]) -> None:
        """Record the ends of tasks, by fence. The first end of a task stays."""
        with self._lock:
            job = self._jobs.get(name)
            if job is None:
                return
            ends = {fence: record_end(status) for fence, status in statuses.items()} | job.ends
            if ends.keys() != job.ends.keys():
                self._write(replace(job, ends=ends))

    def stop(self, name: str, orders: Mapping[int, StopOrder]) -> bool:
        """Record that the agent ends these attempts, by fence. The first order stays. True: there was a new one."""
        with self._lock:
            job = self._jobs.get(name)
            new = {} if job is None else {f: order for f, order in orders.items() if f not in {**job.stops, **job.ends}}
            if job is None or not new:
                return False
            stops = {f: RecordedStop(order.seen, order.reason, order.cause) for f, order in new.items()}
            self._write(replace(job, stops={**job.stops, **stops}))
            return True

    def refute(self, name: str, fences: Collection[int], *, is_refuted: bool = True) -> SubmittedJob | None:
        """Note that these tasks were not created, or are wanted after all. Returns the record as it is now."""
        with self._lock:
            job = self._jobs.get(name)
            if job is None:
                return None
            refuted = set(job.refuted).union(fences) if is_refuted else set(job.refuted).difference(fences)
            if refuted != set(job.refuted):
                job = replace(job, refuted=tuple(sorted(refuted)))
                self._write(job)
            return job

    def forget(self, name: str, fence: int) -> SubmittedJob | None:
        """Note that an attempt is settled. Returns the record as it is now."""
        with self._lock:
            job = self._jobs.get(name)
            if job is not None and fence not in job.forgotten:
                job = replace(job, forgotten=(*job.forgotten, fence))
                self._write(job)
            return job

    def remove(self, name: str) -> None:
        (self._folder / f"{name}.json").unlink(missing_ok=True)
        with self._lock:
            job = self._jobs.pop(name, None)
            for lease in job.leases() if job is not None else ():
                self._names.pop(marker_of(lease), None)

    def _write(self, job: SubmittedJob) -> None:
        """Change a record. After a power cut the older one may be back, and the cluster is asked again."""
        self._write_file(job, is_durable=False)
        self._know(job)

    def _write_file(self, job: SubmittedJob, *, is_durable: bool) -> None:
        path = self._folder / f"{job.name}.json"
        try:
            replace_file(path, msgspec.json.encode(job), is_durable=is_durable)
        except OSError as exc:
            raise Unavailable(f"{path} cannot be written: {exc.strerror}.") from exc

    def _know(self, job: SubmittedJob) -> None:
        known, self._jobs[job.name] = self._jobs.get(job.name), job
        if known is None:  # not again for a change of one task: there may be a thousand markers
            self._names.update({marker_of(lease): (job.name, lease.fence) for lease in job.leases()})
