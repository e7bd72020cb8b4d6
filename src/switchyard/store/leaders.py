"""The leader's row: one replica decides what must be decided once. Unlike an advisory lock it survives pooling."""

from __future__ import annotations

import sqlalchemy as sa

from switchyard.store import dialect
from switchyard.store.database import Tx
from switchyard.store.schema import leaders


def leader_take(tx: Tx, name: str, holder: str, *, now_us: int, for_us: int) -> tuple[int, int] | None:
    """Become or stay the leader: (epoch, when the term before this one ended), or none if another leads."""
    dialect.put_new(tx, leaders, [{"name": name, "holder": "", "epoch": 0, "expires_us": 0}])
    row = tx.execute(sa.select(leaders).where(leaders.c.name == name).with_for_update()).one()
    if row.holder != holder and row.expires_us > now_us:
        return None
    epoch = row.epoch if row.holder == holder else row.epoch + 1
    tx.execute(
        sa.update(leaders).where(leaders.c.name == name).values(holder=holder, epoch=epoch, expires_us=now_us + for_us)
    )
    return epoch, row.expires_us


def leader_name(tx: Tx, name: str) -> str:
    found: str = tx.execute(sa.select(leaders.c.holder).where(leaders.c.name == name)).scalar_one()
    return found


def leader_holds(tx: Tx, name: str, epoch: int) -> bool:
    """Checked, and locked, in each transaction of a leader: one that was paused and replaced writes nothing."""
    query = sa.select(leaders.c.epoch).where(leaders.c.name == name).with_for_update(read=True)
    return tx.execute(query).scalar() == epoch


def leader_leave(tx: Tx, name: str, holder: str) -> None:
    gone = sa.update(leaders).where(leaders.c.name == name, leaders.c.holder == holder)
    tx.execute(gone.values(holder="", expires_us=0))
