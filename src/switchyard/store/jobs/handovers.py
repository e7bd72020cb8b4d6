"""Queries about handovers: attempts that were given to a cluster without an agent, each under its own number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa
from msgspec.structs import astuple

from switchyard.store.engine import dialect
from switchyard.store.engine.database import Tx
from switchyard.store.engine.frequent_statement import FrequentStatement, driver_run
from switchyard.store.jobs.fetch import StoredRow, fetch_all
from switchyard.store.tables.clusters_tables import HANDOVER_COUNTED, HANDOVER_OPEN, handovers

NUMBER_MAX = 2**31 - 1  # of the protocol


class NewHandover(StoredRow, frozen=True):
    """A handover before its insert, which draws its number. No fence: the job was submitted and is not delivered."""

    job_id: str
    cluster_id: str
    fence: int | None
    jobspec: str | None
    received_us: int | None
    accepted_us: int | None
    is_open: bool
    is_counted: bool


class HandoverRow(StoredRow, frozen=True):
    """An attempt that was delivered to the cluster under this number."""

    number: int
    job_id: str
    cluster_id: str
    fence: int
    jobspec: str | None
    received_us: int
    accepted_us: int | None
    is_open: bool
    is_counted: bool


# Statements are built once: building one costs more than running it, and each call of a cluster runs several.
_NUMBER_SEQUENCE = sa.func.pg_get_serial_sequence("handovers", "number")
_NEXT_NUMBERS = sa.select(sa.func.nextval(_NUMBER_SEQUENCE)).select_from(
    sa.func.generate_series(1, sa.bindparam("count"))
)
_LAST_NUMBER_SQLITE = FrequentStatement(sa.text("SELECT seq FROM sqlite_sequence WHERE name = 'handovers'"))
_COLUMNS = ("number", *NewHandover.__struct_fields__)


def handover_insert(tx: Tx, rows: Sequence[NewHandover]) -> list[int]:
    """Insert handovers. Returns the new number of each, in order."""
    if not rows:
        return []
    if dialect.is_postgresql(tx):
        numbers = sorted(tx.execute(_NEXT_NUMBERS, {"count": len(rows)}).scalars())
    else:  # SQLite has one writer until the commit
        drawn = _last_number_sqlite(tx) or 0
        numbers = list(range(drawn + 1, drawn + 1 + len(rows)))
    numbered = [(number, *astuple(row)) for number, row in zip(numbers, rows, strict=True)]
    driver_run(tx, dialect.insert_sql(tx, "handovers", _COLUMNS), numbered)
    return numbers


def _last_number_sqlite(tx: Tx) -> int | None:
    """Return the last number that was drawn. None: no number was drawn yet."""
    rows = _LAST_NUMBER_SQLITE.rows(tx, {})
    return rows[0][0] if rows else None


def handover_skip_numbers(tx: Tx, count: int) -> None:
    """Skip `count` numbers, up to the highest one."""
    if dialect.is_postgresql(tx):
        tx.execute(
            sa.select(
                sa.func.setval(_NUMBER_SEQUENCE, sa.func.least(sa.func.nextval(_NUMBER_SEQUENCE) + count, NUMBER_MAX))
            )
        )
        return
    last = _last_number_sqlite(tx)
    statement = "UPDATE sqlite_sequence SET seq = :seq WHERE name = 'handovers'"
    if last is None:  # none was drawn yet
        statement = "INSERT INTO sqlite_sequence (name, seq) VALUES ('handovers', :seq)"
    tx.execute(sa.text(statement), {"seq": min((last or 0) + count, NUMBER_MAX)})


_SUBMITTED = FrequentStatement(
    sa.select(handovers.c.number, handovers.c.job_id, handovers.c.fence, handovers.c.jobspec).where(
        handovers.c.job_id.in_(sa.bindparam("jobs", expanding=True)),
        sa.or_(handovers.c.jobspec.is_not(None), handovers.c.fence.is_(None)),
    )
)


def handover_submitted(tx: Tx, job_ids: Sequence[str]) -> tuple[dict[str, int], dict[str, str]]:
    """Return two maps by job: the number drawn at submit, if not delivered yet; and the jobspec as it was submitted."""
    rows = _SUBMITTED.rows(tx, {"jobs": list(job_ids)})
    undelivered = {job_id: number for number, job_id, fence, _ in rows if fence is None}
    return undelivered, {job_id: jobspec for _, job_id, _, jobspec in rows if jobspec is not None}


_RECEIVE = FrequentStatement(
    sa.update(handovers)
    .where(handovers.c.number == sa.bindparam("p_number"))
    .values(fence=sa.bindparam("fence"), received_us=sa.bindparam("received_us"), is_open=True)
)


def handover_receive(tx: Tx, fences: Mapping[int, int], *, at_us: int) -> None:
    """Mark handovers as delivered. `fences`: the fence of each delivered attempt, by number."""
    rows = [{"p_number": number, "fence": fence, "received_us": at_us} for number, fence in fences.items()]
    _RECEIVE.run(tx, rows)


_GET = FrequentStatement(
    sa.select(handovers).where(
        handovers.c.number.in_(sa.bindparam("numbers", expanding=True)),
        handovers.c.cluster_id == sa.bindparam("cluster"),
        handovers.c.fence.is_not(None),
    )
)


def handover_get(tx: Tx, cluster_id: str, numbers: Sequence[int]) -> dict[int, HandoverRow]:
    """Return the handovers with these numbers that were delivered to this cluster."""
    possible = sorted(number for number in set(numbers) if 0 < number <= NUMBER_MAX)
    rows = _GET.fetch_all(tx, HandoverRow, {"numbers": possible, "cluster": cluster_id})
    return {row.number: row for row in rows}


_OVERDUE = (
    sa.select(handovers)
    .where(sa.text(HANDOVER_OPEN), handovers.c.received_us < sa.bindparam("before_us"))
    .order_by(handovers.c.received_us)
    .limit(sa.bindparam("most"))
)
_OVERDUE_OF_ONE = FrequentStatement(_OVERDUE.where(handovers.c.cluster_id == sa.bindparam("cluster")))


def handover_overdue(
    tx: Tx, *, received_before_us: int, limit: int, cluster_id: str | None = None
) -> list[HandoverRow]:
    """List handovers that were delivered before a time and neither accepted nor taken back."""
    values = {"before_us": received_before_us, "most": limit}
    if cluster_id is None:
        return fetch_all(tx, HandoverRow, _OVERDUE, values)
    return _OVERDUE_OF_ONE.fetch_all(tx, HandoverRow, {**values, "cluster": cluster_id})


def handover_still_open(tx: Tx, numbers: Sequence[int]) -> list[HandoverRow]:
    """List the handovers with these numbers that are delivered and neither accepted nor taken back."""
    query = sa.select(handovers).where(handovers.c.number.in_(sorted(numbers)), sa.text(HANDOVER_OPEN))
    return fetch_all(tx, HandoverRow, query)


_CLOSE = FrequentStatement(
    sa.update(handovers)
    .where(handovers.c.number.in_(sa.bindparam("numbers", expanding=True)))
    .values(is_open=False, accepted_us=sa.bindparam("at_us"), is_counted=sa.bindparam("is_accepted"))
)


def handover_close(tx: Tx, numbers: Sequence[int], *, accepted_us: int | None) -> None:
    """Mark handovers as accepted or, without a time, as taken back."""
    if numbers:
        is_accepted = accepted_us is not None
        _CLOSE.run(tx, [{"numbers": sorted(numbers), "at_us": accepted_us, "is_accepted": is_accepted}])


def handover_unreported(tx: Tx, *, accepted_before_us: int, limit: int) -> list[HandoverRow]:
    """List handovers that were accepted before a time and still count in their queue and concurrency group."""
    query = sa.select(handovers).where(sa.text(HANDOVER_COUNTED), handovers.c.accepted_us < accepted_before_us)
    return fetch_all(tx, HandoverRow, query.order_by(handovers.c.accepted_us).limit(limit))


def handover_stop_counting(tx: Tx, numbers: Sequence[int]) -> None:
    tx.execute(sa.update(handovers).where(handovers.c.number.in_(sorted(numbers))).values(is_counted=False))
