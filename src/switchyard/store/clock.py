"""The clock that stored times are compared by: the database's own, for all servers share that one and no other.

The only place of the server that reads a wall clock.
"""

from __future__ import annotations

import time

import sqlalchemy as sa

from switchyard.store.database import Database, Tx

# Counts on while the machine sleeps, unlike CLOCK_MONOTONIC: time that passes in a sleep is no jump of a clock.
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_NOW = sa.select(sa.cast(sa.extract("epoch", sa.func.clock_timestamp()) * 1_000_000, sa.BigInteger))


def wall_us() -> int:
    """By the wall clock of this machine, which may be wrong and may jump."""
    return time.time_ns() // 1000


def steady_us() -> int:
    """By a clock that only goes forward, at one pace. It means nothing outside this machine."""
    return time.clock_gettime_ns(_STEADY) // 1000


def database_us(database: Database) -> int:
    """By the clock of the database's machine; a SQLite file has no other than ours."""
    if database.is_sqlite:
        return wall_us()
    with database.read() as tx:
        return transaction_us(tx)


def transaction_us(tx: Tx) -> int:
    """The same, asked inside a transaction: not when that began, but now."""
    return wall_us() if tx.dialect.name == "sqlite" else int(tx.execute(_NOW).scalar_one())
