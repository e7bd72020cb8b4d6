"""Reports: what agents saw of their attempts. Late, repeated and foreign ones change nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from switchyard.model.job import OnLost, State
from switchyard.model.lifecycle import FINAL, Answer, Life, Step, report
from switchyard.model.names import readable
from switchyard.model.poll import OutputChunk, Report
from switchyard.service.committer import Batch
from switchyard.store import jobs, output

OUTPUT_BYTES_MAX = 8 * 2**20  # per stream and attempt; an agent sends half of it by its own bound


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
class Settled:
    """One answer per report, in order."""

    answers: list[Answer]


class _Current:
    """Jobs as they become while a batch of reports is applied."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.lives: dict[str, Life] = {}
        self.changes: dict[str, dict[str, Any]] = {}

    def life(self, job_id: str) -> Life:
        if job_id not in self.lives:
            self.lives[job_id] = life_of(self.batch.rows[job_id])
        return self.lives[job_id]

    def take(self, job_id: str, step: Step, change: dict[str, Any]) -> None:
        row = self.batch.rows[job_id]
        self.lives[job_id] = step.life
        self.changes.setdefault(job_id, {}).update(change)
        record(self.batch, row, step)


def apply_reports(batch: Batch, writes: list[ReportWrite]) -> list[Any]:
    """Apply the reports of all polls that wait, in the order they came; keep the output that came along."""
    current = _Current(batch)
    results: list[Any] = []
    for write in writes:
        _keep_output(batch, write)
        results.append(Settled([_apply(current, write.agent_id, item) for item in write.reports]))
    jobs.job_change(batch.tx, current.changes)
    return results


def _apply(current: _Current, agent_id: str, item: Report) -> Answer:
    row = current.batch.rows.get(item.job)
    if row is None or row.agent_id != agent_id:
        return Answer.STOP
    life = current.life(item.job)
    # Never refused for strange words: the agent would send the same again, for ever.
    answer, step = report(life, fence=item.fence, seen=item.seen, reason=readable(item.reason))
    if step is not None:
        change = change_of(current.batch, row, step, item)
        if "ended_us" in change:  # nothing ends before it began, also where this very batch says when that was
            change["ended_us"] = max(change["ended_us"], current.changes.get(item.job, {}).get("started_us", 0))
        current.take(item.job, step, change)
    return answer


def change_of(batch: Batch, row: jobs.Row, step: Step, item: Report | None = None) -> dict[str, Any]:
    """The columns a step changes."""
    at_us = batch.now_us - item.ago_us if item else batch.now_us
    # An age that reaches before the lease, or before the start, is a clock's mistake.
    at_us = max(at_us, row.started_us or row.leased_us or row.created_us)
    state = step.life.state
    change: dict[str, Any] = {"state": state.value, "reason": step.reason, "fence": step.life.fence}
    if item is not None and item.native_id is not None:
        change["native_id"] = readable(item.native_id)
    if state is State.RUNNING:
        change["started_us"] = at_us
    elif state in FINAL:
        change["ended_us"] = at_us
        change["exit_code"] = item.exit_code if item else None
        change["signal"] = item.signal if item else None
    elif state is State.PENDING:
        archive(batch, row, step)
        change |= dict.fromkeys(("cluster_id", "agent_id", "native_id", "assigned_us", "leased_us", "started_us"))
        batch.versions.add("pending")
    return change


def archive(batch: Batch, row: jobs.Row, step: Step) -> None:
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


def record(batch: Batch, row: jobs.Row, step: Step) -> None:
    batch.event(
        row.id,
        step.event,
        state=step.life.state.value,
        attempt=step.life.attempt,
        fence=step.life.fence,
        cluster_id=row.cluster_id,
        reason=step.reason,
    )


def life_of(row: jobs.Row) -> Life:
    state = State(row.state)
    return Life(
        state=state,
        attempt=row.attempt,
        fence=row.fence,
        is_leased=row.agent_id is not None and state not in FINAL,
        cancel_requested=row.cancel_us is not None,
        on_lost=OnLost(row.on_lost),
    )


def _keep_output(batch: Batch, write: ReportWrite) -> None:
    """Only from the agent that holds the attempt, and only up to the bound."""
    mine = [
        chunk
        for chunk in write.output
        if (row := batch.rows.get(chunk.job)) is not None
        and row.agent_id == write.agent_id
        and row.fence == chunk.fence
    ]
    if not mine:
        return
    sizes = output.output_sizes(batch.tx, sorted({(chunk.job, chunk.fence, chunk.stream) for chunk in mine}))
    rows = []
    for chunk in mine:
        key = (chunk.job, chunk.fence, chunk.stream)
        sizes[key] = sizes.get(key, 0) + len(chunk.data)
        if chunk.data and sizes[key] <= OUTPUT_BYTES_MAX:
            rows.append(
                {
                    "job_id": chunk.job,
                    "fence": chunk.fence,
                    "stream": chunk.stream,
                    "offset": chunk.offset,
                    "data": chunk.data,
                }
            )
    output.output_put(batch.tx, rows)
