"""The server's clock and id generator. Both are passed in, so that tests can replace them.

Every stored time, and every time compared with a stored time, comes from the database's clock (`store/engine`). A
server does not query that clock for each time. It measures the offset of its own monotonic clock, and measures the
offset again in every upkeep round.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable

import structlog

from switchyard.model.wire.ids import RANDOM_BITS, make_id
from switchyard.store.engine.clock import database_us, steady_us, transaction_us, wall_us
from switchyard.store.engine.database import Database, Tx

log = structlog.get_logger()
# A larger difference is a jump: a clock was set, or another database machine took over. A smaller difference is drift,
# which the clock follows silently. A slow database answer is no error: the round trip is measured.
JUMP_MIN_US = 3_000_000
MEASURE_INTERVAL_US = 500_000  # between two measurements of the database's clock


class Clock:
    """The database's clock, computed from this machine's monotonic clock. A call returns µs since 1970."""

    def __init__(self, database: Database, *, steady_us: Callable[[], int] = steady_us) -> None:
        self._database = database
        self.steady_us = steady_us
        database_us(database)  # opens the connection first: that would distort the measurement
        low_us, high_us = self._measure()
        self._offset_us = (low_us + high_us) // 2

    def __call__(self) -> int:
        return self.steady_us() + self._offset_us

    def follow_database(self, on_jump: Callable[[int], None]) -> int:
        """Follow the database's clock. Returns the size of the jump since the last measurement, or 0.

        `on_jump` shifts the times that this server has in memory. It runs before a jump forward and after a jump back,
        so that an agent that was just seen never appears silent.
        """
        if self.steady_us() - self._measured_us < MEASURE_INTERVAL_US:
            return 0
        low_us, high_us = self._measure()
        nearest_us = min(max(self._offset_us, low_us), high_us)
        off_us = nearest_us - self._offset_us
        if abs(off_us) <= JUMP_MIN_US:
            self._offset_us = nearest_us
            return 0
        log.warning(
            "the clock jumped",
            by_s=off_us / 1_000_000,
            of="this machine" if self._database.is_sqlite else "the database",
        )
        if off_us > 0:
            on_jump(off_us)
        self._offset_us = nearest_us
        if off_us < 0:
            on_jump(off_us)
        return off_us

    def is_right(self, tx: Tx) -> bool:
        """Whether the database's clock, read in this transaction, agrees. If not, that clock jumped."""
        before_us = self()
        at_us = transaction_us(tx)
        return before_us - JUMP_MIN_US <= at_us <= self() + JUMP_MIN_US

    def _measure(self) -> tuple[int, int]:
        """Return the smallest and the largest possible offset: the database answered between our two readings."""
        before_us = self.steady_us()
        at_us = database_us(self._database)
        self._measured_us = self.steady_us()
        return at_us - self._measured_us, at_us - before_us


class IdGenerator:
    """Makes time-ordered ids that never repeat. Within one process ids grow even if the clock goes back."""

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
                # The top bit stays free, so that increments within a millisecond cannot overflow.
                self._entropy = secrets.randbits(RANDOM_BITS - 1)
            else:
                self._entropy += 1
            return make_id(self._last_ms * 1000, self._entropy)

    def many(self, count: int) -> list[str]:
        """Return consecutive ids, so that the first id and the count identify all of them."""
        first = self()
        with self._lock:
            at_us, entropy = self._last_ms * 1000, self._entropy
            self._entropy += count
        assert make_id(at_us, entropy) >= first
        return [make_id(at_us, entropy + number) for number in range(1, count + 1)]
