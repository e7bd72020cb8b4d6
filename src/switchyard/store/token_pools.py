"""Queries about token pools, and about the jobs that hold tokens of them or wait for some."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from switchyard.store import dialect
from switchyard.store.database import Tx
from switchyard.store.schema import NEEDS_TOKENS, jobs, token_pools

Row = sa.Row[*tuple[Any, ...]]


def pool_all(tx: Tx) -> list[Row]:
    return list(tx.execute(sa.select(token_pools).order_by(token_pools.c.namespace)))


def pool_get(tx: Tx, namespace: str) -> Row | None:
    return tx.execute(sa.select(token_pools).where(token_pools.c.namespace == namespace)).one_or_none()


def pool_count(tx: Tx) -> int:
    return int(tx.execute(sa.select(sa.func.count()).select_from(token_pools)).scalar_one())


def pool_insert(tx: Tx, columns: dict[str, Any]) -> None:
    """Nothing, where there is one of that name."""
    dialect.insert_missing(tx, token_pools, [columns])


def pool_change(tx: Tx, namespace: str, columns: dict[str, Any]) -> None:
    tx.execute(sa.update(token_pools).where(token_pools.c.namespace == namespace).values(**columns))


def pool_delete(tx: Tx, namespace: str) -> None:
    tx.execute(sa.delete(token_pools).where(token_pools.c.namespace == namespace))


def job_needing_tokens(tx: Tx, *, after: str, limit: int) -> list[Row]:
    """Jobs that need tokens and are not over, by id, some at a time."""
    columns = (
        jobs.c.id,
        jobs.c.state,
        jobs.c.blocked,
        jobs.c.reason,
        jobs.c.project,
        jobs.c.domain,
        jobs.c.lane,
        jobs.c.priority,
        jobs.c.created_us,
        jobs.c.tokens,
        jobs.c.array,
        jobs.c.array_max,
        jobs.c.tasks_live,
    )
    query = sa.select(*columns).where(sa.text(NEEDS_TOKENS), jobs.c.id > after).order_by(jobs.c.id).limit(limit)
    return list(tx.execute(query))
