"""Release or end jobs whose dependencies have ended."""

from __future__ import annotations

from switchyard.model.job.blocker import Blocker, change_blocked, is_held_back
from switchyard.model.job.job import State
from switchyard.service.core.context import Context
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.service.lifecycle.wait_clock import start_wait_clock
from switchyard.service.upkeep.expire_jobs import end_unleased_job
from switchyard.service.upkeep.leadership import ROUND_MAX, Leadership
from switchyard.store.jobs import jobs
from switchyard.store.jobs.job_update import JobUpdate


def settle_dependencies(context: Context, leadership: Leadership) -> int:
    """Release jobs whose dependencies have ended, or cancel them if a condition can no longer be met."""
    with context.database.read() as tx:
        settled = jobs.dependency_list_settled(tx, limit=ROUND_MAX)
    if not settled:
        return 0
    waiting = sorted({row.job_id for row in settled})
    broken = {row.job_id: row for row in settled if not _is_condition_met(row.condition, row.state)}

    def apply(batch: Batch) -> int:
        jobs.dependency_delete(batch.tx, [(row.job_id, row.on_id) for row in settled])
        jobs.dependency_clear(batch.tx, sorted(broken))
        remaining = jobs.dependency_remaining(batch.tx, waiting)
        updates: dict[str, JobUpdate] = {}
        for job_id, row in jobs.job_lock(batch.tx, waiting).items():
            if State(row.state) is not State.PENDING:
                continue
            if job_id in broken:
                ended = broken[job_id].state or "long ago and was removed"
                reason = f"job {broken[job_id].on_id} ended {ended}, and this one waits for {broken[job_id].condition}"
                updates[job_id] = end_unleased_job(batch, row, State.CANCELLED, reason)
            elif job_id not in remaining:
                blocked = change_blocked(row.blocked, remove=Blocker.AFTER)
                released = JobUpdate(blocked=blocked, reason="")
                clock = JobUpdate() if is_held_back(blocked) else start_wait_clock(row, batch.now_us)
                updates[job_id] = released.merged(clock)
        jobs.job_update_many(batch.tx, updates)
        batch.topics.add(Topic.PENDING)
        return len(updates)

    return leadership.commit(context, apply, locks=waiting)


def _is_condition_met(condition: str, state: str | None) -> bool:
    if condition == "any" or state is None:
        return condition == "any"
    return (state == State.SUCCEEDED.value) == (condition == "ok")
