"""Queries about users, tokens, grants, projects and the audit."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from switchyard.store.engine import dialect
from switchyard.store.engine.column_update import ColumnUpdate
from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, fetch_all, fetch_one
from switchyard.store.tables.rules_tables import projects
from switchyard.store.tables.schema import audit, grants, tokens, users


class UserRow(StoredRow, frozen=True):
    id: str
    name: str
    full_name: str
    groups: str
    is_enabled: bool
    created_us: int


class UserUpdate(ColumnUpdate, frozen=True, kw_only=True):
    full_name: str | UnsetType = UNSET
    groups: str | UnsetType = UNSET
    is_enabled: bool | UnsetType = UNSET


class TokenRow(StoredRow, frozen=True):
    id: str
    user_id: str
    hash: str
    note: str
    created_us: int
    expires_us: int | None
    last_used_us: int | None
    revoked_us: int | None
    parent_id: str | None


class TokenOfUser(TokenRow, frozen=True):
    """A token and the name of its user."""

    user: str


class GrantRow(StoredRow, frozen=True):
    id: str
    role: str
    to_kind: str
    subject: str
    on_kind: str
    object: str
    created_us: int


class ProjectRow(StoredRow, frozen=True):
    name: str
    title: str
    description: str
    labels: str
    created_us: int
    archived_us: int | None


class ProjectUpdate(ColumnUpdate, frozen=True, kw_only=True):
    title: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    labels: str | UnsetType = UNSET
    archived_us: int | UnsetType | None = UNSET


class AuditRow(StoredRow, frozen=True):
    id: str
    at_us: int
    actor: str
    action: str
    object: str
    before: str | None
    after: str | None


def user_all(tx: Tx) -> list[UserRow]:
    return fetch_all(tx, UserRow, sa.select(users).order_by(users.c.name))


def user_by_name(tx: Tx, name: str) -> UserRow | None:
    return fetch_one(tx, UserRow, sa.select(users).where(users.c.name == name))


def users_enabled(tx: Tx, user_ids: Collection[str]) -> dict[str, bool]:
    """Return, for each of these users that exists, whether the user is enabled."""
    query = sa.select(users.c.id, users.c.is_enabled).where(users.c.id.in_(sorted(user_ids)))
    return {row.id: bool(row.is_enabled) for row in tx.execute(query)}


def user_insert(tx: Tx, row: UserRow) -> None:
    tx.execute(sa.insert(users).values(**asdict(row)))


def user_change(tx: Tx, user_id: str, change: UserUpdate) -> None:
    tx.execute(sa.update(users).where(users.c.id == user_id).values(change.columns()))


def user_lock(tx: Tx, name: str) -> UserRow | None:
    """Return a user, locked until the commit."""
    return fetch_one(tx, UserRow, sa.select(users).where(users.c.name == name).with_for_update())


def user_delete(tx: Tx, user_id: str) -> None:
    """Delete a user with their tokens and grants. Tokens that they made for others stay, without a parent."""
    token_ids = sa.select(tokens.c.id).where(tokens.c.user_id == user_id)
    tx.execute(sa.update(tokens).where(tokens.c.parent_id.in_(token_ids)).values(parent_id=None))
    tx.execute(sa.delete(grants).where(grants.c.to_kind == "user", grants.c.subject == user_id))
    tx.execute(sa.delete(tokens).where(tokens.c.user_id == user_id))
    tx.execute(sa.delete(users).where(users.c.id == user_id))


def token_all(tx: Tx) -> list[TokenRow]:
    return fetch_all(tx, TokenRow, sa.select(tokens).order_by(tokens.c.id))


def token_list(tx: Tx, user_id: str | None, *, after: str, limit: int) -> list[TokenOfUser]:
    query = sa.select(tokens, users.c.name.label("user")).join(users, users.c.id == tokens.c.user_id)
    if user_id is not None:
        query = query.where(tokens.c.user_id == user_id)
    return fetch_all(tx, TokenOfUser, query.where(tokens.c.id > after).order_by(tokens.c.id).limit(limit))


def token_count_live(tx: Tx, user_id: str, *, now_us: int) -> int:
    """Count the tokens of a user that have neither ended nor been revoked."""
    is_live = sa.or_(tokens.c.expires_us.is_(None), tokens.c.expires_us > now_us)
    query = sa.select(sa.func.count()).where(tokens.c.user_id == user_id, tokens.c.revoked_us.is_(None), is_live)
    return tx.execute(query.select_from(tokens)).scalar_one()


def token_insert(tx: Tx, row: TokenRow) -> None:
    tx.execute(sa.insert(tokens).values(**asdict(row)))


def token_lock(tx: Tx, token_id: str) -> TokenRow | None:
    return fetch_one(tx, TokenRow, sa.select(tokens).where(tokens.c.id == token_id).with_for_update())


def token_descendants(tx: Tx, token_id: str) -> list[str]:
    """Lock and return the tokens that were made with this token, the tokens made with those, and so on."""
    ids: list[str] = []
    level = [token_id]
    while level:
        query = sa.select(tokens.c.id).where(tokens.c.parent_id.in_(level)).order_by(tokens.c.id)
        level = list(tx.execute(query.with_for_update()).scalars())
        ids += level
    return ids


def token_revoke(tx: Tx, token_ids: list[str], *, at_us: int) -> None:
    tx.execute(
        sa.update(tokens).where(tokens.c.id.in_(token_ids), tokens.c.revoked_us.is_(None)).values(revoked_us=at_us)
    )


def token_set_last_used(tx: Tx, used: dict[str, int]) -> None:
    """Store when each token was last used."""
    rows = [{"p_id": key, "at_us": used[key]} for key in sorted(used)]
    if rows:
        statement = sa.update(tokens).where(tokens.c.id == sa.bindparam("p_id"))
        tx.execute(statement.values(last_used_us=sa.bindparam("at_us")), rows)


def grant_all(tx: Tx) -> list[GrantRow]:
    return fetch_all(tx, GrantRow, sa.select(grants).order_by(grants.c.id))


def grant_insert(tx: Tx, row: GrantRow) -> None:
    tx.execute(sa.insert(grants).values(**asdict(row)))


def grant_delete(tx: Tx, grant_id: str) -> None:
    tx.execute(sa.delete(grants).where(grants.c.id == grant_id))


def grant_delete_of(tx: Tx, *, on_kind: str, object_: str, everyone: bool = False) -> None:
    """Delete the grants on an object that is deleted: a new object of the same name inherits none of them.

    `everyone`: only the grants to everyone.
    """
    delete = sa.delete(grants).where(grants.c.on_kind == on_kind, grants.c.object == object_)
    tx.execute(delete.where(grants.c.to_kind == "everyone") if everyone else delete)


def project_all(tx: Tx) -> list[ProjectRow]:
    return fetch_all(tx, ProjectRow, sa.select(projects).order_by(projects.c.name))


def project_get(tx: Tx, name: str) -> ProjectRow | None:
    return fetch_one(tx, ProjectRow, sa.select(projects).where(projects.c.name == name))


def project_change(tx: Tx, name: str, change: ProjectUpdate) -> None:
    tx.execute(sa.update(projects).where(projects.c.name == name).values(change.columns()))


def project_put(tx: Tx, row: ProjectRow) -> bool:
    """Insert a project. Returns False if the name is taken."""
    # Not by the row count: psycopg returns -1 if nothing was inserted.
    insert = dialect.insert_statement(tx, projects).values(**asdict(row))
    put = insert.on_conflict_do_nothing().returning(projects.c.name)
    return tx.execute(put).scalar() is not None


def audit_insert(tx: Tx, *rows: AuditRow) -> None:
    if rows:
        tx.execute(sa.insert(audit), [asdict(row) for row in rows])


def audit_list_of(tx: Tx, object_: str, *, before: str | None, limit: int) -> list[AuditRow]:
    """List the audit entries of one object, newest first."""
    query = sa.select(audit).where(audit.c.object == object_).order_by(audit.c.id.desc()).limit(limit)
    return fetch_all(tx, AuditRow, query if before is None else query.where(audit.c.id < before))


def audit_list(tx: Tx, *, before: str | None, limit: int) -> list[AuditRow]:
    """List all audit entries, newest first."""
    query = sa.select(audit).order_by(audit.c.id.desc()).limit(limit)
    return fetch_all(tx, AuditRow, query if before is None else query.where(audit.c.id < before))
