"""Queries about pilots: ephemeral clusters with a join token that is for one job."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from switchyard.model.job.job import State
from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, columns_of, fetch_all
from switchyard.store.jobs.job_rows import StateName
from switchyard.store.tables.clusters_tables import clusters, invites
from switchyard.store.tables.schema import jobs


class PilotRow(StoredRow, frozen=True):
    """A join token of an ephemeral cluster, with the job it is for. `state`: None if the job is not stored any more."""

    id: str
    cluster_id: str
    is_for_job: bool
    job_id: str | None
    uses: int
    is_usable: bool
    state: StateName | None
    reason: str | None
    ended_us: int | None


def pilot_list(tx: Tx, cluster_ids: Collection[str], *, now_us: int) -> list[PilotRow]:
    """List all join tokens of these clusters, with the states of the jobs they are for."""
    is_unused = sa.or_(invites.c.is_reusable, invites.c.uses == 0)
    is_usable = sa.and_(invites.c.revoked_us.is_(None), invites.c.expires_us > now_us, is_unused)
    of_job = {name: jobs.c[name] for name in ("state", "reason", "ended_us")}
    columns = columns_of(PilotRow, invites, is_usable=is_usable, **of_job)
    query = sa.select(*columns).select_from(invites.outerjoin(jobs, jobs.c.id == invites.c.job_id))
    return fetch_all(tx, PilotRow, query.where(invites.c.cluster_id.in_(sorted(cluster_ids))))


def pilot_jobs_too_late(tx: Tx, *, now_us: int, join_within_us: int, limit: int) -> list[str]:
    """List jobs of pilots that were not running when their join token expired, or whose agent has not joined since.

    An agent may take `join_within_us` to join after its job's start. A revoked token is over at once.
    """
    start_us = sa.func.coalesce(jobs.c.started_us, 0)
    since_us = sa.case((start_us > invites.c.expires_us, start_us), else_=invites.c.expires_us)
    is_late = sa.or_(
        invites.c.revoked_us.is_not(None),
        sa.and_(jobs.c.state != State.RUNNING.value, invites.c.expires_us <= now_us),
        since_us + join_within_us <= now_us,
    )
    of_pilots = clusters.join(invites, invites.c.cluster_id == clusters.c.id).join(jobs, jobs.c.id == invites.c.job_id)
    query = (
        sa.select(jobs.c.id)
        .select_from(of_pilots)
        .where(clusters.c.deleted_us.is_(None), clusters.c.is_ephemeral, invites.c.uses == 0, is_late)
        .where(jobs.c.ended_us.is_(None), jobs.c.cancel_us.is_(None))
    )
    return list(tx.execute(query.limit(limit)).scalars())
