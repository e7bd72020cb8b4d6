"""A few threads for long work, with a bound on the calls that wait and on their bytes. Calls over it are refused.

Users take turns, and one user has at most half of what may wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from switchyard.errors import Busy
from switchyard.server.grpc.limiter import SERVER, current_caller
from switchyard.server.loops.fair_threads import FairThreads

T = TypeVar("T")


class BoundedPool:
    """Users take turns; the calls of one user are served in the order of arrival. Used from one loop."""

    def __init__(self, name: str, threads: int, *, calls_max: int, bytes_max: int) -> None:
        self._name = name
        self._calls_max = calls_max
        self._bytes_max = bytes_max  # held in memory by calls that wait or run
        self._threads = FairThreads(
            name, size=threads, share=threads, depth_of=lambda _: calls_max, refusal=self._refusal
        )
        self._calls = self._bytes = 0
        self._calls_of: Counter[str] = Counter()  # user → calls
        self._bytes_of: Counter[str] = Counter()

    @property
    def is_idle(self) -> bool:
        return self._calls == 0

    async def run(self, function: Callable[..., T], *arguments: Any, size: int) -> T:
        """Run a function on a thread. `size`: bytes that the call holds in memory."""
        with self.place(size):
            return await self.run_in_place(function, *arguments)

    async def run_in_place(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a function for a call that is already counted (`place`)."""
        return await self._threads.run(current_caller.get(), partial(function, *arguments))

    @contextmanager
    def place(self, size: int) -> Iterator[None]:
        """Count a call, from before it waits for a thread until all of its work is done."""
        user = current_caller.get()
        self._refuse_over(user, size)
        self._calls += 1
        self._bytes += size
        self._calls_of[user] += 1
        self._bytes_of[user] += size
        try:
            yield
        finally:
            self._calls -= 1
            self._bytes -= size
            self._calls_of[user] -= 1
            self._bytes_of[user] -= size
            if not self._calls_of[user]:
                del self._calls_of[user], self._bytes_of[user]

    def _refuse_over(self, user: str, size: int) -> None:
        if self._calls >= self._calls_max or self._bytes + size > self._bytes_max:
            raise Busy(f"{self._calls} large requests wait for their turn ({self._name}).")
        is_first = user == SERVER or not self._calls_of[user]
        if not is_first and (
            self._calls_of[user] >= self._calls_max // 2 or self._bytes_of[user] + size > self._bytes_max // 2
        ):
            raise self._refusal(self._calls_max, self._calls_of[user])

    def _refusal(self, _most: int, used: int) -> Busy:
        return Busy(f"{used} large requests of yours wait for their turn ({self._name}).")

    def close(self, *, wait: bool = False) -> None:
        self._threads.close(wait=wait)
