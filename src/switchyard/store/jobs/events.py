"""Events and counters. A transaction takes event numbers last, and the counter's row stays locked until the commit.
So numbers become visible in order, and a reader with a cursor misses no event, on any server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sqlalchemy as sa
from msgspec.structs import astuple

from switchyard.model.job.event_kind import TASK_PREFIX, EventKind
from switchyard.store.engine import dialect
from switchyard.store.engine.database import Tx
from switchyard.store.engine.frequent_statement import FrequentStatement, driver_run
from switchyard.store.engine.new_rows import EventRow
from switchyard.store.jobs.fetch import StoredRow, columns_of, fetch_all
from switchyard.store.jobs.job_rows import StateName
from switchyard.store.tables.clusters_tables import clusters
from switchyard.store.tables.schema import TASK_EVENT, attempts, counters, events, jobs

TURNED_BACK_COUNTER = "turned_back"  # an event number that was committed and is not known any more
GAP_PREFIX = "event_gap_"  # of a counter for numbers that no event gets: the number before them, and as value the next
GAPS_MAX = 50  # of as many starts of servers


class EventDetails(StoredRow, frozen=True):
    """An event, its cluster's name, and the owner of its job where the reader may not view all projects."""

    seq: int
    at_us: int
    job_id: str
    kind: str
    state: StateName
    attempt: int
    fence: int
    cluster: str | None
    reason: str
    cluster_id: str | None
    owner_id: str | None


class TaskEvent(StoredRow, frozen=True):
    """An event about the task of an array that runs under `fence`."""

    fence: int
    kind: str
    cluster_id: str | None
    reason: str
    seq: int


# Built once: building a statement costs more than running it.
_TAKE = FrequentStatement(
    sa.update(counters)
    .where(counters.c.name == sa.bindparam("p_name"))
    .values(value=counters.c.value + sa.bindparam("p_count"))
    .returning(counters.c.value)
)
_TAKE_AND_NOTIFY = "UPDATE counters SET value = value + %s WHERE name = %s RETURNING value, pg_notify(%s, %s)"


def counter_take(tx: Tx, name: str, count: int, *, notice: str = "") -> int:
    """Take `count` numbers. Returns the first. `notice`: notify the other servers in the same statement."""
    value = _take(tx, name, count, notice)
    if value is None:
        dialect.insert_missing(tx, counters, [{"name": name, "value": 0}])
        value = _take(tx, name, count, notice)
        assert value is not None, "the counter was just inserted"
    return value - count + 1


def _take(tx: Tx, name: str, count: int, notice: str) -> int | None:
    """Return the last number taken. None: there is no such counter, and nothing was sent."""
    if notice and dialect.is_postgresql(tx):
        rows: Sequence[Sequence[int]] = tx.exec_driver_sql(
            _TAKE_AND_NOTIFY, (count, name, *dialect.notice_values(notice))
        ).all()
    else:
        rows = _TAKE.rows(tx, {"p_name": name, "p_count": count})
    return rows[0][0] if rows else None


def counters_insert_missing(tx: Tx, values: dict[str, int]) -> None:
    dialect.insert_missing(tx, counters, [{"name": name, "value": values[name]} for name in sorted(values)])


def counter_delete(tx: Tx, name: str) -> None:
    tx.execute(sa.delete(counters).where(counters.c.name == name))


def counters_read(tx: Tx) -> dict[str, int]:
    return {row.name: row.value for row in tx.execute(sa.select(counters))}


def counter_raise(tx: Tx, name: str, value: int) -> None:
    """Set a counter that holds a point in time, never backwards."""
    statement = dialect.insert_statement(tx, counters).values(name=name, value=value)
    higher = sa.case((counters.c.value < value, value), else_=counters.c.value)
    tx.execute(statement.on_conflict_do_update(index_elements=["name"], set_={"value": higher}))


def counter_set(tx: Tx, name: str, value: int) -> None:
    """Set a counter that holds a point in time, even backwards: the clock may have been set back."""
    statement = dialect.insert_statement(tx, counters).values(name=name, value=value)
    tx.execute(statement.on_conflict_do_update(index_elements=["name"], set_={"value": value}))


def event_skip_numbers(tx: Tx, *, to: int) -> None:
    """Go on with numbers above `to`, and note those that no event gets. Nothing changes if `to` is not higher."""
    last = counter_take(tx, "events", 0) - 1  # the row stays locked
    if to <= last + 1:
        return
    counter_raise(tx, "events", to)
    counter_set(tx, f"{GAP_PREFIX}{last}", to)
    for gap in sorted(event_gaps(counters_read(tx)), reverse=True)[GAPS_MAX:]:
        counter_delete(tx, f"{GAP_PREFIX}{gap[0]}")


def event_gaps(values: dict[str, int]) -> list[tuple[int, int]]:
    """Pairs of numbers between which no event has a number. `values`: of all counters."""
    return [
        (int(name.removeprefix(GAP_PREFIX)), value) for name, value in values.items() if name.startswith(GAP_PREFIX)
    ]


_EVENT_COLUMNS = ("seq", *EventRow.__struct_fields__)


def event_insert_many(tx: Tx, rows: Iterable[EventRow], *, first_seq: int) -> None:
    """Insert events and number them in order, from `first_seq` on."""
    numbered = [(seq, *astuple(row)) for seq, row in enumerate(rows, first_seq)]
    if numbered:
        driver_run(tx, dialect.insert_sql(tx, "events", _EVENT_COLUMNS), numbered)


