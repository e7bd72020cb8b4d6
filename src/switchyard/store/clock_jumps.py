"""Stored times after the clock they were written by was wrong or jumped: moved with it, and none left far ahead.

Set back by an hour, a clock would leave every back-off, silence and quote waiting for an hour more; set forward, it
would let jobs expire and leases end too early. Called by the leader alone, in the transaction of its term. Locks are
taken in the order of all writers: jobs, agents, counters.
"""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from switchyard.model.unreadable import UNREADABLE_ERRORS
from switchyard.store.database import Tx
from switchyard.store.events import counter_take
from switchyard.store.leaders import CLOCK_SKEW_US_MAX
from switchyard.store.schema import (
    EXPIRING,
    HAS_LATE_TIME,
    HAS_WAKE_TIME,
    READY,
    agents,
    counters,
    handovers,
    jobs,
    quote_asks,
    quote_waits,
    quotes,
    token_pools,
)

AMNESTY_COUNTER = "amnesty_us"  # the counter that says since when silence counts
WAKE_US_MAX = 2 * 86_400_000_000  # twice the longest back-off that a job may ask for

TimeExpression = sa.ColumnElement[int]
_HAS_ANNOUNCED_TIME = (sa.text(EXPIRING), sa.text(HAS_LATE_TIME))  # jobs with a time that was told to somebody


def cap_future_times(tx: Tx, *, now_us: int) -> None:
    """Nothing happened later than now. A server whose clock was ahead may have written that it did."""
    is_far = sa.and_(sa.text(HAS_WAKE_TIME), jobs.c.wake_us > now_us + WAKE_US_MAX)
    tx.execute(sa.update(jobs).where(is_far).values(wake_us=now_us + WAKE_US_MAX))
    ahead_us = now_us + CLOCK_SKEW_US_MAX
    for column in (handovers.c.received_us, handovers.c.accepted_us, agents.c.seen_us):
        _lock(tx, column.table, column > ahead_us)
        tx.execute(sa.update(column.table).where(column > ahead_us).values({column.name: now_us}))
    is_ahead = sa.and_(counters.c.name == AMNESTY_COUNTER, counters.c.value > ahead_us)
    tx.execute(sa.update(counters).where(is_ahead).values(value=now_us))


def shift_after_set_back(tx: Tx, *, now_us: int, by_us: int, is_again: bool = False) -> None:
    """The clock was set back by so much: what was written before is earlier by as much, and what waits, waits no
    longer than it should.

    `is_again`: servers that noticed the jump a moment after the leader wrote by the old clock until then. Only what is
    still further ahead than the jump is looked at.
    """
    ahead_us = now_us + CLOCK_SKEW_US_MAX
    beyond_us = max(ahead_us, now_us + by_us) if is_again else ahead_us
    waits_us = sa.func.coalesce(jobs.c.waits_us, jobs.c.created_us)
    is_waiting = sa.and_(jobs.c.state == "PENDING", waits_us > ahead_us)
    is_in_line = sa.and_(sa.text(READY), jobs.c.assigned_us > ahead_us)
    _lock(tx, jobs, sa.or_(sa.text(HAS_WAKE_TIME), is_waiting, is_in_line, *([] if is_again else _HAS_ANNOUNCED_TIME)))
    _shift_task_retries(tx, now_us=now_us, by_us=by_us, beyond_us=beyond_us)
    wake_us = _at_least(jobs.c.wake_us - by_us, now_us)
    tx.execute(sa.update(jobs).where(sa.text(HAS_WAKE_TIME), jobs.c.wake_us > beyond_us).values(wake_us=wake_us))
    is_from_before = jobs.c.created_us > ahead_us
    for column, index in ((jobs.c.expires_us, EXPIRING), (jobs.c.late_from_us, HAS_LATE_TIME)):
        if not is_again:
            shifted = sa.update(jobs).where(sa.text(index), is_from_before)
            tx.execute(shifted.values({column.name: column - by_us}))
    tx.execute(sa.update(jobs).where(is_waiting).values(waits_us=_at_most(waits_us - by_us, now_us)))
    assigned_us = _at_most(jobs.c.assigned_us - by_us, now_us)
    tx.execute(sa.update(jobs).where(is_in_line).values(assigned_us=assigned_us))
    for table, first, others in (
        (quote_waits, quote_waits.c.asked_us, (quote_waits.c.deadline_us, quote_waits.c.due_us)),
        (quote_asks, quote_asks.c.asked_us, (quote_asks.c.deadline_us,)),
        (quotes, quotes.c.at_us, (quotes.c.until_us,)),
    ):
        changes = {column.name: column - by_us for column in (first, *others)}
        tx.execute(sa.update(table).where(first > ahead_us).values(changes))
    cap_future_times(tx, now_us=now_us)
    if not is_again:
        _shift_token_leases(tx, now_us=now_us, by_us=-by_us)


