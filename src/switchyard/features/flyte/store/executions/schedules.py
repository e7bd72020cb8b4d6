"""Queries about the schedules of active launch plans."""

from __future__ import annotations

import sqlalchemy as sa
from msgspec.structs import asdict

from switchyard.features.flyte.store.tables.executions_tables import schedules
from switchyard.store.engine import dialect
from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, columns_of, fetch_all, fetch_one

COMPUTE = 0  # `next_us` of a schedule whose next time is not known yet
NEVER_US = 2**62
KEYS = ("project", "domain", "name")


class ScheduleRow(StoredRow, frozen=True):
    """The schedule of the active version of a launch plan."""

    project: str
    domain: str
    name: str
    version: str
    owner: str
    owner_id: str
    since_us: int
    last_us: int | None
    next_us: int
    error: str


def schedule_put(tx: Tx, row: ScheduleRow) -> None:
    """Begin a schedule, in place of that of another version. One of the same version goes on as it is."""
    put = dialect.insert_statement(tx, schedules).values(**asdict(row))
    values = {name: value for name, value in asdict(row).items() if name not in KEYS}
    is_other = schedules.c.version != row.version
    tx.execute(put.on_conflict_do_update(index_elements=list(KEYS), set_=values, where=is_other))


def schedule_delete(tx: Tx, project: str, domain: str, name: str) -> None:
    tx.execute(sa.delete(schedules).where(*_is(project, domain, name)))


def is_any_due(tx: Tx, now_us: int) -> bool:
    return tx.execute(sa.select(schedules.c.name).where(schedules.c.next_us <= now_us).limit(1)).first() is not None


def schedules_due(tx: Tx, now_us: int, *, limit: int) -> list[ScheduleRow]:
    """The schedules that are due. Owners take turns: the first ones of all owners, then the second ones, and so on."""
    columns = schedules.c
    order = (columns.next_us, columns.project, columns.domain, columns.name)
    turn = sa.func.row_number().over(partition_by=columns.owner_id, order_by=order)
    due = sa.select(*columns_of(ScheduleRow, schedules), turn.label("turn")).where(columns.next_us <= now_us).subquery()
    query = sa.select(*columns_of(ScheduleRow, due))
    return fetch_all(tx, ScheduleRow, query.order_by(due.c.turn, due.c.next_us, due.c.owner_id).limit(limit))


def schedule_get(tx: Tx, project: str, domain: str, name: str) -> ScheduleRow | None:
    query = sa.select(*columns_of(ScheduleRow, schedules)).where(*_is(project, domain, name))
    return fetch_one(tx, ScheduleRow, query)


def schedule_advance(tx: Tx, row: ScheduleRow, *, last_us: int | None, next_us: int, error: str) -> int:
    """Set the next time, if nobody has changed the schedule since it was read."""
    update = sa.update(schedules).where(
        *_is(row.project, row.domain, row.name),
        schedules.c.version == row.version,
        schedules.c.since_us == row.since_us,
        schedules.c.next_us == row.next_us,
    )
    return tx.execute(update.values(last_us=last_us, next_us=next_us, error=error)).rowcount


def recompute_all(tx: Tx) -> None:
    """The clock was set back: the next times are computed again."""
    tx.execute(sa.update(schedules).where(schedules.c.next_us < NEVER_US).values(next_us=COMPUTE))


def _is(project: str, domain: str, name: str) -> list[sa.ColumnElement[bool]]:
    return [schedules.c.project == project, schedules.c.domain == domain, schedules.c.name == name]
