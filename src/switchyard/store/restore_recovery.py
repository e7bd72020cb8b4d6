"""A database that was just restored: the mark that says so, and what the first server on it must put right.

Kept in a table of its own, which no backup has: it outlives `pg_restore`, and a crash at any moment leaves either the
old database, or a restored one that is still marked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from switchyard.errors import Unavailable
from switchyard.store.database import MIGRATION_LOCK, Database, Tx
from switchyard.store.events import counter_raise, counter_take
from switchyard.store.handovers import handover_skip_numbers
from switchyard.store.jobs import IDS_PER_STATEMENT_MAX
from switchyard.store.schema import agents, audit, counters, jobs, leaders

Row = sa.Row[*tuple[Any, ...]]

_marks = sa.Table(
    "restored",
    sa.MetaData(),
    sa.Column("base", sa.BigInteger, nullable=False),
    sa.Column("wait_us", sa.BigInteger, nullable=False),
)
FINAL = ("SUCCEEDED", "FAILED", "CANCELLED", "REJECTED")
# Agents learn from a session they do not know that they must say what they hold.
SESSIONS_SKIPPED = 1_000_000
# Numbers of jobs at Rainbow's door that may have been drawn since the backup: 200 restores use all that there are up.
HANDOVER_NUMBERS_SKIPPED = 10_000_000


def put_restore_mark(tx: Tx, *, base: int, wait_us: int) -> None:
    """The next server to start finds a restored database. `base`: above every fence and event number there ever was."""
    _marks.create(tx, checkfirst=True)
    tx.execute(sa.delete(_marks))
    tx.execute(sa.insert(_marks).values(base=base, wait_us=wait_us))


def highest_fence_or_event(database: Database) -> int:
    """The highest fence or event number in a database; 0 if it cannot be read, for it may be restored because of that.

    The clock of the one who restores is above them as a rule, but not after it was set back.
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
    """Put right what a restore turned back; none if another server has done it. The base from which fences go on."""
    if tx.dialect.name == "postgresql":
        tx.execute(sa.select(sa.func.pg_advisory_xact_lock(MIGRATION_LOCK)))
    if not sa.inspect(tx).has_table(_marks.name):
        return None
    said = tx.execute(sa.select(_marks)).one_or_none()
    base = max(now_us, said.base if said else 0)
    _raise_fences(tx, base)
    _back_off_unleased(tx, until_us=now_us + (said.wait_us if said else 0))
    tx.execute(sa.update(agents).values(session=agents.c.session + SESSIONS_SKIPPED))
    tx.execute(sa.update(leaders).values(holder="", expires_us=0))
    counter_raise(tx, "events", base)
    handover_skip_numbers(tx, HANDOVER_NUMBERS_SKIPPED)
    for version in ("clusters", "access"):
        counter_take(tx, version, 1)
    row = {"id": audit_id, "at_us": now_us, "actor": "server", "action": "db.restored", "object": "database"}
    tx.execute(sa.insert(audit).values(**row, before=None, after=f'{{"base":{base}}}'))
    drop_restore_mark(tx)
    return base


def _raise_fences(tx: Tx, base: int) -> None:
    """What is leased keeps its fence, so that its agent may go on; the next one is above the base."""
    live = jobs.c.state.not_in(FINAL)
    is_handed_over = sa.or_(jobs.c.agent_id.is_not(None), jobs.c.array.is_not(None))
    known = sa.case((is_handed_over, jobs.c.fence + 1), else_=jobs.c.fence)
    tx.execute(sa.update(jobs).where(live).values(fence_floor=base, fence_known=known))
    # The tasks that run have their fences in `ranges`; an array's own is only where the next ones begin.
    tx.execute(sa.update(jobs).where(live, jobs.c.array.is_not(None)).values(fence=base))


def _back_off_unleased(tx: Tx, *, until_us: int) -> None:
    """Nobody had these at the backup, but somebody may have by now: first hear what the agents hold."""
    unleased = sa.and_(jobs.c.array.is_(None), jobs.c.agent_id.is_(None), jobs.c.state.in_(("PENDING", "ASSIGNED")))
    words = sa.case(
        (jobs.c.blocked.is_(None), "backoff"),
        (jobs.c.blocked.contains("backoff"), jobs.c.blocked),
        else_=sa.literal("backoff,") + jobs.c.blocked,
    )
    later = sa.case((jobs.c.wake_us > until_us, jobs.c.wake_us), else_=sa.literal(until_us, sa.BigInteger))
    tx.execute(
        sa.update(jobs)
        .where(unleased)
        .values(
            state="PENDING",
            reason="restored from a backup: an agent may have it already",
            cluster_id=None,
            assigned_us=None,
            is_ready=False,
            blocked=words,
            wake_us=later,
        )
    )


def job_ids_from_backup(tx: Tx, job_ids: Sequence[str]) -> list[str]:
    """Those of these jobs that come from a backup and were live in it."""
    found: list[str] = []
    for start in range(0, len(job_ids), IDS_PER_STATEMENT_MAX):
        some = job_ids[start : start + IDS_PER_STATEMENT_MAX]
        query = sa.select(jobs.c.id).where(jobs.c.id.in_(some), jobs.c.fence_floor.is_not(None), jobs.c.array.is_(None))
        found += tx.execute(query).scalars()
    return found
