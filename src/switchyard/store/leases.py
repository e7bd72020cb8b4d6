"""Queries about leases: what is ready for whom, who holds what. Leasing is the one place that branches by dialect."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from switchyard.model.cluster import POLLING_BACKEND
from switchyard.store import dialect
from switchyard.store.database import Tx
from switchyard.store.job_columns import ColumnCheck
from switchyard.store.schema import CANCELLING, LEASED, LIVE_RANGE, READY, agents, jobs, ranges, specs

Row = sa.Row[*tuple[Any, ...]]

LANES_MAX = 1000  # lanes of one cluster looked at in one lease; more wait for the next

# The lanes of each cluster that have something ready, by jumping from one to the next in the index: a DISTINCT would
# read every ready job (58 µs against 62 ms at a million).
_READY_LANES = sa.text(f"""
    WITH RECURSIVE lane(cluster_id, lane, n) AS (
        SELECT c.id, (SELECT min(lane) FROM jobs WHERE cluster_id = c.id AND {READY}), 1
        FROM clusters c WHERE c.id IN :clusters AND c.deleted_us IS NULL AND NOT c.is_cordoned
        UNION ALL
        SELECT l.cluster_id,
               (SELECT min(j.lane) FROM jobs j WHERE j.cluster_id = l.cluster_id AND j.lane > l.lane AND {READY}),
               l.n + 1
        FROM lane l WHERE l.lane IS NOT NULL AND l.n < {LANES_MAX}
    )
    SELECT cluster_id, lane FROM lane WHERE lane IS NOT NULL
""").bindparams(sa.bindparam("clusters", expanding=True))

_COLUMNS = (
    "j.id, j.name, j.owner, j.owner_id, j.project, j.domain, j.workflow, j.launch_plan, j.lane, j.priority, j.labels, \
j.attempt, j.fence, j.fence_known, j.crowd, j.crowd_max, j.places, j.bounds, j.started_us, \
j.cluster_id, j.cores, j.gpus, j.memory_bytes, j.state, j.on_lost, j.cancel_us, j.array, j.array_max, j.todo, j.later, \
j.tasks_live, j.tasks_ok, j.tasks_failed, j.tasks_cancelled, j.agent_id, j.is_ready, s.body AS spec"
)

_CANDIDATE_CHECK = ColumnCheck(word.removeprefix("j.") for word in _COLUMNS.replace("s.body AS ", "").split(", "))

_LANE_CANDIDATES_SQLITE = f"""
    SELECT {_COLUMNS} FROM jobs j JOIN specs s ON s.hash = j.spec_hash
    WHERE j.cluster_id = ? AND j.lane = ? AND j.{READY}
    ORDER BY j.priority DESC, j.id LIMIT ?
"""

# Differs by necessity: SQLite has no LATERAL, and a statement per lane costs PostgreSQL a round trip each.
_CANDIDATES_POSTGRESQL = sa.text(f"""
    SELECT {_COLUMNS}
    FROM unnest(CAST(:clusters AS text[]), CAST(:lanes AS text[]), CAST(:wants AS int[])) AS ask(cluster_id, lane, want)
    CROSS JOIN LATERAL (
        SELECT * FROM jobs WHERE cluster_id = ask.cluster_id AND lane = ask.lane AND {READY}
        ORDER BY priority DESC, id LIMIT ask.want FOR UPDATE SKIP LOCKED
    ) AS j
    JOIN specs s ON s.hash = j.spec_hash
""")


def lease_candidates(tx: Tx, wants: dict[str, int]) -> dict[str, list[Row]]:
    """For each cluster the first ready jobs of each of its lanes, locked; at most `want` per lane."""
    lanes = list(tx.execute(_READY_LANES, {"clusters": sorted(wants)}))
    found: dict[str, list[Row]] = {cluster: [] for cluster in wants}
    if not lanes:
        return found
    if dialect.is_postgresql(tx):
        asked = {
            "clusters": [row.cluster_id for row in lanes],
            "lanes": [row.lane for row in lanes],
            "wants": [wants[row.cluster_id] for row in lanes],
        }
        for row in tx.execute(_CANDIDATES_POSTGRESQL, asked):
            found[row.cluster_id].append(row)
    else:
        for lane in lanes:
            head = tx.exec_driver_sql(_LANE_CANDIDATES_SQLITE, (lane.cluster_id, lane.lane, wants[lane.cluster_id]))
            found[lane.cluster_id].extend(head)
    return found


def require_readable_candidates(rows: Iterable[Row]) -> None:
    """Raise ValueError if one of these jobs cannot be read: the caller has it set aside, and asks again."""
    for row in rows:
        if not _CANDIDATE_CHECK.is_readable(row):
            raise ValueError(_CANDIDATE_CHECK.damage(row))


_GIVE = (
    sa.update(jobs)
    .where(jobs.c.id == sa.bindparam("the_id"), sa.text(READY))
    .values(
        agent_id=sa.bindparam("the_agent"),
        leased_us=sa.bindparam("at_us"),
        is_ready=False,
        expires_us=None,
        late_from_us=None,
    )
)


def lease_give(tx: Tx, given: list[tuple[str, str]], *, at_us: int) -> None:
    """Give each job to an agent. The jobs are locked by `lease_heads` in this transaction."""
    rows = [{"the_id": job, "the_agent": agent, "at_us": at_us} for job, agent in sorted(given)]
    if rows:
        tx.execute(_GIVE, rows)


def cluster_ids_with_ready(tx: Tx) -> list[str]:
    """Clusters with something to lease: the sweep that catches a wake-up that got lost."""
    everyone = sa.select(sa.text("id")).select_from(sa.text("clusters")).where(sa.text("deleted_us IS NULL"))
    ready = sa.text(f"EXISTS (SELECT 1 FROM jobs WHERE jobs.cluster_id = clusters.id AND {READY})")
    return list(tx.execute(everyone.where(ready)).scalars())


def leased_by(tx: Tx, agent_id: str) -> list[Row]:
    """Every live attempt an agent has leased, with its spec."""
    query = (
        sa.select(jobs, specs.c.body.label("spec"))
        .join(specs, specs.c.hash == jobs.c.spec_hash)
        .where(jobs.c.agent_id == agent_id, sa.text(_prefixed(LEASED)))
        .order_by(jobs.c.id)
    )
    return list(tx.execute(query))


def leased_count(tx: Tx, agent_ids: list[str]) -> int:
    """How many live attempts these agents have, each task of an array's range counted as its range."""
    of_jobs = sa.select(sa.func.count()).select_from(jobs).where(jobs.c.agent_id.in_(agent_ids), sa.text(LEASED))
    of_arrays = (
        sa.select(sa.func.count()).select_from(ranges).where(ranges.c.agent_id.in_(agent_ids), sa.text(LIVE_RANGE))
    )
    return int(tx.execute(of_jobs).scalar_one() + tx.execute(of_arrays).scalar_one())


