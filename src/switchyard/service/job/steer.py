"""Steer a job that is there: hold and release, another priority, cancel some tasks, and once more."""

from __future__ import annotations

from itertools import islice
from typing import Any

import msgspec

from switchyard.errors import BadRequest, Conflict, Malformed
from switchyard.model.api import Created, JobChange, RetryRequest
from switchyard.model.idset import TEXT_CHARS_MAX, IdSet
from switchyard.model.job import Job, JobRequest, JobSpec, State
from switchyard.model.lifecycle import FINAL, unassign
from switchyard.model.native import native_problem
from switchyard.model.selection import Select
from switchyard.model.tasks import ended_well
from switchyard.model.taskset import TaskSet, read_later
from switchyard.policy.asked import as_asked
from switchyard.service.access.submit_tokens import still_open
from switchyard.service.committer import Batch
from switchyard.service.context import Context
from switchyard.service.job.jobs import audit_others, job_view, may_act, policy_of, visible_job
from switchyard.service.job.sight import Sight
from switchyard.service.quarantine import BLOCKED, damage_of, unreadable
from switchyard.service.quote.inquiries import QUOTES
from switchyard.service.rights import Actor
from switchyard.service.run.array_cancel import cancel_tasks
from switchyard.service.run.arrays import Arrays
from switchyard.service.run.report import Avoid, blocked, change_of, life_of, record
from switchyard.service.submit.bounds import again, decode_bounds
from switchyard.service.submit.limits import QUEUE
from switchyard.service.submit.submit import Accepted, Submit
from switchyard.service.upkeep.patience import is_held_back, set_off
from switchyard.store import jobs, ranges, suspects

NAMED_MAX = 10_000  # indexes that are looked at to name the one that is not there


def job_change(context: Context, actor: Actor, ref: str, wanted: JobChange) -> Job:
    """Hold, release, or give another priority. What an agent already has is its cluster's to order."""
    with context.database.read() as tx:
        found = visible_job(tx, actor, ref)
    may_act(actor, found)

    def apply(batch: Batch) -> jobs.Row:
        row = jobs.job_lock(batch.tx, [found.id])[found.id]
        if State(row.state) in FINAL:
            raise Conflict(f"Job {row.id} is over: {row.state}.", next_step="`yard retry` submits it once more.")
        change: dict[str, Any] = {}
        if wanted.priority is not None:
            change["priority"] = wanted.priority
            _note(batch, row, "priority", f"{row.priority} → {wanted.priority} by {actor.name}")
        if wanted.hold is True:
            change |= _hold(batch, row, actor)
        elif wanted.hold is False and BLOCKED in (row.blocked or ""):
            change |= _let_go_on(batch, row, actor)
        elif wanted.hold is False and "hold" in (row.blocked or ""):
            # The router looks at it anew, also for whether it needs a place in its queue.
            left = blocked(blocked(row.blocked, remove="hold"), remove=QUEUE)
            change |= {"blocked": left, "reason": ""} | ({} if is_held_back(left) else set_off(row, batch.now_us))
            _note(batch, row, "released", f"by {actor.name}")
            batch.versions.add("pending")
        jobs.job_change(batch.tx, {row.id: change} if change else {})
        if change:
            audit_others(batch, context, actor, "job.change", [row], **msgspec.to_builtins(wanted))
        again = jobs.job_get(batch.tx, row.id)
        assert again is not None
        return again

    return job_view(context.committer.call(apply, locks=[found.id]), Sight(context, actor))


def _let_go_on(batch: Batch, row: jobs.Row, actor: Actor) -> dict[str, Any]:
    """A job that was set aside because its row could not be read, and now can be."""
    if why := damage_of(suspects.suspect_list(batch.tx, [row.id])[0]):
        raise unreadable(row.id, why)
    words = row.blocked
    for word in (BLOCKED, QUEUE, QUOTES, "backoff"):  # the router looks at it anew
        words = blocked(words, remove=word)
    _note(batch, row, "released", f"by {actor.name}, after its row was repaired")
    batch.versions.add("pending")
    later = [due_us for due_us, _ in read_later(row.later, row.array)] if row.array is not None else []
    return {"blocked": words, "reason": "", "wake_us": min(later, default=None)}


