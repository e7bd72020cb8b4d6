"""Steer a job that is there: hold and release, another priority, cancel some tasks, and once more."""

from __future__ import annotations

from itertools import islice
from typing import Any

import msgspec

from switchyard.errors import BadRequest, Conflict, Malformed
from switchyard.model.api import CreatedJob, JobChange, RetryRequest
from switchyard.model.idset import TEXT_CHARS_MAX, IdSet
from switchyard.model.job import Job, JobRequest, JobSpec, State
from switchyard.model.lifecycle import FINAL_STATES, unassign
from switchyard.model.native_grammars import native_problem
from switchyard.model.selection import Select
from switchyard.model.task_states import succeeded_positions
from switchyard.model.taskset import TaskSet, read_delayed_tasks
from switchyard.policy.original_request import restore_request
from switchyard.service.access.submit_tokens import clusters_with_older_token
from switchyard.service.committer import Batch
from switchyard.service.context import Context
from switchyard.service.job.jobs import audit_others_jobs, job_view, need_job_control, policy_of, visible_job
from switchyard.service.job.visibility import Visibility
from switchyard.service.quarantine import BLOCKED_UNREADABLE, damage_of, unreadable_error
from switchyard.service.quote.inquiries import BLOCKED_BY_QUOTES
from switchyard.service.rights import Actor
from switchyard.service.run.array_cancel import cancel_tasks
from switchyard.service.run.arrays import BatchArrays
from switchyard.service.run.report import AvoidedCluster, change_blocked, life_of, record_step, step_columns
from switchyard.service.submit.bounds import decode_bounds, retry_bounds
from switchyard.service.submit.queue_places import BLOCKED_BY_QUEUE
from switchyard.service.submit.submit import AcceptedJob, Submit
from switchyard.service.upkeep.wait_clock import is_held_back, start_wait_clock
from switchyard.store import jobs, ranges, unreadable_jobs

NAMED_MAX = 10_000  # indexes that are looked at to name the one that is not there


def job_change(context: Context, actor: Actor, ref: str, wanted: JobChange) -> Job:
    """Hold, release, or give another priority. What an agent already has is its cluster's to order."""
    with context.database.read() as tx:
        found = visible_job(tx, actor, ref)
    need_job_control(actor, found)

    def apply(batch: Batch) -> jobs.Row:
        row = jobs.job_lock(batch.tx, [found.id])[found.id]
        if State(row.state) in FINAL_STATES:
            raise Conflict(f"Job {row.id} is over: {row.state}.", next_step="`yard retry` submits it once more.")
        change: dict[str, Any] = {}
        if wanted.priority is not None:
            change["priority"] = wanted.priority
            _record_event(batch, row, "priority", f"{row.priority} → {wanted.priority} by {actor.name}")
        if wanted.hold is True:
            change |= _hold(batch, row, actor)
        elif wanted.hold is False and BLOCKED_UNREADABLE in (row.blocked or ""):
            change |= _release_repaired(batch, row, actor)
        elif wanted.hold is False and "hold" in (row.blocked or ""):
            # The router looks at it anew, also for whether it needs a place in its queue.
            left = change_blocked(change_blocked(row.blocked, remove="hold"), remove=BLOCKED_BY_QUEUE)
            change |= {"blocked": left, "reason": ""} | (
                {} if is_held_back(left) else start_wait_clock(row, batch.now_us)
            )
            _record_event(batch, row, "released", f"by {actor.name}")
            batch.versions.add("pending")
        jobs.job_update_many(batch.tx, {row.id: change} if change else {})
        if change:
            audit_others_jobs(batch, context, actor, "job.change", [row], **msgspec.to_builtins(wanted))
        again = jobs.job_get(batch.tx, row.id)
        assert again is not None
        return again

    return job_view(context.committer.call(apply, locks=[found.id]), Visibility(context, actor))


def _release_repaired(batch: Batch, row: jobs.Row, actor: Actor) -> dict[str, Any]:
    """A job that was set aside because its row could not be read, and now can be."""
    if why := damage_of(unreadable_jobs.jobs_with_specs(batch.tx, [row.id])[0]):
        raise unreadable_error(row.id, why)
    words = row.blocked
    for word in (BLOCKED_UNREADABLE, BLOCKED_BY_QUEUE, BLOCKED_BY_QUOTES, "backoff"):  # the router looks at it anew
        words = change_blocked(words, remove=word)
    _record_event(batch, row, "released", f"by {actor.name}, after its row was repaired")
    batch.versions.add("pending")
    later = [due_us for due_us, _ in read_delayed_tasks(row.later, row.array)] if row.array is not None else []
    return {"blocked": words, "reason": "", "wake_us": min(later, default=None)}


def _hold(batch: Batch, row: jobs.Row, actor: Actor) -> dict[str, Any]:
    said = f"held by {actor.name}; `yard release` lets it go"
    change: dict[str, Any] = {"blocked": change_blocked(row.blocked, add="hold"), "reason": said}
    if row.array is not None and row.tasks_live:
        raise Conflict(f"Tasks of {row.id} are running.", next_step="Cancel it, or wait.")
    if State(row.state) is State.PENDING:
        _record_event(batch, row, "held", said)
        return change
    step = unassign(life_of(row), said)
    if step is None:
        raise Conflict(f"Job {row.id} has been handed over.", next_step="Cancel it, or wait for its end.")
    record_step(batch, row, step)
    return step_columns(batch, row, step) | change


def _record_event(batch: Batch, row: jobs.Row, kind: str, reason: str) -> None:
    batch.event(
        row.id,
        kind,
        state=row.state,
        attempt=row.attempt,
        fence=row.fence,
        cluster_id=row.cluster_id,
        reason=reason,
    )


