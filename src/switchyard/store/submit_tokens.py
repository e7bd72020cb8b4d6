"""Queries about submit tokens."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from switchyard.store.database import Tx
from switchyard.store.schema import submit_tokens

Row = sa.Row[*tuple[Any, ...]]


def token_all(tx: Tx) -> list[Row]:
    return list(tx.execute(sa.select(submit_tokens)))


def token_put(tx: Tx, row: dict[str, Any]) -> None:
    """A new one; the one before it, for the same clusters and the same account, ends."""
    same = (submit_tokens.c[name] == row[name] for name in ("on_kind", "object", "account"))
    tx.execute(sa.delete(submit_tokens).where(*same))
    tx.execute(sa.insert(submit_tokens).values(**row))


def token_delete_of(tx: Tx, *, on_kind: str, object_: str) -> int:
    mine = (submit_tokens.c.on_kind == on_kind, submit_tokens.c.object == object_)
    return tx.execute(sa.delete(submit_tokens).where(*mine)).rowcount
