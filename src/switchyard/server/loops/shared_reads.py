"""One read of the database for all requests that ask for the same at the same time. Lives on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any


class SharedReads:
    """Reads by key, which includes the reader's rights. Of each key at most one read runs and one is next."""

    def __init__(self) -> None:
        self._running: dict[Hashable, asyncio.Task[Any]] = {}
        self._next: dict[Hashable, asyncio.Task[Any]] = {}

    async def read(self, key: Hashable, load: Callable[[], Awaitable[Any]]) -> Any:
        """Return the result of a read that starts after this call. Callers with the same key share it."""
        task = self._next.get(key)
        if task is None:
            task = self._next[key] = asyncio.ensure_future(self._run(key, load))
            task.add_done_callback(_note_error)
        return await asyncio.shield(task)

    async def _run(self, key: Hashable, load: Callable[[], Awaitable[Any]]) -> Any:
        before = self._running.get(key)
        if before is not None:
            await asyncio.wait({before})
        task = self._running[key] = self._next.pop(key)
        try:
            return await load()
        finally:
            if self._running.get(key) is task:
                del self._running[key]


def _note_error(task: asyncio.Task[Any]) -> None:
    """Look at the error: all callers may be gone, and asyncio would log that nobody saw it."""
    if not task.cancelled():
        task.exception()
