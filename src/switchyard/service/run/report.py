"""Apply the reports of agents about attempts. Late or repeated reports, and those of other agents, change nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from dataclasses import replace as replace_step
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from switchyard.model.cluster.poll import BATCH_MAX, Leave, OutputChunk, Report
from switchyard.model.job.bounds import decode_bounds
from switchyard.model.job.event_kind import EventKind
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import (
    LifecycleState,
    ObservedState,
    ReportAnswer,
    Transition,
    adopt_attempt,
    apply_report,
    refuse_lease,
)
from switchyard.model.job.retry import Cause
from switchyard.model.job.unreadable import UNREADABLE_ERRORS
from switchyard.model.rules.names import printable_line
from switchyard.service.core.agents.fleet import AgentEntry
from switchyard.service.core.context import Context
from switchyard.service.core.log_store import LogStore, keep_output
from switchyard.service.core.unreadable_rows import log_unreadable
from switchyard.service.core.user_usage import UserUsage
from switchyard.service.core.writes.batch import Batch
from switchyard.service.lifecycle.arrays import BatchArrays, is_refused_before_start
from switchyard.service.lifecycle.retry_grants import Rules, grant_retry, tolerates_preemption
from switchyard.service.lifecycle.transitions import (
    adoption_update,
    leave_refusing_cluster,
    life_of,
    noted_reason,
    record_step,
    refused_clusters,
    step_update,
)
from switchyard.service.run.attempt_evidence import AttemptEvidence, AttemptOutcome
from switchyard.store.files.database_logs import DatabaseLogs
from switchyard.store.jobs import jobs
from switchyard.store.jobs.job_columns import replaced_columns
from switchyard.store.jobs.job_rows import JobRow
from switchyard.store.jobs.job_update import JobUpdate

_UNCHANGED = {(State.SUBMITTED, ObservedState.SUBMITTED), (State.RUNNING, ObservedState.RUNNING)}
REFUSALS_MAX = 100  # clusters that may refuse a job before the fault is looked for in the job
_LOGS = DatabaseLogs()
_USAGE = UserUsage()  # empty, for callers without limits


@dataclass(frozen=True, slots=True)
class ReportWrite:
    """The reports and the output of one poll."""

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
    """The current state of each job while the reports of a batch are applied."""

    def __init__(self, batch: Batch, rules: Rules | None) -> None:
        self.batch = batch
        self.rules = rules
        self.arrays = BatchArrays(batch)
        self.lives: dict[str, LifecycleState] = {}
        self.holders: dict[str, str] = {}  # agent by job, for attempts adopted in this round
        self.updates: dict[str, JobUpdate] = {}

    def life(self, job_id: str) -> LifecycleState:
        if job_id not in self.lives:
            self.lives[job_id] = life_of(self.batch.rows[job_id])
        return self.lives[job_id]

    def record(self, job_id: str, step: Transition, update: JobUpdate) -> None:
        row = self.batch.rows[job_id]
        self.lives[job_id] = step.life
        earlier = self.updates.get(job_id)
        started_us = row.started_us if earlier is None or not earlier.started_us else earlier.started_us
        if update.ended_us and started_us and update.ended_us < started_us:
            update = replace(update, ended_us=started_us)  # computed from ages, times may be slightly out of order
        self.updates[job_id] = update if earlier is None else earlier.then(update)
        record_step(self.batch, row, step)


def apply_reports(
    batch: Batch,
    writes: list[ReportWrite],
    *,
    logs: LogStore = _LOGS,
    usage: UserUsage = _USAGE,
    rules: Rules | None = None,
    evidence: AttemptEvidence | None = None,
) -> list[Any]:
    """Apply the reports of all polls in order of arrival, and store their output. `rules`: they bound what retries
    may ask for."""
    _take_reported_fences(batch, writes)
    round_ = _ReportRound(batch, rules)
    round_.arrays.load([row for row in batch.rows.values() if row.array is not None])
    results: list[Any] = []
    outcomes: list[AttemptOutcome] = []
    for write in writes:
        # Store the output before the reports: a report of an end also closes the log.
        usage.note_bytes(batch, keep_output(batch.tx, logs, write.agent_id, write.output, usage))
        answers = [_apply(round_, write.agent_id, item) for item in write.reports]
        results.append(ReportAnswers(answers))
        if evidence is not None:
            outcomes += evidence.outcomes(batch, round_.arrays, write.agent_id, write.reports, answers)
    jobs.job_update_many(batch.tx, round_.updates)
    for array in round_.arrays.refused_arrays():
        leave_refusing_cluster(batch, array)
    round_.arrays.flush()
    if evidence is not None and outcomes:
        evidence.apply(batch, outcomes)
    return results


def _take_reported_fences(batch: Batch, writes: list[ReportWrite]) -> None:
    """Replace unreadable fences by the fence in the agent's report, so that the end of the attempt counts."""
    if not any("fence" in replaced_columns(row) for row in batch.rows.values()):
        return
    for write in writes:
        for item in write.reports:
            row = batch.rows.get(item.job)
            if row is None or "fence" not in replaced_columns(row):
                continue
            if row.array is None and row.agent_id == write.agent_id:
                batch.rows[item.job] = replace(row, fence=item.fence)


