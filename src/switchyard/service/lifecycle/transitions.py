"""Apply a lifecycle transition to a stored job: read its row, compute the changed columns, record the event."""

from __future__ import annotations

from dataclasses import replace as replace_life
from typing import Protocol

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from switchyard.model.cluster.poll import Report
from switchyard.model.failures.failure_kind import FailureKind
from switchyard.model.job.blocker import Blocker, change_blocked
from switchyard.model.job.bounds import decode_bounds
from switchyard.model.job.event_kind import EventKind
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import (
    FINAL_STATES,
    LifecycleState,
    Transition,
    make_transition,
    unassign,
)
from switchyard.model.job.retry import Cause
from switchyard.model.rules.names import printable_line
from switchyard.model.rules.queue import counted_lane
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.service.lifecycle.array_job import ArrayJob
from switchyard.service.lifecycle.arrays import read_on_lost
from switchyard.service.lifecycle.chosen_sets import number_at
from switchyard.service.lifecycle.failure_notes import failure_of_step, note_failure
from switchyard.service.lifecycle.retry_grants import RetryGrant, asked_by_attempt, grant_update
from switchyard.store.clusters import clusters
from switchyard.store.jobs import jobs
from switchyard.store.jobs.job_rows import AttemptRow, JobRow
from switchyard.store.jobs.job_update import JobUpdate

RETURN_WAIT_S_MAX = 600  # between two tries on a cluster that keeps returning a job
HANDED_OVER_REASON = "handed over, end not reported"
_CANCELLED = "cancelled "
_CANCEL_ASKED = f"{HANDED_OVER_REASON}; cancel asked for "
_AT_CLUSTER = "; at its cluster: "  # between the reason of a cancel and what the cluster says meanwhile


def cancelling_reason(reason: str, cancel_reason: str) -> str:
    """Return the reason of a job after a cancel request. Without reports the job is not known to be cancelled."""
    if reason == HANDED_OVER_REASON and cancel_reason:
        return _CANCEL_ASKED + cancel_reason.removeprefix(_CANCELLED)
    return cancel_reason


def noted_reason(row: JobRow, reason: str, note: str) -> str:
    """Return the reason of a job whose cluster says something about it. `reason`: the job's reason until now.

    While the job is being cancelled, its reason keeps naming the user who requested that.
    """
    if row.cancel_us is None:
        return note
    if note == HANDED_OVER_REASON:
        return reason
    request = reason.partition(_AT_CLUSTER)[0]
    return f"{request}{_AT_CLUSTER}{note}" if note else request


def _cancelled_reason(reason: str) -> str:
    """Return the reason of a cancelled job: the reverse of `cancelling_reason` and of `noted_reason`."""
    reason = reason.partition(_AT_CLUSTER)[0]
    return _CANCELLED + reason.removeprefix(_CANCEL_ASKED) if reason.startswith(_CANCEL_ASKED) else reason


def cancel_update(batch: Batch, row: JobRow, step: Transition, reason: str) -> JobUpdate:
    """Return the update for the cancel of a job that is no array, record its event, and wake the job's agent."""
    is_over = step.life.state in FINAL_STATES
    update = JobUpdate(
        cancel_us=batch.now_us,
        reason=reason if is_over else cancelling_reason(row.reason, reason),
        blocked=None,
        wake_us=None,
        expires_us=None,
    )
    if is_over:
        update = step_update(batch, row, step).then(update)
    record_step(batch, row, step)
    if row.cluster_id:
        batch.clusters.add(row.cluster_id)
    return update


def adoption_update(batch: Batch, row: JobRow, agent_id: str, step: Transition) -> JobUpdate | None:
    """Return the update for a job that an agent reports to have. None: the job may not run on that agent's cluster."""
    cluster_id = clusters.agent_cluster_id(batch.tx, agent_id)
    if cluster_id is None or not decode_bounds(row.bounds).allows(cluster_id):
        return None
    if row.agent_id is not None:
        archive_attempt(batch, row, step)
    return JobUpdate(
        state=step.life.state,
        reason="",
        cluster_id=cluster_id,
        agent_id=agent_id,
        attempt=step.life.attempt,
        fence=step.life.fence,
        assigned_us=batch.now_us,
        leased_us=batch.now_us,
        started_us=None,
        native_id=None,
        is_ready=False,
        blocked=change_blocked(row.blocked, remove=Blocker.BACKOFF),
        wake_us=None,
        expires_us=None,
    )