_CANCELS = sa.select(jobs.c.id, jobs.c.fence, jobs.c.agent_id).where(
    jobs.c.agent_id.in_(sa.bindparam("agents", expanding=True)), sa.text(CANCELLING)
)


def leased_cancels(tx: Tx, agent_ids: list[str]) -> dict[str, list[Row]]:
    """Attempts whose end was asked for, by the agent that has them."""
    found: dict[str, list[Row]] = {}
    for row in tx.execute(_CANCELS, {"agents": sorted(agent_ids)}):
        if isinstance(row.fence, int):  # else the agent could not be told which attempt is meant
            found.setdefault(row.agent_id, []).append(row)
    return found


def leased_by_silent(tx: Tx, *, now_us: int, amnesty_us: int, bears_s: int, silent_us: int, limit: int) -> list[Row]:
    """Live attempts whose agent is gone, or was silent for longer than the job bears and than anybody may be.

    Judged here, row by row: a limit on all that is held would fill with the living, and the silent would never come up.
    `since_us`: when the silence began. No silence reaches back before the amnesty.
    """
    silence = agent_silence(jobs.c.leased_us, amnesty_us=amnesty_us, bears_s=bears_s, silent_us=silent_us)
    query = (
        sa.select(jobs.c.id, jobs.c.fence, jobs.c.agent_id, agents.c.deleted_us, silence.since_us.label("since_us"))
        .join(agents, agents.c.id == jobs.c.agent_id)
        .where(sa.text(_prefixed(LEASED)), silence.is_lost(now_us))
        .limit(limit)
    )
    return list(tx.execute(query))


@dataclass(frozen=True, slots=True)
class AgentSilence:
    """When the silence of an agent began, and until when the job bears it, as expressions over jobs and agents."""

    since_us: sa.ColumnElement[int]
    until_us: sa.ColumnElement[int]

    def is_lost(self, now_us: int) -> sa.ColumnElement[bool]:
        is_removed = agents.c.deleted_us.is_not(None)
        return sa.and_(
            sa.or_(agents.c.backend != POLLING_BACKEND, is_removed),  # who only polls is never silent
            sa.or_(is_removed, sa.and_(jobs.c.on_lost != "wait", self.until_us < _bigint(now_us))),
        )


def agent_silence(leased_us: sa.ColumnElement[int], *, amnesty_us: int, bears_s: int, silent_us: int) -> AgentSilence:
    # An agent that leased and went before it was ever written down as seen: silent since the lease.
    seen_us = sa.func.coalesce(agents.c.seen_us, leased_us)
    since_us = sa.case((seen_us < amnesty_us, _bigint(amnesty_us)), else_=seen_us)
    bears_us = sa.cast(sa.func.coalesce(jobs.c.lost_after_s, bears_s), sa.BigInteger) * 1_000_000
    return AgentSilence(since_us, since_us + sa.case((bears_us < silent_us, _bigint(silent_us)), else_=bears_us))


def _bigint(number: int) -> sa.ColumnElement[int]:
    # A bare number would be PostgreSQL's INTEGER, too small for a time.
    return sa.literal(number, sa.BigInteger)


def ready_job_ids(tx: Tx, cluster_ids: list[str], limit: int) -> list[str]:
    """Jobs assigned to these clusters that nobody has leased."""
    query = sa.select(jobs.c.id).where(jobs.c.cluster_id.in_(cluster_ids), sa.text(READY)).limit(limit)
    return list(tx.execute(query).scalars())


def _prefixed(condition: str) -> str:
    return condition.replace("agent_id", "jobs.agent_id").replace("state", "jobs.state")
