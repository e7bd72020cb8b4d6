"""Events and the counters. A number is taken last in a transaction and its row stays locked until the commit, so
numbers become visible in order: a reader with a cursor misses nothing, in any replica."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from switchyard.store import dialect
from switchyard.store.database import Tx
from switchyard.store.schema import TASK_EVENT, attempts, clusters, counters, events, jobs

Row = sa.Row[*tuple[Any, ...]]


# Built once: making a statement anew costs more than running it.
_TAKE = (
    sa.update(counters)
    .where(counters.c.name == sa.bindparam("the_name"))
    .values(value=counters.c.value + sa.bindparam("the_count"))
    .returning(counters.c.value)
)


def counter_take(tx: Tx, name: str, count: int) -> int:
    """Take `count` numbers; the first of them."""
    taken = {"the_name": name, "the_count": count}
    value = tx.execute(_TAKE, taken).scalar()
    if value is None:
        dialect.insert_missing(tx, counters, [{"name": name, "value": 0}])
        value = tx.execute(_TAKE, taken).scalar_one()
    return int(value) - count + 1


def counters_read(tx: Tx) -> dict[str, int]:
    return {row.name: row.value for row in tx.execute(sa.select(counters))}


def counter_raise(tx: Tx, name: str, value: int) -> None:
    """Set a counter that holds a point in time, never backwards."""
    statement = dialect.insert_statement(tx, counters).values(name=name, value=value)
    higher = sa.case((counters.c.value < value, value), else_=counters.c.value)
    tx.execute(statement.on_conflict_do_update(index_elements=["name"], set_={"value": higher}))


def counter_set(tx: Tx, name: str, value: int) -> None:
    """Set a counter that holds a point in time, also backwards: the clock may have been set back."""
    statement = dialect.insert_statement(tx, counters).values(name=name, value=value)
    tx.execute(statement.on_conflict_do_update(index_elements=["name"], set_={"value": value}))


_INSERT = sa.insert(events)


def event_insert_many(tx: Tx, rows: list[dict[str, Any]]) -> None:
    if rows:
        tx.execute(_INSERT, rows)


def event_number_before(tx: Tx, at_us: int) -> int:
    """The number after which lies what happened since a time. Times grow with numbers, so halving finds it."""
    low, high = 0, counters_read(tx).get("events", 0)
    while low < high:
        middle = (low + high) // 2
        if (when := _time_of_first(tx, middle + 1)) is not None and when < at_us:
            low = middle + 1
        else:
            high = middle
    return low


def _time_of_first(tx: Tx, seq: int) -> int | None:
    """When the first thing with this number or a higher one happened."""
    event = tx.execute(
        sa.select(events.c.seq, events.c.at_us).where(events.c.seq >= seq).order_by(events.c.seq).limit(1)
    )
    job = tx.execute(sa.select(jobs.c.seq, jobs.c.created_us).where(jobs.c.seq >= seq).order_by(jobs.c.seq).limit(1))
    found = [(row[0], row[1]) for row in (*event, *job)]
    return min(found)[1] if found else None


def event_list_of_tasks(tx: Tx, job_id: str, fences: list[int]) -> list[Row]:
    """What was said last of the tasks of an array under these fences: fence and reason, the newest last."""
    query = sa.select(events.c.fence, events.c.reason, events.c.seq).where(
        events.c.job_id == job_id, events.c.fence.in_(fences), sa.text(TASK_EVENT)
    )
    # Put in order here: SQLite would rather walk all events of the job than sort these.
    return sorted(tx.execute(query), key=lambda row: int(row.seq))


def event_list(
    tx: Tx, *, job_id: str | None, projects: list[str] | None, reader: str | None = None, after: int, limit: int
) -> list[Row]:
    """Events after a number, the accepted ones (which live in the job's own row) among them.

    `projects`: those the reader may view, besides their own jobs; none: all.
    """
    source: sa.Join = events.outerjoin(clusters, clusters.c.id == events.c.cluster_id)
    owner_id: sa.ColumnElement[Any] = sa.cast(sa.null(), sa.Text)
    if projects is not None:  # only then is there a reader from whom something may be hidden
        source, owner_id = source.join(jobs, jobs.c.id == events.c.job_id), jobs.c.owner_id
    happened = (
        sa.select(
            events.c.seq,
            events.c.at_us,
            events.c.job_id,
            events.c.kind,
            events.c.state,
            events.c.attempt,
            events.c.fence,
            clusters.c.name.label("cluster"),
            events.c.reason,
            clusters.c.id.label("cluster_id"),
            owner_id.label("owner_id"),
        )
        .select_from(source)
        .where(events.c.seq > after)
    )
    # What was decided on arrival is read off the times of the first attempt, wherever that stands now and whatever its
    # fence is: a later decision has an event of its own.
    first = attempts.alias()
    is_rejected = sa.and_(jobs.c.state == "REJECTED", jobs.c.ended_us == jobs.c.created_us)
    is_assigned = sa.func.coalesce(first.c.assigned_us, jobs.c.assigned_us) == jobs.c.created_us
    accepted = (
        sa.select(
            jobs.c.seq,
            jobs.c.created_us,
            jobs.c.id,
            sa.literal("accepted"),
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
        # Not `== None`, which would mean those that nobody owns.
        own = () if reader is None else (jobs.c.owner_id == reader,)
        visible = sa.or_(jobs.c.project.in_(projects), *own)
        happened, accepted = happened.where(visible), accepted.where(visible)
    # Each half is cut before the union, or the union would read both tables whole.
    parts = sa.union_all(
        sa.select(happened.order_by(events.c.seq).limit(limit).subquery()),
        sa.select(accepted.order_by(jobs.c.seq).limit(limit).subquery()),
    ).subquery()
    return list(tx.execute(sa.select(parts).order_by(parts.c.seq).limit(limit)))
