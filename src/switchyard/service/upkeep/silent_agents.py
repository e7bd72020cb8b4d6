"""Mark attempts and array tasks as lost when their agent has been silent for too long."""

from __future__ import annotations

from switchyard.model.cluster.cluster import Health
from switchyard.model.cluster.poll import Report
from switchyard.model.job.job import OnLost
from switchyard.model.job.lifecycle import ObservedState, ReportAnswer, mark_lost
from switchyard.model.job.task_states import live_positions
from switchyard.service.core.context import Context
from switchyard.service.core.writes.batch import Batch
from switchyard.service.lifecycle.array_spread import free_from_cluster
from switchyard.service.lifecycle.arrays import BatchArrays, read_on_lost
from switchyard.service.lifecycle.retry_grants import grant_retry
from switchyard.service.lifecycle.transitions import life_of, record_step, step_update
from switchyard.service.upkeep.leadership import ROUND_MAX, Leadership
from switchyard.store.clusters import clusters
from switchyard.store.engine import ranges
from switchyard.store.engine.clock_jumps import AMNESTY_COUNTER
from switchyard.store.jobs import events, jobs, leases
from switchyard.store.jobs.job_rows import JobRow
from switchyard.store.jobs.job_update import JobUpdate

LOST_AFTER_S = 3600  # default of a job whose on_lost gives no time


def lose_silent_attempts(context: Context, leadership: Leadership) -> int:
    """Mark attempts as lost whose agent is silent for longer than the job allows, or was removed. Returns how many."""
    now_us, silent_us = context.now_us(), context.snapshots.silent_after_us
    with context.database.read() as tx:
        amnesty_us = events.counters_read(tx).get(AMNESTY_COUNTER, 0)
        rows = leases.leased_by_silent(
            tx, now_us=now_us, amnesty_us=amnesty_us, bears_s=LOST_AFTER_S, silent_us=silent_us, limit=ROUND_MAX
        )
    lost = {
        row.id: row
        for row in rows
        # An agent may have polled since without a stored time yet.
        if row.deleted_us is not None or not context.snapshots.is_live(row.agent_id)
    }
    if not lost:
        return 0

    def apply(batch: Batch) -> int:
        updates: dict[str, JobUpdate] = {}
        rules = context.snapshots.policy
        silent_agents: set[str] = set()
        for job_id, row in jobs.job_lock(batch.tx, lost).items():
            attempt = lost[job_id]
            if row.fence != attempt.fence:
                continue  # the silent attempt ended meanwhile
            reason = lost_reason(attempt, now_us)
            report = Report(job_id, row.fence, ObservedState.LOST, reason=reason)
            # `requeue` needs no retry policy: the job is routed again immediately, and no retry is counted.
            grant = None if row.on_lost == OnLost.REQUEUE.value else grant_retry(batch, row, report, lambda: rules)
            life = life_of(row)
            if grant is not None and not life.cancel_requested:
                reason = grant.reason(reason)
            is_removed = attempt.deleted_us is not None
            step = mark_lost(life, reason, definite=False, again=grant is not None, is_removed=is_removed)
            if step is not None:
                updates[job_id] = step_update(batch, row, step, grant=grant)
                record_step(batch, row, step)
                silent_agents.add(attempt.agent_id)
                if row.cluster_id:
                    batch.clusters.add(row.cluster_id)
        jobs.job_update_many(batch.tx, updates)
        # A frozen agent would poll on as before. The end of its session tells it that these attempts are over.
        clusters.agent_end_sessions(batch.tx, silent_agents)
        return len(updates)

    return leadership.commit(context, apply, locks=list(lost))


def lost_reason(lost: leases.SilentAttempt | ranges.SilentRange, now_us: int) -> str:
    if lost.deleted_us is not None:
        return "its agent was removed" + (f": {lost.agent_reason}" if lost.agent_reason else "")
    return f"its cluster was silent for {(now_us - lost.since_us) // 1_000_000} s"


def lose_silent_tasks(context: Context, leadership: Leadership) -> int:
    """Mark tasks as lost by the rule of `lose_silent_attempts`, with a report per task. Returns the number."""
    now_us, silent_us = context.now_us(), context.snapshots.silent_after_us
    with context.database.read() as tx:
        amnesty_us = events.counters_read(tx).get(AMNESTY_COUNTER, 0)
        rows = ranges.range_leased_by_silent(
            tx, now_us=now_us, amnesty_us=amnesty_us, bears_s=LOST_AFTER_S, silent_us=silent_us, limit=ROUND_MAX
        )
    lost = [row for row in rows if row.deleted_us is not None or not context.snapshots.is_live(row.agent_id)]
    if not lost:
        return 0
    ids = sorted({row.job_id for row in lost})

    def apply(batch: Batch) -> int:
        arrays = BatchArrays(batch)
        locked = jobs.job_lock(batch.tx, ids)
        arrays.load(list(locked.values()))
        count = 0
        for row in lost:
            for position in live_positions(row.tasks):
                report = Report(row.job_id, row.fence + position, ObservedState.LOST, reason=lost_reason(row, now_us))
                grant = grant_retry(batch, locked[row.job_id], report)
                retry_us = None if grant is None else grant.due_us
                count += arrays.report(None, report, retry_us) is ReportAnswer.TAKEN
            if _may_leave_cluster(context, locked[row.job_id], row.cluster_id):
                array = arrays.job(row.job_id)
                array.bounds = free_from_cluster(array.bounds)
        arrays.flush()
        clusters.agent_end_sessions(batch.tx, {row.agent_id for row in lost})
        batch.clusters.update(row.cluster_id for row in lost if row.cluster_id)
        return count

    return leadership.commit(context, apply, locks=ids)


def _may_leave_cluster(context: Context, row: JobRow, cluster_id: str | None) -> bool:
    """Return whether the rest of an array together may go to another cluster: this one is lost with its tasks."""
    member = context.snapshots.world.by_id.get(cluster_id or "")
    is_lost = member is None or (member.health is Health.DOWN and not member.is_batch_silent)
    return is_lost and read_on_lost(row) is OnLost.REQUEUE
