"""One read of the database for all who want to know the same at the same time. Lives on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any


class SharedReads:
    """Reads by what they ask for, the reader's rights included: of each at most one runs and one is next."""

    def __init__(self) -> None:
        self._running: dict[Hashable, asyncio.Task[Any]] = {}
        self._next: dict[Hashable, asyncio.Task[Any]] = {}

    async def read(self, key: Hashable, look: Callable[[], Awaitable[Any]]) -> Any:
        """The result of a look that begins after this call. Who asks for the same before it begins shares it."""
        task = self._next.get(key)
        if task is None:
            task = self._next[key] = asyncio.ensure_future(self._look(key, look))
            task.add_done_callback(_note_error)
        return await asyncio.shield(task)

    async def _look(self, key: Hashable, look: Callable[[], Awaitable[Any]]) -> Any:
        before = self._running.get(key)
        if before is not None:
            await asyncio.wait({before})
        mine = self._running[key] = self._next.pop(key)
        try:
            return await look()
        finally:
            if self._running.get(key) is mine:
                del self._running[key]


def _note_error(task: asyncio.Task[Any]) -> None:
    """Everybody who shared it may be gone: without this asyncio would log that nobody saw the error."""
    if not task.cancelled():
        task.exception()
