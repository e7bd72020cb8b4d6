"""Queries that find and remove what is old, a bounded part at a time. Ids and numbers sort by time: no new index."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from switchyard.store.database import Tx
from switchyard.store.schema import (
    attempts,
    audit,
    dependencies,
    events,
    handovers,
    jobs,
    policies,
    quote_uses,
    quote_waits,
    ranges,
    specs,
    verdict_sets,
)

Row = sa.Row[*tuple[Any, ...]]

FINAL_STATES = ("SUCCEEDED", "FAILED", "CANCELLED", "REJECTED")
SHARED_TABLES = {"specs": specs, "verdict_sets": verdict_sets, "policies": policies}


def job_ids_ended_before(
    tx: Tx, *, after: str, before: str, ended_before_us: int, budget: int
) -> tuple[list[str], str | None]:
    """Among the next `budget` jobs of this span of ids those that ended long ago; and the last id looked at, if any."""
    window = sa.select(jobs.c.id, jobs.c.state, jobs.c.ended_us).where(jobs.c.id > after, jobs.c.id < before)
    rows = tx.execute(window.order_by(jobs.c.id).limit(budget)).all()
    old = [
        row.id
        for row in rows
        if row.state in FINAL_STATES and row.ended_us is not None and row.ended_us < ended_before_us
    ]
    return old, rows[-1].id if rows else None


def job_ids_depended_on(tx: Tx, job_ids: Sequence[str]) -> set[str]:
    """Those of these jobs that another one still waits for."""
    query = sa.select(dependencies.c.on_id).where(dependencies.c.on_id.in_(job_ids)).distinct()
    return set(tx.execute(query).scalars())


def jobs_delete(tx: Tx, job_ids: Sequence[str]) -> int:
    """Remove ended jobs with all that is kept of them but their output."""
    for table in (events, attempts, ranges, dependencies, quote_waits, quote_uses, handovers):
        tx.execute(sa.delete(table).where(table.c.job_id.in_(job_ids)))
    return tx.execute(sa.delete(jobs).where(jobs.c.id.in_(job_ids), jobs.c.state.in_(FINAL_STATES))).rowcount


def events_delete(tx: Tx, *, before_us: int, limit: int) -> int:
    """Remove the oldest events up to the first that is young enough."""
    oldest = tx.execute(sa.select(events.c.seq, events.c.at_us).order_by(events.c.seq).limit(limit)).all()
    old = [row.seq for row in oldest if row.at_us < before_us]
    return tx.execute(sa.delete(events).where(events.c.seq.in_(old))).rowcount if old else 0


def audit_delete(tx: Tx, *, before: str, before_us: int, limit: int) -> int:
    """By id, which is in an index, and by time: the ids are of whichever server made them."""
    query = sa.select(audit.c.id).where(audit.c.id < before, audit.c.at_us < before_us)
    old = list(tx.execute(query.order_by(audit.c.id).limit(limit)).scalars())
    return tx.execute(sa.delete(audit).where(audit.c.id.in_(old))).rowcount if old else 0


def shared_unused(tx: Tx, name: str, *, used_before_us: int, limit: int) -> list[str]:
    """Specs or verdict sets that nobody put for long: perhaps no job has them any more."""
    table = SHARED_TABLES[name]
    return list(tx.execute(sa.select(table.c.hash).where(table.c.used_us < used_before_us).limit(limit)).scalars())


def job_hashes_page(tx: Tx, *, after: str, limit: int) -> list[Row]:
    """Which spec, which verdicts and which rules the next jobs have."""
    query = sa.select(jobs.c.id, jobs.c.spec_hash, jobs.c.plan_hash, jobs.c.policy_hash).where(jobs.c.id > after)
    return list(tx.execute(query.order_by(jobs.c.id).limit(limit)))


def shared_delete(tx: Tx, name: str, hashes: Iterable[str], *, used_before_us: int) -> int:
    """Remove these, unless one was put again meanwhile."""
    table = SHARED_TABLES[name]
    gone = sa.delete(table).where(table.c.hash.in_(sorted(hashes)), table.c.used_us < used_before_us)
    return tx.execute(gone).rowcount
