"""Queries about queues: who has how many cores, which places of limited queues are taken, and who waits for one.

Nothing is counted by hand: every number is read from the live jobs, so no crash can leave one wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from switchyard.store.database import Tx
from switchyard.store.schema import ARRAY_WITH_PLACES, ASSIGNED_NOT_READY, LIVE_RANGE, QUEUED, READY, jobs, ranges

Row = sa.Row[*tuple[Any, ...]]
LANES_MAX = 1000  # lanes of all limited queues looked at in one round; more wait for the next


def leased_cores_by_lane(tx: Tx) -> dict[str, float]:
    """By lane, the cores of all that is with an agent."""
    # As floats: a sum of absurd demands must not be more than an integer holds.
    cores = sa.cast(jobs.c.cores, sa.Float)
    plain = (
        sa.select(jobs.c.lane, sa.func.sum(cores))
        .where(sa.text(ASSIGNED_NOT_READY), jobs.c.agent_id.is_not(None))
        .group_by(jobs.c.lane)
    )
    live = sa.select(ranges.c.job_id).where(sa.text(f"ranges.{LIVE_RANGE}"))
    tasks = sa.select(jobs.c.lane, sa.func.sum(cores * jobs.c.tasks_live)).where(jobs.c.id.in_(live))
    found: dict[str, float] = {}
    for query in (plain, tasks.group_by(jobs.c.lane)):
        for lane, amount in tx.execute(query):
            found[lane] = found.get(lane, 0.0) + float(amount or 0)
    return found


# The lanes of an index, by jumping from one to the next: a DISTINCT would read every job.
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


def places_taken(tx: Tx, whose: Sequence[str]) -> dict[str, tuple[int, float]]:
    """By lane of these queues (`name`), or projects in one (`name/project`), the places that are taken, and the cores
    of those that wait in line for their lease.

    One statement, so that a job which goes from one of its parts to the other meanwhile is not missed: plain jobs in
    line, plain jobs beyond it, arrays that were given places, and what runs of arrays from before there was a limit.
    """
    if not whose:
        return {}
    among, values = _lane_condition("lane", whose)
    statement = sa.text(f"""
        WITH RECURSIVE {_BUSY_LANES}, {_READY_LANES}
        SELECT lane, (SELECT count(*) FROM jobs j WHERE j.lane = b.lane AND NOT j.is_ready AND j.ended_us IS NULL
                AND j.state <> 'PENDING' AND j.array IS NULL) AS places, 0.0 AS cores
            FROM busy b WHERE {among}
        UNION ALL
        SELECT lane, (SELECT count(*) FROM jobs j
                WHERE j.cluster_id = r.cluster_id AND j.lane = r.lane AND j.{READY} AND j.array IS NULL),
            (SELECT sum(CAST(j.cores AS FLOAT)) FROM jobs j
                WHERE j.cluster_id = r.cluster_id AND j.lane = r.lane AND j.{READY})
            FROM ready r WHERE {among}
        UNION ALL
        SELECT lane, CASE WHEN state = 'PENDING' OR tasks_live > places THEN tasks_live ELSE places END, 0.0
            FROM jobs WHERE {ARRAY_WITH_PLACES} AND {among}
        UNION ALL
        SELECT lane, tasks_live, 0.0
            FROM jobs WHERE id IN (SELECT job_id FROM ranges WHERE {LIVE_RANGE}) AND places IS NULL AND {among}
    """)
    found: dict[str, tuple[int, float]] = {}
    for row in tx.execute(statement, values):
        places, cores = found.get(row.lane, (0, 0.0))
        found[row.lane] = (places + int(row.places or 0), cores + float(row.cores or 0))
    return found


def _lane_condition(column: str, whose: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The words that pick the lanes of these queues (`name`), and of these projects in one (`name/project`)."""
    words, values = [], {}
    for number, each in enumerate(whose):
        # By their first letters, not by a range: a language may sort a slash in between any two of them.
        if "/" in each:
            words.append(f"{column} = :w{number} OR substr({column}, 1, {len(each) + 1}) = :w{number} || ' '")
            values[f"w{number}"] = each
        else:
            words.append(f"substr({column}, 1, {len(each) + 1}) = :w{number}")
            values[f"w{number}"] = f"{each}/"
    return f"({' OR '.join(words)})", values


def ready_lanes_of_queues(tx: Tx, whose: Sequence[str]) -> list[tuple[str, str]]:
    """The lanes of these queues, or projects in one, in which somebody waits for a lease: cluster and lane."""
    among, values = _lane_condition("lane", whose)
    found = tx.execute(
        sa.text(f"WITH RECURSIVE {_READY_LANES} SELECT cluster_id, lane FROM ready WHERE {among}"), values
    )
    return [(row.cluster_id, row.lane) for row in found]


def ready_tail(tx: Tx, cluster_id: str, lane: str, limit: int) -> list[Row]:
    """The plain jobs of a cluster's lane that wait for a lease and come last, the last one first."""
    mine = (jobs.c.cluster_id == cluster_id, jobs.c.lane == lane, sa.text(READY), jobs.c.array.is_(None))
    query = sa.select(jobs.c.id, jobs.c.priority).where(*mine)
    return list(tx.execute(query.order_by(jobs.c.priority, jobs.c.id.desc()).limit(limit)))


