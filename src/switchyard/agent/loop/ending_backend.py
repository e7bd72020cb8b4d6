"""A backend whose cluster ends at a set time: it refuses jobs that do not fit before the end, and returns jobs that
wait for too long. Everything else is the real backend's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from switchyard.agent.backends import Backend, BackendQuote, Status, marker_of
from switchyard.agent.backends.shared.returns import NotTakenNow
from switchyard.agent.loop.lifetime import Lifetime
from switchyard.agent.loop.need import spec_of
from switchyard.errors import YardError
from switchyard.model.cluster.poll import Lease
from switchyard.model.job.job import JobSpec
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause


@runtime_checkable
class CanWithdraw(Protocol):
    """A backend that can keep a queued job from beginning, whatever the cluster does with it."""

    def withdraw(self, native_ids: Iterable[str]) -> list[str]:
        """Return the jobs that have not begun, and will not. An id may be the marker of a submit in doubt."""


class EndingBackend:
    """Used as the backend that it wraps."""

    def __init__(self, backend: Backend, lifetime: Lifetime) -> None:
        self._backend = backend
        self._lifetime = lifetime
        self._specs: dict[str, JobSpec] = {}  # native id → the job, of jobs submitted by this process
        # Of jobs submitted before this process began: by the marker, which is the last part of a native id.
        self._earlier = {marker_of(lease): spec_of(lease) for lease in backend.held()}
        self._returning: set[str] = set()  # queued jobs that were cancelled because they cannot end in time

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

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
            if status.began_ago_us is None or isinstance(self._backend, CanWithdraw):
                reason = "the cluster ends before the job could run"
                statuses[handle] = replace(status, seen=ObservedState.RETURNED, reason=reason)
            else:  # it began just then: nobody asked for its end but the agent
                reason = "stopped because the cluster ends"
                statuses[handle] = replace(status, seen=ObservedState.FAILED, reason=reason, cause=Cause.PREEMPTED)
        return statuses

    def forget(self, native_id: str) -> None:
        self._specs.pop(native_id, None)
        self._returning.discard(native_id)
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
            if isinstance(self._backend, CanWithdraw):
                late = self._backend.withdraw(late)
            if late:
                self._backend.cancel(late)
        except YardError:
            return  # the next round tries again
        self._returning.update(late)


def withdraw_waiting(backend: Backend, native_ids: Iterable[str]) -> list[str]:
    """Keep jobs from beginning, if the backend can. Return those that have not begun, and will not."""
    return backend.withdraw(native_ids) if isinstance(backend, CanWithdraw) else []
