"""What the agent records of a submitted Job, and how one change alters it. Pure; submissions.py has the files.

A record keeps what the cluster does not keep: that a Job was created although it is gone, that the agent asked to
cancel it, and how it ended once its output was taken.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from switchyard.agent.backends import Status, marker_of
from switchyard.agent.journal.attempt import split_ranges
from switchyard.features.kubernetes.agent.jobs.job_status import StopOrder
from switchyard.model.cluster.poll import Lease
from switchyard.model.failures.failure_kind import FailureKind
from switchyard.model.job.job import Usage
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause


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
    failure: FailureKind | None = None

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
            failure=self.failure,
        )


class RecordedStop(Struct, frozen=True, omit_defaults=True):
    """The agent ends an attempt: what its end is called when it is gone."""

    seen: ObservedState
    reason: str
    cause: Cause = Cause.CLUSTER
    failure: FailureKind | None = None

    @property
    def order(self) -> StopOrder:
        return StopOrder(seen=self.seen, reason=self.reason, cause=self.cause, failure=self.failure)


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
        failure=status.failure,
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
    starts: dict[int, str] = {}  # the uid of the pod that the agent let start, by completion index; one pod alone: 0
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


class RecordChange(Struct, frozen=True, omit_defaults=True):
    """What changed of a record. A change of one task is as short as its task, whatever the size of the Job."""

    uid: str = ""
    stops: dict[int, RecordedStop] = {}
    ends: dict[int, RecordedEnd] = {}
    forgotten: tuple[int, ...] = ()
    refuted: tuple[int, ...] = ()
    wanted: tuple[int, ...] = ()  # no longer refuted
    starts: dict[int, str] = {}  # replaces the pod that the record has for an index
    is_removed: bool = False
    is_seen: bool = False


def with_changes(job: SubmittedJob, changes: Sequence[RecordChange]) -> SubmittedJob:
    """The record after some changes. The first end and the first stop order of a task stay."""
    stops = {fence: stop for change in reversed(changes) for fence, stop in change.stops.items()}
    ends = {fence: end for change in reversed(changes) for fence, end in change.ends.items()}
    starts = {index: uid for change in changes for index, uid in change.starts.items()}
    forgotten = [fence for change in changes for fence in change.forgotten]
    refuted = job.refuted
    if any(change.refuted or change.wanted for change in changes):
        fences = set(refuted)
        for change in changes:
            fences.update(change.refuted)
            fences.difference_update(change.wanted)
        refuted = tuple(sorted(fences))
    return replace(
        job,
        uid=next((change.uid for change in reversed(changes) if change.uid), job.uid),
        stops={**stops, **job.stops} if stops else job.stops,
        ends={**ends, **job.ends} if ends else job.ends,
        forgotten=(*job.forgotten, *dict.fromkeys(forgotten)) if forgotten else job.forgotten,
        refuted=refuted,
        starts={**job.starts, **starts} if starts else job.starts,
        is_removed=job.is_removed or any(change.is_removed for change in changes),
        is_seen=job.is_seen or any(change.is_seen for change in changes),
    )
