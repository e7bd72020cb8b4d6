"""Queries that find executions that the engine has to look at. None of them reads more than what is live or new."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from switchyard.features.flyte.store.executions.execution_maps import MAP_HAS_NEWS
from switchyard.features.flyte.store.tables.executions_tables import (
    AWAITED_EXECUTION,
    DUE_EXECUTION,
    LIVE_ATTEMPT,
    LIVE_EXECUTION,
    LIVE_MAP,
    WAKING_NODE,
    cache_reservations,
    cache_waits,
    execution_attempts,
    execution_maps,
    execution_nodes,
    executions,
)
from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, columns_of, fetch_all
from switchyard.store.tables.schema import FINAL_STATES, events, jobs

IDS_PER_QUERY = 500
_IS_LIVE = sa.text(f"execution_attempts.{LIVE_ATTEMPT}")


class DueExecution(StoredRow, frozen=True):
    """An execution to look at, and whose turn that takes."""

    id: str
    project: str
    domain: str
    name: str
    owner_id: str
    steps: int
    created_us: int = 0
    unfinished_steps: int = 0


# Built once: a round of the leader runs all of them, and to build a statement costs more than to run it.
_ANY_LIVE = sa.select(executions.c.id).where(sa.text(f"executions.{LIVE_EXECUTION}")).limit(1)
_MARKED = (
    sa.select(*columns_of(DueExecution, executions))
    .where(sa.text(f"executions.{DUE_EXECUTION}"))
    .limit(sa.bindparam("most"))
)
_WOKEN = sa.select(execution_nodes.c.execution_id).where(
    sa.text(f"execution_nodes.{WAKING_NODE}"), execution_nodes.c.wake_us <= sa.bindparam("now_us")
)
_PARENTS = sa.select(executions.c.parent_id).where(
    sa.text(f"executions.{AWAITED_EXECUTION}"), executions.c.ended_us.is_not(None)
)
_FREED = sa.select(cache_waits.c.execution_id).where(
    sa.not_(sa.exists().where(cache_reservations.c.key == cache_waits.c.key))
)
# One statement: on PostgreSQL, the way there and back costs more than the three parts.
_NEWS = sa.union(_WOKEN, _PARENTS, _FREED)
_LIVE_MAPS = (
    sa.select(execution_maps.c.execution_id, sa.func.coalesce(MAP_HAS_NEWS, sa.false()).label("has_news"))
    .select_from(execution_maps.outerjoin(jobs, jobs.c.id == execution_maps.c.job_id))
    .where(sa.text(f"execution_maps.{LIVE_MAP}"))
)
_EVENTS = (
    sa.select(events.c.seq, events.c.job_id, events.c.state)
    .where(events.c.seq > sa.bindparam("seq"))
    .order_by(events.c.seq)
    .limit(sa.bindparam("most"))
)


def is_any_live(tx: Tx) -> bool:
    return tx.execute(_ANY_LIVE).first() is not None


def marked_due(tx: Tx, *, limit: int) -> list[DueExecution]:
    """Executions that were marked: new or stopped ones, and those with jobs that a step left for the next one."""
    return fetch_all(tx, DueExecution, _MARKED, {"most": limit})


def executions_with_news(tx: Tx, now_us: int) -> list[str]:
    """Executions with other news than ends of jobs and of elements of maps: nodes whose time has come, children that
    have ended, and keys of the cache that are free. Each part reads an index of what is live."""
    return list(tx.execute(_NEWS, {"now_us": now_us}).scalars())


def executions_with_maps(tx: Tx) -> dict[str, bool]:
    """Executions with maps that have not ended, and whether some of these have something to do."""
    found: dict[str, bool] = {}
    for row in tx.execute(_LIVE_MAPS):
        found[row.execution_id] = found.get(row.execution_id, False) or bool(row.has_news)
    return found


def executions_by_id(tx: Tx, ids: Sequence[str]) -> list[DueExecution]:
    rows: list[DueExecution] = []
    for first in range(0, len(ids), IDS_PER_QUERY):
        page = ids[first : first + IDS_PER_QUERY]
        query = sa.select(*columns_of(DueExecution, executions)).where(executions.c.id.in_(page))
        rows += fetch_all(tx, DueExecution, query)
    return rows


def jobs_ended_after(tx: Tx, seq: int, *, limit: int) -> tuple[list[str], int]:
    """The next `limit` events: the jobs among them that have ended, and the number of the last event."""
    rows = tx.execute(_EVENTS, {"seq": seq, "most": limit}).all()
    ended = dict.fromkeys(row.job_id for row in rows if row.state in FINAL_STATES)
    return list(ended), rows[-1].seq if rows else seq


def executions_of_jobs(tx: Tx, job_ids: Sequence[str]) -> list[str]:
    """The executions that wait for the end of these jobs."""
    ids: dict[str, None] = {}
    for first in range(0, len(job_ids), IDS_PER_QUERY):
        page = job_ids[first : first + IDS_PER_QUERY]
        query = sa.select(execution_attempts.c.execution_id).where(_IS_LIVE, execution_attempts.c.job_id.in_(page))
        ids |= dict.fromkeys(tx.execute(query.distinct()).scalars())
    return list(ids)


def executions_with_ended_jobs(tx: Tx) -> list[str]:
    """Executions with a job that has ended or is gone, of which no step has stored the end. Reads all live attempts."""
    query = (
        sa.select(execution_attempts.c.execution_id)
        .select_from(execution_attempts.outerjoin(jobs, jobs.c.id == execution_attempts.c.job_id))
        .where(_IS_LIVE, sa.or_(jobs.c.id.is_(None), jobs.c.state.in_(FINAL_STATES)))
        .distinct()
    )
    return list(tx.execute(query).scalars())
