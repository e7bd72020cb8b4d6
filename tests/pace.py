"""Time limits on a busy machine: a limit of 120 s means 120 s of a machine that has its cores for us.

Where twenty programs want two cores, everything takes ten times as long and nothing is wrong. So a limit counts each
second by the share of the cores that a program gets in it. On a quiet machine it is a limit by the clock.
"""

from __future__ import annotations

import os
import time

CORES = len(os.sched_getaffinity(0))
SLOWEST = 50.0  # a machine that is slower than this has stopped


def slowness() -> float:
    """How many programs share a core now; at least 1. The kernel's average of a minute, which does not jump."""
    return min(max(1.0, os.getloadavg()[0] / CORES), SLOWEST)


class Limit:
    """Seconds of a quiet machine. `is_over` is asked again and again; each look charges the time since the last."""

    def __init__(self, seconds: float) -> None:
        self._left_s = seconds
        self._looked = time.monotonic()

    def is_over(self) -> bool:
        now = time.monotonic()
        self._left_s -= (now - self._looked) / slowness()
        self._looked = now
        return self._left_s <= 0