def _hold(batch: Batch, row: jobs.Row, actor: Actor) -> dict[str, Any]:
    said = f"held by {actor.name}; `yard release` lets it go"
    change: dict[str, Any] = {"blocked": blocked(row.blocked, add="hold"), "reason": said}
    if row.array is not None and row.tasks_live:
        raise Conflict(f"Tasks of {row.id} are running.", next_step="Cancel it, or wait.")
    if State(row.state) is State.PENDING:
        _note(batch, row, "held", said)
        return change
    step = unassign(life_of(row), said)
    if step is None:
        raise Conflict(f"Job {row.id} has been handed over.", next_step="Cancel it, or wait for its end.")
    record(batch, row, step)
    return change_of(batch, row, step) | change


def _note(batch: Batch, row: jobs.Row, kind: str, reason: str) -> None:
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
    may_act(actor, found)
    if found.array is None:
        raise BadRequest(f"Job {found.id} is not an array.", next_step="Leave the indexes away.")
    every = IdSet.parse(found.array)
    if not indexes.is_within(every):
        unknown = next((index for index in islice(indexes, NAMED_MAX) if index not in every), str(indexes)[:80])
        raise BadRequest(f"Job {found.id} has no task {unknown}.", next_step=f"Its tasks are {found.array[:80]}.")

    def apply(batch: Batch) -> jobs.Row:
        row = jobs.job_lock(batch.tx, [found.id])[found.id]
        if State(row.state) not in FINAL:
            arrays = Arrays(batch)
            arrays.load([row])
            cancel_tasks(batch, arrays.job(row.id), indexes)
            _note(batch, row, "tasks-cancelled", f"tasks {indexes} by {actor.name}"[:500])
            arrays.flush()
            audit_others(batch, context, actor, "job.cancel-tasks", [row], tasks=str(indexes)[:500])
        again = jobs.job_get(batch.tx, row.id)
        assert again is not None
        return again

    return job_view(context.committer.call(apply, locks=[found.id]), Sight(context, actor))


def retry_request(context: Context, actor: Actor, ref: str, wanted: RetryRequest) -> tuple[JobRequest, jobs.Row]:
    """The request that submits an ended job once more, and that job."""
    with context.database.read() as tx:
        row = visible_job(tx, actor, ref)
        rows = ranges.range_of_job(tx, row.id) if row.array is not None else []
        policy = policy_of(tx, row)
    may_act(actor, row)
    if State(row.state) not in FINAL:
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
        array=_tasks_again(row, rows, wanted.tasks),
        match_engine=bounds.engine,
        select=Select(bounds.select[0], msgspec.json.decode(bounds.select[1])) if bounds.select else None,
        parameters=msgspec.json.decode(bounds.parameters) if bounds.parameters else {},
    )
    asked = request if policy is None else as_asked(request, policy, context.snapshots.policy.kinds)
    return asked, row


def retry(context: Context, submit: Submit, actor: Actor, ref: str, wanted: RetryRequest) -> Created:
    """An ended job once more, as a new job that names the old one."""
    request, row = retry_request(context, actor, ref, wanted)
    avoid = row.cluster_id if wanted.elsewhere else None
    why = f"job {row.id} ran here, and is to run elsewhere"
    before = decode_bounds(row.bounds)
    by_token = still_open(context.snapshots, before.by_token, row.id) if row.owner_id == actor.id else ()
    bounds = again(before, by_token=by_token, is_elsewhere=wanted.elsewhere)
    write = submit.decide(actor, request, key=None, body=b"", last=((avoid, why),) if avoid else (), again=bounds)
    write.row["retry_of"] = row.id
    if avoid:
        write.row["avoid"] = msgspec.json.encode({avoid: Avoid(1, why)}).decode()
    if row.owner_id == actor.id:
        accepted: Accepted = context.committer.do(write)
        return accepted.created

    def apply(batch: Batch) -> Accepted:
        (made,) = submit.apply_inserts(batch, [write])
        if not isinstance(made, Accepted):
            raise made
        audit_others(batch, context, actor, "job.retry", [row], job=made.created.id)
        return made

    return context.committer.call(apply).created


def _tasks_again(row: jobs.Row, rows: list[ranges.Row], wanted: str | None) -> str | None:
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
        done = IdSet.of(each.lo + position for each in rows for position in ended_well(each.tasks))
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
