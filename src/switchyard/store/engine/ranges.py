"""Queries about ranges: consecutive tasks of an array that were leased together."""

from __future__ import annotations

import sqlalchemy as sa
from msgspec.structs import asdict

from switchyard.model.job.task_states import count_leased, read_task
from switchyard.store.engine.database import Tx
from switchyard.store.engine.new_rows import RangeUpdate
from switchyard.store.jobs.fetch import StoredRow, columns_of, fetch_all
from switchyard.store.jobs.leases import agent_silence
from switchyard.store.tables.clusters_tables import agents, clusters
from switchyard.store.tables.schema import LIVE_RANGE, jobs, ranges, specs

_LIVE = sa.text("ranges." + LIVE_RANGE)
COUNTED_RANGES_MAX = 5000  # ranges of one array whose tasks are counted one by one: some milliseconds


class RangeRow(StoredRow, frozen=True):
    """A range, as it is inserted and read. `tasks`: two bytes per task (model/job/task_states.py)."""

    job_id: str
    fence: int
    lo: int
    hi: int
    cluster_id: str | None
    agent_id: str | None
    tasks: bytes
    is_live: bool
    is_cancelling: bool
    leased_us: int
    ended_us: int | None
    alternative: int | None


class RangeOnCluster(RangeRow, frozen=True):
    """A range and the name of its cluster."""

    cluster: str | None


class LiveRange(RangeRow, frozen=True):
    """A range with tasks that have not ended."""

    agent_id: str


class HeldRange(LiveRange, frozen=True):
    """A live range, with all that a new lease of its tasks needs."""

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
    fence_known: int | None
    cancel_us: int | None
    spec: str


class CancellingRange(StoredRow, frozen=True):
    """A range with tasks to cancel. `cancel_us`: when the cancel of the whole job was requested."""

    job_id: str
    fence: int
    agent_id: str
    tasks: bytes
    cancel_us: int | None


class SilentRange(LiveRange, frozen=True):
    """A range whose agent was removed (`deleted_us`) or has been silent since `since_us`."""

    deleted_us: int | None
    agent_reason: str  # as of `leases.SilentAttempt`
    since_us: int


def range_insert(tx: Tx, rows: list[RangeRow]) -> None:
    if rows:
        tx.execute(sa.insert(ranges), [asdict(row) for row in rows])


def range_live(tx: Tx, job_ids: list[str]) -> list[LiveRange]:
    """List the ranges of these jobs that have live tasks. The caller has locked the jobs, which locks their ranges."""
    query = sa.select(ranges).where(ranges.c.job_id.in_(sorted(job_ids)), _LIVE)
    return fetch_all(tx, LiveRange, query.order_by(ranges.c.job_id, ranges.c.fence))


def range_list(
    tx: Tx, job_id: str, *, between: tuple[int, int] | None = None, limit: int | None = None
) -> list[RangeOnCluster]:
    """List all ranges of a job, oldest first. If several ranges have the same index, the last one counts.

    `between`: only ranges with tasks from the first to the second index. `limit`: at most so many.
    """
    query = (
        sa.select(ranges, clusters.c.name.label("cluster"))
        .select_from(ranges.outerjoin(clusters, clusters.c.id == ranges.c.cluster_id))
        .where(ranges.c.job_id == job_id)
    )
    if between is not None:
        query = query.where(ranges.c.lo <= between[1], ranges.c.hi >= between[0])
    return fetch_all(tx, RangeOnCluster, query.order_by(ranges.c.fence).limit(limit))


def range_list_of_fences(tx: Tx, job_id: str, first: int, last: int) -> list[RangeRow]:
    """List the ranges of a job with tasks under the fences from `first` to `last`, oldest first."""
    is_within = ranges.c.fence <= last, ranges.c.fence + ranges.c.hi - ranges.c.lo >= first
    query = sa.select(*columns_of(RangeRow, ranges)).where(ranges.c.job_id == job_id, *is_within)
    return fetch_all(tx, RangeRow, query.order_by(ranges.c.fence))


def range_spans(tx: Tx, job_id: str, lo: int, hi: int, *, before_fence: int | None = None) -> list[tuple[int, int]]:
    """Return first and last index of each leased range with tasks between `lo` and `hi`.

    `before_fence`: only ranges with a lower fence.
    """
    query = sa.select(ranges.c.lo, ranges.c.hi).where(
        ranges.c.job_id == job_id, ranges.c.lo <= hi, ranges.c.hi >= lo, ranges.c.agent_id.is_not(None)
    )
    if before_fence is not None:
        query = query.where(ranges.c.fence < before_fence)
    return [(row.lo, row.hi) for row in tx.execute(query)]


def range_list_of_task(tx: Tx, job_id: str, index: int) -> list[RangeRow]:
    """List the ranges that one task was leased in, oldest first."""
    query = sa.select(ranges).where(ranges.c.job_id == job_id, ranges.c.lo <= index, ranges.c.hi >= index)
    return fetch_all(tx, RangeRow, query.order_by(ranges.c.fence))


