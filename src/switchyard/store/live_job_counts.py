"""Queries that count live jobs, each over a partial index and with a bound: at a million jobs they say "at least"."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from switchyard.store.database import Tx
from switchyard.store.schema import ASSIGNED_NOT_READY, BLOCKED, QUEUED, READY, ROUTABLE, jobs

COUNT_MAX = 100_000  # counted of each
REASONS_SCANNED_MAX = 10_000  # waiting jobs whose reasons are read, the oldest of them
REASONS_MAX = 1000  # different reasons, or lanes


def count_unleased(tx: Tx) -> dict[str, int]:
    """How many wait for a cluster, for a place in a queue, and in line for their lease."""
    return {
        name: _count(tx, condition) for name, condition in (("waiting", ROUTABLE), ("queued", QUEUED), ("ready", READY))
    }


def count_blocked(tx: Tx) -> dict[str, int]:
    """PENDING jobs that the router does not look at, by what holds them back."""
    window = sa.select(jobs.c.blocked).where(sa.text(BLOCKED)).order_by(jobs.c.blocked).limit(COUNT_MAX).subquery()
    query = sa.select(window.c.blocked, sa.func.count()).group_by(window.c.blocked).limit(REASONS_MAX)
    return _pairs(tx, query)


def count_assigned_not_ready(tx: Tx) -> dict[tuple[str, str], int]:
    """Jobs that clusters have, by lane and state."""
    window = sa.select(jobs.c.lane, jobs.c.state).where(sa.text(ASSIGNED_NOT_READY)).limit(COUNT_MAX).subquery()
    groups = (window.c.lane, window.c.state)
    query = sa.select(*groups, sa.func.count()).group_by(*groups).order_by(sa.func.count().desc()).limit(REASONS_MAX)
    return {(row[0], row[1]): row[2] for row in tx.execute(query)}


def count_pending_reasons(tx: Tx) -> dict[str, int]:
    """Why the oldest of those wait that the router looks at."""
    window = sa.select(jobs.c.reason).where(sa.text(ROUTABLE)).order_by(jobs.c.id).limit(REASONS_SCANNED_MAX).subquery()
    query = sa.select(window.c.reason, sa.func.count()).group_by(window.c.reason).limit(REASONS_MAX)
    return _pairs(tx, query)


def _count(tx: Tx, condition: str) -> int:
    window = sa.select(sa.literal(1)).select_from(jobs).where(sa.text(condition)).limit(COUNT_MAX).subquery()
    found: int = tx.execute(sa.select(sa.func.count()).select_from(window)).scalar_one()
    return found


def _pairs(tx: Tx, query: sa.Select[Any]) -> dict[str, int]:
    return {row[0]: row[1] for row in tx.execute(query)}
