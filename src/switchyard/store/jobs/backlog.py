"""Queries about the backlog of a cluster: jobs that are assigned to it and not leased. Read in pages, so the cost does
not grow with the backlog."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from switchyard.model.job.event_kind import EventKind
from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, columns_of, fetch_all
from switchyard.store.jobs.job_rows import StateName
from switchyard.store.jobs.leases import leased_count
from switchyard.store.tables.clusters_tables import agents
from switchyard.store.tables.schema import READY, attempts, jobs, ranges


class BacklogCursor(NamedTuple):
    """A position in a lane: the page starts after the job with this priority and id."""

    priority: int
    id: str


class BacklogJob(StoredRow, frozen=True):
    """What the router needs of a job in the backlog."""

    id: str
    owner: str
    owner_id: str | None
    bounds: str
    avoid: str | None
    spec_hash: str
    cluster_id: str
    state: StateName
    is_array: bool
    attempt: int
    fence: int
    priority: int
    cores: int
    gpus: int
    memory_bytes: int
    created_us: int
    waits_us: int | None
    assigned_us: int
    reason: str
    spread: str | None
    alternatives: str | None


class BacklogDemand(StoredRow, frozen=True):
    """How many jobs of a lane ask for the same resources. `since_us`: when the first of them was assigned."""

    lane: str
    cores: int
    gpus: int
    memory_bytes: int
    is_array: bool
    jobs: int
    since_us: int


def backlog_lanes(tx: Tx, cluster_id: str, *, limit: int) -> list[str]:
    """Return the lanes of a cluster that have ready jobs, by jumping from one lane to the next in the index."""
    lanes: list[str] = []
    while len(lanes) < limit:
        query = sa.select(sa.func.min(jobs.c.lane)).where(jobs.c.cluster_id == cluster_id, sa.text(READY))
        lane = tx.execute(query.where(jobs.c.lane > lanes[-1]) if lanes else query).scalar()
        if lane is None:
            break
        lanes.append(lane)
    return lanes


def backlog_page(tx: Tx, cluster_id: str, lane: str, *, after: BacklogCursor | None, limit: int) -> list[BacklogJob]:
    """List the ready jobs of a lane, in the order of leases."""
    columns = columns_of(BacklogJob, jobs, is_array=jobs.c.array.is_not(None))
    query = sa.select(*columns).where(jobs.c.cluster_id == cluster_id, jobs.c.lane == lane, sa.text(READY))
    if after is not None:
        is_behind = sa.or_(
            jobs.c.priority < after.priority, sa.and_(jobs.c.priority == after.priority, jobs.c.id > after.id)
        )
        query = query.where(jobs.c.priority <= after.priority, is_behind)
    return fetch_all(tx, BacklogJob, query.order_by(jobs.c.priority.desc(), jobs.c.id).limit(limit))


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
_DEMAND_COLUMNS = columns_of(
    BacklogDemand, _BACKLOG_SAMPLE, jobs=sa.func.count(), since_us=sa.func.min(_BACKLOG_SAMPLE.c.assigned_us)
)
_DEMANDS = sa.select(*_DEMAND_COLUMNS).group_by(*_DEMAND_COLUMNS[:-2])


def backlog_demands(tx: Tx, cluster_id: str, *, limit: int) -> list[BacklogDemand]:
    """Group up to `limit` jobs of a backlog by lane and requested resources."""
    return fetch_all(tx, BacklogDemand, _DEMANDS, {"cluster": cluster_id, "most": limit})


def moves_count(tx: Tx, job_ids: Sequence[str]) -> dict[str, int]:
    """Count how often each job was moved to another cluster since its last lease. Fences of attempts and of ranges come
    from one counter, so a move after the last leased range has a higher fence than the range."""
    if not job_ids:
        return {}
    last = sa.select(sa.func.max(ranges.c.fence)).where(ranges.c.job_id == jobs.c.id).correlate(jobs).scalar_subquery()
    moves = (
        sa.select(sa.func.count())
        .select_from(attempts)
        .where(
            attempts.c.job_id == jobs.c.id,
            attempts.c.ended == EventKind.MOVED.value,
            attempts.c.fence >= sa.func.coalesce(last, 0),
        )
        .correlate(jobs)
        .scalar_subquery()
    )
    return {row[0]: row[1] for row in tx.execute(sa.select(jobs.c.id, moves).where(jobs.c.id.in_(job_ids)))}


def cluster_leased_count(tx: Tx, cluster_id: str) -> int:
    """Count the live attempts of a cluster's agents. A range of an array counts once."""
    agent_ids = sa.select(agents.c.id).where(agents.c.cluster_id == cluster_id)
    return leased_count(tx, agent_ids)


def backlog_count(tx: Tx, cluster_id: str, *, most: int) -> int:
    """Count the backlog of a cluster, up to `most`."""
    first_ids = sa.select(jobs.c.id).where(jobs.c.cluster_id == cluster_id, sa.text(READY)).limit(most).subquery()
    return int(tx.execute(sa.select(sa.func.count()).select_from(first_ids)).scalar_one())
