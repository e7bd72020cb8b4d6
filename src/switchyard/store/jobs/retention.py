"""Queries that find and delete old rows, in bounded steps. Ids and numbers sort by time, so no index is needed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sqlalchemy as sa

from switchyard.store.engine.database import Tx
from switchyard.store.feature import is_awaited
from switchyard.store.jobs.fetch import StoredRow, columns_of, fetch_all
from switchyard.store.tables.clusters_tables import handovers
from switchyard.store.tables.files_tables import file_outputs, file_refs
from switchyard.store.tables.quotes_tables import quote_uses, quote_waits
from switchyard.store.tables.rules_tables import policies
from switchyard.store.tables.schema import (
    FINAL_STATES,
    attempts,
    audit,
    dependencies,
    events,
    failures,
    jobs,
    ranges,
    specs,
    verdict_sets,
)

SHARED_TABLES = {"specs": specs, "verdict_sets": verdict_sets, "policies": policies}


class JobHashes(StoredRow, frozen=True):
    """The spec, the verdicts and the rules of a job, by their hashes."""

    id: str
    spec_hash: str
    plan_hash: str | None
    policy_hash: str | None


def job_ids_ended_before(
    tx: Tx, *, after: str, before: str, ended_before_us: int, budget: int
) -> tuple[list[str], str | None]:
    """Read the next `budget` jobs between two ids. Returns the ids of those that ended before a time, and the last id
    that was read."""
    window = sa.select(jobs.c.id, jobs.c.state, jobs.c.ended_us).where(jobs.c.id > after, jobs.c.id < before)
    rows = tx.execute(window.order_by(jobs.c.id).limit(budget)).all()
    old = [
        row.id
        for row in rows
        if row.state in FINAL_STATES and row.ended_us is not None and row.ended_us < ended_before_us
    ]
    return old, rows[-1].id if rows else None


def job_ids_depended_on(tx: Tx, job_ids: Sequence[str]) -> set[str]:
    """Return the jobs of these that another job still waits for."""
    query = sa.select(dependencies.c.on_id).where(dependencies.c.on_id.in_(job_ids)).distinct()
    return set(tx.execute(query).scalars())


def job_ids_awaited(tx: Tx, job_ids: Sequence[str]) -> set[str]:
    """Return the jobs of these that a feature still needs."""
    return set(tx.execute(sa.select(jobs.c.id).where(jobs.c.id.in_(job_ids), is_awaited(jobs.c.id))).scalars())


def jobs_delete(tx: Tx, job_ids: Sequence[str]) -> int:
    """Delete ended jobs and all their rows except their output."""
    of_jobs = (events, attempts, failures, ranges, dependencies, quote_waits, quote_uses, handovers)
    for table in (*of_jobs, file_refs, file_outputs):
        tx.execute(sa.delete(table).where(table.c.job_id.in_(job_ids)))
    return tx.execute(sa.delete(jobs).where(jobs.c.id.in_(job_ids), jobs.c.state.in_(FINAL_STATES))).rowcount


def events_delete(tx: Tx, *, before_us: int, limit: int) -> int:
    """Delete the oldest events, up to the first event that is not older than a time."""
    oldest = tx.execute(sa.select(events.c.seq, events.c.at_us).order_by(events.c.seq).limit(limit)).all()
    old = [row.seq for row in oldest if row.at_us < before_us]
    return tx.execute(sa.delete(events).where(events.c.seq.in_(old))).rowcount if old else 0


def audit_delete(tx: Tx, *, before: str, before_us: int, limit: int) -> int:
    """Delete old audit entries: by id, which has an index, and by time, because servers' clocks make the ids."""
    query = sa.select(audit.c.id).where(audit.c.id < before, audit.c.at_us < before_us)
    old = list(tx.execute(query.order_by(audit.c.id).limit(limit)).scalars())
    return tx.execute(sa.delete(audit).where(audit.c.id.in_(old))).rowcount if old else 0


def shared_unused(tx: Tx, name: str, *, used_before_us: int, limit: int) -> list[str]:
    """Return the hashes of specs, verdict sets or policies not used by a new job since a time. No job may need them."""
    table = SHARED_TABLES[name]
    return list(tx.execute(sa.select(table.c.hash).where(table.c.used_us < used_before_us).limit(limit)).scalars())


def job_hashes_page(tx: Tx, *, after: str, limit: int) -> list[JobHashes]:
    query = sa.select(*columns_of(JobHashes, jobs)).where(jobs.c.id > after)
    return fetch_all(tx, JobHashes, query.order_by(jobs.c.id).limit(limit))


def shared_delete(tx: Tx, name: str, hashes: Iterable[str], *, used_before_us: int) -> int:
    """Delete these specs, verdict sets or policies, except those that a new job has used meanwhile."""
    table = SHARED_TABLES[name]
    delete = sa.delete(table).where(table.c.hash.in_(sorted(hashes)), table.c.used_us < used_before_us)
    return tx.execute(delete).rowcount
