"""Jobs: look, list, cancel, events. Reading needs `view` on the project, or the job to be yours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from switchyard.errors import BadRequest, Denied, NoSuchJob
from switchyard.model.access import Role
from switchyard.model.api import Event, Page
from switchyard.model.attributes import JobPolicy
from switchyard.model.ids import LENGTH, is_id
from switchyard.model.idset import IdSet
from switchyard.model.job import Job, State, TaskCounts, Usage
from switchyard.model.lifecycle import FINAL_STATES, cancel
from switchyard.model.names import printable_line
from switchyard.model.queue import queue_of_lane
from switchyard.model.unreadable import UNREADABLE_ERRORS
from switchyard.service.committer import Batch
from switchyard.service.context import Context, record_job_audit
from switchyard.service.job.visibility import Visibility
from switchyard.service.rights import Actor
from switchyard.service.run.array_cancel import cancel_tasks
from switchyard.service.run.arrays import BatchArrays
from switchyard.service.run.report import cancelling_reason, life_of, read_avoided_clusters, record_step, step_columns
from switchyard.service.submit.bounds import decode_bounds
from switchyard.service.token.token_needs import needs_of_row
from switchyard.service.unreadable_rows import log_unreadable
from switchyard.store import events, jobs
from switchyard.store.database import Tx
from switchyard.store.job_columns import replaced_columns, require_readable

PREFIX_MIN = 6


def job_get(context: Context, actor: Actor, ref: str) -> Job:
    """One job, by its id or an unambiguous prefix."""
    with context.database.read() as tx:
        row = visible_job(tx, actor, ref)
        policy = policy_of(tx, row)
    sight = Visibility(context, actor)
    return msgspec.structs.replace(job_view(row, sight), policy=sight.policy(row, policy))


def policy_of(tx: Tx, row: jobs.Row) -> JobPolicy | None:
    """The rules a job was admitted under."""
    body = jobs.policy_get(tx, row.policy_hash) if row.policy_hash else None
    try:
        return msgspec.json.decode(body, type=JobPolicy) if body else None
    except UNREADABLE_ERRORS as exc:
        log_unreadable("policies", row.policy_hash, str(exc))
        return None


def job_list(
    context: Context, actor: Actor, wanted: jobs.JobFilter, *, before: str | None, limit: int, with_spec: bool
) -> Page[Job]:
    with context.database.read() as tx:
        rows, more = jobs.job_list(
            tx,
            visible_filter(context, actor, wanted),
            before=before,
            limit=limit,
            budget=context.list_budget,
            with_spec=with_spec,
        )
    sight = Visibility(context, actor)
    return Page([job_view(row, sight) for row in rows], more)


def job_cancel(context: Context, actor: Actor, ref: str, reason: str) -> Job:
    """Ask for a job's end. Confirmed by its cluster, unless nobody has it yet."""
    with context.database.read() as tx:
        row = visible_job(tx, actor, ref)
    need_job_control(actor, row)

    said = f"cancelled by {actor.name}" + (f": {printable_line(reason)}" if reason else "")

    def apply(batch: Batch) -> jobs.Row:
        asked = request_cancel(batch, list(jobs.job_lock(batch.tx, [row.id]).values()), said)
        if asked:
            audit_others_jobs(batch, context, actor, "job.cancel", [row], reason=printable_line(reason))
        found = jobs.job_get(batch.tx, row.id)
        assert found is not None
        return found

    return job_view(context.committer.call(apply, locks=[row.id]), Visibility(context, actor))


def request_cancel(batch: Batch, rows: Sequence[jobs.Row], said: str) -> list[str]:
    """Ask for the end of locked jobs; the ids of those that were not over, and not asked before."""
    changes: dict[str, dict[str, Any]] = {}
    asked: list[str] = []
    for row in rows:
        life = life_of(row)
        if "fence" in replaced_columns(row):  # its agent cannot be told which attempt to end
            life = replace(life, is_leased=False)
        step = cancel(life)
        if row.array is not None and State(row.state) not in FINAL_STATES:
            _cancel_array(batch, row, said)
            asked.append(row.id)
        elif step is not None:
            change: dict[str, Any] = step_columns(batch, row, step) if step.life.state in FINAL_STATES else {}
            change |= {"blocked": None, "wake_us": None, "expires_us": None}
            reason = said if step.life.state in FINAL_STATES else cancelling_reason(row.reason, said)
            changes[row.id] = change | {"cancel_us": batch.now_us, "reason": reason}
            record_step(batch, row, step)
            if row.cluster_id:
                batch.clusters.add(row.cluster_id)
            asked.append(row.id)
    jobs.job_update_many(batch.tx, changes)
    jobs.dependency_clear(batch.tx, [row.id for row in rows])
    return asked


