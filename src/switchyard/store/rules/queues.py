"""Queries about queues: the cores in use, the places of limited queues that are taken, and the jobs that wait for one.

No number is stored: each is counted from the live jobs, so no crash can leave a wrong one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sqlalchemy as sa

from switchyard.model.job.blocker import Blocker
from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, columns_of, fetch_all
from switchyard.store.jobs.job_rows import StateName
from switchyard.store.tables.schema import (
    ARRAY_WITH_PLACES,
    ASSIGNED_NOT_READY,
    LIVE_RANGE,
    QUEUED,
    READY,
    jobs,
    ranges,
)

LANES_MAX = 1000  # lanes that one round reads; jobs in further lanes wait for the next round


class PlaceCandidate(StoredRow, frozen=True):
    """What the router needs of a job that waits for a place in its queue, or of an array that has places."""

    id: str
    lane: str
    project: str
    priority: int
    cores: int
    owner: str
    owner_id: str | None
    bounds: str
    avoid: str | None
    spec_hash: str
    reason: str
    created_us: int
    waits_us: int | None
    array: str | None
    array_max: int | None
    todo: str | None
    tasks_live: int | None
    places: int | None
    domain: str
    tokens: str | None
    state: StateName


class OrderedJob(StoredRow, frozen=True):
    """What decides the order of a job in its queue."""

    id: str
    lane: str
    project: str
    priority: int
    cores: int
    tasks_live: int | None


class ReadyTailJob(StoredRow, frozen=True):
    id: str
    priority: int


def leased_cores_by_lane(tx: Tx) -> dict[str, float]:
    """Return the cores of all leased jobs and tasks, by lane."""
    # As floats: the sum of absurd demands may exceed every integer type.
    cores = sa.cast(jobs.c.cores, sa.Float)
    plain = (
        sa.select(jobs.c.lane, sa.func.sum(cores))
        .where(sa.text(ASSIGNED_NOT_READY), jobs.c.agent_id.is_not(None))
        .group_by(jobs.c.lane)
    )
    live = sa.select(ranges.c.job_id).where(sa.text(f"ranges.{LIVE_RANGE}"))
    tasks = sa.select(jobs.c.lane, sa.func.sum(cores * jobs.c.tasks_live)).where(jobs.c.id.in_(live))
    cores_by_lane: dict[str, float] = {}
    for query in (plain, tasks.group_by(jobs.c.lane)):
        for lane, amount in tx.execute(query):
            cores_by_lane[lane] = cores_by_lane.get(lane, 0.0) + float(amount or 0)
    return cores_by_lane


# The lanes of an index, by jumping from one lane to the next: DISTINCT would read every job.
_BUSY_LANES = f"""
    busy(lane) AS (
        SELECT min(lane) FROM jobs WHERE {ASSIGNED_NOT_READY}
        UNION ALL
        SELECT (SELECT min(j.lane) FROM jobs j WHERE j.lane > b.lane AND NOT j.is_ready AND j.ended_us IS NULL
                AND j.state <> 'PENDING') FROM busy b WHERE b.lane IS NOT NULL
    )"""
_READY_LANES = f"""
    ready(cluster_id, lane) AS (
        SELECT c.id, (SELECT min(lane) FROM jobs WHERE cluster_id = c.id AND {READY}) FROM clusters c
        UNION ALL
        SELECT r.cluster_id, (SELECT min(j.lane) FROM jobs j
            WHERE j.cluster_id = r.cluster_id AND j.lane > r.lane AND j.{READY}) FROM ready r WHERE r.lane IS NOT NULL
    )"""


def places_taken(tx: Tx, queues_or_projects: Sequence[str]) -> dict[str, tuple[int, float]]:
    """Return the places taken and the cores of ready jobs, by lane, for queues (`name`) or projects of a queue
    (`name/project`).

    One statement, so that a job that changes from one part to another meanwhile is not missed. The parts: jobs that are
    assigned and not ready, ready jobs, arrays with places, and running tasks of arrays that are older than the limit.
    """
    if not queues_or_projects:
        return {}
    is_lane, values = _lane_condition("lane", queues_or_projects)
    statement = sa.text(f"""
        WITH RECURSIVE {_BUSY_LANES}, {_READY_LANES}
        SELECT lane, (SELECT count(*) FROM jobs j WHERE j.lane = b.lane AND NOT j.is_ready AND j.ended_us IS NULL
                AND j.state <> 'PENDING' AND j.array IS NULL) AS places, 0.0 AS cores
            FROM busy b WHERE {is_lane}
        UNION ALL
        SELECT lane, (SELECT count(*) FROM jobs j
                WHERE j.cluster_id = r.cluster_id AND j.lane = r.lane AND j.{READY} AND j.array IS NULL),
            (SELECT sum(CAST(j.cores AS FLOAT)) FROM jobs j
                WHERE j.cluster_id = r.cluster_id AND j.lane = r.lane AND j.{READY})
            FROM ready r WHERE {is_lane}
        UNION ALL
        SELECT lane, CASE WHEN state = 'PENDING' OR tasks_live > places THEN tasks_live ELSE places END, 0.0
            FROM jobs WHERE {ARRAY_WITH_PLACES} AND {is_lane}
        UNION ALL
        SELECT lane, tasks_live, 0.0
            FROM jobs WHERE id IN (SELECT job_id FROM ranges WHERE {LIVE_RANGE}) AND places IS NULL AND {is_lane}
    """)
    by_lane: dict[str, tuple[int, float]] = {}
    for row in tx.execute(statement, values):
        places, cores = by_lane.get(row.lane, (0, 0.0))
        by_lane[row.lane] = (places + int(row.places or 0), cores + float(row.cores or 0))
    return by_lane


def _lane_condition(column: str, queues_or_projects: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Return the SQL condition for the lanes of queues (`name`) or projects of a queue (`name/project`)."""
    conditions, values = [], {}
    for number, name in enumerate(queues_or_projects):
        # By prefix, not by a range of text: a collation may sort the slash anywhere.
        if "/" in name:
            conditions.append(f"{column} = :w{number} OR substr({column}, 1, {len(name) + 1}) = :w{number} || ' '")
            values[f"w{number}"] = name
        else:
            conditions.append(f"substr({column}, 1, {len(name) + 1}) = :w{number}")
            values[f"w{number}"] = f"{name}/"
    return f"({' OR '.join(conditions)})", values


