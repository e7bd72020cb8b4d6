"""Queries about users, tokens, grants, projects and the audit."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa

from switchyard.store import dialect
from switchyard.store.database import Tx
from switchyard.store.schema import audit, grants, projects, tokens, users

Row = sa.Row[*tuple[Any, ...]]


def user_all(tx: Tx) -> list[Row]:
    return list(tx.execute(sa.select(users).order_by(users.c.name)))


def user_by_name(tx: Tx, name: str) -> Row | None:
    return tx.execute(sa.select(users).where(users.c.name == name)).one_or_none()


def users_enabled(tx: Tx, user_ids: Collection[str]) -> dict[str, bool]:
    """Of these users those that exist, by id, and whether each is enabled."""
    query = sa.select(users.c.id, users.c.is_enabled).where(users.c.id.in_(sorted(user_ids)))
    return {row.id: bool(row.is_enabled) for row in tx.execute(query)}


def user_insert(tx: Tx, row: dict[str, Any]) -> None:
    tx.execute(sa.insert(users).values(**row))


def user_change(tx: Tx, user_id: str, change: dict[str, Any]) -> None:
    tx.execute(sa.update(users).where(users.c.id == user_id).values(**change))


def user_lock(tx: Tx, name: str) -> Row | None:
    """The user, who is not deleted before this transaction ends."""
    return tx.execute(sa.select(users).where(users.c.name == name).with_for_update()).one_or_none()


def user_delete(tx: Tx, user_id: str) -> None:
    """A user goes with their tokens and grants. Tokens that they made for others stay, as tokens without a parent."""
    gone = sa.select(tokens.c.id).where(tokens.c.user_id == user_id)
    tx.execute(sa.update(tokens).where(tokens.c.parent_id.in_(gone)).values(parent_id=None))
    tx.execute(sa.delete(grants).where(grants.c.to_kind == "user", grants.c.subject == user_id))
    tx.execute(sa.delete(tokens).where(tokens.c.user_id == user_id))
    tx.execute(sa.delete(users).where(users.c.id == user_id))


def token_all(tx: Tx) -> list[Row]:
    return list(tx.execute(sa.select(tokens).order_by(tokens.c.id)))


def token_list(tx: Tx, user_id: str | None, *, after: str, limit: int) -> list[Row]:
    query = sa.select(tokens, users.c.name.label("user")).join(users, users.c.id == tokens.c.user_id)
    if user_id is not None:
        query = query.where(tokens.c.user_id == user_id)
    return list(tx.execute(query.where(tokens.c.id > after).order_by(tokens.c.id).limit(limit)))


def token_insert(tx: Tx, row: dict[str, Any]) -> None:
    tx.execute(sa.insert(tokens).values(**row))


def token_lock(tx: Tx, token_id: str) -> Row | None:
    return tx.execute(sa.select(tokens).where(tokens.c.id == token_id).with_for_update()).one_or_none()


def token_descendants(tx: Tx, token_id: str) -> list[str]:
    """The tokens that were made with this one, with those again, and so on."""
    found: list[str] = []
    level = [token_id]
    while level:
        query = sa.select(tokens.c.id).where(tokens.c.parent_id.in_(level)).order_by(tokens.c.id)
        level = list(tx.execute(query.with_for_update()).scalars())
        found += level
    return found


def token_revoke(tx: Tx, token_ids: list[str], *, at_us: int) -> None:
    tx.execute(
        sa.update(tokens).where(tokens.c.id.in_(token_ids), tokens.c.revoked_us.is_(None)).values(revoked_us=at_us)
    )


def token_set_last_used(tx: Tx, used: dict[str, int]) -> None:
    """Flush when tokens were last used."""
    rows = [{"the_id": key, "at_us": used[key]} for key in sorted(used)]
    if rows:
        statement = sa.update(tokens).where(tokens.c.id == sa.bindparam("the_id"))
        tx.execute(statement.values(last_used_us=sa.bindparam("at_us")), rows)


def grant_all(tx: Tx) -> list[Row]:
    return list(tx.execute(sa.select(grants).order_by(grants.c.id)))


def grant_insert(tx: Tx, row: dict[str, Any]) -> None:
    tx.execute(sa.insert(grants).values(**row))


def grant_delete(tx: Tx, grant_id: str) -> None:
    tx.execute(sa.delete(grants).where(grants.c.id == grant_id))


def grant_delete_of(tx: Tx, *, on_kind: str, object_: str, everyone: bool = False) -> None:
    """A thing that goes takes its grants along: a new one of the same name inherits nothing."""
    gone = sa.delete(grants).where(grants.c.on_kind == on_kind, grants.c.object == object_)
    tx.execute(gone.where(grants.c.to_kind == "everyone") if everyone else gone)


def project_all(tx: Tx) -> list[Row]:
    return list(tx.execute(sa.select(projects).order_by(projects.c.name)))


def project_get(tx: Tx, name: str) -> Row | None:
    return tx.execute(sa.select(projects).where(projects.c.name == name)).one_or_none()


def project_change(tx: Tx, name: str, change: dict[str, Any]) -> None:
    tx.execute(sa.update(projects).where(projects.c.name == name).values(**change))


def project_put(tx: Tx, row: dict[str, Any]) -> bool:
    """Make a project; false if the name is taken."""
    # Not by the count of rows: psycopg says -1 where nothing was inserted.
    put = dialect.insert_statement(tx, projects).values(**row).on_conflict_do_nothing().returning(projects.c.name)
    return tx.execute(put).scalar() is not None


def audit_insert(tx: Tx, *rows: dict[str, Any]) -> None:
    if rows:
        tx.execute(sa.insert(audit), list(rows))


def audit_list_of(tx: Tx, object_: str, *, before: str | None, limit: int) -> list[Row]:
    """What happened to one thing, newest first."""
    query = sa.select(audit).where(audit.c.object == object_).order_by(audit.c.id.desc()).limit(limit)
    return list(tx.execute(query if before is None else query.where(audit.c.id < before)))


def audit_list(tx: Tx, *, before: str | None, limit: int) -> list[Row]:
    """Newest first."""
    query = sa.select(audit).order_by(audit.c.id.desc()).limit(limit)
    if before is not None:
        query = query.where(audit.c.id < before)
    return list(tx.execute(query))
