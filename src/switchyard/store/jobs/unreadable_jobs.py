"""Queries about jobs whose row may be damaged: read them with all columns, and quarantine them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sqlalchemy as sa
from msgspec.structs import asdict

from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, fetch_all
from switchyard.store.jobs.job_rows import JobWithSpec
from switchyard.store.jobs.job_update import JobUpdate
from switchyard.store.tables.schema import jobs, specs

_WITH_SPEC = sa.select(jobs, specs.c.body.label("spec")).select_from(
    jobs.outerjoin(specs, specs.c.hash == jobs.c.spec_hash)
)


def jobs_with_specs(tx: Tx, job_ids: Iterable[str]) -> list[JobWithSpec]:
    query = _WITH_SPEC.where(jobs.c.id.in_(sorted(set(job_ids))))
    return fetch_all(tx, JobWithSpec, query.order_by(jobs.c.id))


def live_jobs_with_specs(tx: Tx, *, after: str, limit: int) -> list[JobWithSpec]:
    """Return a page of the jobs that have not ended, by id."""
    query = _WITH_SPEC.where(jobs.c.ended_us.is_(None), jobs.c.id > after)
    return fetch_all(tx, JobWithSpec, query.order_by(jobs.c.id).limit(limit))


class QuarantinedJob(StoredRow, frozen=True):
    """A damaged job as it is set aside. A fence that cannot be read stays what it is."""

    id: str
    blocked: str | None
    reason: str
    fence: object


def set_jobs_aside(tx: Tx, rows: Sequence[QuarantinedJob]) -> None:
    """Quarantine jobs: PENDING and blocked, with a new fence, so that no lease, routing or wake-up touches them."""
    statement = (
        sa.update(jobs)
        .where(jobs.c.id == sa.bindparam("the_id"), jobs.c.ended_us.is_(None))
        .values(
            state="PENDING",
            is_ready=False,
            blocked=sa.bindparam("the_blocked"),
            reason=sa.bindparam("the_reason"),
            fence=sa.bindparam("the_fence", type_=sa.types.NullType()),
            **dict.fromkeys(
                ("cluster_id", "agent_id", "native_id", "assigned_us", "leased_us", "places", "wake_us", "expires_us"),
                None,
            ),
            late_from_us=None,
        )
    )
    if rows:
        tx.execute(statement, [{f"the_{name}": value for name, value in asdict(row).items()} for row in rows])


def take_out_of_line(tx: Tx, job_ids: Sequence[str]) -> None:
    """Make sure that jobs which an agent has are not leased to another agent."""
    if job_ids:
        tx.execute(sa.update(jobs).where(jobs.c.id.in_(sorted(job_ids))).values(JobUpdate(is_ready=False).columns()))
