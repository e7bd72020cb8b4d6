"""Queries about token pools, and about the jobs that hold tokens or wait for tokens."""

from __future__ import annotations

import sqlalchemy as sa
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from switchyard.store.engine import dialect
from switchyard.store.engine.column_update import ColumnUpdate
from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, columns_of, fetch_all, fetch_one
from switchyard.store.jobs.job_rows import StateName
from switchyard.store.tables.rules_tables import token_pools
from switchyard.store.tables.schema import NEEDS_TOKENS, jobs


class TokenPoolRow(StoredRow, frozen=True):
    namespace: str
    quota: int
    per_s: int | None
    leased_until_us: int
    created_us: int
    changed_us: int
    changed_by: str


class TokenPoolUpdate(ColumnUpdate, frozen=True, kw_only=True):
    quota: int | UnsetType = UNSET
    leased_until_us: int | UnsetType = UNSET
    changed_us: int | UnsetType = UNSET
    changed_by: str | UnsetType = UNSET


class TokenJob(StoredRow, frozen=True):
    """What the token pools need of a job that holds tokens or waits for tokens."""

    id: str
    state: StateName
    blocked: str | None
    reason: str
    project: str
    domain: str
    lane: str
    priority: int
    created_us: int
    tokens: str
    array: str | None
    array_max: int | None
    tasks_live: int | None


def pool_all(tx: Tx) -> list[TokenPoolRow]:
    return fetch_all(tx, TokenPoolRow, sa.select(token_pools).order_by(token_pools.c.namespace))


def pool_get(tx: Tx, namespace: str) -> TokenPoolRow | None:
    return fetch_one(tx, TokenPoolRow, sa.select(token_pools).where(token_pools.c.namespace == namespace))


def pool_count(tx: Tx) -> int:
    return int(tx.execute(sa.select(sa.func.count()).select_from(token_pools)).scalar_one())


def pool_insert(tx: Tx, row: TokenPoolRow) -> None:
    """Insert a pool, unless there is a pool of that name."""
    dialect.insert_missing(tx, token_pools, [asdict(row)])


def pool_change(tx: Tx, namespace: str, change: TokenPoolUpdate) -> None:
    tx.execute(sa.update(token_pools).where(token_pools.c.namespace == namespace).values(change.columns()))


def pool_delete(tx: Tx, namespace: str) -> None:
    tx.execute(sa.delete(token_pools).where(token_pools.c.namespace == namespace))


def job_needing_tokens(tx: Tx, *, after: str, limit: int) -> list[TokenJob]:
    """Return a page of the jobs that need tokens and have not ended, by id."""
    query = sa.select(*columns_of(TokenJob, jobs)).where(sa.text(NEEDS_TOKENS), jobs.c.id > after)
    return fetch_all(tx, TokenJob, query.order_by(jobs.c.id).limit(limit))
