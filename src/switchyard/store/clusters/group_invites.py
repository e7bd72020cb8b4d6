"""Queries about join tokens: of groups, and of pilots (ephemeral clusters with a join token that is for one job)."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from switchyard.model.job.job import State
from switchyard.store.engine.column_update import ColumnUpdate
from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, columns_of, fetch_all, fetch_one
from switchyard.store.jobs.job_rows import StateName
from switchyard.store.tables.clusters_tables import clusters, group_invites, invites
from switchyard.store.tables.schema import jobs


class GroupInviteRow(StoredRow, frozen=True):
    id: str
    group_name: str
    token_hash: str
    uses_max: int
    uses: int
    is_private: bool
    is_ephemeral: bool
    expires_us: int
    created_us: int
    revoked_us: int | None
    maker_id: str | None
    parent_id: str | None
    namespaces: str = "[]"


class GroupInviteUpdate(ColumnUpdate, frozen=True, kw_only=True):
    uses: int | UnsetType = UNSET
    revoked_us: int | UnsetType = UNSET


def group_invite_insert(tx: Tx, row: GroupInviteRow) -> None:
    tx.execute(sa.insert(group_invites).values(**asdict(row)))


def group_invite_lock(tx: Tx, invite_id: str) -> GroupInviteRow | None:
    query = sa.select(group_invites).where(group_invites.c.id == invite_id)
    return fetch_one(tx, GroupInviteRow, query.with_for_update())


def group_invite_list(tx: Tx, group: str, *, after: str, limit: int) -> list[GroupInviteRow]:
    query = sa.select(group_invites).where(group_invites.c.group_name == group, group_invites.c.id > after)
    return fetch_all(tx, GroupInviteRow, query.order_by(group_invites.c.id).limit(limit))


def group_invite_change(tx: Tx, invite_id: str, change: GroupInviteUpdate) -> None:
    tx.execute(sa.update(group_invites).where(group_invites.c.id == invite_id).values(change.columns()))


def group_invite_revoke_made_with(tx: Tx, token_ids: Collection[str], *, at_us: int) -> int:
    """Revoke group join tokens that were made with these user tokens. Returns their number."""
    is_made_with = (group_invites.c.parent_id.in_(sorted(token_ids)), group_invites.c.revoked_us.is_(None))
    return tx.execute(sa.update(group_invites).where(*is_made_with).values(revoked_us=at_us)).rowcount


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
