"""Queries about group join tokens."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from switchyard.store.engine.column_update import ColumnUpdate
from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, fetch_all, fetch_one
from switchyard.store.tables.clusters_tables import group_invites


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
