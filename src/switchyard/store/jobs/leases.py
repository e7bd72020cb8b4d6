"""Queries about leases: which jobs are ready for which cluster, and which attempts an agent has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import sqlalchemy as sa

from switchyard.model.cluster.cluster import POLLING_BACKEND
from switchyard.store.engine import dialect
from switchyard.store.engine.database import Tx
from switchyard.store.engine.frequent_statement import FrequentStatement, driver_fetch_all
from switchyard.store.jobs import spread_arrays
from switchyard.store.jobs.fetch import StoredRow, columns_of, fetch_all
from switchyard.store.jobs.job_columns import column_check
from switchyard.store.jobs.job_rows import JobRow, OnLostName, StateName
from switchyard.store.tables.clusters_tables import agents
from switchyard.store.tables.schema import CANCELLING, LEASED, LIVE_RANGE, READY, SPREAD, jobs, ranges, specs

LANES_MAX = 1000  # lanes of one cluster that one lease reads; jobs in further lanes wait for the next lease


class LeaseCandidate(StoredRow, frozen=True):
    """A ready job and its spec: what a lease is built from."""

    id: str
    name: str
    owner: str
    owner_id: str | None
    project: str
    domain: str
    workflow: str | None
    launch_plan: str | None
    lane: str
    priority: int
    labels: str
    attempt: int
    fence: int
    fence_known: int | None
    crowd: str | None
    crowd_max: int | None
    places: int | None
    bounds: str
    started_us: int | None
    cluster_id: str
    cores: int
    gpus: int
    memory_bytes: int
    state: StateName
    on_lost: OnLostName
    cancel_us: int | None
    array: str | None
    array_max: int | None
    todo: str | None
    later: str | None
    tasks_live: int | None
    tasks_ok: int | None
    tasks_failed: int | None
    tasks_cancelled: int | None
    spread: str | None
    task_avoid: str | None
    alternatives: str | None
    agent_id: str | None
    is_ready: bool
    assigned_us: int | None
    spec: str


class LeasedJob(JobRow, frozen=True):
    """A job whose current attempt an agent has, and its spec."""

    spec: str


class CancellingAttempt(StoredRow, frozen=True):
    id: str
    fence: int
    agent_id: str


class SilentAttempt(StoredRow, frozen=True):
    """An attempt whose agent was removed (`deleted_us`) or has been silent since `since_us`."""

    id: str
    fence: int
    agent_id: str
    deleted_us: int | None
    agent_reason: str  # why the agent was removed, or paused before
    since_us: int


# Lanes with ready jobs, by jumping from one lane to the next in the index. DISTINCT would read every ready job (58 µs
# against 62 ms for a million jobs). Lanes with arrays that several clusters may lease have no cluster.
_READY_LANES = FrequentStatement(
    sa.text(f"""
    WITH RECURSIVE lane(cluster_id, lane, n) AS (
        SELECT c.id, (SELECT min(lane) FROM jobs WHERE cluster_id = c.id AND {READY}), 1
        FROM clusters c WHERE c.id IN :clusters AND c.deleted_us IS NULL AND NOT c.is_cordoned
        UNION ALL
        SELECT l.cluster_id,
               (SELECT min(j.lane) FROM jobs j WHERE j.cluster_id = l.cluster_id AND j.lane > l.lane AND {READY}),
               l.n + 1
        FROM lane l WHERE l.lane IS NOT NULL AND l.n < {LANES_MAX}
    ), spread_lane(lane, n) AS (
        SELECT min(lane), 1 FROM jobs WHERE {SPREAD}
        UNION ALL
        SELECT (SELECT min(j.lane) FROM jobs j WHERE j.lane > l.lane AND {SPREAD}), l.n + 1
        FROM spread_lane l WHERE l.lane IS NOT NULL AND l.n < {LANES_MAX}
    )
    SELECT cluster_id, lane FROM lane WHERE lane IS NOT NULL
    UNION ALL SELECT NULL, lane FROM spread_lane WHERE lane IS NOT NULL
