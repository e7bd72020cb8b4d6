"""Reports: what agents saw of their attempts. Late, repeated and foreign ones change nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from switchyard.model.job import JobSpec, State
from switchyard.model.lifecycle import (
    FINAL_STATES,
    LifecycleState,
    ObservedState,
    ReportAnswer,
    Transition,
    adopt_attempt,
    apply_report,
)
from switchyard.model.names import printable_line
from switchyard.model.poll import OutputChunk, Report
from switchyard.model.queue import counted_lane
from switchyard.model.retry import Cause, retry_delay_s
from switchyard.model.unreadable import UNREADABLE_ERRORS
from switchyard.service.committer import Batch
from switchyard.service.run.arrays import BatchArrays, read_on_lost
from switchyard.service.run.log_store import LogStore, keep_output
from switchyard.service.submit.bounds import decode_bounds
from switchyard.service.unreadable_rows import log_unreadable
from switchyard.service.user_usage import UserUsage
from switchyard.store import clusters, jobs, ranges
from switchyard.store.database_logs import DatabaseLogs
from switchyard.store.job_columns import replaced_columns

_LOGS = DatabaseLogs()
_USAGE = UserUsage()  # of nobody: where no limits are
ATTEMPTS_MAX = 1000  # one that was preempted so often is left to its retries
RETURN_WAIT_S_MAX = 600  # between two tries at a cluster that keeps returning a job
HANDED_OVER_REASON = "handed over, end not reported"
_CANCELLED = "cancelled "
_ASKED = f"{HANDED_OVER_REASON}; cancel asked for "


@dataclass(frozen=True, slots=True)
class ReportWrite:
    """All that one poll reported."""

    agent_id: str
    reports: tuple[Report, ...]
    output: tuple[OutputChunk, ...] = ()

    def job_ids(self) -> Iterable[str]:
        yield from (item.job for item in self.reports)
        yield from (chunk.job for chunk in self.output)


@dataclass(frozen=True, slots=True)
class ReportAnswers:
    """One answer per report, in order."""

    answers: list[ReportAnswer]


class _ReportRound:
    """Jobs as they become while a batch of reports is applied."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.arrays = BatchArrays(batch)
        self.lives: dict[str, LifecycleState] = {}
        self.holders: dict[str, str] = {}  # jobs that turned out to be with an agent
        self.changes: dict[str, dict[str, Any]] = {}

    def life(self, job_id: str) -> LifecycleState:
        if job_id not in self.lives:
            self.lives[job_id] = life_of(self.batch.rows[job_id])
        return self.lives[job_id]

    def take(self, job_id: str, step: Transition, change: dict[str, Any]) -> None:
        row = self.batch.rows[job_id]
        self.lives[job_id] = step.life
        changes = self.changes.setdefault(job_id, {})
        started_us = changes.get("started_us") or row.started_us
        if change.get("ended_us") and started_us:
            change["ended_us"] = max(change["ended_us"], started_us)  # ages of two polls may cross by a moment
        changes.update(change)
        record_step(self.batch, row, step)


def apply_reports(
    batch: Batch, writes: list[ReportWrite], *, logs: LogStore = _LOGS, usage: UserUsage = _USAGE
) -> list[Any]:
    """Apply the reports of all polls that wait, in the order they came; keep the output that came along."""
    _take_reported_fences(batch, writes)
    current = _ReportRound(batch)
    current.arrays.load([row for row in batch.rows.values() if row.array is not None])
    results: list[Any] = []
    for write in writes:
        # First: an end that is told ends its log too.
        usage.note_bytes(batch, keep_output(batch.tx, logs, write.agent_id, write.output, usage))
        results.append(ReportAnswers([_apply(current, write.agent_id, item) for item in write.reports]))
    jobs.job_update_many(batch.tx, current.changes)
    current.arrays.flush()
    return results


def _take_reported_fences(batch: Batch, writes: list[ReportWrite]) -> None:
    """A row whose fence cannot be read has that which its agent reports under: the end of the attempt counts."""
    if not any("fence" in replaced_columns(row) for row in batch.rows.values()):
        return
    for write in writes:
        for item in write.reports:
            row = batch.rows.get(item.job)
            if row is None or "fence" not in replaced_columns(row):
                continue
            if row.array is None and row.agent_id == write.agent_id:
                row.fence = item.fence


