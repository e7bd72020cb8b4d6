"""An attempt as the agent keeps it: a lease, how far it has come, and what is still to be said of it. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from switchyard.agent.backends import marker_of
from switchyard.agent.clock import Stamp
from switchyard.model.poll import AttemptRef, Lease, Report

AttemptKey = tuple[str, int]  # job and fence: what an attempt is known by


class Stage(StrEnum):
    """How far an attempt has come here. Only the first is written before the backend hears of it."""

    INTENT = "INTENT"  # leased, to be submitted
    SUBMITTED = "SUBMITTED"  # the backend has it
    RUNNING = "RUNNING"
    ENDED = "ENDED"  # nothing of it runs; its end is still to be told
    SETTLED = "SETTLED"  # the server knows, or wants to hear no more


LIVE_STAGES = (Stage.INTENT, Stage.SUBMITTED, Stage.RUNNING)


@dataclass(frozen=True, slots=True)
class Attempt:
    lease: Lease
    stage: Stage = Stage.INTENT
    native_id: str | None = None
    is_cancel_asked: bool = False
    is_stopped: bool = False  # the server wants it ended and nothing further told

    @property
    def key(self) -> AttemptKey:
        return (self.lease.job, self.lease.fence)

    @property
    def lineage(self) -> tuple[str, int]:
        """What at most one attempt may run of at a time: a job, or one task of an array."""
        return (self.lease.job, task_index(self.lease))

    @property
    def held(self) -> AttemptRef:
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
    """A lease of a range as one per task, each under its own fence."""
    for lease in leases:
        if lease.lo is None or lease.hi is None:
            yield lease
            continue
        for index in range(lease.lo, lease.hi + 1):
            yield msgspec.structs.replace(lease, fence=lease.fence + index - lease.lo, lo=index, hi=index)


def submit_batches(attempts: Iterable[Attempt], size_max: int) -> Iterator[list[Attempt]]:
    """Neighbouring tasks of one array together, at most so many; everything else by itself."""
    batch: list[Attempt] = []
    for attempt in attempts:
        if batch and (len(batch) == size_max or not _is_next_task(attempt.lease, batch[-1].lease)):
            yield batch
            batch = []
        batch.append(attempt)
    if batch:
        yield batch


def _is_next_task(lease: Lease, before: Lease) -> bool:
    """The next task under the next fence, of the same attempt at the same job."""
    if lease.lo is None or before.lo is None or (lease.job, lease.attempt) != (before.job, before.attempt):
        return False
    return lease.lo == before.lo + 1 and lease.fence == before.fence + 1


@dataclass(frozen=True, slots=True)
class TimedReport:
    """Something seen of an attempt, and when, to be told to the server."""

    report: Report
    at: Stamp


@dataclass(frozen=True, slots=True)
class AttemptChange:
    """An attempt as it has become, with what is to be told of it. The last of an ENDED one's is its end."""

    attempt: Attempt
    said: tuple[TimedReport, ...] = ()


@dataclass(frozen=True, slots=True)
class QueuedReport:
    """A report that the server has not answered."""

    seq: int
    key: AttemptKey
    said: TimedReport
    is_final: bool
