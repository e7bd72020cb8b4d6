"""Measures pauses of event loops: how late a callback runs. It knows no requests."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from switchyard.service.core.process_metrics import Histogram

TICK_S = 0.01  # a pause may be this much longer than measured; costs a thousandth of a core


@dataclass(frozen=True, slots=True)
class LoopPause:
    """`wall_s`: as requests felt it. `cpu_s`: the part in which this process computed; else it waited for a core."""

    wall_s: float = 0.0
    cpu_s: float = 0.0


class LoopPauses:
    """The meters of all event loops of this process, by the loop's name."""

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._meters: dict[str, LoopPauseMeter] = {}

    def measure(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        """Called on that loop's thread, or before it runs."""
        meter = LoopPauseMeter(name, self._histogram)
        meter.start(loop)
        self._meters = {**self._meters, name: meter}

    def take(self) -> dict[str, LoopPause]:
        """The longest pause of each loop since the last call. From any thread."""
        return {name: meter.take() for name, meter in sorted(self._meters.items())}


class LoopPauseMeter:
    """A callback that should run every 10 ms and records how late it is."""

    def __init__(self, name: str, pauses: Histogram) -> None:
        self._name = name  # of the loop: `http` or `grpc`
        self._pauses = pauses
        self._longest = LoopPause()
        self._due = self._cpu_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._next()

    def take(self) -> LoopPause:
        """The longest pause since the last call. From any thread."""
        longest, self._longest = self._longest, LoopPause()
        return longest

    def _next(self) -> None:
        assert self._loop is not None
        # uvloop's own clock stands still within one turn of the loop.
        self._due, self._cpu_s = time.monotonic() + TICK_S, time.process_time()
        self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        """CPU time is that of all threads, because a thread that holds the interpreter stops the loop, too.

        The threads may also have worked while the loop waited for a core, so the shorter of both times counts.
        """
        late_s = max(0.0, time.monotonic() - self._due)
        cpu_s = min(late_s, time.process_time() - self._cpu_s)
        self._pauses.add(late_s, self._name)
        longest = self._longest
        self._longest = LoopPause(max(longest.wall_s, late_s), max(longest.cpu_s, cpu_s))
        self._next()
