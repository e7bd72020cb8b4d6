"""The agent's clock: it survives a restart of the agent and is never the wall clock."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Stamp:
    """A moment on CLOCK_BOOTTIME, valid only within one boot of the machine."""

    boot: str
    ns: int

    @property
    def age_us(self) -> int:
        """How long ago the moment was; 0 if the machine was rebooted since."""
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