def _apply(current: _ReportRound, agent_id: str, item: Report) -> ReportAnswer:
    row = current.batch.rows.get(item.job)
    if row is None:
        return ReportAnswer.STOP
    if row.array is not None:
        again_us = retry_due_us(current.batch, row, item)
        return current.arrays.report(agent_id, item, again_us, is_preempted=tolerates_preemption(row, item))
    if row.fence_floor is not None:
        _adopt(current, agent_id, row, item)
    if current.holders.get(row.id, row.agent_id) != agent_id:
        return ReportAnswer.STOP
    life = current.life(item.job)
    # Never refused for strange words: the agent would send the same again, for ever.
    is_preempted = tolerates_preemption(row, item)
    again_us = retry_due_us(current.batch, row, item)
    answer, step = apply_report(
        life,
        fence=item.fence,
        seen=item.seen,
        reason=printable_line(item.reason),
        again=is_preempted or again_us is not None,
        is_preempted=is_preempted,
    )
    if step is not None:
        current.take(item.job, step, step_columns(current.batch, row, step, item, again_us=again_us))
    elif _is_still_queued(life, item):
        current.changes.setdefault(item.job, {})["reason"] = printable_line(item.reason)
    return answer


def cancelling_reason(reason: str, said: str) -> str:
    """What is said of a job whose end was asked for. One that nobody reports on is not cancelled by that."""
    return _ASKED + said.removeprefix(_CANCELLED) if reason == HANDED_OVER_REASON and said else said


def _cancelled_reason(reason: str) -> str:
    return _CANCELLED + reason.removeprefix(_ASKED) if reason.startswith(_ASKED) else reason


def _is_still_queued(life: LifecycleState, item: Report) -> bool:
    """Whether it waits at its cluster as before, perhaps for another reason. One to be cancelled says who asked."""
    is_waiting = life.state is State.SUBMITTED and item.seen is ObservedState.SUBMITTED
    return is_waiting and life.is_leased and item.fence == life.fence and not life.cancel_requested


def _adopt(current: _ReportRound, agent_id: str, row: jobs.Row, item: Report) -> None:
    """A report of an attempt from before a restore may come sooner than the sync that names it."""
    step = adopt_attempt(current.life(row.id), item.fence)
    if step is not None and (change := adoption_columns(current.batch, row, agent_id, step)) is not None:
        current.holders[row.id] = agent_id
        current.take(row.id, step, change)


def adoption_columns(batch: Batch, row: jobs.Row, agent_id: str, step: Transition) -> dict[str, Any] | None:
    """The columns of a job that an agent turns out to have; none if it names other clusters than that agent's."""
    cluster_id = clusters.agent_cluster_id(batch.tx, agent_id)
    if cluster_id is None or not decode_bounds(row.bounds).allows(cluster_id):
        return None
    if row.agent_id is not None:
        archive_attempt(batch, row, step)
    return {
        "state": step.life.state.value,
        "reason": "",
        "cluster_id": cluster_id,
        "agent_id": agent_id,
        "attempt": step.life.attempt,
        "fence": step.life.fence,
        "assigned_us": batch.now_us,
        "leased_us": batch.now_us,
        "started_us": None,
        "native_id": None,
        "is_ready": False,
        "blocked": change_blocked(row.blocked, remove="backoff"),
        "wake_us": None,
        "expires_us": None,
    }


def tolerates_preemption(row: jobs.Row, item: Report) -> bool:
    """Whether the cluster took the job's place away, and the job bears that: it runs again, and no retry is counted."""
    if item.seen is not ObservedState.FAILED or item.cause is not Cause.PREEMPTED or row.attempt >= ATTEMPTS_MAX:
        return False
    try:
        return decode_bounds(row.bounds).is_interruptible
    except UNREADABLE_ERRORS as exc:
        log_unreadable("jobs", row.id, f"column bounds: {exc}")
        return False


def retry_due_us(batch: Batch, row: jobs.Row, item: Report) -> int | None:
    """When the job's retry policy grants another try after this report, if it does."""
    if (
        not row.retries
        or item.seen not in (ObservedState.FAILED, ObservedState.LOST)
        or tolerates_preemption(row, item)
    ):
        return None
    cause = Cause.LOST if item.seen is ObservedState.LOST else item.cause
    try:
        policy = msgspec.json.decode(jobs.spec_get_many(batch.tx, [row.spec_hash])[row.spec_hash], type=JobSpec).retry
    except UNREADABLE_ERRORS as exc:  # the end counts all the same
        log_unreadable("jobs", row.id, f"column spec: {exc}")
        return None
    tries = row.tries + 1
    if row.array is not None:
        tries = ranges.task_attempts_count(batch.tx, row.id, item.fence)
    wait_s = retry_delay_s(policy, tries=tries, cause=cause, exit_code=item.exit_code)
    return None if wait_s is None else batch.now_us + wait_s * 1_000_000