def tasks_cancel(context: Context, actor: Actor, ref: str, indexes: IdSet) -> Job:
    """Ask for the end of some tasks of an array."""
    with context.database.read() as tx:
        found = visible_job(tx, actor, ref)
    need_job_control(actor, found)
    if found.array is None:
        raise BadRequest(f"Job {found.id} is not an array.", next_step="Leave the indexes away.")
    every = IdSet.parse(found.array)
    if not indexes.is_within(every):
        unknown = next((index for index in islice(indexes, NAMED_MAX) if index not in every), str(indexes)[:80])
        raise BadRequest(f"Job {found.id} has no task {unknown}.", next_step=f"Its tasks are {found.array[:80]}.")

    def apply(batch: Batch) -> jobs.Row:
        row = jobs.job_lock(batch.tx, [found.id])[found.id]
        if State(row.state) not in FINAL_STATES:
            arrays = BatchArrays(batch)
            arrays.load([row])
            cancel_tasks(batch, arrays.job(row.id), indexes)
            _record_event(batch, row, "tasks-cancelled", f"tasks {indexes} by {actor.name}"[:500])
            arrays.flush()
            audit_others_jobs(batch, context, actor, "job.cancel-tasks", [row], tasks=str(indexes)[:500])
        again = jobs.job_get(batch.tx, row.id)
        assert again is not None
        return again

    return job_view(context.committer.call(apply, locks=[found.id]), Visibility(context, actor))


def retry_request(context: Context, actor: Actor, ref: str, wanted: RetryRequest) -> tuple[JobRequest, jobs.Row]:
    """The request that submits an ended job once more, and that job."""
    with context.database.read() as tx:
        row = visible_job(tx, actor, ref)
        rows = ranges.range_list(tx, row.id) if row.array is not None else []
        policy = policy_of(tx, row)
    need_job_control(actor, row)
    if State(row.state) not in FINAL_STATES:
        raise Conflict(
            f"Job {row.id} is {row.state}: only a job that is over can be tried again.",
            next_step="Wait for its end, or cancel it first.",
        )
    bounds, spec = decode_bounds(row.bounds), msgspec.json.decode(row.spec, type=JobSpec)
    if problem := native_problem(spec.native):  # of a job that is older than the check
        raise Malformed(f"Job {row.id} cannot be submitted once more: {problem}.")
    request = JobRequest(
        spec=spec,
        name=row.name,
        project=row.project,
        domain=row.domain,
        workflow=row.workflow,
        launch_plan=row.launch_plan,
        priority=row.priority,
        labels=msgspec.json.decode(row.labels, type=dict[str, str]),
        array=_tasks_to_retry(row, rows, wanted.tasks),
        match_engine=bounds.engine,
        select=Select(bounds.select[0], msgspec.json.decode(bounds.select[1])) if bounds.select else None,
        parameters=msgspec.json.decode(bounds.parameters) if bounds.parameters else {},
    )
    asked = request if policy is None else restore_request(request, policy, context.snapshots.policy.kinds)
    return asked, row


def retry_job(context: Context, submit: Submit, actor: Actor, ref: str, wanted: RetryRequest) -> CreatedJob:
    """An ended job once more, as a new job that names the old one."""
    request, row = retry_request(context, actor, ref, wanted)
    avoid = row.cluster_id if wanted.elsewhere else None
    why = f"job {row.id} ran here, and is to run elsewhere"
    before = decode_bounds(row.bounds)
    by_token = clusters_with_older_token(context.snapshots, before.by_token, row.id) if row.owner_id == actor.id else ()
    bounds = retry_bounds(before, by_token=by_token, is_elsewhere=wanted.elsewhere)
    write = submit.decide(actor, request, key=None, body=b"", last=((avoid, why),) if avoid else (), again=bounds)
    write.row["retry_of"] = row.id
    if avoid:
        write.row["avoid"] = msgspec.json.encode({avoid: AvoidedCluster(1, why)}).decode()
    if row.owner_id == actor.id:
        accepted: AcceptedJob = context.committer.do(write)
        return accepted.created

    def apply(batch: Batch) -> AcceptedJob:
        (made,) = submit.apply_inserts(batch, [write])
        if not isinstance(made, AcceptedJob):
            raise made
        audit_others_jobs(batch, context, actor, "job.retry", [row], job=made.created.id)
        return made

    return context.committer.call(apply).created


def _tasks_to_retry(row: jobs.Row, rows: list[ranges.Row], wanted: str | None) -> str | None:
    """Of an array: the tasks asked for, else those that did not succeed."""
    if row.array is None:
        if wanted is not None:
            raise BadRequest(f"Job {row.id} is not an array.", next_step="Leave the indexes away.")
        return None
    every = IdSet.parse(row.array)
    if wanted is not None:
        chosen = IdSet.parse(wanted)
        if not chosen.is_within(every):
            raise BadRequest(f"Job {row.id} has no such tasks.", next_step=f"Its tasks are {row.array[:80]}.")
    else:
        done = IdSet.of(each.lo + position for each in rows for position in succeeded_positions(each.tasks))
        chosen = TaskSet(row.array, every).split(done)[1].as_runs()
    if not chosen:
        raise Conflict(f"All tasks of {row.id} succeeded.", next_step="Name the tasks to run again.")
    text = str(chosen) + (f"%{row.array_max}" if row.array_max else "")
    if len(text) > TEXT_CHARS_MAX:
        raise Conflict(
            f"The {len(chosen):,} tasks of {row.id} that did not succeed are too scattered for one array.",
            next_step="Name some of them: `yard retry ID --tasks 0-9999`.",
        )
    return text
