"""What a PENDING job may wait for besides a cluster: a back-off, other jobs, its own expiry. The leader's chores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from switchyard.model.job import State
from switchyard.model.lifecycle import FINAL_STATES, LifecycleState, Transition, make_transition, unassign
from switchyard.service.committer import Batch
from switchyard.service.context import Context
from switchyard.service.run.arrays import ArrayJob
from switchyard.service.run.report import change_blocked, life_of, record_step, step_columns
from switchyard.service.submit.bounds import decode_bounds
from switchyard.service.submit.decision_counts import count_spill_rejection
from switchyard.service.upkeep.chores import ROUND_MAX, dropped_task_columns
from switchyard.service.upkeep.leadership import Leadership
from switchyard.service.upkeep.wait_clock import expiry_cause, is_held_back, start_wait_clock
from switchyard.store import concurrency_groups, jobs

# The columns that one locked job changes, or none: it is left alone.
RowChange = Callable[[Batch, jobs.Row], dict[str, Any] | None]


def _change_each(context: Context, leadership: Leadership, ids: list[str], change: RowChange) -> int:
    """One transaction: each of these jobs, locked, is changed or left alone; by nobody who leads no more."""

    def apply(batch: Batch) -> int:
        if not leadership.holds(batch):
            return 0
        changes: dict[str, dict[str, Any]] = {}
        for job_id, row in jobs.job_lock(batch.tx, ids).items():
            changed = change(batch, row)
            if changed is not None:
                changes[job_id] = changed
        jobs.job_update_many(batch.tx, changes)
        return len(changes)

    return context.committer.call(apply, locks=ids) if ids else 0


def end_backoffs(context: Context, leadership: Leadership) -> int:
    """Back-offs that are over: a job may be routed again, an array's tasks leased again."""
    with context.database.read() as tx:
        due = jobs.job_ids_backoff_over(tx, now_us=context.now_us(), limit=ROUND_MAX)

    def change(batch: Batch, row: jobs.Row) -> dict[str, Any] | None:
        if row.wake_us is None or row.wake_us > batch.now_us:
            return None
        if State(row.state) in FINAL_STATES:
            return {"wake_us": None}
        batch.versions.add("pending")
        if row.array is not None:
            return _due_task_columns(batch, row)
        return {"wake_us": None, "blocked": change_blocked(row.blocked, remove="backoff")}

    return _change_each(context, leadership, due, change)


def _due_task_columns(batch: Batch, row: jobs.Row) -> dict[str, Any]:
    array = ArrayJob.of(row)
    for due_us, tasks in array.later:
        if due_us <= batch.now_us:
            array.todo = array.todo.union(tasks)
    array.later = [(due_us, tasks) for due_us, tasks in array.later if due_us > batch.now_us]
    if row.cluster_id:
        batch.clusters.add(row.cluster_id)
    return {"wake_us": None} | array.columns(batch.now_us)


def settle_dependencies(context: Context, leadership: Leadership) -> int:
    """Jobs whose dependencies have ended: let go, or ended themselves when what they wait for can no longer come."""
    with context.database.read() as tx:
        settled = jobs.dependency_list_settled(tx, limit=ROUND_MAX)
    if not settled:
        return 0
    waiting = sorted({row.job_id for row in settled})
    broken = {row.job_id: row for row in settled if not _is_condition_met(row.condition, row.state)}

    def apply(batch: Batch) -> int:
        if not leadership.holds(batch):
            return 0
        jobs.dependency_delete(batch.tx, [(row.job_id, row.on_id) for row in settled])
        jobs.dependency_clear(batch.tx, sorted(broken))
        left = jobs.dependency_remaining(batch.tx, waiting)
        changes: dict[str, dict[str, Any]] = {}
        for job_id, row in jobs.job_lock(batch.tx, waiting).items():
            if State(row.state) is not State.PENDING:
                continue
            if job_id in broken:
                ended = broken[job_id].state or "long ago and was removed"
                said = f"job {broken[job_id].on_id} ended {ended}, and this one waits for "
                changes[job_id] = _end_columns(batch, row, State.CANCELLED, said + broken[job_id].condition)
            elif job_id not in left:
                still = change_blocked(row.blocked, remove="after")
                changes[job_id] = {"blocked": still, "reason": ""}
                changes[job_id] |= {} if is_held_back(still) else start_wait_clock(row, batch.now_us)
        jobs.job_update_many(batch.tx, changes)
        batch.versions.add("pending")
        return len(changes)

    return context.committer.call(apply, locks=waiting)