def arrays_without_places(tx: Tx, whose: Sequence[str], limit: int) -> list[Row]:
    """Arrays of these queues, or projects in one, that are assigned and not bounded: they came before the limit."""
    among, values = _lane_condition("lane", whose)
    in_line, _ = _lane_condition("r.lane", whose)
    statement = sa.text(f"""
        WITH RECURSIVE {_READY_LANES}
        SELECT j.id FROM ready r JOIN jobs j ON j.cluster_id = r.cluster_id AND j.lane = r.lane AND j.{READY}
        WHERE j.array IS NOT NULL AND j.places IS NULL AND {in_line}
        UNION ALL
        SELECT id FROM jobs WHERE id IN (SELECT job_id FROM ranges WHERE {LIVE_RANGE}) AND places IS NULL
            AND state <> 'PENDING' AND {among}
        LIMIT :most
    """)
    ids = set(tx.execute(statement, {**values, "most": limit}).scalars())
    return list(tx.execute(sa.select(*_QUEUED_COLUMNS).where(jobs.c.id.in_(sorted(ids))))) if ids else []


def queued_lanes(tx: Tx) -> list[str]:
    """The lanes in which somebody waits for a place."""
    statement = sa.text(f"""
        WITH RECURSIVE lane(lane, n) AS (
            SELECT min(lane), 1 FROM jobs WHERE {QUEUED}
            UNION ALL
            SELECT (SELECT min(j.lane) FROM jobs j WHERE j.lane > l.lane AND j.state = 'PENDING'
                AND j.blocked = 'queue'), l.n + 1 FROM lane l WHERE l.lane IS NOT NULL AND l.n < {LANES_MAX}
        )
        SELECT lane FROM lane WHERE lane IS NOT NULL
    """)
    return list(tx.execute(statement).scalars())


_QUEUED_COLUMNS = (
    jobs.c.id,
    jobs.c.lane,
    jobs.c.project,
    jobs.c.priority,
    jobs.c.cores,
    jobs.c.owner,
    jobs.c.owner_id,
    jobs.c.bounds,
    jobs.c.avoid,
    jobs.c.spec_hash,
    jobs.c.reason,
    jobs.c.created_us,
    jobs.c.waits_us,
    jobs.c.array,
    jobs.c.array_max,
    jobs.c.todo,
    jobs.c.tasks_live,
    jobs.c.places,
    jobs.c.domain,
    jobs.c.tokens,
    jobs.c.state,
)


def queued_heads(tx: Tx, lane: str, limit: int, *, without: Iterable[str] = ()) -> list[Row]:
    """The first of a lane that wait for a place, with what the router asks about them; none that need these tokens."""
    query = sa.select(*_QUEUED_COLUMNS).where(jobs.c.lane == lane, sa.text(QUEUED))
    if shut := [sa.not_(_needs_tokens_of(namespace)) for namespace in without]:
        query = query.where(sa.or_(jobs.c.tokens.is_(None), sa.and_(*shut)))
    return list(tx.execute(query.order_by(jobs.c.priority.desc(), jobs.c.id).limit(limit)))


def queued_needing_tokens(tx: Tx, lane: str, limit: int, *, namespaces: Iterable[str]) -> list[Row]:
    """The first of a lane that wait for a place and need tokens of these pools."""
    query = sa.select(*_QUEUED_COLUMNS).where(jobs.c.lane == lane, sa.text(QUEUED), jobs.c.tokens.is_not(None))
    query = query.where(sa.or_(*map(_needs_tokens_of, namespaces)))
    return list(tx.execute(query.order_by(jobs.c.priority.desc(), jobs.c.id).limit(limit)))


def queued_with_other_reason(tx: Tx, lane: str, limit: int, *, reason: str) -> list[Row]:
    """Some of a lane that wait for a place, need tokens, and were told something else than this."""
    query = sa.select(*_QUEUED_COLUMNS).where(jobs.c.lane == lane, sa.text(QUEUED), jobs.c.tokens.is_not(None))
    return list(tx.execute(query.where(jobs.c.reason != reason).limit(limit)))


def _needs_tokens_of(namespace: str) -> sa.ColumnElement[bool]:
    """Not by LIKE, which takes large and small letters for the same on one of the engines."""
    return sa.func.replace(jobs.c.tokens, f'"{namespace}":', "") != jobs.c.tokens


def arrays_with_places(tx: Tx, limit: int) -> list[Row]:
    """Arrays that hold places and have not ended."""
    query = sa.select(*_QUEUED_COLUMNS).where(sa.text(ARRAY_WITH_PLACES))
    return list(tx.execute(query.order_by(jobs.c.lane).limit(limit)))


_ORDER_COLUMNS = (jobs.c.id, jobs.c.lane, jobs.c.project, jobs.c.priority, jobs.c.cores, jobs.c.tasks_live)


def queued_ahead(tx: Tx, lane: str, limit: int) -> list[Row]:
    """The first of a lane that wait for a place, with what puts them in order."""
    query = sa.select(*_ORDER_COLUMNS).where(jobs.c.lane == lane, sa.text(QUEUED))
    return list(tx.execute(query.order_by(jobs.c.priority.desc(), jobs.c.id).limit(limit)))


def ready_lanes_of_cluster(tx: Tx, cluster_id: str) -> list[str]:
    """The lanes of a cluster in which somebody waits for a lease."""
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


def ready_ahead(tx: Tx, cluster_id: str, lane: str, limit: int) -> list[Row]:
    """The first of a cluster's lane that wait for a lease, with what puts them in order."""
    query = sa.select(*_ORDER_COLUMNS).where(jobs.c.cluster_id == cluster_id, jobs.c.lane == lane, sa.text(READY))
    return list(tx.execute(query.order_by(jobs.c.priority.desc(), jobs.c.id).limit(limit)))
