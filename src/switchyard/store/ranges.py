"""Queries about the ranges of arrays."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from switchyard.model.task_states import read_task
from switchyard.store.database import Tx
from switchyard.store.leases import agent_silence
from switchyard.store.schema import LIVE_RANGE, agents, clusters, jobs, ranges, specs

Row = sa.Row[*tuple[Any, ...]]

_LIVE = sa.text("ranges." + LIVE_RANGE)


def range_insert(tx: Tx, rows: list[dict[str, Any]]) -> None:
    if rows:
        tx.execute(sa.insert(ranges), rows)


def range_live(tx: Tx, job_ids: list[str]) -> list[Row]:
    """The ranges of these jobs that have live tasks. The jobs are locked, and so nobody else changes these."""
    query = sa.select(ranges).where(ranges.c.job_id.in_(sorted(job_ids)), _LIVE)
    return list(tx.execute(query.order_by(ranges.c.job_id, ranges.c.fence)))


def range_list(tx: Tx, job_id: str, *, between: tuple[int, int] | None = None) -> list[Row]:
    """All ranges of a job, the oldest first: of an index in several, the last one holds.

    `between`: only those with tasks from the one index to the other.
    """
    query = (
        sa.select(ranges, clusters.c.name.label("cluster"))
        .select_from(ranges.outerjoin(clusters, clusters.c.id == ranges.c.cluster_id))
        .where(ranges.c.job_id == job_id)
    )
    if between is not None:
        query = query.where(ranges.c.lo <= between[1], ranges.c.hi >= between[0])
    return list(tx.execute(query.order_by(ranges.c.fence)))


def range_spans(tx: Tx, job_id: str, lo: int, hi: int, *, before_fence: int | None = None) -> list[tuple[int, int]]:
    """First and last index of each range that was handed over with tasks between these; only those before a fence."""
    query = sa.select(ranges.c.lo, ranges.c.hi).where(
        ranges.c.job_id == job_id, ranges.c.lo <= hi, ranges.c.hi >= lo, ranges.c.agent_id.is_not(None)
    )
    if before_fence is not None:
        query = query.where(ranges.c.fence < before_fence)
    return [(row.lo, row.hi) for row in tx.execute(query)]


def range_list_of_task(tx: Tx, job_id: str, index: int) -> list[Row]:
    """The ranges that one task was leased in, the oldest first."""
    query = sa.select(ranges).where(ranges.c.job_id == job_id, ranges.c.lo <= index, ranges.c.hi >= index)
    return list(tx.execute(query.order_by(ranges.c.fence)))


def range_leased_by(tx: Tx, agent_id: str) -> list[Row]:
    """The live ranges of an agent, with what is needed to lease their tasks again."""
    query = (
        sa.select(
            ranges,
            jobs.c.name,
            jobs.c.owner,
            jobs.c.owner_id,
            jobs.c.project,
            jobs.c.domain,
            jobs.c.workflow,
            jobs.c.launch_plan,
            jobs.c.lane,
            jobs.c.priority,
            jobs.c.labels,
            jobs.c.attempt,
            jobs.c.fence_known,
            jobs.c.cancel_us,
            specs.c.body.label("spec"),
        )
        .join(jobs, jobs.c.id == ranges.c.job_id)
        .join(specs, specs.c.hash == jobs.c.spec_hash)
        .where(ranges.c.agent_id == agent_id, _LIVE)
    )
    return list(tx.execute(query.order_by(ranges.c.job_id, ranges.c.fence)))


_CANCELS = (
    sa.select(ranges.c.job_id, ranges.c.fence, ranges.c.agent_id, ranges.c.tasks, jobs.c.cancel_us)
    .join(jobs, jobs.c.id == ranges.c.job_id)
    .where(
        ranges.c.agent_id.in_(sa.bindparam("agents", expanding=True)),
        _LIVE,
        sa.or_(ranges.c.is_cancelling, jobs.c.cancel_us.is_not(None)),
    )
)


def range_cancelling(tx: Tx, agent_ids: list[str]) -> list[Row]:
    """Live ranges with tasks whose end was asked for, of these agents."""
    return list(tx.execute(_CANCELS, {"agents": sorted(agent_ids)}))


def range_leased_by_silent(
    tx: Tx, *, now_us: int, amnesty_us: int, bears_s: int, silent_us: int, limit: int
) -> list[Row]:
    """Live ranges whose agent is gone, or was silent for longer than the job bears. See `leases.held_by_silent`."""
    silence = agent_silence(ranges.c.leased_us, amnesty_us=amnesty_us, bears_s=bears_s, silent_us=silent_us)
    query = (
        sa.select(ranges, agents.c.deleted_us, silence.since_us.label("since_us"))
        .join(jobs, jobs.c.id == ranges.c.job_id)
        .join(agents, agents.c.id == ranges.c.agent_id)
        .where(_LIVE, silence.is_lost(now_us))
        .limit(limit)
    )
    return list(tx.execute(query))


def range_change(tx: Tx, rows: list[dict[str, Any]]) -> None:
    """Write back ranges of locked jobs."""
    if not rows:
        return
    statement = (
        sa.update(ranges)
        .where(ranges.c.job_id == sa.bindparam("the_job"), ranges.c.fence == sa.bindparam("the_fence"))
        .values(
            tasks=sa.bindparam("the_tasks"),
            is_live=sa.bindparam("the_live"),
            is_cancelling=sa.bindparam("the_cancelling"),
            ended_us=sa.bindparam("the_end"),
        )
    )
    tx.execute(statement, sorted(rows, key=lambda row: (row["the_job"], row["the_fence"])))


def task_attempts_count(tx: Tx, job_id: str, fence: int) -> int:
    """How often the task that runs under a fence was handed over, this time included; preemptions do not count."""
    mine = (
        sa.select(ranges.c.lo + (fence - ranges.c.fence))
        .where(ranges.c.job_id == job_id, ranges.c.fence <= fence, ranges.c.fence + ranges.c.hi - ranges.c.lo >= fence)
        .scalar_subquery()
    )
    query = sa.select((mine - ranges.c.lo).label("position"), ranges.c.tasks).where(
        ranges.c.job_id == job_id, ranges.c.lo <= mine, ranges.c.hi >= mine, ranges.c.agent_id.is_not(None)
    )
    return sum(not read_task(row.tasks, row.position).is_preempted for row in tx.execute(query))
