"""Queries about submit tokens."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import sqlalchemy as sa
from msgspec.structs import asdict

from switchyard.store.engine import dialect
from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, fetch_all, fetch_one
from switchyard.store.tables.clusters_tables import submit_consents, submit_tokens


class SubmitTokenRow(StoredRow, frozen=True):
    id: str
    on_kind: Literal["cluster", "cluster-group"]
    object: str
    account: str
    hash: str
    created_us: int
    maker_id: str | None
    parent_id: str | None
    expires_us: int | None


class ConsentRow(StoredRow, frozen=True):
    """A user agreed that a cluster's administrators make submit tokens in the user's name."""

    cluster_id: str
    user_id: str
    created_us: int


def submit_token_all(tx: Tx) -> list[SubmitTokenRow]:
    return fetch_all(tx, SubmitTokenRow, sa.select(submit_tokens))


def submit_token_put(tx: Tx, row: SubmitTokenRow) -> None:
    """Store a token in place of the earlier token for the same clusters and the same account."""
    same = (submit_tokens.c[name] == getattr(row, name) for name in ("on_kind", "object", "account"))
    tx.execute(sa.delete(submit_tokens).where(*same))
    tx.execute(sa.insert(submit_tokens).values(**asdict(row)))


def submit_token_delete_of(tx: Tx, *, on_kind: str, object_: str) -> int:
    condition = (submit_tokens.c.on_kind == on_kind, submit_tokens.c.object == object_)
    return tx.execute(sa.delete(submit_tokens).where(*condition)).rowcount


def submit_token_delete_made_with(tx: Tx, token_ids: Collection[str]) -> int:
    """Delete the submit tokens that were made with these user tokens. Returns their number."""
    return tx.execute(sa.delete(submit_tokens).where(submit_tokens.c.parent_id.in_(sorted(token_ids)))).rowcount


def submit_token_delete_account(tx: Tx, user_id: str) -> None:
    """Delete the submit tokens and the consents of a user who is deleted."""
    tx.execute(sa.delete(submit_tokens).where(submit_tokens.c.account == user_id))
    tx.execute(sa.delete(submit_consents).where(submit_consents.c.user_id == user_id))


def consent_put(tx: Tx, cluster_id: str, user_id: str, *, at_us: int) -> None:
    dialect.insert_missing(tx, submit_consents, [{"cluster_id": cluster_id, "user_id": user_id, "created_us": at_us}])


def consent_get(tx: Tx, cluster_id: str, user_id: str) -> ConsentRow | None:
    condition = (submit_consents.c.cluster_id == cluster_id, submit_consents.c.user_id == user_id)
    return fetch_one(tx, ConsentRow, sa.select(submit_consents).where(*condition))


def consent_delete(tx: Tx, cluster_id: str, user_id: str) -> None:
    """Delete a consent and the submit tokens that were made by it."""
    condition = (submit_consents.c.cluster_id == cluster_id, submit_consents.c.user_id == user_id)
    tx.execute(sa.delete(submit_consents).where(*condition))
    of_cluster = (submit_tokens.c.on_kind == "cluster", submit_tokens.c.object == cluster_id)
    tx.execute(sa.delete(submit_tokens).where(*of_cluster, submit_tokens.c.account == user_id))


def consent_delete_of(tx: Tx, cluster_id: str) -> None:
    tx.execute(sa.delete(submit_consents).where(submit_consents.c.cluster_id == cluster_id))