def _apply(round_: _ReportRound, agent_id: str, item: Report) -> ReportAnswer:
    row = round_.batch.rows.get(item.job)
    if row is None:
        return ReportAnswer.STOP
    if row.array is not None:
        grant = grant_retry(round_.batch, row, item)
        return round_.arrays.report(
            agent_id,
            item,
            None if grant is None else grant.due_us,
            is_elsewhere=grant is not None and grant.is_elsewhere,
            is_preempted=tolerates_preemption(row, item),
            is_movable=item.cause is Cause.CLUSTER and _may_go_to_others(row),
        )
    if row.fence_floor is not None:
        _adopt(round_, agent_id, row, item)
    if round_.holders.get(row.id, row.agent_id) != agent_id:
        return ReportAnswer.STOP
    life = round_.life(item.job)
    if is_refused_before_start(item, life.state) and (step := _give_to_others(row, life, item)) is not None:
        round_.record(item.job, step, step_update(round_.batch, row, step, item))
        return ReportAnswer.TAKEN
    # The reason may be any text: a refused report would be sent again forever.
    is_preempted = tolerates_preemption(row, item)
    grant = grant_retry(round_.batch, row, item, round_.rules)
    reason = printable_line(item.reason)
    answer, step = apply_report(
        life,
        fence=item.fence,
        seen=item.seen,
        reason=reason if grant is None or life.cancel_requested else grant.reason(reason),
        again=is_preempted or grant is not None,
        is_preempted=is_preempted,
    )
    if step is not None:
        round_.record(item.job, step, step_update(round_.batch, row, step, item, grant=grant))
        if step.event is not EventKind.RUNNING and item.usage is not None and (words := item.usage.differences):
            record_step(round_.batch, row, replace_step(step, event=EventKind.DIFFERS, reason=printable_line(words)))
    elif _is_same_state(life, item):
        earlier = round_.updates.get(item.job, JobUpdate())
        reason = row.reason if earlier.reason is UNSET else earlier.reason
        round_.updates[item.job] = replace(earlier, reason=noted_reason(row, reason, printable_line(item.reason)))
    return answer


def _give_to_others(row: JobRow, life: LifecycleState, item: Report) -> Transition | None:
    """Let the leader route a refused job to other clusters. None: the report is the attempt's end, as of any failure.

    A job of one named cluster fails with the reason of its agent. The leader decides for all other jobs: it never
    rejects a job by a stale snapshot.
    """
    if item.fence != life.fence or not _may_go_to_others(row):
        return None
    return refuse_lease(life, printable_line(item.reason))


def _may_go_to_others(row: JobRow) -> bool:
    """Return whether other clusters may be tried after a refusal."""
    try:
        return not decode_bounds(row.bounds).is_one_cluster and len(refused_clusters(row)) < REFUSALS_MAX
    except UNREADABLE_ERRORS as exc:
        log_unreadable("jobs", row.id, f"column bounds or avoid: {exc}")
        return False


def _is_same_state(life: LifecycleState, item: Report) -> bool:
    """Return whether the job is still queued, or still runs, at its cluster. Its report may have a new reason."""
    is_same = (life.state, item.seen) in _UNCHANGED
    return is_same and life.is_leased and item.fence == life.fence


def _adopt(round_: _ReportRound, agent_id: str, row: JobRow, item: Report) -> None:
    """Adopt an attempt from before a database restore. Its report may arrive before the sync that names it."""
    step = adopt_attempt(round_.life(row.id), item.fence)
    if step is not None and (update := adoption_update(round_.batch, row, agent_id, step)) is not None:
        round_.holders[row.id] = agent_id
        round_.record(row.id, step, update)


def take_back_unbegun(context: Context, entry: AgentEntry, request: Leave) -> None:
    """Return these attempts to the queue, as the agent would report it. Attempts of others are not touched."""
    if not request.is_over or not request.unbegun:
        return
    reason = f"its cluster ended before it began: {request.reason}"
    for first in range(0, len(request.unbegun), BATCH_MAX):
        part = request.unbegun[first : first + BATCH_MAX]
        reports = tuple(
            Report(each.job, each.fence, ObservedState.RETURNED, reason=reason, cause=Cause.CLUSTER) for each in part
        )
        context.committer.do(ReportWrite(entry.id, reports))
