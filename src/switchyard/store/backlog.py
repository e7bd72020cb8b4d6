"""Queries about what waits in line at clusters and nobody has leased: a page at a time, however long the line is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from switchyard.store.database import Tx
from switchyard.store.schema import LEASED, LIVE_RANGE, READY, agents, attempts, jobs, ranges

Row = sa.Row[*tuple[Any, ...]]
MOVED = "moved"  # how an attempt ended


class BacklogCursor(NamedTuple):
    """In a line: behind whoever has this priority and this id."""

    priority: int
    id: str


def backlog_lanes(tx: Tx, cluster_id: str, *, limit: int) -> list[str]:
    """The lanes of a cluster in which something waits, by jumping from one to the next in the index."""
    found: list[str] = []
    while len(found) < limit:
        query = sa.select(sa.func.min(jobs.c.lane)).where(jobs.c.cluster_id == cluster_id, sa.text(READY))
        lane = tx.execute(query.where(jobs.c.lane > found[-1]) if found else query).scalar()
        if lane is None:
            break
        found.append(lane)
    return found


def backlog_page(tx: Tx, cluster_id: str, lane: str, *, after: BacklogCursor | None, limit: int) -> list[Row]:
    """Who waits in a lane, in the order in which leases are given, with what the router asks about them."""
    asked = (
        jobs.c.id,
        jobs.c.owner,
        jobs.c.owner_id,
        jobs.c.bounds,
        jobs.c.avoid,
        jobs.c.spec_hash,
        jobs.c.cluster_id,
        jobs.c.state,
        jobs.c.array.is_not(None).label("is_array"),
        jobs.c.attempt,
        jobs.c.fence,
        jobs.c.priority,
        jobs.c.cores,
        jobs.c.gpus,
        jobs.c.memory_bytes,
        jobs.c.created_us,
        jobs.c.waits_us,
        jobs.c.assigned_us,
        jobs.c.reason,
    )
    query = sa.select(*asked).where(jobs.c.cluster_id == cluster_id, jobs.c.lane == lane, sa.text(READY))
    if after is not None:
        is_behind = sa.or_(
            jobs.c.priority < after.priority, sa.and_(jobs.c.priority == after.priority, jobs.c.id > after.id)
        )
        query = query.where(jobs.c.priority <= after.priority, is_behind)
    return list(tx.execute(query.order_by(jobs.c.priority.desc(), jobs.c.id).limit(limit)))


_BACKLOG_SAMPLE = (
    sa.select(
        jobs.c.lane,
        jobs.c.cores,
        jobs.c.gpus,
        jobs.c.memory_bytes,
        jobs.c.assigned_us,
        jobs.c.array.is_not(None).label("is_array"),
    )
    .where(jobs.c.cluster_id == sa.bindparam("cluster"), sa.text(READY))
    .limit(sa.bindparam("most"))
    .subquery()
)
_DEMAND_COLUMNS = (
    _BACKLOG_SAMPLE.c.lane,
    _BACKLOG_SAMPLE.c.cores,
    _BACKLOG_SAMPLE.c.gpus,
    _BACKLOG_SAMPLE.c.memory_bytes,
    _BACKLOG_SAMPLE.c.is_array,
)
_DEMAND_COUNTS = (sa.func.count().label("jobs"), sa.func.min(_BACKLOG_SAMPLE.c.assigned_us).label("since_us"))
_DEMANDS = sa.select(*_DEMAND_COLUMNS, *_DEMAND_COUNTS).group_by(*_DEMAND_COLUMNS)


def backlog_demands(tx: Tx, cluster_id: str, *, limit: int) -> list[Row]:
    """What those ask for that wait at a cluster, by kind; at most so many jobs. `since_us`: who came first."""
    return list(tx.execute(_DEMANDS, {"cluster": cluster_id, "most": limit}))


def moves_count(tx: Tx, job_ids: Sequence[str]) -> dict[str, int]:
    """How often each of these jobs went to another cluster before anybody had leased it; an array, since anybody had
    leased any of its tasks. Fences tell: those of its ranges and of its own attempts are of one count."""
    if not job_ids:
        return {}
    last = sa.select(sa.func.max(ranges.c.fence)).where(ranges.c.job_id == jobs.c.id).correlate(jobs).scalar_subquery()
    moves = (
        sa.select(sa.func.count())
        .select_from(attempts)
        .where(attempts.c.job_id == jobs.c.id, attempts.c.ended == MOVED, attempts.c.fence >= sa.func.coalesce(last, 0))
        .correlate(jobs)
        .scalar_subquery()
    )
    return {row[0]: row[1] for row in tx.execute(sa.select(jobs.c.id, moves).where(jobs.c.id.in_(job_ids)))}


def cluster_leased_count(tx: Tx, cluster_id: str) -> int:
    """How many live attempts the agents of a cluster have: jobs, and ranges of arrays."""
    mine = sa.select(agents.c.id).where(agents.c.cluster_id == cluster_id)
    of_jobs = sa.select(sa.func.count()).select_from(jobs).where(jobs.c.agent_id.in_(mine), sa.text(LEASED))
    of_arrays = sa.select(sa.func.count()).select_from(ranges).where(ranges.c.agent_id.in_(mine), sa.text(LIVE_RANGE))
    return int(tx.execute(of_jobs).scalar_one() + tx.execute(of_arrays).scalar_one())


def backlog_count(tx: Tx, cluster_id: str, *, most: int) -> int:
    """How many wait in line at a cluster, counted up to so many."""
    some = sa.select(jobs.c.id).where(jobs.c.cluster_id == cluster_id, sa.text(READY)).limit(most).subquery()
    return int(tx.execute(sa.select(sa.func.count()).select_from(some)).scalar_one())
