"""Retry a job, or many: run the spec of an ended job again as a new job."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from switchyard.errors import BadRequest, Conflict, KeyReused, Malformed, YardError
from switchyard.model.cluster.idset import TEXT_CHARS_MAX, IdSet
from switchyard.model.cluster.selection import Select
from switchyard.model.executions.execution import is_server_label
from switchyard.model.job.bounds import decode_bounds, retry_bounds
from switchyard.model.job.bulk_actions import ActedOnJobs, RefusedJob
from switchyard.model.job.job import JobRequest, JobSpec, State, native_problem
from switchyard.model.job.lifecycle import FINAL_STATES
from switchyard.model.job.task_states import succeeded_positions
from switchyard.model.job.taskset import TaskSet
from switchyard.model.wire.api import CreatedJob, RetryRequest
from switchyard.policy.admit import scope_key_of
from switchyard.policy.kinds.job_priority import JOB_PRIORITY, nearest_priority
from switchyard.policy.original_request import restore_request
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.core.submit_tokens import clusters_with_older_token
from switchyard.service.core.writes.batch import Batch
from switchyard.service.lifecycle.retry_keys import retry_key
from switchyard.service.lifecycle.transitions import AvoidedCluster
from switchyard.service.lifecycle.visibility import audit_others_jobs, need_job_control, policy_of, visible_job
from switchyard.service.submit.new_job import AcceptedJob
from switchyard.service.submit.submit import Submit
from switchyard.store.engine import ranges
from switchyard.store.jobs.job_rows import JobDetails, JobRow


def retry_request(context: Context, actor: Actor, ref: str, wanted: RetryRequest) -> tuple[JobRequest, JobDetails]:
    """Return the request that submits an ended job again, and the row of the ended job."""
    with context.database.read() as tx:
        row = visible_job(tx, actor, ref)
        rows = ranges.range_list(tx, row.id) if row.array is not None else []
        policy = policy_of(tx, row)
    need_job_control(actor, row)
    if State(row.state) not in FINAL_STATES:
        raise Conflict(
            f"Job {row.id} is {row.state}: only an ended job can be retried.",
            next_step="Wait for its end, or cancel it first.",
        )
    bounds, spec = decode_bounds(row.bounds), msgspec.json.decode(row.spec or "", type=JobSpec)
    if problem := native_problem(spec.native):  # the job may be older than this check
        raise Malformed(f"Job {row.id} cannot be retried: {problem}.")
    request = JobRequest(
        spec=spec,
        name=row.name,
        project=row.project,
        domain=row.domain,
        workflow=row.workflow,
        launch_plan=row.launch_plan,
        priority=row.priority,
        labels={label: value for label, value in _labels(row).items() if not is_server_label(label)},
        array=_tasks_to_retry(row, rows, wanted.tasks),
        together=bounds.is_together,
        match_engine=bounds.engine,
        select=Select(bounds.select[0], msgspec.json.decode(bounds.select[1])) if bounds.select else None,
        parameters=msgspec.json.decode(bounds.parameters) if bounds.parameters else {},
    )
    original = request if policy is None else restore_request(request, policy, context.snapshots.policy.kinds)
    return _within_bounds(context, actor, original), row


def _within_bounds(context: Context, actor: Actor, request: JobRequest) -> JobRequest:
    """Give the request the nearest allowed priority. An operator, or older rules, may have given the job another."""
    if actor.is_platform_operator:
        return request
    fields = context.snapshots.policy.effective(scope_key_of(request)).fields(JOB_PRIORITY)
    return msgspec.structs.replace(request, priority=nearest_priority(request.priority, fields))


def retry_job(
    context: Context, submit: Submit, actor: Actor, ref: str, wanted: RetryRequest, *, key: str | None = None
) -> CreatedJob:
    """Submit an ended job again, as a new job whose `retry_of` names the old job.

    `key`: an idempotency key of the caller. The same key, job and request make one job.
    """
    if key is None:
        return accept_retry(context, submit, actor, ref, wanted=wanted, key=None).created
    body = b"retry %b %b" % (ref.encode(), msgspec.json.encode(wanted))
    # Look first: a retry that was accepted stays accepted, even if a rule or a limit would refuse it now.
    accepted = submit.repeated(actor, key=key, body=body)
    return (accepted or accept_retry(context, submit, actor, ref, wanted=wanted, key=key, body=body)).created


def accept_retry(
    context: Context,
    submit: Submit,
    actor: Actor,
    ref: str,
    wanted: RetryRequest,
    *,
    key: str | None,
    body: bytes = b"",
) -> AcceptedJob:
    """As `retry_job`. With a key that was used before, return the job that was made then."""
    request, row = retry_request(context, actor, ref, wanted)
    avoid = row.cluster_id if wanted.elsewhere else None
    reason = f"job {row.id} ran here, and is to run elsewhere"
    old_bounds = decode_bounds(row.bounds)
    is_owner = row.owner_id == actor.id
    opened = clusters_with_older_token(context.snapshots, old_bounds.opened, row.id) if is_owner else ()
    bounds = retry_bounds(old_bounds, opened=opened, is_elsewhere=wanted.elsewhere)
    write = submit.decide(
        actor,
        request,
        key=key,
        body=body,
        last=((avoid, reason),) if avoid else (),
        again=bounds,
        server_labels={label: value for label, value in _labels(row).items() if is_server_label(label)},
    )
    avoided = msgspec.json.encode({avoid: AvoidedCluster(1, reason)}).decode() if avoid else None
    write = replace(write, row=msgspec.structs.replace(write.row, retry_of=row.id, avoid=avoided))
    if is_owner:
        accepted: AcceptedJob = context.committer.do(write)
        return accepted

    def apply(batch: Batch) -> AcceptedJob:
        (result,) = submit.apply_inserts(batch, [write])
        if not isinstance(result, AcceptedJob):
            raise result
        if result.is_new:
            audit_others_jobs(batch, context, actor, "job.retry", [row], job=result.created.id)
        return result

    return context.committer.call(apply)


def _labels(row: JobDetails) -> dict[str, str]:
    return msgspec.json.decode(row.labels, type=dict[str, str])


def _tasks_to_retry(row: JobRow, rows: list[ranges.RangeOnCluster], wanted: str | None) -> str | None:
    """Return the tasks of an array to retry: the wanted tasks, by default all that did not succeed."""
    if row.array is None:
        if wanted is not None:
            raise BadRequest(f"Job {row.id} is not an array.", next_step="Leave out the task indexes.")
        return None
    all_tasks = IdSet.parse(row.array)
    if wanted is not None:
        indexes = IdSet.parse(wanted)
        if not indexes.is_within(all_tasks):
            raise BadRequest(f"Job {row.id} has no such tasks.", next_step=f"Its tasks are {row.array[:80]}.")
    else:
        succeeded = IdSet.of(part.lo + position for part in rows for position in succeeded_positions(part.tasks))
        indexes = TaskSet(row.array, all_tasks).split(succeeded)[1].as_runs()
    if not indexes:
        raise Conflict(f"All tasks of {row.id} succeeded.", next_step="Name the tasks to run again.")
    text = str(indexes) + (f"%{row.array_max}" if row.array_max else "")
    if len(text) > TEXT_CHARS_MAX:
        raise Conflict(
            f"The {len(indexes):,} tasks of {row.id} that did not succeed are too scattered for one array.",
            next_step="Name some of them: `yard retry ID --tasks 0-9999`.",
        )
    return text


def retry_many(context: Context, submit: Submit, actor: Actor, ids: list[str]) -> ActedOnJobs:
    """Retry each job by itself. A refusal does not stop the jobs after it; an error of the server does."""
    changed = unchanged = 0
    refused: list[RefusedJob] = []
    for job_id in dict.fromkeys(ids):
        try:
            is_new = _retry_once(context, submit, actor, job_id)
        except YardError as exc:
            if exc.transient or exc.status >= 500:
                raise
            refused.append(RefusedJob(job_id, exc.detail))
        else:
            changed, unchanged = (changed + 1, unchanged) if is_new else (changed, unchanged + 1)
    return ActedOnJobs(changed, unchanged, refused)


def _retry_once(context: Context, submit: Submit, actor: Actor, job_id: str) -> bool:
    """Retry a job unless this was done before. Returns whether a job was made."""
    key = retry_key(job_id)
    try:
        # Look first: what was accepted before stays accepted, even if a rule or a limit would refuse it now.
        if submit.repeated(actor, key=key, body=b"") is not None:
            return False
        return accept_retry(context, submit, actor, job_id, wanted=RetryRequest(), key=key).is_new
    except KeyReused:
        return False  # the job that retried it is so old that it was removed