def unassign_waiting(row: JobRow, reason: str) -> Transition | None:
    """Unassign a job that no agent leased. Leased tasks of an array run on; only its unleased tasks go back."""
    life = life_of(row)
    if row.array is not None and life.state is State.RUNNING:
        return make_transition(life, State.PENDING, EventKind.UNASSIGNED, reason, fence=life.next_fence)
    return unassign(life, reason)


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


def step_update(
    batch: Batch, row: JobRow, step: Transition, item: Report | None = None, *, grant: RetryGrant | None = None
) -> JobUpdate:
    """Return the update for a transition. `item`: the report that caused it. `grant`: the retry, if there is one."""
    at_us = batch.now_us - item.ago_us if item else batch.now_us
    # A time before the lease or the start comes from a wrong clock.
    at_us = max(at_us, row.started_us or row.leased_us or row.created_us)
    state = step.life.state
    native_id = UNSET if item is None or item.native_id is None else printable_line(item.native_id)
    update = JobUpdate(
        state=state, reason=_step_reason(row, step), fence=step.life.fence, is_ready=False, native_id=native_id
    )
    if state is State.RUNNING:
        return replace(update, started_us=at_us, usage=_stored_usage(item))
    if (failure := failure_of_step(step, item)) is not None:
        usage = item.usage if item is not None else None
        note_failure(batch, row, failure, fence=row.fence, cluster_id=row.cluster_id, usage=usage)
    if state in FINAL_STATES:
        batch.free(row)
        return replace(
            update,
            ended_us=at_us,
            exit_code=item.exit_code if item else None,
            signal=item.signal if item else None,
            usage=_stored_usage(item),
            failure=UNSET if failure is None else failure.value,
        )
    if state is State.PENDING:
        archive_attempt(batch, row, step, item, failure=failure, asked=asked_by_attempt(batch, row, grant))
        batch.free(row)
        batch.topics.add(Topic.PENDING)
        return update.then(_requeue_update(batch, row, step, item, grant))
    return update


def _step_reason(row: JobRow, step: Transition) -> str:
    """Return the job's new reason. If a cancel was requested, the reason keeps naming the user who requested it."""
    state = step.life.state
    if row.cancel_us is None or state not in {State.SUBMITTED, State.RUNNING, State.CANCELLED}:
        return step.reason
    is_over = state is State.CANCELLED
    return (_cancelled_reason(row.reason) if is_over else cancelling_reason(step.reason, row.reason)) or step.reason


def _stored_usage(item: Report | None) -> str | UnsetType:
    if item is None or item.usage is None:
        return UNSET
    return msgspec.json.encode(replace(item.usage, nodes=printable_line(item.usage.nodes))).decode()


def _requeue_update(
    batch: Batch, row: JobRow, step: Transition, item: Report | None, grant: RetryGrant | None
) -> JobUpdate:
    """Return the update of a requeued job: when to route it, and which cluster to avoid."""
    update = JobUpdate(
        cluster_id=None,
        agent_id=None,
        native_id=None,
        usage=None,
        assigned_us=None,
        leased_us=None,
        started_us=None if row.array is None else UNSET,  # an array began with its first task, which may have ended
        lane=counted_lane(row.lane),
        spread=None,
        alternatives=None,
    )
    if grant is not None:
        update = _with_backoff(update.then(grant_update(batch, row, grant)), row, grant.due_us)
    is_job_fault = step.event == EventKind.RETRYING and item is not None and item.cause is Cause.JOB
    is_job_fault = is_job_fault and not (grant is not None and grant.is_elsewhere)
    is_refused = step.event is EventKind.REFUSED
    if row.cluster_id and (row.agent_id or is_refused) and not is_job_fault:  # an array's row names no agent
        avoid = read_avoided_clusters(row.avoid)
        times = avoid[row.cluster_id].times + 1 if row.cluster_id in avoid else 1
        why = step.reason if is_refused else f"{step.event}: {step.reason}"
        avoid[row.cluster_id] = AvoidedCluster(times, why[:300], is_refused)
        update = replace(update, avoid=msgspec.json.encode(avoid).decode())
        if step.event in (EventKind.RETURNED, EventKind.PREEMPTED) and times > 1:
            # The same cluster returned the job again, so no other cluster took it: back off.
            wait_s = min(2 ** min(times, 20), RETURN_WAIT_S_MAX)
            update = _with_backoff(update, row, batch.now_us + wait_s * 1_000_000)
    return update


