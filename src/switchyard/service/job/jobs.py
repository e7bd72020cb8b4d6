"""Show, list and cancel jobs, and read their events. Reading needs `view` on the project, or to own the job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from switchyard.model.cluster.idset import IdSet
from switchyard.model.failures.asked_resources import AskedResources
from switchyard.model.failures.failure_kind import FailureKind, is_failure_kind
from switchyard.model.job.blocker import Blocker, has_blocker
from switchyard.model.job.bounds import decode_bounds
from switchyard.model.job.event_kind import EventKind
from switchyard.model.job.job import CancelledTasks, Job, JobAttempt, State, TaskCounts, Usage
from switchyard.model.job.lifecycle import FINAL_STATES, cancel
from switchyard.model.job.unreadable import UNREADABLE_ERRORS
from switchyard.model.rules.access import Role
from switchyard.model.rules.names import printable_line
from switchyard.model.rules.queue import Lane
from switchyard.model.wire.api import Event, Page
from switchyard.route.checks import TAKES_NO_FILES, TAKES_NOTHING
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.core.unreadable_rows import log_unreadable, read_each
from switchyard.service.core.writes.batch import Batch
from switchyard.service.lifecycle.array_spread import with_task_count
from switchyard.service.lifecycle.arrays import BatchArrays, cancel_tasks
from switchyard.service.lifecycle.chosen_sets import number_at
from switchyard.service.lifecycle.transitions import cancel_update, life_of
from switchyard.service.lifecycle.visibility import (
    HIDDEN,
    Visibility,
    audit_others_jobs,
    need_job_control,
    policy_of,
    visible_filter,
    visible_job,
)
from switchyard.service.reserve.token_needs import needs_of_row
from switchyard.store.engine import ranges
from switchyard.store.engine.database import Tx
from switchyard.store.files import file_outputs
from switchyard.store.jobs import events, jobs
from switchyard.store.jobs.job_columns import replaced_columns, require_readable
from switchyard.store.jobs.job_rows import AttemptOnCluster, JobDetails, JobRow
from switchyard.store.jobs.job_update import JobUpdate

REMOVED = "(removed)"  # a cluster that is no longer registered
HAS_OUTPUTS = '"out":'  # in the text of a spec whose outputs are collected; others cost no query


def job_get(context: Context, actor: Actor, ref: str) -> Job:
    """Return one job by its id or an unambiguous prefix of it."""
    with context.database.read() as tx:
        row = visible_job(tx, actor, ref)
        policy = policy_of(tx, row)
        has_outputs = row.spec is not None and HAS_OUTPUTS in row.spec
        outputs = file_outputs.output_counts(tx, row.id) if has_outputs else None
        counts = ranges.tasks_by_cluster(tx, row.id) if row.array is not None else {}
        visibility = Visibility(context, actor)
        attempts = earlier_attempts(tx, row, visibility)
    job = job_view(row, visibility)
    if counts:
        job = msgspec.structs.replace(job, reason=with_task_count(job.reason, sum(counts.values())))
    if job.cluster == row.cluster:  # else the cluster is hidden from the reader
        job = msgspec.structs.replace(
            job, reason=silence_reason(context, row) or job.reason or wait_reason(context, row)
        )
    return msgspec.structs.replace(
        job,
        policy=visibility.policy(row, policy),
        attempts=attempts,
        outputs=outputs,
        tasks_by_cluster=_by_cluster_name(context, visibility, row, counts),
    )


def silence_reason(context: Context, row: JobDetails) -> str:
    """Return why nothing new is known of a leased job: its batch system does not answer. Empty: it answers."""
    # The state is compared as text: a damaged one is shown, too.
    is_array, state = row.array is not None, row.state
    is_leased = state == State.RUNNING if is_array else row.agent_id is not None and state not in FINAL_STATES
    if not is_leased or row.cluster_id is None:
        return ""
    silence = context.snapshots.silence_of(row.cluster_id)
    return f"{silence}, so nothing new is known of {'its tasks there' if is_array else 'the job'}" if silence else ""


def wait_reason(context: Context, row: JobDetails) -> str:
    """Return why an assigned job gets no lease; empty: its turn has not come, or it is leased."""
    if State(row.state) is not State.ASSIGNED or row.agent_id is not None or row.cluster_id is None:
        return ""
    if decode_bounds(row.bounds).has_files and (trouble := context.snapshots.files_trouble_of(row.cluster_id)):
        return f"its cluster {TAKES_NO_FILES}{trouble}"
    trouble = context.snapshots.trouble_of(row.cluster_id)
    return f"its cluster {TAKES_NOTHING}{trouble}" if trouble else ""


def _by_cluster_name(
    context: Context, visibility: Visibility, row: JobDetails, counts: Mapping[str | None, int]
) -> dict[str, int]:
    """Return the tasks of an array by the name of their cluster. Clusters hidden from the reader are one entry."""
    named: Counter[str] = Counter()
    rows = context.snapshots.fleet.rows
    for cluster_id, count in counts.items():
        name = rows[cluster_id].name if cluster_id in rows else REMOVED
        named[visibility.cluster(cluster_id, name, is_own=visibility.is_own(row)) or HIDDEN] += count
    return dict(sorted(named.items()))


def job_list(
    context: Context,
    actor: Actor,
    wanted: jobs.JobFilter,
    *,
    before: str | None,
    limit: int,
    with_spec: bool,
    reads_max: int = 1,
) -> Page[Job]:
    """List jobs, newest first. A page may be short, and there may be more jobs, if `reads_max` reads find too few."""
    wanted = visible_filter(context, actor, wanted)
    rows: list[JobDetails] = []
    for _ in range(reads_max):
        with context.database.read() as tx:
            found, before = jobs.job_list(
                tx,
                wanted,
                before=before,
                limit=limit - len(rows),
                budget=context.list_budget,
                with_spec=with_spec,
            )
        rows += found
        if before is None or len(rows) >= limit:
            break
    visibility = Visibility(context, actor)
    return Page([job_view(row, visibility) for row in rows], before)


def job_cancel(context: Context, actor: Actor, ref: str, reason: str) -> Job:
    """Request a job's cancel. Its cluster confirms the end; a job that no agent has ends at once."""
    with context.database.read() as tx:
        row = visible_job(tx, actor, ref)
    need_job_control(actor, row)
    event_reason = f"cancelled by {actor.name}" + (f": {printable_line(reason)}" if reason else "")

    def apply(batch: Batch) -> tuple[JobDetails, CancelledTasks | None]:
        of_array: dict[str, CancelledTasks] = {}
        if request_cancel(batch, list(jobs.job_lock(batch.tx, [row.id]).values()), event_reason, of_array):
            audit_others_jobs(batch, context, actor, "job.cancel", [row], reason=printable_line(reason))
        changed = jobs.job_get(batch.tx, row.id)
        assert changed is not None
        return changed, of_array.get(row.id)

    changed, cancelled_tasks = context.committer.call(apply, locks=[row.id])
    return cancelled_view(changed, Visibility(context, actor), cancelled_tasks)


