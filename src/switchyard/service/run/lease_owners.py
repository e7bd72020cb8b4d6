"""Unassign jobs of deleted or disabled owners before an agent gets them.

Owners that are enabled in the access snapshot need no query. All others are looked up in the database, because another
server may just have created the user. Unassigned jobs are routed again; the router rejects them for the same reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from msgspec import UNSET

from switchyard.model.cluster.poll import Report
from switchyard.model.job.event_kind import EventKind
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import (
    ObservedState,
    ReportAnswer,
    Transition,
    return_lease,
)
from switchyard.model.job.task_states import live_positions, read_task
from switchyard.service.core.agents.agent_sessions import SyncRequest
from switchyard.service.core.snapshots.snapshots import Access, owner_problem
from switchyard.service.core.writes.batch import Batch
from switchyard.service.lifecycle.arrays import BatchArrays
from switchyard.service.lifecycle.transitions import (
    cancelling_reason,
    life_of,
    record_step,
    step_update,
    unassign_waiting,
)
from switchyard.store.access import access as access_store
from switchyard.store.engine import ranges
from switchyard.store.jobs import jobs, leases
from switchyard.store.jobs.job_update import JobUpdate


class OwnedJob(Protocol):
    @property
    def owner(self) -> str: ...
    @property
    def owner_id(self) -> str | None: ...


class LeaseOwners:
    """Checks by id that owners exist and are enabled: a new user with the name of a deleted one is another owner."""

    def __init__(self, access: Callable[[], Access]) -> None:
        self._access = access

    def eligible_candidates(
        self, batch: Batch, heads: dict[str, list[leases.LeaseCandidate]]
    ) -> dict[str, list[leases.LeaseCandidate]]:
        """Return the candidates whose owner may run jobs. Other candidates become PENDING with the reason."""
        reasons = self.owner_problems(batch, (row for rows in heads.values() for row in rows))
        if not reasons:
            return heads
        updates: dict[str, JobUpdate] = {}
        for row in jobs.job_lock(batch.tx, reasons).values():
            step = unassign_waiting(row, reasons[row.id])
            if step is not None:
                updates[row.id] = step_update(batch, row, step)
                record_step(batch, row, step)
                if row.cluster_id:
                    batch.clusters.add(row.cluster_id)  # wake its agents: they may lease the jobs behind
        jobs.job_update_many(batch.tx, updates)
        return {cluster: [row for row in rows if row.id not in reasons] for cluster, rows in heads.items()}

    def end_undelivered(self, batch: Batch, rows: Iterable[leases.LeasedJob]) -> list[leases.LeasedJob]:
        """Return the leased jobs that must be delivered again to an agent that does not know them.

        If the owner may run no jobs, an ASSIGNED job is requeued instead. A job that may have begun is delivered, and
        its cancellation is requested.
        """
        rows = list(rows)
        reasons = self.owner_problems(batch, rows)
        updates: dict[str, JobUpdate] = {}
        for row in jobs.job_lock(batch.tx, reasons).values() if reasons else ():
            step = return_lease(life_of(row), reasons[row.id]) if State(row.state) is State.ASSIGNED else None
            if step is not None:
                updates[row.id] = step_update(batch, row, step)
                record_step(batch, row, step)
            elif row.cancel_us is None:
                reason = cancelling_reason(row.reason, f"cancelled: {reasons[row.id]}")
                updates[row.id] = JobUpdate(cancel_us=batch.now_us, reason=reason)
                record_step(batch, row, Transition(life_of(row), EventKind.CANCEL_REQUESTED, reasons[row.id]))
        jobs.job_update_many(batch.tx, updates)
        return [row for row in rows if row.id not in updates or updates[row.id].state is UNSET]

    def return_undelivered_tasks(self, batch: Batch, request: SyncRequest, rows: Sequence[ranges.HeldRange]) -> int:
        """Requeue ASSIGNED tasks that the agent does not know and whose owner may run no jobs.

        `rows` are the live ranges of the agent. Returns the number of requeued tasks.
        """
        reasons = self.owner_problems(batch, rows, key="job_id")
        if not reasons:
            return 0
        arrays, count = BatchArrays(batch), 0
        arrays.load(list(jobs.job_lock(batch.tx, reasons).values()))
        for row in rows:
            for position in live_positions(row.tasks) if row.job_id in reasons else ():
                fence, is_assigned = row.fence + position, read_task(row.tasks, position).state is State.ASSIGNED
                if is_assigned and (row.job_id, fence) not in request.inventory:
                    report = Report(row.job_id, fence, ObservedState.RETURNED, reason=reasons[row.job_id])
                    count += arrays.report(request.agent_id, report, None) is ReportAnswer.TAKEN
        arrays.flush()
        return count

    def owner_problems(self, batch: Batch, rows: Iterable[OwnedJob], *, key: str = "id") -> dict[str, str]:
        """Return, by job, the reason why its owner may run no jobs. Jobs of enabled owners are left out."""
        live = self._access().live_owners
        unconfirmed = [row for row in rows if row.owner_id not in live]
        if not unconfirmed:
            return {}
        enabled = access_store.users_enabled(batch.tx, {row.owner_id for row in unconfirmed if row.owner_id})
        return {
            getattr(row, key): owner_problem(row.owner, is_known=row.owner_id in enabled)
            for row in unconfirmed
            if not enabled.get(row.owner_id or "")
        }
