"""Counts of live jobs. Each query reads a bounded part of a partial index, so a count at the bound means "at least"."""

from __future__ import annotations

import sqlalchemy as sa

from switchyard.store.engine.database import Tx
from switchyard.store.tables.schema import ASSIGNED_NOT_READY, BLOCKED, QUEUED, READY, ROUTABLE, jobs

COUNT_MAX = 100_000  # jobs that one query counts
REASONS_SCANNED_MAX = 10_000  # oldest pending jobs whose reasons are read
REASONS_MAX = 1000  # different reasons, or lanes


def count_unleased(tx: Tx) -> dict[str, int]:
    """Count the jobs that wait for a cluster, for a place in a queue, and for a lease."""
    return {
        name: _count(tx, condition) for name, condition in (("waiting", ROUTABLE), ("queued", QUEUED), ("ready", READY))
    }


def count_blocked(tx: Tx) -> dict[str, int]:
    """Count the PENDING jobs that the router skips, by what blocks them."""
    window = sa.select(jobs.c.blocked).where(sa.text(BLOCKED)).order_by(jobs.c.blocked).limit(COUNT_MAX).subquery()
    query = sa.select(window.c.blocked, sa.func.count()).group_by(window.c.blocked).limit(REASONS_MAX)
    return _pairs(tx, query)


def count_assigned_not_ready(tx: Tx) -> dict[tuple[str, str], int]:
    """Count the jobs that are assigned and not ready, by lane and state."""
    window = sa.select(jobs.c.lane, jobs.c.state).where(sa.text(ASSIGNED_NOT_READY)).limit(COUNT_MAX).subquery()
    groups = (window.c.lane, window.c.state)
    query = sa.select(*groups, sa.func.count()).group_by(*groups).order_by(sa.func.count().desc()).limit(REASONS_MAX)
    return {(row[0], row[1]): row[2] for row in tx.execute(query)}


def count_pending_reasons(tx: Tx) -> dict[str, int]:
    """Count the oldest pending jobs by reason."""
    window = sa.select(jobs.c.reason).where(sa.text(ROUTABLE)).order_by(jobs.c.id).limit(REASONS_SCANNED_MAX).subquery()
    query = sa.select(window.c.reason, sa.func.count()).group_by(window.c.reason).limit(REASONS_MAX)
    return _pairs(tx, query)


def _count(tx: Tx, condition: str) -> int:
    window = sa.select(sa.literal(1)).select_from(jobs).where(sa.text(condition)).limit(COUNT_MAX).subquery()
    count: int = tx.execute(sa.select(sa.func.count()).select_from(window)).scalar_one()
    return count


def _pairs(tx: Tx, query: sa.Executable) -> dict[str, int]:
    return {row[0]: row[1] for row in tx.execute(query)}