""").bindparams(sa.bindparam("clusters", expanding=True))
)

_COLUMNS = ", ".join("s.body AS spec" if name == "spec" else f"j.{name}" for name in LeaseCandidate.__struct_fields__)
_CANDIDATE_CHECK = column_check(LeaseCandidate)

_LANE_CANDIDATES_SQLITE = f"""
    SELECT {_COLUMNS} FROM jobs j JOIN specs s ON s.hash = j.spec_hash
    WHERE j.cluster_id = ? AND j.lane = ? AND j.{READY}
    ORDER BY j.priority DESC, j.id LIMIT ?
"""

# Differs by necessity: SQLite has no LATERAL, and on PostgreSQL one statement per lane costs a round trip each.
_CANDIDATES_POSTGRESQL = sa.text(f"""
    SELECT {_COLUMNS}
    FROM unnest(CAST(:clusters AS text[]), CAST(:lanes AS text[]), CAST(:limits AS int[]))
        AS ask(cluster_id, lane, lane_limit)
    CROSS JOIN LATERAL (
        SELECT * FROM jobs WHERE cluster_id = ask.cluster_id AND lane = ask.lane AND {READY}
        ORDER BY priority DESC, id LIMIT ask.lane_limit FOR UPDATE SKIP LOCKED
    ) AS j
    JOIN specs s ON s.hash = j.spec_hash
