"""Time and ids, handed in from one place so that a test can hold them still.

Every time that is stored, or compared with a stored one, is the database's (`store/clock.py`). A server does not ask
for it each time: it measures how far its own steady clock is off, and looks again in each round of upkeep.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable

import structlog

from switchyard.model.ids import RANDOM_BITS, make_id
from switchyard.store.clock import database_us, steady_us, transaction_us, wall_us
from switchyard.store.database import Database, Tx

log = structlog.get_logger()
# More than this is a jump: a clock was set, or a database on another machine took over. Less is drift, and followed
# without a word. A slow answer of the database is no error: its round trip is known.
JUMP_MIN_US = 3_000_000
MEASURE_INTERVAL_US = 500_000  # between two looks at the database's clock


class Clock:
    """The database's clock, carried on by this machine's steady clock. Called, it says the time in µs since 1970."""

    def __init__(self, database: Database, *, steady_us: Callable[[], int] = steady_us) -> None:
        self._database = database
        self.steady_us = steady_us
        database_us(database)  # opens the connection, which takes longer than an answer
        low_us, high_us = self._measure()
        self._offset_us = (low_us + high_us) // 2

    def __call__(self) -> int:
        return self.steady_us() + self._offset_us

    def look(self, on_jump: Callable[[int], None]) -> int:
        """Follow the database's clock. Returns by how much it jumped since the last look: 0 if it did not.

        `on_jump` shifts the times that this server keeps in memory. It is called before a jump forward and after one
        back, so that an agent that was just seen never looks silent in between.
        """
        if self.steady_us() - self._looked_us < MEASURE_INTERVAL_US:
            return 0
        low_us, high_us = self._measure()
        nearest_us = min(max(self._offset_us, low_us), high_us)
        off_us = nearest_us - self._offset_us
        if abs(off_us) <= JUMP_MIN_US:
            self._offset_us = nearest_us
            return 0
        log.warning("the clock jumped", by_s=off_us / 1_000_000, of="this machine" if self._is_own else "the database")
        if off_us > 0:
            on_jump(off_us)
        self._offset_us = nearest_us
        if off_us < 0:
            on_jump(off_us)
        return off_us

    def is_right(self, tx: Tx) -> bool:
        """Whether the database agrees, asked inside this transaction. If not, its clock jumped since the last look."""
        before_us = self()
        at_us = transaction_us(tx)
        return before_us - JUMP_MIN_US <= at_us <= self() + JUMP_MIN_US

    @property
    def _is_own(self) -> bool:
        return self._database.is_sqlite

    def _measure(self) -> tuple[int, int]:
        """The least and the most that our steady clock can be behind: the answer was made between two readings."""
        before_us = self.steady_us()
        at_us = database_us(self._database)
        self._looked_us = self.steady_us()
        return at_us - self._looked_us, at_us - before_us


class IdGenerator:
    """Time-ordered ids that never repeat and, within one process, never go back even when the clock does."""

    def __init__(self, now: Callable[[], int] = wall_us) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._last_ms = 0
        self._entropy = 0

    def __call__(self) -> str:
        with self._lock:
            at_ms = self._now() // 1000
            if at_ms > self._last_ms:
                self._last_ms = at_ms
                # The top bit stays free, so that counting up within a millisecond cannot overflow.
                self._entropy = secrets.randbits(RANDOM_BITS - 1)
            else:
                self._entropy += 1
            return make_id(self._last_ms * 1000, self._entropy)

    def many(self, count: int) -> list[str]:
        """Neighbours, so that the first one and the count name them all."""
        first = self()
        with self._lock:
            at_us, entropy = self._last_ms * 1000, self._entropy
            self._entropy += count
        assert make_id(at_us, entropy) >= first
        return [make_id(at_us, entropy + number) for number in range(1, count + 1)]
