"""The clock for stored times: that of the database's machine, because all servers share it.

No other module of the server reads a wall clock.
"""

from __future__ import annotations

import time

import sqlalchemy as sa

from switchyard.store.engine.database import Database, Tx

# Continues while the machine sleeps, unlike CLOCK_MONOTONIC: a sleep must not look like a jump of the clock.
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_NOW = sa.select(sa.cast(sa.extract("epoch", sa.func.clock_timestamp()) * 1_000_000, sa.BigInteger))


def wall_us() -> int:
    """Return the time of this machine's wall clock, which may be wrong and may jump."""
    return time.time_ns() // 1000


def steady_us() -> int:
    """Return the time of a clock that only goes forward, at one pace. It has no meaning outside this machine."""
    return time.clock_gettime_ns(_STEADY) // 1000


def database_us(database: Database) -> int:
    """Return the time of the database's machine. For SQLite that is this machine."""
    if database.is_sqlite:
        return wall_us()
    with database.read() as tx:
        return transaction_us(tx)


def transaction_us(tx: Tx) -> int:
    """Return the present time of the database's machine inside a transaction, not the time when that began."""
    return wall_us() if tx.dialect.name == "sqlite" else int(tx.execute(_NOW).scalar_one())
