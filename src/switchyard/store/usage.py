"""What each user makes the yard keep: bytes by a running sum, live jobs and tasks by counting an index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa

from switchyard.store import dialect
from switchyard.store.database import Tx
from switchyard.store.schema import LIVE_ARRAY, NOT_FINAL, jobs, specs, usage

Row = sa.Row[*tuple[Any, ...]]


def bytes_add(tx: Tx, amounts: Mapping[str, int]) -> None:
    """Add to the sums, or take from them. By name, so that two servers lock in the same order."""
    for owner, amount in sorted(amounts.items()):
        fresh = dialect.insert_statement(tx, usage).values(owner=owner, bytes=max(0, amount))
        total = usage.c.bytes + amount
        summed = sa.case((total < 0, 0), else_=total)
        tx.execute(fresh.on_conflict_do_update(index_elements=["owner"], set_={"bytes": summed}))


def bytes_read(tx: Tx, owners: Collection[str]) -> dict[str, int]:
    query = sa.select(usage.c.owner, usage.c.bytes).where(usage.c.owner.in_(sorted(owners)))
    return {row.owner: row.bytes for row in tx.execute(query)}


def live_jobs(tx: Tx, owners: Collection[str]) -> dict[str, int]:
    """Jobs of these users that are not over: the index alone is read."""
    query = sa.select(jobs.c.owner, sa.func.count().label("live")).where(
        sa.text(NOT_FINAL), jobs.c.owner.in_(sorted(owners))
    )
    return {row.owner: row.live for row in tx.execute(query.group_by(jobs.c.owner))}


def live_arrays(tx: Tx, owners: Collection[str]) -> list[Row]:
    """The arrays among them: their owner and indexes."""
    query = sa.select(jobs.c.id, jobs.c.owner, jobs.c.array).where(
        sa.text(LIVE_ARRAY), jobs.c.owner.in_(sorted(owners))
    )
    return list(tx.execute(query))


def spec_bytes(tx: Tx, job_ids: Collection[str], *, each: int) -> Counter[str]:
    """What these jobs count besides their output, by owner: `each` and the spec."""
    size = sa.func.sum(sa.func.length(specs.c.body) + each).label("size")
    query = (
        sa.select(jobs.c.owner, size)
        .select_from(jobs.join(specs, specs.c.hash == jobs.c.spec_hash))
        .where(jobs.c.id.in_(sorted(job_ids)))
        .group_by(jobs.c.owner)
    )
    return Counter({row.owner: int(row.size) for row in tx.execute(query)})


def owners_of(tx: Tx, job_ids: Collection[str]) -> dict[str, str]:
    query = sa.select(jobs.c.id, jobs.c.owner).where(jobs.c.id.in_(sorted(job_ids)))
    return {row.id: row.owner for row in tx.execute(query)}