def cancelled_view(row: JobDetails, visibility: Visibility, cancelled_tasks: CancelledTasks | None) -> Job:
    """Return the answer to a cancel. `cancelled_tasks`: what it did; None: the array had ended before."""
    job = job_view(row, visibility)
    if job.tasks is not None and cancelled_tasks is None:
        cancelled_tasks = CancelledTasks(ended=job.tasks.total)
    return msgspec.structs.replace(job, cancelled_tasks=cancelled_tasks)


def request_cancel(
    batch: Batch, rows: Sequence[JobRow], reason: str, of_arrays: dict[str, CancelledTasks] | None = None
) -> list[str]:
    """Request the cancel of locked jobs. Return the ids of the jobs for which a request was recorded.

    `of_arrays`: is filled with what the cancel did to the tasks of each array.
    """
    updates: dict[str, JobUpdate] = {}
    cancelled: list[str] = []
    for row in rows:
        life = life_of(row)
        if "fence" in replaced_columns(row):  # damaged: the agent cannot be told which attempt to end
            life = replace(life, is_leased=False)
        step = cancel(life)
        if row.array is not None and State(row.state) not in FINAL_STATES:
            cancelled_tasks = _cancel_array(batch, row, reason)
            if of_arrays is not None:
                of_arrays[row.id] = cancelled_tasks
            if row.cancel_us is None:
                cancelled.append(row.id)
        elif step is not None:
            updates[row.id] = cancel_update(batch, row, step, reason)
            cancelled.append(row.id)
    jobs.job_update_many(batch.tx, updates)
    jobs.dependency_clear(batch.tx, [row.id for row in rows])
    return cancelled


