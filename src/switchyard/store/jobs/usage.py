"""What the jobs of each user take up: bytes as a stored sum, live jobs and tasks counted from an index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

import sqlalchemy as sa

from switchyard.store.engine import dialect
from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, columns_of, fetch_all
from switchyard.store.tables.rules_tables import usage
from switchyard.store.tables.schema import LIVE_ARRAY, NOT_FINAL, jobs, specs


class LiveArray(StoredRow, frozen=True):
    """An array that has not ended. `array`: its indexes."""

    id: str
    owner: str
    array: str


def bytes_add(tx: Tx, amounts: Mapping[str, int]) -> None:
    """Add to the sums of owners, or subtract. In the order of names, so that two servers lock in the same order."""
    for owner, amount in sorted(amounts.items()):
        fresh = dialect.insert_statement(tx, usage).values(owner=owner, bytes=max(0, amount))
        total = usage.c.bytes + amount
        summed = sa.case((total < 0, 0), else_=total)
        tx.execute(fresh.on_conflict_do_update(index_elements=["owner"], set_={"bytes": summed}))


def bytes_read(tx: Tx, owners: Collection[str]) -> dict[str, int]:
    query = sa.select(usage.c.owner, usage.c.bytes).where(usage.c.owner.in_(sorted(owners)))
    return {row.owner: row.bytes for row in tx.execute(query)}


def live_jobs(tx: Tx, owners: Collection[str]) -> dict[str, int]:
    """Count the jobs of these users that have not ended. Reads only an index."""
    query = sa.select(jobs.c.owner, sa.func.count().label("live")).where(
        sa.text(NOT_FINAL), jobs.c.owner.in_(sorted(owners))
    )
    return {row.owner: row.live for row in tx.execute(query.group_by(jobs.c.owner))}


def live_arrays(tx: Tx, owners: Collection[str]) -> list[LiveArray]:
    """List the arrays of these users that have not ended."""
    query = sa.select(*columns_of(LiveArray, jobs)).where(sa.text(LIVE_ARRAY), jobs.c.owner.in_(sorted(owners)))
    return fetch_all(tx, LiveArray, query)


def spec_bytes(tx: Tx, job_ids: Collection[str], *, job_bytes: int) -> Counter[str]:
    """Return the bytes that these jobs count besides their output, by owner: `job_bytes` each, and their specs."""
    size = sa.func.sum(sa.func.length(specs.c.body) + job_bytes).label("size")
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
