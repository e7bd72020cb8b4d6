"""Correct stored times after the clock was wrong or jumped.

After a clock is set back by an hour, every back-off, silence and quote would last an hour longer. After it is set
forward, jobs would expire and leases end too early. Only the leader calls this, in a transaction that checks its term.
"""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from switchyard.model.job.unreadable import UNREADABLE_ERRORS
from switchyard.store.engine.database import Tx
from switchyard.store.engine.leaders import CLOCK_SKEW_US_MAX
from switchyard.store.feature import store_features
from switchyard.store.jobs.events import counter_take
from switchyard.store.jobs.job_update import JobUpdate
from switchyard.store.tables.clusters_tables import agents, handovers
from switchyard.store.tables.probation_tables import attempt_evidence, probations
from switchyard.store.tables.quotes_tables import quote_asks, quote_waits, quotes
from switchyard.store.tables.rules_tables import token_pools
from switchyard.store.tables.schema import EXPIRING, HAS_LATE_TIME, HAS_WAKE_TIME, READY, counters, jobs

AMNESTY_COUNTER = "amnesty_us"  # the counter that holds the time before which no silence of an agent counts
WAKE_US_MAX = 2 * 86_400_000_000  # twice the longest back-off that a job may request

TimeExpression = sa.ColumnElement[int]
_HAS_ANNOUNCED_TIME = (sa.text(EXPIRING), sa.text(HAS_LATE_TIME))  # jobs with a time that users were told


def cap_future_times(tx: Tx, *, now_us: int) -> None:
    """Set recorded times that lie in the future to now. A server whose clock was ahead may have written them."""
    is_far = sa.and_(sa.text(HAS_WAKE_TIME), jobs.c.wake_us > now_us + WAKE_US_MAX)
    tx.execute(sa.update(jobs).where(is_far).values(JobUpdate(wake_us=now_us + WAKE_US_MAX).columns()))
    ahead_us = now_us + CLOCK_SKEW_US_MAX
    recorded = (handovers.c.received_us, handovers.c.accepted_us, agents.c.seen_us)
    for column in (*recorded, attempt_evidence.c.last_us, attempt_evidence.c.ok_us, probations.c.since_us):
        _lock(tx, column.table, column > ahead_us)
        tx.execute(sa.update(column.table).where(column > ahead_us).values({column.name: now_us}))
    is_ahead = sa.and_(counters.c.name == AMNESTY_COUNTER, counters.c.value > ahead_us)
    tx.execute(sa.update(counters).where(is_ahead).values(value=now_us))


def shift_after_set_back(tx: Tx, *, now_us: int, by_us: int, is_again: bool = False) -> None:
    """The clock was set back by `by_us`: subtract it from stored times that lie in the future, so that no back-off,
    quote or wait lasts longer.

    `is_again`: a second pass, for rows of servers that noticed the jump after the leader. It shifts only times that are
    further ahead than the jump.
    """
    ahead_us = now_us + CLOCK_SKEW_US_MAX
    beyond_us = max(ahead_us, now_us + by_us) if is_again else ahead_us
    waits_us = sa.func.coalesce(jobs.c.waits_us, jobs.c.created_us)
    is_waiting = sa.and_(jobs.c.state == "PENDING", waits_us > ahead_us)
    is_ready = sa.and_(sa.text(READY), jobs.c.assigned_us > ahead_us)
    _lock(tx, jobs, sa.or_(sa.text(HAS_WAKE_TIME), is_waiting, is_ready, *([] if is_again else _HAS_ANNOUNCED_TIME)))
    _shift_task_retries(tx, now_us=now_us, by_us=by_us, beyond_us=beyond_us)
    wake_us = _at_least(jobs.c.wake_us - by_us, now_us)
    tx.execute(sa.update(jobs).where(sa.text(HAS_WAKE_TIME), jobs.c.wake_us > beyond_us).values(wake_us=wake_us))
    is_from_before = jobs.c.created_us > ahead_us
    for column, index in ((jobs.c.expires_us, EXPIRING), (jobs.c.late_from_us, HAS_LATE_TIME)):
        if not is_again:
            update = sa.update(jobs).where(sa.text(index), is_from_before)
            tx.execute(update.values({column.name: column - by_us}))
    tx.execute(sa.update(jobs).where(is_waiting).values(waits_us=_at_most(waits_us - by_us, now_us)))
    assigned_us = _at_most(jobs.c.assigned_us - by_us, now_us)
    tx.execute(sa.update(jobs).where(is_ready).values(assigned_us=assigned_us))
    for table, first, later_columns in (
        (quote_waits, quote_waits.c.asked_us, (quote_waits.c.deadline_us, quote_waits.c.due_us)),
        (quote_asks, quote_asks.c.asked_us, (quote_asks.c.deadline_us,)),
        (quotes, quotes.c.at_us, (quotes.c.until_us,)),
        (probations, probations.c.last_us, (probations.c.since_us, probations.c.next_us)),
    ):
        changes = {column.name: column - by_us for column in (first, *later_columns)}
        tx.execute(sa.update(table).where(first > ahead_us).values(changes))
    cap_future_times(tx, now_us=now_us)
    if not is_again:
        for part in store_features():
            part.shift_after_set_back(tx, ahead_us=ahead_us, by_us=by_us)
        _shift_token_leases(tx, now_us=now_us, by_us=-by_us)


