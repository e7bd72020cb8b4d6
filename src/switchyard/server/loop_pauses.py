"""Measures how long the event loop lets others wait. It knows no requests."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from switchyard.service.process_metrics import Histogram

TICK_S = 0.01  # what a pause may be longer than it is shown; costs a thousandth of a core


@dataclass(frozen=True, slots=True)
class LoopPause:
    """`wall_s`: as others felt it. `cpu_s`: the part of it during which this process was at work; the rest is the
    machine's, which gave this process no core."""

    wall_s: float = 0.0
    cpu_s: float = 0.0


class LoopPauseMeter:
    """A callback that wants to run every 10 ms, and notes how late it is."""

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
        """A thread that keeps the interpreter to itself stops the loop as well, so the CPU time is that of all threads.
        It may have been spent beside a loop that only waited for a core: then the shorter of both is the truth."""
        late_s = max(0.0, time.monotonic() - self._due)
        cpu_s = min(late_s, time.process_time() - self._cpu_s)
        self._pauses.add(late_s, self._name)
        longest = self._longest
        self._longest = LoopPause(max(longest.wall_s, late_s), max(longest.cpu_s, cpu_s))
        self._next()
