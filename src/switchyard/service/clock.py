"""Time and randomness, handed in from one place so that a test can hold them still."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable

from switchyard.model.ids import RANDOM_BITS, make_id


def now_us() -> int:
    return time.time_ns() // 1000


class Ids:
    """Time-ordered ids that never repeat and, within one process, never go back even when the clock does."""

    def __init__(self, now: Callable[[], int] = now_us) -> None:
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
