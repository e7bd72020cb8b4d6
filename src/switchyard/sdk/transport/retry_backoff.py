"""The pauses between retries of a request, and what is told about an outage meanwhile. It sends nothing."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import NamedTuple

from switchyard.errors import YardError

BACKOFF_S_FIRST = 0.1
BACKOFF_S_MAX = 5.0


class ServerOutage(NamedTuple):
    """A request that failed and is retried. `passed_s`: since its first failure. `left_s`: until the last retry."""

    error: YardError
    passed_s: float
    left_s: float


OnOutage = Callable[[ServerOutage], None]


class RetryBackoff:
    """Computes the pauses between retries, until the time for retries is over."""

    def __init__(self, total_s: float) -> None:
        self._total_s = total_s
        self._end: float | None = None
        self._backoff_s = BACKOFF_S_FIRST

    def next_pause_s(self, at_least_s: float) -> float | None:
        now = time.monotonic()
        if self._end is None:
            self._end = now + self._total_s
        jittered = self._backoff_s * random.uniform(0.5, 1.0)  # noqa: S311 — spreads clients, guards no secret
        pause_s = max(at_least_s, jittered)
        self._backoff_s = min(self._backoff_s * 2, BACKOFF_S_MAX)
        return pause_s if now + pause_s <= self._end else None

    def outage(self, error: YardError) -> ServerOutage:
        """Describe the outage. Called after `next_pause_s`, which begins to count at the first failure."""
        left_s = self._total_s if self._end is None else max(0.0, self._end - time.monotonic())
        return ServerOutage(error, self._total_s - left_s, left_s)