def ready_lanes_of_queues(tx: Tx, queues_or_projects: Sequence[str]) -> list[tuple[str, str]]:
    """Return cluster and lane of each lane of these queues or projects that has ready jobs."""
    is_lane, values = _lane_condition("lane", queues_or_projects)
    statement = sa.text(f"WITH RECURSIVE {_READY_LANES} SELECT cluster_id, lane FROM ready WHERE {is_lane}")
    return [(row.cluster_id, row.lane) for row in tx.execute(statement, values)]


def ready_tail(tx: Tx, cluster_id: str, lane: str, limit: int) -> list[ReadyTailJob]:
    """List the last ready jobs of a lane, the very last one first. No arrays."""
    query = sa.select(*columns_of(ReadyTailJob, jobs)).where(
        jobs.c.cluster_id == cluster_id, jobs.c.lane == lane, sa.text(READY), jobs.c.array.is_(None)
    )
    return fetch_all(tx, ReadyTailJob, query.order_by(jobs.c.priority, jobs.c.id.desc()).limit(limit))


def arrays_without_places(tx: Tx, queues_or_projects: Sequence[str], limit: int) -> list[PlaceCandidate]:
    """List assigned arrays of these queues or projects that have no places: they are older than the queue's limit."""
    is_lane, values = _lane_condition("lane", queues_or_projects)
    is_ready_lane, _ = _lane_condition("r.lane", queues_or_projects)
    statement = sa.text(f"""
        WITH RECURSIVE {_READY_LANES}
        SELECT j.id FROM ready r JOIN jobs j ON j.cluster_id = r.cluster_id AND j.lane = r.lane AND j.{READY}
        WHERE j.array IS NOT NULL AND j.places IS NULL AND {is_ready_lane}
        UNION ALL
        SELECT id FROM jobs WHERE id IN (SELECT job_id FROM ranges WHERE {LIVE_RANGE}) AND places IS NULL
            AND state <> 'PENDING' AND {is_lane}
        LIMIT :most
    """)
    ids = set(tx.execute(statement, {**values, "most": limit}).scalars())
    return fetch_all(tx, PlaceCandidate, sa.select(*_CANDIDATE).where(jobs.c.id.in_(sorted(ids)))) if ids else []


def queued_lanes(tx: Tx) -> list[str]:
    """Return the lanes with jobs that wait for a place."""
    statement = sa.text(f"""
        WITH RECURSIVE lane(lane, n) AS (
            SELECT min(lane), 1 FROM jobs WHERE {QUEUED}
            UNION ALL
            SELECT (SELECT min(j.lane) FROM jobs j WHERE j.lane > l.lane AND j.state = 'PENDING'
                AND j.blocked = '{Blocker.QUEUE}'), l.n + 1 FROM lane l WHERE l.lane IS NOT NULL AND l.n < {LANES_MAX}
        )
        SELECT lane FROM lane WHERE lane IS NOT NULL
    """)
    return list(tx.execute(statement).scalars())


