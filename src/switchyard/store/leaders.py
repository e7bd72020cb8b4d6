"""The leader's row: one replica decides what must be decided once. Unlike an advisory lock it survives pooling.

A term ends at `expires_us`, by the database's clock. That may have been set back since: a term that ends later than any
term that could begin now is over.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from switchyard.store import dialect
from switchyard.store.database import Tx
from switchyard.store.schema import leaders

Row = sa.Row[*tuple[Any, ...]]

CLOCK_SKEW_US_MAX = 3_000_000  # two servers' measurements of the database's clock differ by less


def leader_get(tx: Tx, name: str) -> Row:
    """The row as it is, made if there was none."""
    return _row(tx, name, sa.select(leaders).where(leaders.c.name == name))


def leader_lock(tx: Tx, name: str) -> Row:
    """The same, locked until the commit."""
    return _row(tx, name, sa.select(leaders).where(leaders.c.name == name).with_for_update())


def _row(tx: Tx, name: str, query: sa.Select[*tuple[Any, ...]]) -> Row:
    found = tx.execute(query).one_or_none()
    if found is None:
        dialect.insert_missing(tx, leaders, [{"name": name, "holder": "", "epoch": 0, "expires_us": 0}])
        found = tx.execute(query).one()
    return found


def leader_put(tx: Tx, row: Row, holder: str, *, expires_us: int) -> int:
    """Become or stay the leader, whoever was it; the epoch, which is a new one if that was another. `row` is locked."""
    epoch: int = row.epoch if row.holder == holder else row.epoch + 1
    tx.execute(
        sa.update(leaders).where(leaders.c.name == row.name).values(holder=holder, epoch=epoch, expires_us=expires_us)
    )
    return epoch


def is_term_over(row: Row, *, now_us: int, for_us: int) -> bool:
    """Whether a term of at most this length has ended."""
    return row.holder == "" or not now_us < row.expires_us <= now_us + for_us + CLOCK_SKEW_US_MAX


def leader_take(tx: Tx, name: str, holder: str, *, now_us: int, for_us: int) -> int | None:
    """Become or stay the leader: the epoch, or none if another leads."""
    row = leader_lock(tx, name)
    if row.holder != holder and not is_term_over(row, now_us=now_us, for_us=for_us):
        return None
    return leader_put(tx, row, holder, expires_us=now_us + for_us)


def leader_holder(tx: Tx, name: str) -> str:
    found: str = tx.execute(sa.select(leaders.c.holder).where(leaders.c.name == name)).scalar_one()
    return found


def leader_has_epoch(tx: Tx, name: str, epoch: int) -> bool:
    """Checked, and locked, in each transaction of a leader: one that was paused and replaced writes nothing."""
    query = sa.select(leaders.c.epoch).where(leaders.c.name == name).with_for_update(read=True)
    return tx.execute(query).scalar() == epoch


def leader_leave(tx: Tx, name: str, holder: str, *, now_us: int) -> None:
    """End a term now. The row keeps when that was: the next leader sees by it whether the clock was set back."""
    gone = sa.update(leaders).where(leaders.c.name == name, leaders.c.holder == holder)
    tx.execute(gone.values(holder="", expires_us=now_us))
