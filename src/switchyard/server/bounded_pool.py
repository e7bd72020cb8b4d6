"""A few threads for long work, and a bound on what may wait for them: who comes beyond it is told to come back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from switchyard.errors import Busy

T = TypeVar("T")


class BoundedPool:
    """Serves in the order of arrival. Used from one loop."""

    def __init__(self, name: str, threads: int, *, calls_max: int, bytes_max: int) -> None:
        self._name = name
        self._calls_max = calls_max
        self._bytes_max = bytes_max  # of what the calls hold in memory while they wait
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._calls = self._bytes = 0

    @property
    def is_idle(self) -> bool:
        return self._calls == 0

    async def run(self, function: Callable[..., T], *arguments: Any, size: int) -> T:
        """`size`: bytes that the call holds."""
        if self._calls >= self._calls_max or self._bytes + size > self._bytes_max:
            raise Busy(f"{self._calls} large requests wait for their turn ({self._name}).")
        self._calls += 1
        self._bytes += size
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, partial(function, *arguments))
        finally:
            self._calls -= 1
            self._bytes -= size

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
