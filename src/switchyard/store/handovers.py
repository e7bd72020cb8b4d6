"""Queries about handovers: under which number a cluster that only polls was given an attempt, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from switchyard.store import dialect
from switchyard.store.database import Tx
from switchyard.store.schema import HANDOVER_COUNTED, HANDOVER_OPEN, handovers

Row = sa.Row[*tuple[Any, ...]]

NUMBER_MAX = 2**31 - 1  # what the wire holds


# Statements are built once: making one anew costs more than running it, and each call of a cluster runs several.
_NUMBER_SEQUENCE = sa.func.pg_get_serial_sequence("handovers", "number")
_NEXT_NUMBERS = sa.select(sa.func.nextval(_NUMBER_SEQUENCE)).select_from(
    sa.func.generate_series(1, sa.bindparam("count"))
)
_LAST_NUMBER_SQLITE = sa.text("SELECT seq FROM sqlite_sequence WHERE name = 'handovers'")
_INSERT = sa.insert(handovers)


def handover_insert(tx: Tx, rows: Sequence[dict[str, Any]]) -> list[int]:
    """Draw a number for each, in order."""
    if not rows:
        return []
    if dialect.is_postgresql(tx):
        numbers = sorted(tx.execute(_NEXT_NUMBERS, {"count": len(rows)}).scalars())
    else:  # nobody else writes until the commit
        drawn = tx.execute(_LAST_NUMBER_SQLITE).scalar() or 0
        numbers = list(range(drawn + 1, drawn + 1 + len(rows)))
    tx.execute(_INSERT, [{"number": number, **row} for number, row in zip(numbers, rows, strict=True)])
    return numbers


def handover_skip_numbers(tx: Tx, count: int) -> None:
    """Leave out so many numbers, as far as there are any left."""
    if dialect.is_postgresql(tx):
        tx.execute(
            sa.select(
                sa.func.setval(_NUMBER_SEQUENCE, sa.func.least(sa.func.nextval(_NUMBER_SEQUENCE) + count, NUMBER_MAX))
            )
        )
        return
    known = tx.execute(_LAST_NUMBER_SQLITE).scalar()
    words = "UPDATE sqlite_sequence SET seq = :seq WHERE name = 'handovers'"
    if known is None:  # none was drawn yet
        words = "INSERT INTO sqlite_sequence (name, seq) VALUES ('handovers', :seq)"
    tx.execute(sa.text(words), {"seq": min((known or 0) + count, NUMBER_MAX)})


_SUBMITTED = sa.select(handovers.c.number, handovers.c.job_id, handovers.c.fence, handovers.c.jobspec).where(
    handovers.c.job_id.in_(sa.bindparam("jobs", expanding=True)),
    sa.or_(handovers.c.jobspec.is_not(None), handovers.c.fence.is_(None)),
)


def handover_submitted(tx: Tx, job_ids: Sequence[str]) -> tuple[dict[str, int], dict[str, str]]:
    """By job, the number that was drawn at its submit and was never received; and its jobspec as it was written."""
    rows = list(tx.execute(_SUBMITTED, {"jobs": job_ids}))
    undelivered = {row.job_id: row.number for row in rows if row.fence is None}
    return undelivered, {row.job_id: row.jobspec for row in rows if row.jobspec is not None}


_RECEIVE = (
    sa.update(handovers)
    .where(handovers.c.number == sa.bindparam("the_number"))
    .values(fence=sa.bindparam("fence"), received_us=sa.bindparam("received_us"), is_open=True)
)


def handover_receive(tx: Tx, rows: Sequence[dict[str, Any]]) -> None:
    """These numbers are delivered: `number`, `fence`, `received_us`."""
    if rows:
        tx.execute(_RECEIVE, [{**row, "the_number": row["number"]} for row in rows])


_GET = sa.select(handovers).where(
    handovers.c.number.in_(sa.bindparam("numbers", expanding=True)),
    handovers.c.cluster_id == sa.bindparam("cluster"),
    handovers.c.fence.is_not(None),
)


def handover_get(tx: Tx, cluster_id: str, numbers: Sequence[int]) -> dict[int, Row]:
    """Those of these numbers that this cluster was given."""
    wanted = sorted(number for number in set(numbers) if 0 < number <= NUMBER_MAX)
    return {row.number: row for row in tx.execute(_GET, {"numbers": wanted, "cluster": cluster_id})}


_OVERDUE = (
    sa.select(handovers)
    .where(sa.text(HANDOVER_OPEN), handovers.c.received_us < sa.bindparam("before_us"))
    .order_by(handovers.c.received_us)
    .limit(sa.bindparam("most"))
)
_OVERDUE_OF_ONE = _OVERDUE.where(handovers.c.cluster_id == sa.bindparam("cluster"))


def handover_overdue(tx: Tx, *, received_before_us: int, limit: int, cluster_id: str | None = None) -> list[Row]:
    """Received long ago, and not accepted."""
    query = _OVERDUE if cluster_id is None else _OVERDUE_OF_ONE
    return list(tx.execute(query, {"before_us": received_before_us, "most": limit, "cluster": cluster_id}))


def handover_still_open(tx: Tx, numbers: Sequence[int]) -> list[Row]:
    """Those of these numbers that are received, and neither accepted nor taken back."""
    return list(tx.execute(sa.select(handovers).where(handovers.c.number.in_(sorted(numbers)), sa.text(HANDOVER_OPEN))))


_CLOSE = (
    sa.update(handovers)
    .where(handovers.c.number.in_(sa.bindparam("numbers", expanding=True)))
    .values(is_open=False, accepted_us=sa.bindparam("at_us"), is_counted=sa.bindparam("is_accepted"))
)


def handover_close(tx: Tx, numbers: Sequence[int], *, accepted_us: int | None) -> None:
    """Accepted, or (no time) taken back."""
    if numbers:
        tx.execute(_CLOSE, {"numbers": sorted(numbers), "at_us": accepted_us, "is_accepted": accepted_us is not None})


def handover_unreported(tx: Tx, *, accepted_before_us: int, limit: int) -> list[Row]:
    """Accepted long ago, and counted ever since."""
    query = sa.select(handovers).where(sa.text(HANDOVER_COUNTED), handovers.c.accepted_us < accepted_before_us)
    return list(tx.execute(query.order_by(handovers.c.accepted_us).limit(limit)))


def handover_stop_counting(tx: Tx, numbers: Sequence[int]) -> None:
    tx.execute(sa.update(handovers).where(handovers.c.number.in_(sorted(numbers))).values(is_counted=False))
