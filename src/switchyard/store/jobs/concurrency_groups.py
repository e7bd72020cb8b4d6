"""Concurrency groups: jobs of one workflow of which only some may run at once. The columns call a group a `crowd`.

A job whose group is full is parked: assigned and not ready, so that it blocks no other job. The end of a job releases
the next one; a chore of the leader releases what two concurrent servers missed. Jobs without a group add no cost.
"""

from __future__ import annotations

import sqlalchemy as sa

from switchyard.store.engine import dialect
from switchyard.store.engine.database import Tx
from switchyard.store.jobs.job_update import JobUpdate
from switchyard.store.tables.schema import IN_CONCURRENCY_GROUP, PARKED, jobs


def concurrency_group_lock(tx: Tx, groups: list[str]) -> None:
    """Lock groups for leasing until the commit. The lock belongs to the transaction, so it works behind a pooler."""
    dialect.lock_names(tx, [f"crowd {group}" for group in groups])


def concurrency_group_live_counts(tx: Tx, groups: list[str]) -> dict[str, int]:
    """Count the leased jobs and tasks of each group."""
    is_member = (jobs.c.crowd.in_(sorted(groups)), sa.text(IN_CONCURRENCY_GROUP))
    plain = (
        sa.select(jobs.c.crowd, sa.func.count().label("live"))
        .where(*is_member, jobs.c.agent_id.is_not(None))
        .group_by(jobs.c.crowd)
    )
    tasks = (
        sa.select(jobs.c.crowd, sa.func.sum(jobs.c.tasks_live).label("live"))
        .where(*is_member, jobs.c.agent_id.is_(None), jobs.c.tasks_live > 0)
        .group_by(jobs.c.crowd)
    )
    live_by_group = dict.fromkeys(groups, 0)
    for query in (plain, tasks):
        for row in tx.execute(query):
            live_by_group[row.crowd] += int(row.live)
    return live_by_group


def concurrency_group_park(tx: Tx, job_ids: list[str], reason: str) -> None:
    """Park locked jobs: they are not ready until their group has room."""
    if job_ids:
        parked = JobUpdate(is_ready=False, reason=reason)
        tx.execute(sa.update(jobs).where(jobs.c.id.in_(sorted(job_ids))).values(parked.columns()))


def concurrency_group_release(tx: Tx, group: str, count: int, *, live: int = 0) -> set[str]:
    """Make the first parked jobs of a group ready. Returns the clusters to wake.

    `live`: how many jobs of the group run. Jobs whose own bound is not above it stay parked: launch plans of one
    workflow may have different bounds. Locked jobs are skipped; the leader's chore releases them.
    """
    has_tasks = sa.or_(
        jobs.c.array.is_(None),
        sa.and_(
            jobs.c.todo != "",
            sa.or_(jobs.c.array_max.is_(None), jobs.c.tasks_live < jobs.c.array_max),
            sa.or_(jobs.c.places.is_(None), jobs.c.tasks_live < jobs.c.places),
        ),
    )
    parked = (
        sa.select(jobs.c.id, jobs.c.cluster_id, jobs.c.spread)
        .where(jobs.c.crowd == group, sa.text(PARKED), has_tasks, jobs.c.crowd_max > live)
        .order_by(jobs.c.priority.desc(), jobs.c.id)
        .limit(count)
        .with_for_update(skip_locked=True)
    )
    rows = list(tx.execute(parked))
    if rows:
        released = JobUpdate(is_ready=True, reason="")
        tx.execute(sa.update(jobs).where(jobs.c.id.in_([row.id for row in rows])).values(released.columns()))
    return {cluster_id for row in rows for cluster_id in (row.spread or row.cluster_id or "").split(",") if cluster_id}


def concurrency_groups_parked(tx: Tx, limit: int, *, after: str = "") -> dict[str, int]:
    """Return the next groups with parked jobs by name, and how many jobs of each may run."""
    query = sa.select(jobs.c.crowd, sa.func.max(jobs.c.crowd_max)).where(sa.text(PARKED), jobs.c.crowd > after)
    page = query.group_by(jobs.c.crowd).order_by(jobs.c.crowd).limit(limit)
    return {group: int(live_max) for group, live_max in tx.execute(page)}
