"""Jobs of deleted or disabled owners do not begin: they are taken back before an agent gets them.

The access snapshot of this server answers for owners it knows to be enabled, without a query. All others are looked up
in the database: the snapshot of one server may lag behind another that has just created the user. What is taken back
is routed again, and the router rejects it with the same reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from switchyard.model.job import State
from switchyard.model.lifecycle import (
    ObservedState,
    ReportAnswer,
    Transition,
    make_transition,
    return_lease,
    unassign,
)
from switchyard.model.poll import Report
from switchyard.model.task_states import live_positions, read_task
from switchyard.service.committer import Batch
from switchyard.service.run.agent_sessions import SyncRequest
from switchyard.service.run.arrays import BatchArrays
from switchyard.service.run.report import cancelling_reason, life_of, record_step, step_columns
from switchyard.service.snapshots import Access, owner_problem
from switchyard.store import access as access_store
from switchyard.store import jobs


class LeaseOwners:
    """Whether the owners of jobs exist and are enabled, by id: a later user of the same name is another owner."""

    def __init__(self, access: Callable[[], Access]) -> None:
        self._access = access

    def take_back(self, batch: Batch, heads: dict[str, list[jobs.Row]]) -> dict[str, list[jobs.Row]]:
        """The candidates whose owner may run jobs. The others become PENDING with the reason."""
        reasons = self.missing_reasons(batch, (row for rows in heads.values() for row in rows))
        if not reasons:
            return heads
        changes: dict[str, dict[str, Any]] = {}
        for row in jobs.job_lock(batch.tx, reasons).values():
            step = _unassign(row, reasons[row.id])
            if step is not None:
                changes[row.id] = step_columns(batch, row, step)
                record_step(batch, row, step)
                batch.clusters.add(row.cluster_id)  # its agents ask again: other jobs may stand behind these
        jobs.job_update_many(batch.tx, changes)
        return {cluster: [row for row in rows if row.id not in reasons] for cluster, rows in heads.items()}

    def end_undelivered(self, batch: Batch, rows: Iterable[jobs.Row]) -> list[jobs.Row]:
        """Of leased jobs that their agent does not know, those that it is to be told of.

        A job that nobody has begun is taken back instead. One that may have begun is delivered, and its end asked for.
        """
        rows = list(rows)
        reasons = self.missing_reasons(batch, rows)
        changes: dict[str, dict[str, Any]] = {}
        for row in jobs.job_lock(batch.tx, reasons).values() if reasons else ():
            step = return_lease(life_of(row), reasons[row.id]) if State(row.state) is State.ASSIGNED else None
            if step is not None:
                changes[row.id] = step_columns(batch, row, step)
                record_step(batch, row, step)
            elif row.cancel_us is None:
                said = cancelling_reason(row.reason, f"cancelled: {reasons[row.id]}")
                changes[row.id] = {"cancel_us": batch.now_us, "reason": said}
                record_step(batch, row, Transition(life_of(row), "cancel-requested", reasons[row.id]))
        jobs.job_update_many(batch.tx, changes)
        return [row for row in rows if "state" not in changes.get(row.id, {})]

    def return_undelivered_tasks(self, batch: Batch, ask: SyncRequest, rows: Sequence[jobs.Row]) -> int:
        """Take back the tasks of arrays that nobody has begun and that their agent does not know; how many.

        `rows`: the live ranges of the agent.
        """
        reasons = self.missing_reasons(batch, rows, key="job_id")
        if not reasons:
            return 0
        arrays, count = BatchArrays(batch), 0
        arrays.load(list(jobs.job_lock(batch.tx, reasons).values()))
        for row in rows:
            for position in live_positions(row.tasks) if row.job_id in reasons else ():
                fence, is_begun = row.fence + position, read_task(row.tasks, position).state is not State.ASSIGNED
                if not is_begun and (row.job_id, fence) not in ask.inventory:
                    item = Report(row.job_id, fence, ObservedState.RETURNED, reason=reasons[row.job_id])
                    count += arrays.report(ask.agent_id, item, None) is ReportAnswer.TAKEN
        arrays.flush()
        return count

    def missing_reasons(self, batch: Batch, rows: Iterable[jobs.Row], *, key: str = "id") -> dict[str, str]:
        """By job, why its owner may run no jobs; jobs of other owners are not in it."""
        live = self._access().live_owners
        doubtful = [row for row in rows if row.owner_id not in live]
        if not doubtful:
            return {}
        enabled = access_store.users_enabled(batch.tx, {row.owner_id for row in doubtful if row.owner_id})
        return {
            getattr(row, key): owner_problem(row.owner, is_known=row.owner_id in enabled)
            for row in doubtful
            if not enabled.get(row.owner_id)
        }


def _unassign(row: jobs.Row, why: str) -> Transition | None:
    """Take back a job that nobody leased; of an array that runs, the tasks that nobody leased."""
    life = life_of(row)
    if row.array is not None and life.state is State.RUNNING:
        return make_transition(life, State.PENDING, "unassigned", why, fence=life.next_fence)
    return unassign(life, why)
