"""Queries about jobs that perhaps cannot be read: found again with all their columns, and set aside."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from switchyard.store.database import Tx
from switchyard.store.schema import jobs, specs

Row = sa.Row[*tuple[Any, ...]]

_WITH_SPEC = sa.select(jobs, specs.c.body.label("spec")).select_from(
    jobs.outerjoin(specs, specs.c.hash == jobs.c.spec_hash)
)


def jobs_with_specs(tx: Tx, job_ids: Iterable[str]) -> list[Row]:
    """These jobs, each with its spec; the spec is none where it is missing."""
    return list(tx.execute(_WITH_SPEC.where(jobs.c.id.in_(sorted(set(job_ids)))).order_by(jobs.c.id)))


def live_jobs_with_specs(tx: Tx, *, after: str, limit: int) -> list[Row]:
    """Jobs that are not over, by id, some at a time."""
    query = _WITH_SPEC.where(jobs.c.ended_us.is_(None), jobs.c.id > after)
    return list(tx.execute(query.order_by(jobs.c.id).limit(limit)))


def set_jobs_aside(tx: Tx, rows: Sequence[dict[str, Any]]) -> None:
    """Take jobs out of every line: nobody leases, routes or wakes them."""
    statement = (
        sa.update(jobs)
        .where(jobs.c.id == sa.bindparam("the_id"), jobs.c.ended_us.is_(None))
        .values(
            state="PENDING",
            is_ready=False,
            blocked=sa.bindparam("the_words"),
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
        tx.execute(statement, list(rows))


def take_out_of_line(tx: Tx, job_ids: Sequence[str]) -> None:
    """Jobs that an agent has are not leased to another one."""
    if job_ids:
        tx.execute(sa.update(jobs).where(jobs.c.id.in_(sorted(job_ids))).values(is_ready=False))