def _is_condition_met(condition: str, state: str | None) -> bool:
    if condition == "any" or state is None:
        return condition == "any"
    return (state == State.SUCCEEDED.value) == (condition == "ok")


def expire_jobs(context: Context, leadership: Leadership) -> int:
    """Jobs that were to begin by now and have not: by their own word they fail, by a spill rule they are rejected."""
    with context.database.read() as tx:
        due = jobs.job_ids_expired(tx, now_us=context.now_us(), limit=ROUND_MAX)

    def change(batch: Batch, row: jobs.Row) -> dict[str, Any] | None:
        if row.expires_us is None or row.expires_us > batch.now_us:
            return None
        life = life_of(row)
        if life.state in FINAL_STATES or life.is_leased or row.leased_us is not None or row.tries:
            return {"expires_us": None}  # it began in time
        bounds = decode_bounds(row.bounds)
        rule = expiry_cause(row, bounds, batch.now_us)
        if isinstance(rule, int):
            return {"expires_us": rule}
        jobs.dependency_clear(batch.tx, [row.id])
        if rule is not None:
            said = f"it has not begun after {rule.after}: rule `{rule.text}` ({bounds.spill_from})"
            count_spill_rejection(context.tally, batch, row)
            return _end_columns(batch, row, State.REJECTED, said)
        return _end_columns(batch, row, State.FAILED, "expired: it did not begin in time")

    return _change_each(context, leadership, due, change)


def report_late_jobs(context: Context, leadership: Leadership) -> int:
    """Jobs whose queueing budget is spent and that have not begun: said once, and shown from then on."""
    with context.database.read() as tx:
        due = jobs.job_ids_late(tx, now_us=context.now_us(), limit=ROUND_MAX)

    def change(batch: Batch, row: jobs.Row) -> dict[str, Any] | None:
        if row.late_from_us is None or row.late_from_us > batch.now_us:
            return None
        if State(row.state) not in (State.PENDING, State.ASSIGNED) or row.agent_id is not None:
            return {"late_from_us": None}  # it began in time, or is over
        budget_s = (row.late_from_us - row.created_us) // 1_000_000
        record_step(
            batch, row, Transition(life_of(row), "late", f"it waits for longer than its budget of {budget_s} s")
        )
        return {"late_from_us": None, "late_us": batch.now_us}

    return _change_each(context, leadership, due, change)


def release_concurrency_groups(context: Context, leadership: Leadership) -> int:
    """Jobs parked for a full crowd that is full no more: two servers may have parked and freed at the same moment."""
    with context.database.read() as tx:
        parked = concurrency_groups.concurrency_groups_parked(tx, ROUND_MAX)
        live = concurrency_groups.concurrency_group_live_counts(tx, sorted(parked)) if parked else {}
    spare = {crowd: most - live[crowd] for crowd, most in parked.items() if most > live[crowd]}
    if not spare:
        return 0

    def apply(batch: Batch) -> int:
        if not leadership.holds(batch):
            return 0
        for crowd in sorted(spare):
            batch.clusters |= concurrency_groups.concurrency_group_release(
                batch.tx, crowd, spare[crowd], live=live[crowd]
            )
        return len(spare)

    return context.committer.call(apply)


def _end_columns(batch: Batch, row: jobs.Row, to: State, reason: str) -> dict[str, Any]:
    """End a job that nobody has."""
    life: LifecycleState = life_of(row)
    taken = unassign(life, reason)
    step: Transition = make_transition(taken.life if taken else life, to, to.value.lower(), reason)
    record_step(batch, row, step)
    change = step_columns(batch, row, step) | {"blocked": None, "wake_us": None, "expires_us": None}
    return change if row.array is None else change | dropped_task_columns(row)