def step_columns(
    batch: Batch, row: jobs.Row, step: Transition, item: Report | None = None, *, again_us: int | None = None
) -> dict[str, Any]:
    """The columns a step changes."""
    at_us = batch.now_us - item.ago_us if item else batch.now_us
    # An age that reaches before the lease, or before the start, is a clock's mistake.
    at_us = max(at_us, row.started_us or row.leased_us or row.created_us)
    state = step.life.state
    change: dict[str, Any] = {
        "state": state.value,
        "reason": step.reason,
        "fence": step.life.fence,
        "is_ready": False,
    }
    if row.cancel_us is not None and state in {State.SUBMITTED, State.RUNNING, State.CANCELLED}:
        # Who asked for its end, whatever it does until then.
        is_over = state is State.CANCELLED
        said = _cancelled_reason(row.reason) if is_over else cancelling_reason(step.reason, row.reason)
        change["reason"] = said or step.reason
    if item is not None and item.native_id is not None:
        change["native_id"] = printable_line(item.native_id)
    if state is State.RUNNING:
        change["started_us"] = at_us
    elif state in FINAL_STATES:
        change["ended_us"] = at_us
        batch.free(row)
        change["exit_code"] = item.exit_code if item else None
        change["signal"] = item.signal if item else None
        if item is not None and item.usage is not None:
            kept = msgspec.structs.replace(item.usage, nodes=printable_line(item.usage.nodes))
            change["usage"] = msgspec.json.encode(kept).decode()
    elif state is State.PENDING:
        archive_attempt(batch, row, step)
        batch.free(row)
        change |= dict.fromkeys(("cluster_id", "agent_id", "native_id", "assigned_us", "leased_us", "started_us"))
        change |= _requeue_columns(batch, row, step, item, again_us) | {"lane": counted_lane(row.lane)}
        batch.versions.add("pending")
    return change


def _requeue_columns(
    batch: Batch, row: jobs.Row, step: Transition, item: Report | None, again_us: int | None
) -> dict[str, Any]:
    """A job that is routed anew: when, and which cluster comes last for it."""
    change: dict[str, Any] = {}
    if again_us is not None:
        change |= {"tries": row.tries + 1, "wake_us": again_us, "blocked": change_blocked(row.blocked, add="backoff")}
    is_its_own_fault = step.event == "retrying" and item is not None and item.cause is Cause.JOB
    if row.cluster_id and row.agent_id and not is_its_own_fault:
        avoid = read_avoided_clusters(row.avoid)
        times = avoid[row.cluster_id].times + 1 if row.cluster_id in avoid else 1
        avoid[row.cluster_id] = AvoidedCluster(times, f"{step.event}: {step.reason}"[:300])
        change["avoid"] = msgspec.json.encode(avoid).decode()
        if step.event in ("returned", "preempted") and times > 1:
            # It came straight back: nobody else would have it. Not at once again.
            wait_s = min(2 ** min(times, 20), RETURN_WAIT_S_MAX)
            change |= {
                "wake_us": batch.now_us + wait_s * 1_000_000,
                "blocked": change_blocked(row.blocked, add="backoff"),
            }
    return change


class AvoidedCluster(msgspec.Struct, frozen=True):
    """A cluster that comes last for a job: how often it gave the job back or lost it, and why."""

    times: int
    why: str


def read_avoided_clusters(text: str | None) -> dict[str, AvoidedCluster]:
    return msgspec.json.decode(text, type=dict[str, AvoidedCluster]) if text else {}


def change_blocked(words: str | None, *, add: str = "", remove: str = "") -> str | None:
    """The set of what keeps a PENDING job from being routed: hold, after, backoff."""
    found = {*filter(None, (words or "").split(",")), *([add] if add else [])} - {remove}
    return ",".join(sorted(found)) or None


def archive_attempt(batch: Batch, row: jobs.Row, step: Transition) -> None:
    """The attempt is over, the job goes on: keep what is known of the attempt."""
    jobs.attempt_archive(
        batch.tx,
        [
            {
                "job_id": row.id,
                "fence": row.fence,
                "attempt": row.attempt,
                "cluster_id": row.cluster_id,
                "agent_id": row.agent_id,
                "native_id": row.native_id,
                "ended": step.event,
                "reason": step.reason,
                "assigned_us": row.assigned_us,
                "leased_us": row.leased_us,
                "started_us": row.started_us,
                "ended_us": batch.now_us,
            }
        ],
    )


def record_step(batch: Batch, row: jobs.Row, step: Transition) -> None:
    batch.event(
        row.id,
        step.event,
        state=step.life.state.value,
        attempt=step.life.attempt,
        fence=step.life.fence,
        cluster_id=row.cluster_id,
        reason=step.reason,
    )


def life_of(row: jobs.Row) -> LifecycleState:
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
