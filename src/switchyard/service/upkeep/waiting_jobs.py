"""Chores for jobs that no agent has yet: back-offs, dependencies, deadlines and full concurrency groups."""

from __future__ import annotations

from switchyard.model.job.blocker import Blocker, change_blocked, is_held_back
from switchyard.model.job.bounds import decode_bounds
from switchyard.model.job.event_kind import EVENT_OF_STATE, EventKind
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import FINAL_STATES, LifecycleState, Transition, cancel, make_transition, unassign
from switchyard.service.core.context import Context
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.service.lifecycle.array_job import ArrayJob
from switchyard.service.lifecycle.array_spread import lessee_ids
from switchyard.service.lifecycle.arrays import drop_unleased_tasks
from switchyard.service.lifecycle.transitions import cancel_update, life_of, record_step, step_update
from switchyard.service.lifecycle.wait_clock import expiry_cause, start_wait_clock
from switchyard.service.placement.decision_counts import count_spill_rejection
from switchyard.service.upkeep.leadership import ROUND_MAX, Leadership
from switchyard.store.clusters import group_invites
from switchyard.store.jobs import concurrency_groups, jobs
from switchyard.store.jobs.job_rows import JobRow
from switchyard.store.jobs.job_update import JobUpdate

JOIN_WITHIN_US = 600_000_000  # from the start of a job to the join of its agent, on slow nodes
NOT_STARTED = "cancelled by the server: the pilot did not start in time"
NOT_JOINED = "cancelled by the server: the pilot's agent did not join"


def expire_jobs(context: Context, leadership: Leadership) -> int:
    """End expired jobs that have not started. By `expires_after` a job fails; by a spill rule it is rejected."""
    with context.database.read() as tx:
        due = jobs.job_ids_expired(tx, now_us=context.now_us(), limit=ROUND_MAX)

    def change(batch: Batch, row: JobRow) -> JobUpdate | None:
        if row.expires_us is None or row.expires_us > batch.now_us:
            return None
        life = life_of(row)
        if life.state in FINAL_STATES or life.is_leased or row.leased_us is not None or row.tries:
            return JobUpdate(expires_us=None)  # the job started in time
        bounds = decode_bounds(row.bounds)
        rule = expiry_cause(row, bounds, batch.now_us)
        if isinstance(rule, int):  # a later expiry time
            return JobUpdate(expires_us=rule)
        jobs.dependency_clear(batch.tx, [row.id])
        if rule is not None:
            reason = f"it has not begun after {rule.after}: rule `{rule.text}` ({bounds.spill_from})"
            count_spill_rejection(context.tally, batch, row)
            return end_unleased_job(batch, row, State.REJECTED, reason)
        return end_unleased_job(batch, row, State.FAILED, "expired: it did not begin in time")

    return leadership.change_jobs(context, due, change)


def end_unleased_job(batch: Batch, row: JobRow, to: State, reason: str) -> JobUpdate:
    """Return the update that ends a job that no agent has leased, and record the event."""
    life: LifecycleState = life_of(row)
    unassigned = unassign(life, reason)
    step: Transition = make_transition(unassigned.life if unassigned else life, to, EVENT_OF_STATE[to], reason)
    record_step(batch, row, step)
    ended = step_update(batch, row, step).then(JobUpdate(blocked=None, wake_us=None, expires_us=None))
    return ended.merged(drop_unleased_tasks(row))


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


def end_backoffs(context: Context, leadership: Leadership) -> int:
    """End due back-offs: jobs are routed again, and tasks of arrays leased again. Returns the number of jobs."""
    with context.database.read() as tx:
        due = jobs.job_ids_backoff_over(tx, now_us=context.now_us(), limit=ROUND_MAX)

    def change(batch: Batch, row: JobRow) -> JobUpdate | None:
        if row.wake_us is None or row.wake_us > batch.now_us:
            return None
        if State(row.state) in FINAL_STATES:
            return JobUpdate(wake_us=None)
        batch.topics.add(Topic.PENDING)
        over = JobUpdate(wake_us=None, blocked=change_blocked(row.blocked, remove=Blocker.BACKOFF))
        return over if row.array is None else over.then(_return_due_tasks(batch, row))

    return leadership.change_jobs(context, due, change)


def _return_due_tasks(batch: Batch, row: JobRow) -> JobUpdate:
    array = ArrayJob.of(row)
    for due_us, tasks in array.later:
        if due_us <= batch.now_us:
            array.todo = array.todo.union(tasks)
    array.later = [(due_us, tasks) for due_us, tasks in array.later if due_us > batch.now_us]
    batch.clusters.update(lessee_ids(row))
    return array.update(batch.now_us)


def release_concurrency_groups(context: Context, leadership: Leadership) -> int:
    """Release parked jobs of groups that have free slots. Returns the number of groups.

    Usually the end of a job does this. But one server may park a job while another frees the slot. A round looks at one
    page of the groups, and the next round at the next one: full groups stay parked, and must not hide the others.
    """
    with context.database.read() as tx:
        parked = concurrency_groups.concurrency_groups_parked(tx, ROUND_MAX, after=leadership.parked_group)
        leadership.parked_group = max(parked) if len(parked) == ROUND_MAX else ""
        live = concurrency_groups.concurrency_group_live_counts(tx, sorted(parked)) if parked else {}
    free = {group: limit - live[group] for group, limit in parked.items() if limit > live[group]}
    if not free:
        return 0

    def apply(batch: Batch) -> int:
        for group in sorted(free):
            batch.clusters |= concurrency_groups.concurrency_group_release(
                batch.tx, group, free[group], live=live[group]
            )
        return len(free)

    return leadership.commit(context, apply)


def report_late_jobs(context: Context, leadership: Leadership) -> int:
    """Record a `late` event, once, for jobs that have not started within their queueing budget."""
    with context.database.read() as tx:
        due = jobs.job_ids_late(tx, now_us=context.now_us(), limit=ROUND_MAX)

    def change(batch: Batch, row: JobRow) -> JobUpdate | None:
        if row.late_from_us is None or row.late_from_us > batch.now_us:
            return None
        if State(row.state) not in (State.PENDING, State.ASSIGNED) or row.agent_id is not None:
            return JobUpdate(late_from_us=None)  # the job started in time, or has ended
        budget_s = (row.late_from_us - row.created_us) // 1_000_000
        reason = f"it waits for longer than its budget of {budget_s} s"
        record_step(batch, row, Transition(life_of(row), EventKind.LATE, reason))
        return JobUpdate(late_from_us=None, late_us=batch.now_us)

    return leadership.change_jobs(context, due, change)


def expire_pilots(context: Context, leadership: Leadership) -> int:
    """Cancel jobs that did not run when their join token expired, or whose agents do not join. Returns how many."""
    if not any(row.is_ephemeral for row in context.snapshots.fleet.rows.values()):
        return 0
    with context.database.read() as tx:
        due = group_invites.pilot_jobs_too_late(
            tx, now_us=context.now_us(), join_within_us=JOIN_WITHIN_US, limit=ROUND_MAX
        )

    def change(batch: Batch, row: JobRow) -> JobUpdate | None:
        step = cancel(life_of(row)) if row.array is None else None
        reason = NOT_JOINED if State(row.state) is State.RUNNING else NOT_STARTED
        return cancel_update(batch, row, step, reason) if step is not None else None

    return leadership.change_jobs(context, due, change)