""")

_SPREAD_SQLITE = spread_arrays.lane_candidates_sqlite(_COLUMNS)
_SPREAD_POSTGRESQL = spread_arrays.candidates_postgresql(_COLUMNS)


def lease_candidates(
    tx: Tx, limit_by_cluster: dict[str, int], *, passed_over: set[str] | None = None
) -> dict[str, list[LeaseCandidate]]:
    """Lock and return the first ready jobs of each lane of each cluster, up to the cluster's limit per lane.

    Arrays of other clusters that the cluster may lease, too, are among them. If another transaction has locked all of
    these, the cluster is added to `passed_over`: it has to ask again.
    """
    ready_lanes = _READY_LANES.rows(tx, {"clusters": sorted(limit_by_cluster)})
    lanes = [(cluster_id, lane) for cluster_id, lane in ready_lanes if cluster_id is not None]
    candidates = _own_candidates(tx, limit_by_cluster, lanes)
    shared_lanes = [lane for cluster_id, lane in ready_lanes if cluster_id is None]
    if shared_lanes:
        locked = _add_spread_arrays(tx, limit_by_cluster, shared_lanes, candidates)
        if passed_over is not None:
            passed_over |= locked
    return candidates


def _add_spread_arrays(
    tx: Tx, limit_by_cluster: dict[str, int], lanes: list[str], candidates: dict[str, list[LeaseCandidate]]
) -> set[str]:
    """Add the arrays of other clusters. Returns the clusters for which another transaction has locked all of them."""
    clusters = spread_arrays.open_clusters(tx, limit_by_cluster)
    asks = [(cluster_id, lane) for cluster_id in clusters for lane in lanes]
    with_arrays: set[str] = set()
    if dialect.is_postgresql(tx) and asks:
        values = {
            "clusters": [cluster_id for cluster_id, _ in asks],
            "lanes": [lane for _, lane in asks],
            "limits": [limit_by_cluster[cluster_id] for cluster_id, _ in asks],
        }
        for row in tx.execute(_SPREAD_POSTGRESQL, values):
            candidates[row.asking].append(LeaseCandidate(*row[:-1]))
            with_arrays.add(row.asking)
        without = [cluster_id for cluster_id in clusters if cluster_id not in with_arrays]
        return spread_arrays.clusters_passed_over(tx, without, lanes)
    for cluster_id, lane in asks:
        values_sqlite = (lane, cluster_id, cluster_id, limit_by_cluster[cluster_id])
        rows = tx.exec_driver_sql(_SPREAD_SQLITE, values_sqlite).all()
        candidates[cluster_id] += [LeaseCandidate(*row) for row in rows]
    return set()


def _own_candidates(
    tx: Tx, limit_by_cluster: dict[str, int], lanes: list[tuple[str, str]]
) -> dict[str, list[LeaseCandidate]]:
    candidates: dict[str, list[LeaseCandidate]] = {cluster: [] for cluster in limit_by_cluster}
    if not lanes:
        return candidates
    if dialect.is_postgresql(tx):
        values = {
            "clusters": [cluster_id for cluster_id, _ in lanes],
            "lanes": [lane for _, lane in lanes],
            "limits": [limit_by_cluster[cluster_id] for cluster_id, _ in lanes],
        }
        for row in fetch_all(tx, LeaseCandidate, _CANDIDATES_POSTGRESQL, values):
            candidates[row.cluster_id].append(row)
    else:
        for cluster_id, lane in lanes:
            values_sqlite = (cluster_id, lane, limit_by_cluster[cluster_id])
            candidates[cluster_id] += driver_fetch_all(tx, LeaseCandidate, _LANE_CANDIDATES_SQLITE, values_sqlite)
    return candidates


def require_readable_candidates(rows: Iterable[LeaseCandidate]) -> None:
    """Raise ValueError if one of these jobs cannot be read. The caller quarantines the job and leases again."""
    for row in rows:
        if not _CANDIDATE_CHECK.is_readable(row):
            raise ValueError(_CANDIDATE_CHECK.damage(row))


_GIVE = FrequentStatement(
    sa.update(jobs)
    .where(jobs.c.id == sa.bindparam("p_id"), sa.text(READY))
    .values(
        agent_id=sa.bindparam("p_agent_id"),
        leased_us=sa.bindparam("at_us"),
        is_ready=False,
        expires_us=None,
        late_from_us=None,
    )
)


def lease_give(tx: Tx, job_and_agent_ids: list[tuple[str, str]], *, at_us: int) -> None:
    """Give each job to its agent. `lease_candidates` has locked the jobs in this transaction."""
    rows = [{"p_id": job_id, "p_agent_id": agent_id, "at_us": at_us} for job_id, agent_id in sorted(job_and_agent_ids)]
    _GIVE.run(tx, rows)


def cluster_ids_with_ready(tx: Tx) -> list[str]:
    """Return the clusters that have ready jobs, to repeat wake-ups that were lost."""
    query = sa.select(sa.text("id")).select_from(sa.text("clusters")).where(sa.text("deleted_us IS NULL"))
    has_ready = sa.text(f"EXISTS (SELECT 1 FROM jobs WHERE jobs.cluster_id = clusters.id AND {READY})")
    return list(tx.execute(query.where(has_ready)).scalars())


def leased_by(tx: Tx, agent_id: str) -> list[LeasedJob]:
    """List the live attempts that an agent has."""
    query = (
        sa.select(jobs, specs.c.body.label("spec"))
        .join(specs, specs.c.hash == jobs.c.spec_hash)
        .where(jobs.c.agent_id == agent_id, sa.text(_prefixed(LEASED)))
        .order_by(jobs.c.id)
    )
    return fetch_all(tx, LeasedJob, query)


def leased_count(tx: Tx, agent_ids: list[str] | sa.Select[str]) -> int:
    """Count the live attempts of these agents. A range of an array counts once."""
    of_jobs = sa.select(sa.func.count()).select_from(jobs).where(jobs.c.agent_id.in_(agent_ids), sa.text(LEASED))
    of_arrays = (
        sa.select(sa.func.count()).select_from(ranges).where(ranges.c.agent_id.in_(agent_ids), sa.text(LIVE_RANGE))
    )
    return int(tx.execute(of_jobs).scalar_one() + tx.execute(of_arrays).scalar_one())


_CANCELS = sa.select(*columns_of(CancellingAttempt, jobs)).where(
    jobs.c.agent_id.in_(sa.bindparam("agents", expanding=True)), sa.text(CANCELLING)
)


def leased_cancels(tx: Tx, agent_ids: list[str]) -> dict[str, list[CancellingAttempt]]:
    """Return the attempts to cancel, by agent."""
    by_agent: dict[str, list[CancellingAttempt]] = {}
    for attempt in fetch_all(tx, CancellingAttempt, _CANCELS, {"agents": sorted(agent_ids)}):
        if isinstance(attempt.fence, int):  # without a readable fence the agent cannot tell which attempt is meant
            by_agent.setdefault(attempt.agent_id, []).append(attempt)
    return by_agent


def leased_by_silent(
    tx: Tx, *, now_us: int, amnesty_us: int, bears_s: int, silent_us: int, limit: int
) -> list[SilentAttempt]:
    """List leased attempts whose agent was removed, or silent for longer than the job's `lost_after` and `silent_us`.

    The filter is in SQL: with a limit over all leased jobs, live ones could fill the result. A silence never begins
    before the amnesty.
    """
    silence = agent_silence(jobs.c.leased_us, amnesty_us=amnesty_us, bears_s=bears_s, silent_us=silent_us)
    of_agent = {"deleted_us": agents.c.deleted_us, "agent_reason": agents.c.reason}
    columns = columns_of(SilentAttempt, jobs, since_us=silence.since_us, **of_agent)
    query = (
        sa.select(*columns)
        .join(agents, agents.c.id == jobs.c.agent_id)
        .where(sa.text(_prefixed(LEASED)), silence.is_lost(now_us))
        .limit(limit)
    )
    return fetch_all(tx, SilentAttempt, query)


@dataclass(frozen=True, slots=True)
class AgentSilence:
    """When the silence of an agent began and when its jobs are lost, as expressions over `jobs` and `agents`."""

    since_us: sa.ColumnElement[int]
    until_us: sa.ColumnElement[int]

    def is_lost(self, now_us: int) -> sa.ColumnElement[bool]:
        is_removed = agents.c.deleted_us.is_not(None)
        return sa.and_(
            sa.or_(agents.c.backend != POLLING_BACKEND, is_removed),  # a cluster that only polls is never silent
            sa.or_(is_removed, sa.and_(jobs.c.on_lost != "wait", self.until_us < _bigint(now_us))),
        )


def agent_silence(leased_us: sa.ColumnElement[int], *, amnesty_us: int, bears_s: int, silent_us: int) -> AgentSilence:
    """Return the silence of agents. `bears_s`: the longest silence for jobs without a `lost_after` of their own."""
    # An agent that stopped after its first lease was never recorded as seen: silent since the lease.
    seen_us = sa.func.coalesce(agents.c.seen_us, leased_us)
    since_us = sa.case((seen_us < amnesty_us, _bigint(amnesty_us)), else_=seen_us)
    bears_us = sa.cast(sa.func.coalesce(jobs.c.lost_after_s, bears_s), sa.BigInteger) * 1_000_000
    return AgentSilence(since_us, since_us + sa.case((bears_us < silent_us, _bigint(silent_us)), else_=bears_us))


def _bigint(number: int) -> sa.ColumnElement[int]:
    # PostgreSQL would take a bare number for an INTEGER, which is too small for a time.
    return sa.literal(number, sa.BigInteger)


def ready_job_ids(tx: Tx, cluster_ids: list[str], limit: int) -> list[str]:
    """Return jobs that are assigned to these clusters and ready."""
    query = sa.select(jobs.c.id).where(jobs.c.cluster_id.in_(cluster_ids), sa.text(READY)).limit(limit)
    return list(tx.execute(query).scalars())


def _prefixed(condition: str) -> str:
    return condition.replace("agent_id", "jobs.agent_id").replace("state", "jobs.state")
