"""A backend whose cluster ends at a set time: it refuses jobs that do not fit before the end, and returns jobs that
wait for too long. Everything else is the real backend's."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import ClassVar

from switchyard.agent.backends import (
    Backend,
    BackendQuote,
    ManagesNamespaces,
    OutputPiece,
    Status,
    Trouble,
    WorkFolder,
    marker_of,
)
from switchyard.agent.backends.shared.returns import NotTakenNow
from switchyard.agent.loop.lifetime import Lifetime
from switchyard.agent.loop.need import spec_of
from switchyard.errors import YardError
from switchyard.model.cluster.cluster import Load
from switchyard.model.cluster.poll import Lease
from switchyard.model.graph import Graph
from switchyard.model.job.job import JobSpec
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause


class EndingBackend:
    """Used as the backend that it wraps."""

    has_expiration: ClassVar[bool] = True

    def __init__(self, backend: Backend, lifetime: Lifetime) -> None:
        self._backend = backend
        self._lifetime = lifetime
        self._specs: dict[str, JobSpec] = {}  # native id → the job, of jobs submitted by this process
        # Of jobs submitted before this process began: by the marker, which is the last part of a native id.
        self._earlier = {marker_of(lease): spec_of(lease) for lease in backend.held()}
        self._returning: set[str] = set()  # queued jobs that were cancelled because they cannot end in time
        self._withdrawn: set[str] = set()  # those of them that surely do not begin

    def quote(self, spec: JobSpec) -> BackendQuote:
        if why := self._lifetime.refusal(spec):
            return BackendQuote(can=False, reason=why)
        return self._backend.quote(spec)

    def late_reason(self, lease: Lease) -> str:
        """Why the job cannot end before the cluster does; empty: it can, if it starts now."""
        return self._lifetime.refusal(spec_of(lease))

    def submit(self, lease: Lease) -> str:
        return self.submit_range([lease])[0]

    def submit_range(self, leases: Sequence[Lease]) -> list[str]:
        spec = spec_of(leases[0])
        if why := self._lifetime.refusal(spec):
            raise NotTakenNow(why)
        handles = self._backend.submit_range(leases) if len(leases) > 1 else [self._backend.submit(leases[0])]
        self._specs.update(dict.fromkeys(handles, spec))
        return handles

    def status(self, native_ids: Iterable[str]) -> dict[str, Status]:
        statuses = self._backend.status(native_ids)
        self._return_late(statuses)
        for handle in self._returning & statuses.keys():
            status = statuses[handle]
            if status.seen is not ObservedState.CANCELLED:
                continue
            if status.began_ago_us is None or handle in self._withdrawn:
                reason = "the cluster ends before the job could run"
                statuses[handle] = replace(status, seen=ObservedState.RETURNED, reason=reason)
            else:  # it began just then: nobody asked for its end but the agent
                reason = "stopped because the cluster ends"
                statuses[handle] = replace(status, seen=ObservedState.FAILED, reason=reason, cause=Cause.PREEMPTED)
        return statuses

    def forget(self, native_id: str) -> None:
        self._specs.pop(native_id, None)
        self._returning.discard(native_id)
        self._withdrawn.discard(native_id)
        self._backend.forget(native_id)

    def _spec_of(self, handle: str) -> JobSpec | None:
        return self._specs.get(handle) or self._earlier.get(handle.rpartition("/")[2])

    def _return_late(self, statuses: dict[str, Status]) -> None:
        """Cancel queued jobs that no longer fit before the end. They are returned when the cancel is confirmed.

        A status may be old, and the job may have begun. A backend that can withdraw jobs tells which have not.
        """
        late = [
            handle
            for handle, status in statuses.items()
            if status.seen is ObservedState.SUBMITTED
            and handle not in self._returning
            and (spec := self._spec_of(handle)) is not None
            and self._lifetime.refusal(spec)
        ]
        try:
            withdrawn = self._backend.withdraw(late)
            late = late if withdrawn is None else withdrawn
            if late:
                self._backend.cancel(late)
        except YardError:
            return  # the next round tries again
        self._returning.update(late)
        self._withdrawn.update(withdrawn or ())

    # Everything below is the real backend's.

    @property
    def kind(self) -> str:
        return self._backend.kind

    @property
    def is_submit_repeatable(self) -> bool:
        return self._backend.is_submit_repeatable

    @property
    def has_queue(self) -> bool:
        return self._backend.has_queue

    @property
    def submits_at_once(self) -> int:
        return self._backend.submits_at_once

    @property
    def jobs_max(self) -> int:
        return self._backend.jobs_max

    @property
    def range_max(self) -> int:
        return self._backend.range_max

    @property
    def has_folders_here(self) -> bool:
        return self._backend.has_folders_here

    @property
    def namespaces(self) -> ManagesNamespaces | None:
        return self._backend.namespaces

    @property
    def expires_s(self) -> float | None:
        return self._backend.expires_s

    def describe(self) -> Graph:
        return self._backend.describe()

    def look(self) -> bool:
        return self._backend.look()

    def state(self) -> Load:
        return self._backend.state()

    def trouble(self) -> Trouble | None:
        return self._backend.trouble()

    def work_folder(self, lease: Lease) -> WorkFolder:
        return self._backend.work_folder(lease)

    def find(self, marker: str) -> str | None:
        return self._backend.find(marker)

    def cancel(self, native_ids: Collection[str]) -> None:
        self._backend.cancel(native_ids)

    def withdraw(self, native_ids: Iterable[str]) -> list[str] | None:
        return self._backend.withdraw(native_ids)

    def end_jobs(self, native_ids: Collection[str]) -> None:
        self._backend.end_jobs(native_ids)

    def output(self, native_id: str, stream: str, *, offset: int, size: int) -> OutputPiece:
        return self._backend.output(native_id, stream, offset=offset, size=size)

    def refresh(self) -> float:
        return self._backend.refresh()

    def watch(self, timeout_s: float) -> None:
        self._backend.watch(timeout_s)

    def wake(self) -> None:
        self._backend.wake()

    def held(self) -> list[Lease]:
        return self._backend.held()

    def close(self) -> None:
        self._backend.close()
