"""Queries about crowds: the jobs of a workflow that may run only so many at once. Jobs of no crowd cost nothing here.

A job that finds its crowd full is parked: assigned, but not ready, so that it stands in nobody's way. Whatever ends a
job of the crowd lets the next ones go; a chore of the leader catches what two servers did at the same moment.
"""

from __future__ import annotations

import sqlalchemy as sa

from switchyard.store import dialect
from switchyard.store.database import Tx
from switchyard.store.schema import IN_CONCURRENCY_GROUP, PARKED, jobs


def concurrency_group_lock(tx: Tx, crowds: list[str]) -> None:
    """Until the commit nobody else leases jobs of these. Of the transaction, so that a pooler does no harm."""
    dialect.lock_names(tx, [f"crowd {crowd}" for crowd in crowds])


def concurrency_group_live_counts(tx: Tx, crowds: list[str]) -> dict[str, int]:
    """How many jobs of each are with an agent: jobs, and tasks of arrays."""
    mine = (jobs.c.crowd.in_(sorted(crowds)), sa.text(IN_CONCURRENCY_GROUP))
    plain = (
        sa.select(jobs.c.crowd, sa.func.count().label("live"))
        .where(*mine, jobs.c.agent_id.is_not(None))
        .group_by(jobs.c.crowd)
    )
    tasks = (
        sa.select(jobs.c.crowd, sa.func.sum(jobs.c.tasks_live).label("live"))
        .where(*mine, jobs.c.agent_id.is_(None), jobs.c.tasks_live > 0)
        .group_by(jobs.c.crowd)
    )
    found = dict.fromkeys(crowds, 0)
    for query in (plain, tasks):
        for row in tx.execute(query):
            found[row.crowd] += int(row.live)
    return found


def concurrency_group_park(tx: Tx, job_ids: list[str], reason: str) -> None:
    """Take locked jobs out of their lines."""
    if job_ids:
        tx.execute(sa.update(jobs).where(jobs.c.id.in_(sorted(job_ids))).values(is_ready=False, reason=reason))


def concurrency_group_release(tx: Tx, crowd: str, count: int, *, live: int = 0) -> set[str]:
    """Put the first parked jobs of a crowd back in their lines; the clusters to wake.

    `live`: how many run; those that so many forbid are left out, as launch plans of one workflow may have several
    bounds. Without waiting for a lock: what somebody else is changing at this moment is left to the chore.
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
        sa.select(jobs.c.id, jobs.c.cluster_id)
        .where(jobs.c.crowd == crowd, sa.text(PARKED), has_tasks, jobs.c.crowd_max > live)
        .order_by(jobs.c.priority.desc(), jobs.c.id)
        .limit(count)
        .with_for_update(skip_locked=True)
    )
    rows = list(tx.execute(parked))
    if rows:
        tx.execute(sa.update(jobs).where(jobs.c.id.in_([row.id for row in rows])).values(is_ready=True, reason=""))
    return {row.cluster_id for row in rows if row.cluster_id}


def concurrency_groups_parked(tx: Tx, limit: int) -> dict[str, int]:
    """Crowds with parked jobs, and how many of each may run."""
    query = sa.select(jobs.c.crowd, sa.func.max(jobs.c.crowd_max)).where(sa.text(PARKED)).group_by(jobs.c.crowd)
    return {crowd: int(most) for crowd, most in tx.execute(query.limit(limit))}
