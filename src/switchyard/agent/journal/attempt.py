"""Attempts as the agent stores them: the lease, the stage, and the reports still to send. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from switchyard.agent.backends import marker_of
from switchyard.agent.loop.clock import Stamp
from switchyard.model.cluster.poll import AttemptRef, Lease, Report

AttemptKey = tuple[str, int]  # job and fence


class Stage(StrEnum):
    """How far an attempt has come. INTENT is stored before the backend is called."""

    INTENT = "INTENT"  # leased, to be submitted
    SUBMITTED = "SUBMITTED"  # the backend has it
    RUNNING = "RUNNING"
    ENDED = "ENDED"  # nothing of it runs; the server has not answered the report of its end
    SETTLED = "SETTLED"  # the server knows the end, or wants no reports


LIVE_STAGES = (Stage.INTENT, Stage.SUBMITTED, Stage.RUNNING)


@dataclass(frozen=True, slots=True)
class Attempt:
    lease: Lease
    stage: Stage = Stage.INTENT
    native_id: str | None = None
    is_cancel_asked: bool = False
    is_stopped: bool = False  # the server wants it ended and no more reports

    @property
    def key(self) -> AttemptKey:
        return (self.lease.job, self.lease.fence)

    @property
    def lineage(self) -> tuple[str, int]:
        """The job, or the task of an array, of which only one attempt may run at a time."""
        return (self.lease.job, task_index(self.lease))

    @property
    def ref(self) -> AttemptRef:
        return AttemptRef(self.lease.job, self.lease.fence)

    @property
    def marker(self) -> str:
        return marker_of(self.lease)

    @property
    def is_live(self) -> bool:
        """It runs, or is to run."""
        return self.stage in LIVE_STAGES


def task_index(lease: Lease) -> int:
    """The index of an array's task; -1 for a job that is no array."""
    return -1 if lease.lo is None else lease.lo


def split_ranges(leases: Iterable[Lease]) -> Iterator[Lease]:
    """Split leases of ranges into one lease per task, each with its own fence."""
    for lease in leases:
        if lease.lo is None or lease.hi is None:
            yield lease
            continue
        for index in range(lease.lo, lease.hi + 1):
            yield msgspec.structs.replace(lease, fence=lease.fence + index - lease.lo, lo=index, hi=index)


def submit_batches(attempts: Iterable[Attempt], size_max: int) -> Iterator[list[Attempt]]:
    """Group neighbouring tasks of one array, at most `size_max` together. Other attempts stay single."""
    batch: list[Attempt] = []
    for attempt in attempts:
        if batch and (len(batch) == size_max or not _is_next_task(attempt.lease, batch[-1].lease)):
            yield batch
            batch = []
        batch.append(attempt)
    if batch:
        yield batch


def _is_next_task(lease: Lease, before: Lease) -> bool:
    """Whether `lease` is the next task of `before`, with the next fence, in the same attempt of the same job."""
    if lease.lo is None or before.lo is None or (lease.job, lease.attempt) != (before.job, before.attempt):
        return False
    return lease.lo == before.lo + 1 and lease.fence == before.fence + 1


@dataclass(frozen=True, slots=True)
class TimedReport:
    """A report for the server, and when it was observed."""

    report: Report
    at: Stamp


@dataclass(frozen=True, slots=True)
class AttemptChange:
    """A changed attempt and the reports of the change. The last report of an ENDED attempt is its end."""

    attempt: Attempt
    reports: tuple[TimedReport, ...] = ()


@dataclass(frozen=True, slots=True)
class QueuedReport:
    """A report that the server has not answered."""

    seq: int
    key: AttemptKey
    timed: TimedReport
    is_final: bool