_CANDIDATE = columns_of(PlaceCandidate, jobs)


def queued_heads(tx: Tx, lane: str, limit: int, *, without: Iterable[str] = ()) -> list[PlaceCandidate]:
    """List the first jobs of a lane that wait for a place, except jobs that need tokens of the pools `without`."""
    query = sa.select(*_CANDIDATE).where(jobs.c.lane == lane, sa.text(QUEUED))
    if needs_no_token := [sa.not_(_needs_tokens_of(namespace)) for namespace in without]:
        query = query.where(sa.or_(jobs.c.tokens.is_(None), sa.and_(*needs_no_token)))
    return fetch_all(tx, PlaceCandidate, query.order_by(jobs.c.priority.desc(), jobs.c.id).limit(limit))


def queued_needing_tokens(tx: Tx, lane: str, limit: int, *, namespaces: Iterable[str]) -> list[PlaceCandidate]:
    """List the first jobs of a lane that wait for a place and need tokens of these pools."""
    query = sa.select(*_CANDIDATE).where(jobs.c.lane == lane, sa.text(QUEUED), jobs.c.tokens.is_not(None))
    query = query.where(sa.or_(*map(_needs_tokens_of, namespaces)))
    return fetch_all(tx, PlaceCandidate, query.order_by(jobs.c.priority.desc(), jobs.c.id).limit(limit))


def queued_with_other_reason(tx: Tx, lane: str, limit: int, *, reason: str) -> list[PlaceCandidate]:
    """List jobs of a lane that wait for a place and need tokens, and whose stored reason differs from `reason`."""
    query = sa.select(*_CANDIDATE).where(jobs.c.lane == lane, sa.text(QUEUED), jobs.c.tokens.is_not(None))
    return fetch_all(tx, PlaceCandidate, query.where(jobs.c.reason != reason).limit(limit))


def _needs_tokens_of(namespace: str) -> sa.ColumnElement[bool]:
    # Not LIKE, which ignores case on SQLite.
    return sa.func.replace(jobs.c.tokens, f'"{namespace}":', "") != jobs.c.tokens


def arrays_with_places(tx: Tx, limit: int) -> list[PlaceCandidate]:
    """List arrays that have places and have not ended."""
    query = sa.select(*_CANDIDATE).where(sa.text(ARRAY_WITH_PLACES))
    return fetch_all(tx, PlaceCandidate, query.order_by(jobs.c.lane).limit(limit))


_ORDERED = columns_of(OrderedJob, jobs)


def queued_ahead(tx: Tx, lane: str, limit: int, *, after: OrderedJob | None = None) -> list[OrderedJob]:
    """List the first jobs of a lane that wait for a place, or those behind `after`."""
    return _ordered_page(tx, sa.select(*_ORDERED).where(jobs.c.lane == lane, sa.text(QUEUED)), limit, after)


def _ordered_page(
    tx: Tx, query: sa.Select[tuple[object, ...]], limit: int, after: OrderedJob | None
) -> list[OrderedJob]:
    if after is not None:
        is_behind = sa.or_(
            jobs.c.priority < after.priority, sa.and_(jobs.c.priority == after.priority, jobs.c.id > after.id)
        )
        query = query.where(jobs.c.priority <= after.priority, is_behind)
    return fetch_all(tx, OrderedJob, query.order_by(jobs.c.priority.desc(), jobs.c.id).limit(limit))


def ready_lanes_of_cluster(tx: Tx, cluster_id: str) -> list[str]:
    """Return the lanes of a cluster that have ready jobs."""
    statement = sa.text(f"""
        WITH RECURSIVE lane(lane, n) AS (
            SELECT min(lane), 1 FROM jobs WHERE cluster_id = :cluster AND {READY}
            UNION ALL
            SELECT (SELECT min(j.lane) FROM jobs j WHERE j.cluster_id = :cluster AND j.lane > l.lane AND j.{READY}),
                l.n + 1 FROM lane l WHERE l.lane IS NOT NULL AND l.n < {LANES_MAX}
        )
        SELECT lane FROM lane WHERE lane IS NOT NULL
    """)
    return list(tx.execute(statement, {"cluster": cluster_id}).scalars())


def ready_ahead(tx: Tx, cluster_id: str, lane: str, limit: int, *, after: OrderedJob | None = None) -> list[OrderedJob]:
    """List the first ready jobs of a cluster's lane, or those behind `after`."""
    query = sa.select(*_ORDERED).where(jobs.c.cluster_id == cluster_id, jobs.c.lane == lane, sa.text(READY))
    return _ordered_page(tx, query, limit, after)
