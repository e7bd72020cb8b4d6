"""Time as the agent measures it: a clock that survives a restart of the agent, never the wall clock of the machine."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Stamp:
    """A moment on CLOCK_BOOTTIME, which means something only within the same boot."""

    boot: str
    ns: int

    @property
    def age_us(self) -> int:
        """How long ago that was; 0 when the machine was started anew since, for then nobody knows."""
        if self.boot != boot_id():
            return 0
        return max(0, now_ns() - self.ns) // 1000


def stamp(*, ago_us: int = 0) -> Stamp:
    return Stamp(boot_id(), now_ns() - ago_us * 1000)


def now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@lru_cache(maxsize=1)
def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