def _cancel_array(batch: Batch, row: jobs.Row, said: str) -> None:
    arrays = BatchArrays(batch)
    arrays.load([row])
    array = arrays.job(row.id)
    array.is_cancelling = True
    cancel_tasks(batch, array, None)
    batch.event(
        row.id,
        "cancel-requested",
        state=row.state,
        attempt=row.attempt,
        fence=row.fence,
        cluster_id=row.cluster_id,
        reason=said,
    )
    arrays.flush()
    jobs.job_update_many(
        batch.tx, {row.id: {"cancel_us": batch.now_us, "is_ready": False, "blocked": None, "wake_us": None}}
    )


def audit_others_jobs(
    batch: Batch, context: Context, actor: Actor, action: str, rows: Iterable[jobs.Row], **after: object
) -> None:
    """Record what is done to jobs of others: one's own are one's own affair, and there are very many."""
    owners = {row.id: row.owner for row in rows if row.owner_id != actor.id}
    record_job_audit(
        batch, context, actor.name, action, owners, after={key: value for key, value in after.items() if value}
    )


def need_job_control(actor: Actor, row: jobs.Row) -> None:
    """One's own jobs with `submit`, others' with `operate`."""
    if row.owner_id != actor.id or not actor.may_project(Role.SUBMIT, row.project):
        actor.need_project(Role.OPERATE, row.project)


def job_events(context: Context, actor: Actor, ref: str, *, after: int, limit: int) -> Page[Event]:
    with context.database.read() as tx:
        row = visible_job(tx, actor, ref)
        found = events.event_list(tx, job_id=row.id, projects=None, after=after, limit=limit)
    return _event_page(found, limit, Visibility(context, actor), owner_id=row.owner_id)


def all_events(context: Context, actor: Actor, *, after: int, limit: int, since_s: int | None = None) -> Page[Event]:
    with context.database.read() as tx:
        if since_s is not None:
            after = max(after, events.event_number_before(tx, context.now_us() - since_s * 1_000_000))
        projects = actor.viewable_projects()
        found = events.event_list(tx, job_id=None, projects=projects, reader=actor.id, after=after, limit=limit)
    return _event_page(found, limit, Visibility(context, actor))


def last_event(context: Context) -> int:
    """The number of the newest event."""
    with context.database.read() as tx:
        return events.counters_read(tx).get("events", 0)


def next_events(
    context: Context, actor: Actor, *, job_id: str | None, project: str | None, after: int, limit: int
) -> tuple[list[Event], int]:
    """Events after a number, of one job, one project or all one may view; and from which number to go on."""
    with context.database.read() as tx:
        # Read first: whatever has a number up to this one is visible by now, so it is safe to go on from here.
        newest = events.counters_read(tx).get("events", 0)
        if newest <= after:
            return [], after
        # It may have been deleted, or taken from one's sight.
        owner_id = visible_job(tx, actor, job_id).owner_id if job_id is not None else None
        projects = [project] if project is not None else actor.viewable_projects()
        if project is not None and not actor.may_project(Role.VIEW, project):
            projects = []
        found = events.event_list(
            tx,
            job_id=job_id,
            projects=None if job_id else projects,
            reader=None if project else actor.id,
            after=after,
            limit=limit,
        )
    items = _event_page(found, limit, Visibility(context, actor), owner_id=owner_id).items
    return items, items[-1].seq if len(items) == limit else max(newest, items[-1].seq if items else after)


def avoided_clusters(row: jobs.Row) -> tuple[tuple[str, str], ...]:
    """The clusters that come last for a job."""
    return tuple(sorted((cluster_id, avoid.why) for cluster_id, avoid in read_avoided_clusters(row.avoid).items()))


def resolve_job_id(tx: Tx, actor: Actor, ref: str) -> str:
    """An id from an id or an unambiguous prefix."""
    ref = ref.upper()
    if is_id(ref):
        return ref
    if not (PREFIX_MIN <= len(ref) < LENGTH and is_id(ref.ljust(LENGTH, "0"))):
        raise NoSuchJob(f"{ref[:40]!r} is not a job id.", next_step=f"Give an id or its first {PREFIX_MIN} or more.")
    found = jobs.job_ids_by_prefix(tx, ref, projects=actor.viewable_projects(), reader=actor.id)
    if not found:
        raise NoSuchJob(f"There is no job {ref}.")
    if len(found) > 1:
        raise BadRequest(f"{ref} stands for more than one job.", next_step="Give more characters of the id.")
    return found[0]


def visible_job(tx: Tx, actor: Actor, ref: str) -> jobs.Row:
    row = jobs.job_get(tx, resolve_job_id(tx, actor, ref))
    if row is None or not (row.owner_id == actor.id or actor.may_project(Role.VIEW, row.project)):
        raise NoSuchJob(f"There is no job {ref[:40]}, or it is not yours to see.")
    return row