def _cancel_array(batch: Batch, row: JobRow, reason: str) -> CancelledTasks:
    arrays = BatchArrays(batch)
    arrays.load([row])
    array = arrays.job(row.id)
    array.is_cancelling = True
    cancelled_tasks = cancel_tasks(batch, array, None)
    if row.cancel_us is None:  # a repeated request records nothing
        batch.job_event(row, EventKind.CANCEL_REQUESTED, reason)
    arrays.flush()
    update = JobUpdate(cancel_us=batch.now_us, is_ready=False, blocked=None, wake_us=None)
    jobs.job_update_many(batch.tx, {row.id: update})
    return cancelled_tasks


def job_events(context: Context, actor: Actor, ref: str, *, after: int, limit: int) -> Page[Event]:
    with context.database.read() as tx:
        row = visible_job(tx, actor, ref)
        rows = events.event_list(tx, job_id=row.id, projects=None, after=after, limit=limit)
    return _event_page(rows, limit, Visibility(context, actor), owner_id=row.owner_id)


def newest_job_events(context: Context, actor: Actor, ref: str, *, limit: int) -> tuple[list[Event], bool]:
    """Return the newest events of a job, oldest first, and whether they are all of its events."""
    with context.database.read() as tx:
        row = visible_job(tx, actor, ref)
        rows = events.event_list(tx, job_id=row.id, projects=None, after=0, limit=limit + 1, is_newest_first=True)
    page = _event_page(rows[limit - 1 :: -1], limit, Visibility(context, actor), owner_id=row.owner_id)
    return list(page.items), len(rows) <= limit


def all_events(context: Context, actor: Actor, *, after: int, limit: int, since_s: int | None = None) -> Page[Event]:
    with context.database.read() as tx:
        if since_s is not None:
            after = max(after, events.event_number_before(tx, context.now_us() - since_s * 1_000_000))
        projects = actor.viewable_projects()
        rows = events.event_list(tx, job_id=None, projects=projects, reader=actor.id, after=after, limit=limit)
    return _event_page(rows, limit, Visibility(context, actor))


def last_event(context: Context) -> int:
    """Return the number of the newest event."""
    with context.database.read() as tx:
        return events.counters_read(tx).get("events", 0)


def next_events(
    context: Context, actor: Actor, *, job_id: str | None, project: str | None, after: int, limit: int
) -> tuple[list[Event], int]:
    """Return events after a number and the number to continue from: of one job, one project, or all visible jobs."""
    with context.database.read() as tx:
        # Read the counter first: all events up to this number are visible now, so the next call may start here.
        newest = events.counters_read(tx).get("events", 0)
        if newest <= after:
            return [], after
        # Check every time: the job may have been deleted or hidden from the actor.
        owner_id = visible_job(tx, actor, job_id).owner_id if job_id is not None else None
        projects = [project] if project is not None else actor.viewable_projects()
        if project is not None and not actor.may_project(Role.VIEW, project):
            projects = []
        rows = events.event_list(
            tx,
            job_id=job_id,
            projects=None if job_id else projects,
            reader=None if project else actor.id,
            after=after,
            limit=limit,
        )
    items = _event_page(rows, limit, Visibility(context, actor), owner_id=owner_id).items
    return items, items[-1].seq if len(items) == limit else max(newest, items[-1].seq if items else after)


def job_view(row: JobDetails, visibility: Visibility) -> Job:
    """Return a job as the API shows it. A damaged row is shown with its readable columns and the read error."""
    try:
        return _view(row, visibility)
    except UNREADABLE_ERRORS as exc:
        log_unreadable("jobs", row.id, f"{type(exc).__name__}: {exc}")
        return _damaged_view(row, exc, visibility)


def _damaged_view(row: JobDetails, error: Exception, visibility: Visibility) -> Job:
    # An unreadable state of a job that has not ended is shown as PENDING, so that callers keep waiting for its end.
    fallback_state = State.PENDING if row.ended_us is None else State.FAILED
    reason = row.reason if str(row.reason).startswith("unreadable") else f"unreadable: {error}"
    return Job(
        id=row.id,
        name=str(row.name),
        owner=str(row.owner),
        project=str(row.project),
        domain=str(row.domain),
        state=next((state for state in State if state.value == row.state), fallback_state),
        cluster=visibility.cluster(row.cluster_id, row.cluster, is_own=visibility.is_own(row)),
        reason=visibility.text(str(reason), is_own=visibility.is_own(row))[:2000],
        cancel_requested=row.cancel_us is not None,
        created_us=row.created_us if isinstance(row.created_us, int) else 0,
        ended_us=row.ended_us if isinstance(row.ended_us, int) else None,
    )