def event_number_before(tx: Tx, at_us: int) -> int:
    """Return the number of the last event before a time, by binary search: times grow with numbers."""
    low, high = 0, counters_read(tx).get("events", 0)
    while low < high:
        middle = (low + high) // 2
        if (when := _time_of_first(tx, middle + 1)) is not None and when < at_us:
            low = middle + 1
        else:
            high = middle
    return low


def _time_of_first(tx: Tx, seq: int) -> int | None:
    """Return the time of the first event or new job with this number or a higher one."""
    event = tx.execute(
        sa.select(events.c.seq, events.c.at_us).where(events.c.seq >= seq).order_by(events.c.seq).limit(1)
    )
    job = tx.execute(sa.select(jobs.c.seq, jobs.c.created_us).where(jobs.c.seq >= seq).order_by(jobs.c.seq).limit(1))
    numbers_and_times = [(row[0], row[1]) for row in (*event, *job)]
    return min(numbers_and_times)[1] if numbers_and_times else None


def event_list_of_tasks(tx: Tx, job_id: str, fences: list[int]) -> list[TaskEvent]:
    """List the events about tasks of an array that ran under these fences, oldest first.

    Events about output files and about what a task was given are left out: they come after the end, and would hide why
    the task failed.
    """
    notes = [task_kind(kind) for kind in (EventKind.OUTPUTS_READY, EventKind.OUTPUTS_FAILED, EventKind.DIFFERS)]
    query = sa.select(*columns_of(TaskEvent, events)).where(
        events.c.job_id == job_id, events.c.fence.in_(fences), events.c.kind.not_in(notes), sa.text(TASK_EVENT)
    )
    # Sorted here: for ORDER BY seq SQLite would read all events of the job in order.
    return sorted(fetch_all(tx, TaskEvent, query), key=lambda row: row.seq)


def task_kind(kind: EventKind) -> str:
    """Return the stored kind of an event about one task of an array."""
    return TASK_PREFIX + kind


def event_list_of_array(tx: Tx, job_id: str, kinds: list[str], *, limit: int) -> list[TaskEvent]:
    """List the first events of these kinds about tasks of an array, in the order of their fences."""
    query = sa.select(*columns_of(TaskEvent, events)).where(
        events.c.job_id == job_id, events.c.kind.in_(kinds), sa.text(TASK_EVENT)
    )
    return fetch_all(tx, TaskEvent, query.order_by(events.c.fence).limit(limit))


def event_list(
    tx: Tx,
    *,
    job_id: str | None,
    projects: list[str] | None,
    reader: str | None = None,
    after: int,
    limit: int,
    is_newest_first: bool = False,
) -> list[EventDetails]:
    """List events after a number. The `accepted` events are read from the rows of the jobs.

    `projects`: those the reader may view, besides their own jobs; None: all.
    """
    in_order = sa.desc if is_newest_first else sa.asc
    source: sa.Join = events.outerjoin(clusters, clusters.c.id == events.c.cluster_id)
    owner_id: sa.ColumnElement[str | None] = sa.cast(sa.null(), sa.Text)
    if projects is not None:  # only then the service may have to hide a cluster from the reader
        source, owner_id = source.join(jobs, jobs.c.id == events.c.job_id), jobs.c.owner_id
    happened = (
        sa.select(
            *columns_of(EventDetails, events, cluster=clusters.c.name, cluster_id=clusters.c.id, owner_id=owner_id)
        )
        .select_from(source)
        .where(events.c.seq > after)
    )
    # The decision on arrival is derived from the time of the first attempt, which may be archived by now. A later
    # decision has its own event.
    first = attempts.alias()
    is_rejected = sa.and_(jobs.c.state == "REJECTED", jobs.c.ended_us == jobs.c.created_us)
    is_assigned = sa.func.coalesce(first.c.assigned_us, jobs.c.assigned_us) == jobs.c.created_us
    accepted = (
        sa.select(
            jobs.c.seq,
            jobs.c.created_us,
            jobs.c.id,
            sa.literal(EventKind.ACCEPTED.value),
            sa.case(
                (is_assigned, "ASSIGNED"),
                (is_rejected, "REJECTED"),
                else_="PENDING",
            ),
            sa.literal(0),
            sa.literal(0),
            sa.case((is_assigned, clusters.c.name), else_=None),
            sa.case((is_rejected, jobs.c.reason), else_=sa.func.coalesce(jobs.c.arrival, "")),
            sa.case((is_assigned, clusters.c.id), else_=None),
            jobs.c.owner_id,
        )
        .select_from(
            jobs.outerjoin(
                first, sa.and_(first.c.job_id == jobs.c.id, first.c.assigned_us == jobs.c.created_us)
            ).outerjoin(clusters, clusters.c.id == sa.func.coalesce(first.c.cluster_id, jobs.c.cluster_id))
        )
        .where(jobs.c.seq > after)
    )
    if job_id is not None:
        happened, accepted = happened.where(events.c.job_id == job_id), accepted.where(jobs.c.id == job_id)
    if projects is not None:
        # Not `== None`, which would select jobs without an owner.
        is_own = () if reader is None else (jobs.c.owner_id == reader,)
        is_visible = sa.or_(jobs.c.project.in_(projects), *is_own)
        happened, accepted = happened.where(is_visible), accepted.where(is_visible)
    # Each half has its own limit: without it the union would read both tables completely.
    parts = sa.union_all(
        sa.select(happened.order_by(in_order(events.c.seq)).limit(limit).subquery()),
        sa.select(accepted.order_by(in_order(jobs.c.seq)).limit(limit).subquery()),
    ).subquery()
    return fetch_all(tx, EventDetails, sa.select(parts).order_by(in_order(parts.c.seq)).limit(limit))