def shift_after_set_forward(tx: Tx, *, now_us: int, by_us: int) -> None:
    """The clock was set forward by `by_us`: add it to the times of what must not end early.

    Back-offs and quotes are not shifted: it does no harm if they end early.
    """
    is_from_before = jobs.c.created_us <= now_us - by_us
    _lock(tx, jobs, sa.and_(sa.or_(*_HAS_ANNOUNCED_TIME), is_from_before))
    for column, index in ((jobs.c.expires_us, EXPIRING), (jobs.c.late_from_us, HAS_LATE_TIME)):
        update = sa.update(jobs).where(sa.text(index), is_from_before)
        tx.execute(update.values({column.name: column + by_us}))
    for column in (handovers.c.received_us, handovers.c.accepted_us):
        update = sa.update(handovers).where(column <= now_us - by_us)
        tx.execute(update.values({column.name: column + by_us}))
    for part in store_features():
        part.shift_after_set_forward(tx, before_us=now_us - by_us, by_us=by_us)
    _shift_token_leases(tx, now_us=now_us, by_us=by_us)


def _lock(tx: Tx, table: sa.Table, where: sa.ColumnElement[bool]) -> None:
    """Lock rows in the order of their ids, as all writers do. An update locks in any order and could deadlock."""
    key = next(iter(table.primary_key))
    tx.execute(sa.select(key).where(where).order_by(key).with_for_update())


def _shift_task_retries(tx: Tx, *, now_us: int, by_us: int, beyond_us: int) -> None:
    """Shift the times of array tasks that wait for a retry. They are in the column `later`."""
    query = (
        sa.select(jobs.c.id, jobs.c.later).where(sa.text(HAS_WAKE_TIME), jobs.c.later.is_not(None)).order_by(jobs.c.id)
    )
    for row in tx.execute(query.with_for_update()).all():
        try:
            waits = msgspec.json.decode(row.later, type=list[tuple[int, str]])
        except UNREADABLE_ERRORS:
            continue  # a damaged row: its next reader reports it
        later = [(max(now_us, due - by_us) if due > beyond_us else due, indexes) for due, indexes in waits]
        if later != waits:
            text = msgspec.json.encode(later).decode()
            tx.execute(sa.update(jobs).where(jobs.c.id == row.id).values(JobUpdate(later=text).columns()))


def _shift_token_leases(tx: Tx, *, now_us: int, by_us: int) -> None:
    """Shift the end of leases of tokens in pools in memory."""
    update = sa.update(token_pools).where(token_pools.c.leased_until_us > now_us - max(0, by_us))
    if tx.execute(update.values(leased_until_us=token_pools.c.leased_until_us + by_us)).rowcount:
        counter_take(tx, "tokens", 1)  # every server reads the pools again


def _at_least(time_us: TimeExpression, than_us: int) -> TimeExpression:
    return sa.case((time_us < than_us, sa.literal(than_us, sa.BigInteger)), else_=time_us)


def _at_most(time_us: TimeExpression, than_us: int) -> TimeExpression:
    return sa.case((time_us > than_us, sa.literal(than_us, sa.BigInteger)), else_=time_us)