def shift_after_set_forward(tx: Tx, *, now_us: int, by_us: int) -> None:
    """The clock was set forward by so much: what may not end early ends later by as much.

    A back-off or a quote that ends early harms nobody, and stays.
    """
    is_from_before = jobs.c.created_us <= now_us - by_us
    _lock(tx, jobs, sa.and_(sa.or_(*_HAS_ANNOUNCED_TIME), is_from_before))
    for column, index in ((jobs.c.expires_us, EXPIRING), (jobs.c.late_from_us, HAS_LATE_TIME)):
        shifted = sa.update(jobs).where(sa.text(index), is_from_before)
        tx.execute(shifted.values({column.name: column + by_us}))
    for column in (handovers.c.received_us, handovers.c.accepted_us):
        earlier = sa.update(handovers).where(column <= now_us - by_us)
        tx.execute(earlier.values({column.name: column + by_us}))
    _shift_token_leases(tx, now_us=now_us, by_us=by_us)


def _lock(tx: Tx, table: sa.Table, where: sa.ColumnElement[bool]) -> None:
    """By id, as everybody locks them: an update of many takes them as they lie, and deadlocks with others' changes."""
    key = next(iter(table.primary_key))
    tx.execute(sa.select(key).where(where).order_by(key).with_for_update())


def _shift_task_retries(tx: Tx, *, now_us: int, by_us: int, beyond_us: int) -> None:
    """The same for the tasks of arrays that wait for a retry: their times are inside the row."""
    query = (
        sa.select(jobs.c.id, jobs.c.later).where(sa.text(HAS_WAKE_TIME), jobs.c.later.is_not(None)).order_by(jobs.c.id)
    )
    for row in tx.execute(query.with_for_update()).all():
        try:
            waits = msgspec.json.decode(row.later, type=list[tuple[int, str]])
        except UNREADABLE_ERRORS:
            continue  # whoever needs it says so
        later = [(max(now_us, due - by_us) if due > beyond_us else due, indexes) for due, indexes in waits]
        if later != waits:
            text = msgspec.json.encode(later).decode()
            tx.execute(sa.update(jobs).where(jobs.c.id == row.id).values(later=text))


def _shift_token_leases(tx: Tx, *, now_us: int, by_us: int) -> None:
    """Until when callers may hold tokens of pools in memory."""
    shifted = sa.update(token_pools).where(token_pools.c.leased_until_us > now_us - max(0, by_us))
    if tx.execute(shifted.values(leased_until_us=token_pools.c.leased_until_us + by_us)).rowcount:
        counter_take(tx, "tokens", 1)  # every server reads them anew


def _at_least(time_us: TimeExpression, than_us: int) -> TimeExpression:
    return sa.case((time_us < than_us, sa.literal(than_us, sa.BigInteger)), else_=time_us)


def _at_most(time_us: TimeExpression, than_us: int) -> TimeExpression:
    return sa.case((time_us > than_us, sa.literal(than_us, sa.BigInteger)), else_=time_us)
