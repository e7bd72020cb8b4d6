"""Leader election by a row: one server runs the chores. Unlike an advisory lock it works behind a connection pooler.

A term ends at `expires_us`, by the database's clock. If that clock was set back, a stored term may end later than any
term that could begin now: such a term counts as over.
"""

from __future__ import annotations

import sqlalchemy as sa

from switchyard.store.engine import dialect
from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, fetch_one
from switchyard.store.tables.schema import leaders

CLOCK_SKEW_US_MAX = 3_000_000  # two servers' measurements of the database's clock differ by less


class LeaderRow(StoredRow, frozen=True):
    """A term. No holder: nobody leads. `epoch` grows with each new leader."""

    name: str
    holder: str
    epoch: int
    expires_us: int


def leader_get(tx: Tx, name: str) -> LeaderRow:
    """Return the row. The first call inserts it."""
    return _row(tx, name, sa.select(leaders).where(leaders.c.name == name))


def leader_lock(tx: Tx, name: str) -> LeaderRow:
    """Return the row, locked until the commit. The first call inserts it."""
    return _row(tx, name, sa.select(leaders).where(leaders.c.name == name).with_for_update())


def _row(tx: Tx, name: str, query: sa.Executable) -> LeaderRow:
    row = fetch_one(tx, LeaderRow, query)
    if row is None:
        dialect.insert_missing(tx, leaders, [{"name": name, "holder": "", "epoch": 0, "expires_us": 0}])
        row = LeaderRow(*tx.execute(query).one())
    return row


def leader_put(tx: Tx, row: LeaderRow, holder: str, *, expires_us: int) -> int:
    """Become or stay the leader, whoever led before. `row` is locked. Returns the epoch, new for a new leader."""
    epoch = row.epoch if row.holder == holder else row.epoch + 1
    tx.execute(
        sa.update(leaders).where(leaders.c.name == row.name).values(holder=holder, epoch=epoch, expires_us=expires_us)
    )
    return epoch


def is_term_over(row: LeaderRow, *, now_us: int, for_us: int) -> bool:
    """Whether the term has ended. No term is longer than `for_us`."""
    return row.holder == "" or not now_us < row.expires_us <= now_us + for_us + CLOCK_SKEW_US_MAX


def leader_take(tx: Tx, name: str, holder: str, *, now_us: int, for_us: int) -> int | None:
    """Become or stay the leader. Returns the epoch, or None if another server leads."""
    row = leader_lock(tx, name)
    if row.holder != holder and not is_term_over(row, now_us=now_us, for_us=for_us):
        return None
    return leader_put(tx, row, holder, expires_us=now_us + for_us)


def leader_holder(tx: Tx, name: str) -> str:
    holder: str = tx.execute(sa.select(leaders.c.holder).where(leaders.c.name == name)).scalar_one()
    return holder


def leader_has_epoch(tx: Tx, name: str, epoch: int) -> bool:
    """Share-lock the row and check the epoch. Each transaction of a leader does this: a replaced one writes nothing."""
    query = sa.select(leaders.c.epoch).where(leaders.c.name == name).with_for_update(read=True)
    return tx.execute(query).scalar() == epoch


def leader_leave(tx: Tx, name: str, holder: str, *, now_us: int) -> None:
    """End a term now. The row keeps the time, by which the next leader sees whether the clock was set back."""
    update = sa.update(leaders).where(leaders.c.name == name, leaders.c.holder == holder)
    tx.execute(update.values(holder="", expires_us=now_us))
