"""Queries about handovers: under which number a cluster that only polls was given an attempt, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from switchyard.store.database import Tx
from switchyard.store.schema import COUNTED, OPEN, handovers

Row = sa.Row[*tuple[Any, ...]]

NUMBER_MAX = 2**31 - 1  # what the wire holds


def handover_insert(tx: Tx, rows: Sequence[dict[str, Any]]) -> list[int]:
    """Draw a number for each, in order."""
    statement = sa.insert(handovers).returning(handovers.c.number, sort_by_parameter_order=True)
    return list(tx.execute(statement, list(rows)).scalars()) if rows else []


def handover_skip(tx: Tx, count: int) -> None:
    """Leave out so many numbers, as far as there are any left."""
    if tx.dialect.name == "postgresql":
        drawn = "pg_get_serial_sequence('handovers', 'number')"
        tx.execute(
            sa.text(f"SELECT setval({drawn}, least(nextval({drawn}) + :count, :most))"),
            {"count": count, "most": NUMBER_MAX},
        )
        return
    known = tx.execute(sa.text("SELECT seq FROM sqlite_sequence WHERE name = 'handovers'")).scalar()
    words = "UPDATE sqlite_sequence SET seq = :seq WHERE name = 'handovers'"
    if known is None:  # none was drawn yet
        words = "INSERT INTO sqlite_sequence (name, seq) VALUES ('handovers', :seq)"
    tx.execute(sa.text(words), {"seq": min((known or 0) + count, NUMBER_MAX)})


def handover_undelivered(tx: Tx, job_ids: Sequence[str]) -> dict[str, Row]:
    """By job, the number that was drawn at its submit and was never received."""
    query = sa.select(handovers).where(handovers.c.job_id.in_(job_ids), handovers.c.fence.is_(None))
    return {row.job_id: row for row in tx.execute(query)}


def handover_jobspecs(tx: Tx, job_ids: Sequence[str]) -> dict[str, str]:
    """By job, its jobspec as its submitter wrote it."""
    query = sa.select(handovers.c.job_id, handovers.c.jobspec).where(
        handovers.c.job_id.in_(job_ids), handovers.c.jobspec.is_not(None)
    )
    return {row.job_id: row.jobspec for row in tx.execute(query)}


def handover_receive(tx: Tx, rows: Sequence[dict[str, Any]]) -> None:
    """These numbers are delivered: `number`, `fence`, `received_us`."""
    statement = (
        sa.update(handovers)
        .where(handovers.c.number == sa.bindparam("the_number"))
        .values(fence=sa.bindparam("fence"), received_us=sa.bindparam("received_us"), is_open=True)
    )
    if rows:
        tx.execute(statement, [{**row, "the_number": row["number"]} for row in rows])


def handover_get(tx: Tx, cluster_id: str, numbers: Sequence[int]) -> dict[int, Row]:
    """Those of these numbers that this cluster was given."""
    wanted = sorted(number for number in set(numbers) if 0 < number <= NUMBER_MAX)
    query = sa.select(handovers).where(
        handovers.c.number.in_(wanted), handovers.c.cluster_id == cluster_id, handovers.c.fence.is_not(None)
    )
    return {row.number: row for row in tx.execute(query)}


def handover_overdue(tx: Tx, *, received_before_us: int, limit: int, cluster_id: str | None = None) -> list[Row]:
    """Received long ago, and not accepted."""
    query = sa.select(handovers).where(sa.text(OPEN), handovers.c.received_us < received_before_us)
    if cluster_id is not None:
        query = query.where(handovers.c.cluster_id == cluster_id)
    return list(tx.execute(query.order_by(handovers.c.received_us).limit(limit)))


def handover_still_open(tx: Tx, numbers: Sequence[int]) -> list[Row]:
    """Those of these numbers that are received, and neither accepted nor taken back."""
    return list(tx.execute(sa.select(handovers).where(handovers.c.number.in_(sorted(numbers)), sa.text(OPEN))))


def handover_close(tx: Tx, numbers: Sequence[int], *, accepted_us: int | None) -> None:
    """Accepted, or (no time) taken back."""
    statement = sa.update(handovers).where(handovers.c.number.in_(sorted(numbers)))
    if numbers:
        tx.execute(statement.values(is_open=False, accepted_us=accepted_us, is_counted=accepted_us is not None))


def handover_unreported(tx: Tx, *, accepted_before_us: int, limit: int) -> list[Row]:
    """Accepted long ago, and counted ever since."""
    query = sa.select(handovers).where(sa.text(COUNTED), handovers.c.accepted_us < accepted_before_us)
    return list(tx.execute(query.order_by(handovers.c.accepted_us).limit(limit)))


def handover_uncount(tx: Tx, numbers: Sequence[int]) -> None:
    tx.execute(sa.update(handovers).where(handovers.c.number.in_(sorted(numbers))).values(is_counted=False))
