"""One loop of a server: what it does again and again, and how long it waits in between."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BackgroundLoop:
    """`once` again and again, with `every_s` between. `pause_s` may shorten that, and `kick` ends it."""

    name: str
    once: Callable[[], Awaitable[None]]
    every_s: float
    pause_s: Callable[[float], float] = float
    kick: asyncio.Event | None = None

    async def pause(self) -> None:
        pause_s = self.pause_s(self.every_s)
        if self.kick is None:
            await asyncio.sleep(pause_s)
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.kick.wait(), pause_s)
