"""Queries about submit tokens."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa

from switchyard.store import dialect
from switchyard.store.database import Tx
from switchyard.store.schema import submit_consents, submit_tokens

Row = sa.Row[*tuple[Any, ...]]


def submit_token_all(tx: Tx) -> list[Row]:
    return list(tx.execute(sa.select(submit_tokens)))


def submit_token_put(tx: Tx, row: dict[str, Any]) -> None:
    """A new one; the one before it, for the same clusters and the same account, ends."""
    same = (submit_tokens.c[name] == row[name] for name in ("on_kind", "object", "account"))
    tx.execute(sa.delete(submit_tokens).where(*same))
    tx.execute(sa.insert(submit_tokens).values(**row))


def submit_token_delete_of(tx: Tx, *, on_kind: str, object_: str) -> int:
    mine = (submit_tokens.c.on_kind == on_kind, submit_tokens.c.object == object_)
    return tx.execute(sa.delete(submit_tokens).where(*mine)).rowcount


def submit_token_delete_made_with(tx: Tx, token_ids: Collection[str]) -> int:
    """Delete the submit tokens that were made with these user tokens; how many."""
    made = submit_tokens.c.parent_id.in_(sorted(token_ids))
    return tx.execute(sa.delete(submit_tokens).where(made)).rowcount


def submit_token_delete_account(tx: Tx, user_id: str) -> None:
    """A user who goes takes the submit tokens of their account along."""
    tx.execute(sa.delete(submit_tokens).where(submit_tokens.c.account == user_id))
    tx.execute(sa.delete(submit_consents).where(submit_consents.c.user_id == user_id))


def consent_put(tx: Tx, cluster_id: str, user_id: str, *, at_us: int) -> None:
    dialect.insert_missing(tx, submit_consents, [{"cluster_id": cluster_id, "user_id": user_id, "created_us": at_us}])


def consent_get(tx: Tx, cluster_id: str, user_id: str) -> Row | None:
    mine = (submit_consents.c.cluster_id == cluster_id, submit_consents.c.user_id == user_id)
    return tx.execute(sa.select(submit_consents).where(*mine)).one_or_none()


def consent_delete(tx: Tx, cluster_id: str, user_id: str) -> None:
    """The consent ends, and with it the submit tokens that were made by it."""
    mine = (submit_consents.c.cluster_id == cluster_id, submit_consents.c.user_id == user_id)
    tx.execute(sa.delete(submit_consents).where(*mine))
    made = (submit_tokens.c.on_kind == "cluster", submit_tokens.c.object == cluster_id)
    tx.execute(sa.delete(submit_tokens).where(*made, submit_tokens.c.account == user_id))


def consent_delete_of(tx: Tx, cluster_id: str) -> None:
    tx.execute(sa.delete(submit_consents).where(submit_consents.c.cluster_id == cluster_id))