def _view(row: JobDetails, visibility: Visibility) -> Job:
    require_readable(row)
    body, bounds, is_own = getattr(row, "spec", None), decode_bounds(row.bounds), visibility.is_own(row)
    spec, is_env_hidden = visibility.spec(row, body) if body is not None else (None, False)
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
        cluster=visibility.cluster(row.cluster_id, row.cluster, is_own=is_own),
        attempt=row.attempt if row.array is None else min(row.attempt, 1),  # tasks have attempts of their own
        fence=row.fence,
        reason=visibility.text(row.reason, is_own=is_own),
        cancel_requested=row.cancel_us is not None,
        exit_code=row.exit_code,
        signal=row.signal,
        failure=failure_of_row(row),
        native_id=row.native_id,
        usage=msgspec.json.decode(row.usage, type=Usage) if row.usage else None,
        created_us=row.created_us,
        assigned_us=row.assigned_us,
        leased_us=row.leased_us,
        started_us=row.started_us,
        ended_us=row.ended_us,
        is_held=has_blocker(row.blocked, Blocker.HOLD),
        wake_us=row.wake_us,
        expires_us=row.expires_us,
        late_us=row.late_us,
        tries=row.tries,
        retry_of=row.retry_of,
        array=row.array if row.array is None or row.array_max is None else f"{row.array}%{row.array_max}",
        tasks=array_tally(row),
        together=bounds.is_together,
        pool=bounds.pool,
        cluster_label=bounds.label,
        queue=Lane.read(row.lane).queue,
        tags=list(bounds.tags),
        spill=list(bounds.spill),
        tokens=needs_of_row(row),
        alternative=number_at(row, row.cluster_id),
    )


def array_tally(row: Any) -> TaskCounts | None:
    """Return the task counts of an array, or none for a job that is not an array."""
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
    rows: Sequence[events.EventDetails], limit: int, visibility: Visibility, *, owner_id: str | None = None
) -> Page[Event]:
    """Return a page of events. `owner_id` is the owner of the job if all events are of one job."""
    items = [
        Event(
            seq=row.seq,
            at_us=row.at_us,
            job=row.job_id,
            kind=row.kind,
            state=row.state,
            attempt=row.attempt,
            fence=row.fence,
            cluster=visibility.cluster(
                row.cluster_id, row.cluster, is_own=visibility.is_reader(row.owner_id or owner_id)
            ),
            reason=visibility.text(row.reason, is_own=visibility.is_reader(row.owner_id or owner_id)),
        )
        for row in rows
    ]
    return Page(items, str(items[-1].seq) if len(items) == limit else None)


SHOWN_MAX = 100
_ENDS = {
    EventKind.RETRYING.value: "failed",
    EventKind.REQUEUED.value: "lost",
    EventKind.UNASSIGNED.value: "moved",
}


def earlier_attempts(tx: Tx, row: JobRow, visibility: Visibility) -> list[JobAttempt]:
    """Return the attempts after which the job went on, oldest first. Tasks of an array have attempts of their own."""
    has_none = row.attempt == 0 or (row.attempt == 1 and row.state != State.PENDING.value)
    if row.array is not None or has_none:
        return []
    is_own = visibility.is_own(row)

    def view(attempt: AttemptOnCluster) -> JobAttempt:
        return JobAttempt(
            attempt=attempt.attempt,
            fence=attempt.fence,
            cluster=visibility.cluster(attempt.cluster_id, attempt.cluster, is_own=is_own),
            ended=_ENDS.get(attempt.ended, attempt.ended),
            failure=_kind_of(attempt.failure),
            reason=visibility.text(attempt.reason, is_own=is_own),
            asked=None if attempt.asked is None else msgspec.json.decode(attempt.asked, type=AskedResources),
            started_us=attempt.started_us,
            ended_us=attempt.ended_us,
        )

    return read_each("attempts", jobs.attempt_list(tx, row.id)[-SHOWN_MAX:], view, key="job_id")


def failure_of_row(row: JobRow) -> FailureKind | None:
    """Return the kind of failure of a FAILED job."""
    return _kind_of(row.failure)


def _kind_of(word: str | None) -> FailureKind | None:
    """Return the kind of a stored word. A word of a newer server is none."""
    return FailureKind(word) if word is not None and is_failure_kind(word) else None