def visible_filter(context: Context, actor: Actor, wanted: jobs.JobFilter) -> jobs.JobFilter:
    """A filter narrowed to what the actor may see; a project they may not view is said so, not hidden.

    Of a cluster that is hidden from them only their own jobs: of others' it would tell where they run.
    """
    if wanted.project is not None and not actor.may_project(Role.VIEW, wanted.project):
        raise Denied(f"You may not view the jobs of project {wanted.project}.")
    if wanted.owner is not None and wanted.owner == actor.name:
        wanted = replace(wanted, owner=None, owner_id=actor.id)  # not those of an earlier user of the same name
    if wanted.cluster is not None and not Visibility(context, actor).sees_name(wanted.cluster):
        return replace(wanted, projects=[], reader=actor.id)
    return replace(wanted, projects=actor.viewable_projects(), reader=actor.id)


def job_view(row: jobs.Row, sight: Visibility) -> Job:
    """A row as the API shows it to a reader. One that cannot be read is shown as far as it can, with the reason."""
    try:
        return _view(row, sight)
    except UNREADABLE_ERRORS as exc:
        log_unreadable("jobs", row.id, f"{type(exc).__name__}: {exc}")
        return _damaged_view(row, exc, sight)


def _damaged_view(row: jobs.Row, why: Exception, sight: Visibility) -> Job:
    # One of which nobody knows how it stands, and that has not ended: whoever waits for its end goes on waiting.
    unknown = State.PENDING if row.ended_us is None else State.FAILED
    said = row.reason if str(row.reason).startswith("unreadable") else f"unreadable: {why}"
    return Job(
        id=row.id,
        name=str(row.name),
        owner=str(row.owner),
        project=str(row.project),
        domain=str(row.domain),
        state=next((state for state in State if state.value == row.state), unknown),
        cluster=sight.cluster(row.cluster_id, row.cluster, is_own=sight.is_own(row)),
        reason=sight.text(str(said), is_own=sight.is_own(row))[:2000],
        cancel_requested=row.cancel_us is not None,
        created_us=row.created_us if isinstance(row.created_us, int) else 0,
        ended_us=row.ended_us if isinstance(row.ended_us, int) else None,
    )


def _view(row: jobs.Row, sight: Visibility) -> Job:
    require_readable(row)
    body, bounds, is_own = getattr(row, "spec", None), decode_bounds(row.bounds), sight.is_own(row)
    spec, is_env_hidden = sight.spec(row, body) if body is not None else (None, False)
    return Job(
        id=row.id,
        name=row.name,
        owner=row.owner,
        project=row.project,
        domain=row.domain,
        workflow=row.workflow,
        launch_plan=row.launch_plan,
        state=State.RUNNING if row.tasks_live and State(row.state) not in FINAL_STATES else State(row.state),
        priority=row.priority,
        labels=msgspec.json.decode(row.labels, type=dict[str, str]),
        spec=spec,
        is_env_hidden=is_env_hidden,
        cluster=sight.cluster(row.cluster_id, row.cluster, is_own=is_own),
        attempt=row.attempt,
        fence=row.fence,
        reason=sight.text(row.reason, is_own=is_own),
        cancel_requested=row.cancel_us is not None,
        exit_code=row.exit_code,
        signal=row.signal,
        native_id=row.native_id,
        usage=msgspec.json.decode(row.usage, type=Usage) if row.usage else None,
        created_us=row.created_us,
        assigned_us=row.assigned_us,
        leased_us=row.leased_us,
        started_us=row.started_us,
        ended_us=row.ended_us,
        is_held="hold" in (row.blocked or ""),
        wake_us=row.wake_us,
        expires_us=row.expires_us,
        late_us=row.late_us,
        tries=row.tries,
        retry_of=row.retry_of,
        array=row.array if row.array is None or row.array_max is None else f"{row.array}%{row.array_max}",
        tasks=array_tally(row),
        pool=bounds.pool,
        cluster_label=bounds.label,
        queue=queue_of_lane(row.lane),
        tags=list(bounds.tags),
        spill=list(bounds.spill),
        tokens=needs_of_row(row),
    )


def array_tally(row: Any) -> TaskCounts | None:
    """How an array stands, for the API."""
    if row.array is None:
        return None
    total = len(IdSet.parse(row.array))
    ended = row.tasks_ok + row.tasks_failed + row.tasks_cancelled
    return TaskCounts(
        total=total,
        waiting=max(0, total - ended - row.tasks_live),
        live=row.tasks_live,
        ok=row.tasks_ok,
        failed=row.tasks_failed,
        cancelled=row.tasks_cancelled,
    )


def _event_page(
    found: Sequence[events.Row], limit: int, sight: Visibility, *, owner_id: str | None = None
) -> Page[Event]:
    """`owner_id`: of the one job that they are about."""
    items = [
        Event(
            seq=row.seq,
            at_us=row.at_us,
            job=row.job_id,
            kind=row.kind,
            state=row.state,
            attempt=row.attempt,
            fence=row.fence,
            cluster=sight.cluster(row.cluster_id, row.cluster, is_own=sight.is_reader(row.owner_id or owner_id)),
            reason=sight.text(row.reason, is_own=sight.is_reader(row.owner_id or owner_id)),
        )
        for row in found
    ]
    return Page(items, str(items[-1].seq) if len(items) == limit else None)
