"""The change of a job that gets another cluster before an agent has leased it."""

from __future__ import annotations

from switchyard.model.job.bounds import decode_bounds
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import Transition
from switchyard.route.router import Eligibility
from switchyard.route.world import World
from switchyard.service.core.context import Context
from switchyard.service.core.writes.batch import Batch
from switchyard.service.lifecycle.array_spread import spread_text
from switchyard.service.lifecycle.transitions import archive_attempt
from switchyard.store.jobs.job_rows import JobRow
from switchyard.store.jobs.job_update import JobUpdate


def new_lessees(
    context: Context, batch: Batch, world: World, row: JobRow, eligibility: Eligibility, *, to: str
) -> JobUpdate:
    """Return which clusters may lease an array after its move. Nothing for an array of one cluster, or a plain job."""
    if row.spread is None:
        return JobUpdate()
    bounds, sticky_pools = decode_bounds(row.bounds), context.snapshots.laid.layout.sticky
    spread = spread_text(eligibility, bounds, world, cluster=to, seed=row.id, sticky_pools=sticky_pools)
    batch.clusters.update(spread.split(",") if spread else ())
    return JobUpdate(spread=spread)


def move_update(batch: Batch, row: JobRow, step: Transition, cluster_id: str, *, plan_hash: str | None) -> JobUpdate:
    """Return the update that assigns the job to another cluster under a new fence, and record the event."""
    # A running array makes no new attempt for each move: its ranges record where its tasks ran, and the number of
    # attempts is bounded.
    is_new = row.state == State.ASSIGNED.value or row.attempt == 1
    attempt = step.life.attempt if is_new else row.attempt
    if is_new:
        archive_attempt(batch, row, step)
    batch.event(
        row.id,
        step.event,
        state=step.life.state.value,
        attempt=attempt,
        fence=step.life.fence,
        cluster_id=cluster_id,
        reason=step.reason,
    )
    batch.clusters.add(cluster_id)
    return JobUpdate(
        state=step.life.state,
        reason="",
        cluster_id=cluster_id,
        attempt=attempt,
        fence=step.life.fence,
        assigned_us=batch.now_us,
        plan_hash=plan_hash,
    )