def leave_refusing_cluster(batch: Batch, array: ArrayJob) -> None:
    """Let the leader route an array whose only cluster refused it, as a plain job. Nothing of it began there.

    The change is written with the array (`BatchArrays.flush`).
    """
    life = replace_life(life_of(array.row), fence=array.fence)
    step = make_transition(life, State.PENDING, EventKind.REFUSED, array.refusal, fence=life.next_fence)
    record_step(batch, array.row, step)
    update = step_update(batch, array.row, step)
    array.state, array.fence = step.life.state, step.life.fence
    array.departure = replace(update, started_us=None, task_avoid=None)


def _with_backoff(update: JobUpdate, row: JobRow, due_us: int) -> JobUpdate:
    return replace(update, wake_us=due_us, blocked=change_blocked(row.blocked, add=Blocker.BACKOFF))


class AvoidedCluster(msgspec.Struct, frozen=True):
    """A cluster that is tried last for a job: how often it returned, lost or refused the job, and the last reason."""

    times: int
    why: str
    is_refused: bool = False  # it refused the job before its start: it is not tried at all


def read_avoided_clusters(text: str | None) -> dict[str, AvoidedCluster]:
    return msgspec.json.decode(text, type=dict[str, AvoidedCluster]) if text else {}


def archive_attempt(
    batch: Batch,
    row: JobRow,
    step: Transition,
    item: Report | None = None,
    *,
    failure: FailureKind | None = None,
    asked: str | None = None,
) -> None:
    """Store the ended attempt of a job that goes on. `item`: the report of its end."""
    usage = _stored_usage(item)
    jobs.attempt_archive(
        batch.tx,
        [
            AttemptRow(
                job_id=row.id,
                fence=row.fence,
                attempt=row.attempt,
                cluster_id=row.cluster_id,
                agent_id=row.agent_id,
                native_id=row.native_id,
                ended=step.event.value,
                reason=step.reason,
                assigned_us=row.assigned_us,
                leased_us=row.leased_us,
                started_us=row.started_us,
                ended_us=batch.now_us,
                usage=row.usage if usage is UNSET else usage,
                failure=None if failure is None else failure.value,
                asked=asked,
                alternative=number_at(row, row.cluster_id),
            )
        ],
    )


def record_step(batch: Batch, row: JobRow, step: Transition) -> None:
    batch.event(
        row.id,
        step.event,
        state=step.life.state.value,
        attempt=step.life.attempt,
        fence=step.life.fence,
        cluster_id=row.cluster_id,
        reason=step.reason,
    )


def life_of(row: JobRow) -> LifecycleState:
    state = State(row.state)
    return LifecycleState(
        state=state,
        attempt=row.attempt,
        fence=row.fence,
        is_leased=row.agent_id is not None and state not in FINAL_STATES,
        cancel_requested=row.cancel_us is not None,
        on_lost=read_on_lost(row),
        floor=row.fence_floor or 0,
    )


class AvoidingJob(Protocol):
    @property
    def avoid(self) -> str | None: ...


def avoided_clusters(row: AvoidingJob) -> tuple[tuple[str, str], ...]:
    """Return the clusters that are tried last for a job, with the reasons."""
    return _clusters_with_reasons(row, is_refused=False)


def refused_clusters(row: AvoidingJob) -> tuple[tuple[str, str], ...]:
    """Return the clusters that refused a job before its start, with the reasons."""
    return _clusters_with_reasons(row, is_refused=True)


def _clusters_with_reasons(row: AvoidingJob, *, is_refused: bool) -> tuple[tuple[str, str], ...]:
    avoided = read_avoided_clusters(row.avoid).items()
    return tuple(sorted((cluster_id, avoid.why) for cluster_id, avoid in avoided if avoid.is_refused is is_refused))
