"""Recovery of a database that was restored from a backup: the mark of a restore, and what the next server repairs.

The mark is a table that no backup contains, so it survives `pg_restore`. A crash at any moment leaves either the old
database, or a restored database that is still marked.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from switchyard.errors import Unavailable
from switchyard.model.job.blocker import Blocker
from switchyard.store.engine.database import MIGRATION_LOCK, Database, Tx
from switchyard.store.jobs.events import (
    GAP_PREFIX,
    TURNED_BACK_COUNTER,
    counter_delete,
    counter_raise,
    counter_take,
    counters_read,
    event_gaps,
)
from switchyard.store.jobs.handovers import handover_skip_numbers
from switchyard.store.jobs.jobs import IDS_PER_STATEMENT_MAX
from switchyard.store.tables.clusters_tables import agents
from switchyard.store.tables.schema import FINAL_STATES, audit, counters, jobs, leaders

_marks = sa.Table(
    "restored",
    sa.MetaData(),
    sa.Column("base", sa.BigInteger, nullable=False),
    sa.Column("wait_us", sa.BigInteger, nullable=False),
)
# A session that an agent does not know makes it sync, and so report its attempts.
SESSIONS_SKIPPED = 1_000_000
# Numbers of handovers that may have been drawn since the backup. 200 restores use up all numbers.
HANDOVER_NUMBERS_SKIPPED = 10_000_000


def put_restore_mark(tx: Tx, *, base: int, wait_us: int) -> None:
    """Mark the database as restored, for the next server that starts. `base`: above every fence and event number."""
    _marks.create(tx, checkfirst=True)
    tx.execute(sa.delete(_marks))
    tx.execute(sa.insert(_marks).values(base=base, wait_us=wait_us))


def highest_fence_or_event(database: Database) -> int:
    """Return the highest fence or event number in a database. 0 if it cannot be read: that may be why it is restored.

    The time in microseconds is usually higher, but not after the clock was set back.
    """
    fence = sa.select(sa.func.max(jobs.c.fence))
    event = sa.select(sa.func.max(counters.c.value)).where(counters.c.name == "events")
    try:
        with database.read() as tx:
            return max(tx.execute(fence).scalar() or 0, tx.execute(event).scalar() or 0)
    except (sa.exc.DBAPIError, Unavailable):
        return 0


def drop_restore_mark(tx: Tx) -> None:
    _marks.drop(tx, checkfirst=True)


def has_restore_mark(database: Database) -> bool:
    with database.read() as tx:
        return bool(sa.inspect(tx).has_table(_marks.name))


def recover_restored(tx: Tx, *, now_us: int, audit_id: str) -> int | None:
    """Repair what a restore set back. Returns the base of new fences, or None if another server has repaired it."""
    if tx.dialect.name == "postgresql":
        tx.execute(sa.select(sa.func.pg_advisory_xact_lock(MIGRATION_LOCK)))
    if not sa.inspect(tx).has_table(_marks.name):
        return None
    mark = tx.execute(sa.select(_marks)).one_or_none()
    base = max(now_us, mark.base if mark else 0, counters_read(tx).get(TURNED_BACK_COUNTER, 0) + 1)
    counter_delete(tx, TURNED_BACK_COUNTER)
    _raise_fences(tx, base)
    _back_off_unleased(tx, until_us=now_us + (mark.wait_us if mark else 0))
    tx.execute(sa.update(agents).values(session=agents.c.session + SESSIONS_SKIPPED))
    tx.execute(sa.update(leaders).values(holder="", expires_us=0))
    counter_raise(tx, "events", base)
    for last, _ in event_gaps(counters_read(tx)):
        counter_delete(tx, f"{GAP_PREFIX}{last}")  # agents may still have a number in it, and are listened to again
    handover_skip_numbers(tx, HANDOVER_NUMBERS_SKIPPED)
    for version in ("clusters", "access"):
        counter_take(tx, version, 1)
    row = {"id": audit_id, "at_us": now_us, "actor": "server", "action": "db.restored", "object": "database"}
    tx.execute(sa.insert(audit).values(**row, before=None, after=f'{{"base":{base}}}'))
    drop_restore_mark(tx)
    return base


def _raise_fences(tx: Tx, base: int) -> None:
    """Leased attempts keep their fence, so that their agents go on. The next fence is above the base."""
    is_live = jobs.c.state.not_in(FINAL_STATES)
    is_handed_over = sa.or_(jobs.c.agent_id.is_not(None), jobs.c.array.is_not(None))
    known = sa.case((is_handed_over, jobs.c.fence + 1), else_=jobs.c.fence)
    tx.execute(sa.update(jobs).where(is_live).values(fence_floor=base, fence_known=known))
    # Running tasks have their fences in `ranges`. The fence of an array is only where the next fences begin.
    tx.execute(sa.update(jobs).where(is_live, jobs.c.array.is_not(None)).values(fence=base))


def _back_off_unleased(tx: Tx, *, until_us: int) -> None:
    """Delay jobs that were not leased at the backup: an agent may have one by now, and first has time to report it."""
    is_unleased = sa.and_(jobs.c.array.is_(None), jobs.c.agent_id.is_(None), jobs.c.state.in_(("PENDING", "ASSIGNED")))
    backoff = Blocker.BACKOFF.value
    blocked = sa.case(
        (jobs.c.blocked.is_(None), backoff),
        (jobs.c.blocked.contains(backoff), jobs.c.blocked),
        else_=sa.literal(f"{backoff},") + jobs.c.blocked,
    )
    wake_us = sa.case((jobs.c.wake_us > until_us, jobs.c.wake_us), else_=sa.literal(until_us, sa.BigInteger))
    tx.execute(
        sa.update(jobs)
        .where(is_unleased)
        .values(
            state="PENDING",
            reason="restored from a backup: an agent may have it already",
            cluster_id=None,
            assigned_us=None,
            is_ready=False,
            blocked=blocked,
            wake_us=wake_us,
        )
    )


def job_ids_from_backup(tx: Tx, job_ids: Sequence[str]) -> list[str]:
    """Return the jobs of these that come from a backup and were live in it. No arrays."""
    restored_ids: list[str] = []
    for start in range(0, len(job_ids), IDS_PER_STATEMENT_MAX):
        chunk = job_ids[start : start + IDS_PER_STATEMENT_MAX]
        is_restored = (jobs.c.fence_floor.is_not(None), jobs.c.array.is_(None))
        restored_ids += tx.execute(sa.select(jobs.c.id).where(jobs.c.id.in_(chunk), *is_restored)).scalars()
    return restored_ids