def tasks_by_cluster(tx: Tx, job_id: str) -> dict[str | None, int]:
    """Count the tasks of an array that are or were on each cluster, without those that a cluster gave back.

    Of an array with more than COUNTED_RANGES_MAX ranges, tasks that were given back count, too.
    """
    of_job = ranges.c.job_id == job_id, ranges.c.agent_id.is_not(None)
    counted = sa.select(ranges.c.cluster_id, ranges.c.tasks).where(*of_job).limit(COUNTED_RANGES_MAX + 1)
    rows = tx.execute(counted).all()
    if len(rows) > COUNTED_RANGES_MAX:
        size = sa.func.sum(ranges.c.hi - ranges.c.lo + 1)
        sums = tx.execute(sa.select(ranges.c.cluster_id, size).where(*of_job).group_by(ranges.c.cluster_id))
        return {cluster_id: int(count) for cluster_id, count in sums}
    counts: dict[str | None, int] = {}
    for cluster_id, tasks in rows:
        counts[cluster_id] = counts.get(cluster_id, 0) + count_leased(tasks)
    return {cluster_id: count for cluster_id, count in counts.items() if count}


_JOB_FIELDS = HeldRange.__struct_fields__[len(RangeRow.__struct_fields__) : -1]


def range_leased_by(tx: Tx, agent_id: str) -> list[HeldRange]:
    """List the live ranges of an agent, with all that is needed to lease their tasks again."""
    query = (
        sa.select(ranges, *(jobs.c[name] for name in _JOB_FIELDS), specs.c.body.label("spec"))
        .join(jobs, jobs.c.id == ranges.c.job_id)
        .join(specs, specs.c.hash == jobs.c.spec_hash)
        .where(ranges.c.agent_id == agent_id, _LIVE)
    )
    return fetch_all(tx, HeldRange, query.order_by(ranges.c.job_id, ranges.c.fence))


_CANCELS = (
    sa.select(*columns_of(CancellingRange, ranges, cancel_us=jobs.c.cancel_us))
    .join(jobs, jobs.c.id == ranges.c.job_id)
    .where(
        ranges.c.agent_id.in_(sa.bindparam("agents", expanding=True)),
        _LIVE,
        sa.or_(ranges.c.is_cancelling, jobs.c.cancel_us.is_not(None)),
    )
)


def range_cancelling(tx: Tx, agent_ids: list[str]) -> list[CancellingRange]:
    """List the live ranges of these agents that have tasks to cancel."""
    return fetch_all(tx, CancellingRange, _CANCELS, {"agents": sorted(agent_ids)})


def range_leased_by_silent(
    tx: Tx, *, now_us: int, amnesty_us: int, bears_s: int, silent_us: int, limit: int
) -> list[SilentRange]:
    """List live ranges whose agent was removed or silent for too long, by the rules of `leases.leased_by_silent`."""
    silence = agent_silence(ranges.c.leased_us, amnesty_us=amnesty_us, bears_s=bears_s, silent_us=silent_us)
    query = (
        sa.select(
            ranges, agents.c.deleted_us, agents.c.reason.label("agent_reason"), silence.since_us.label("since_us")
        )
        .join(jobs, jobs.c.id == ranges.c.job_id)
        .join(agents, agents.c.id == ranges.c.agent_id)
        .where(_LIVE, silence.is_lost(now_us))
        .limit(limit)
    )
    return fetch_all(tx, SilentRange, query)


def range_change(tx: Tx, updates: list[RangeUpdate]) -> None:
    """Write back ranges of locked jobs."""
    if not updates:
        return
    statement = (
        sa.update(ranges)
        .where(ranges.c.job_id == sa.bindparam("the_job_id"), ranges.c.fence == sa.bindparam("the_fence"))
        .values({name: sa.bindparam(f"the_{name}") for name in ("tasks", "is_live", "is_cancelling", "ended_us")})
    )
    ordered = sorted(updates, key=lambda update: (update.job_id, update.fence))
    tx.execute(statement, [{f"the_{name}": value for name, value in asdict(update).items()} for update in ordered])


def task_attempts_count(tx: Tx, job_id: str, fence: int) -> int:
    """Count the leases of the task that runs under a fence, with the present one. Preempted ones do not count."""
    index = (
        sa.select(ranges.c.lo + (fence - ranges.c.fence))
        .where(ranges.c.job_id == job_id, ranges.c.fence <= fence, ranges.c.fence + ranges.c.hi - ranges.c.lo >= fence)
        .scalar_subquery()
    )
    query = sa.select((index - ranges.c.lo).label("position"), ranges.c.tasks).where(
        ranges.c.job_id == job_id, ranges.c.lo <= index, ranges.c.hi >= index, ranges.c.agent_id.is_not(None)
    )
    return sum(not read_task(row.tasks, row.position).is_preempted for row in tx.execute(query))
