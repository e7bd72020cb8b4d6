"""Worker threads on which users take turns, one call each, however many calls a user has waiting.

A plain pool serves calls in the order of arrival, so a user with a thousand calls delays everybody. Here a call waits
for at most one call of each other user. One user never has all threads, so long calls delay nobody else.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from switchyard.errors import Unavailable, YardError
from switchyard.policy.limits import exceeds_limit
from switchyard.server.grpc.limiter import SERVER
from switchyard.server.loops.loop_calls import copy_result, run_on_thread

T = TypeVar("T")
QueuedCall = tuple[asyncio.Future[Any], Callable[[], Any]]


class FairThreads:
    """Lives on the event loop. `share`: how many threads one user may have at once.

    `depth_of`: how many calls of a user may wait. `refusal`: makes the error for one more, from that bound and the
    number of calls that wait.
    """

    def __init__(
        self,
        name: str,
        *,
        size: int,
        share: int,
        depth_of: Callable[[str], int],
        refusal: Callable[[int, int], YardError],
    ) -> None:
        self._pool = ThreadPoolExecutor(size, thread_name_prefix=name)
        self._size = size
        self._share = max(1, share)
        self._depth_of = depth_of
        self._refusal = refusal
        self._queues: OrderedDict[str, deque[QueuedCall]] = OrderedDict()  # the next user first
        self._running: dict[str, int] = {}
        self._busy = 0  # threads
        self._is_closed = False

    async def run(self, user: str, function: Callable[[], T]) -> T:
        """Run a function on a thread, when it is this user's turn."""
        loop = asyncio.get_running_loop()
        if self._is_closed:
            raise Unavailable("The server is stopping.")
        if not self._queues and self._may_run(user):
            # Shielded: a caller that gives up does not free the thread.
            return await asyncio.shield(self._start(loop, user, function))
        future: asyncio.Future[T] = loop.create_future()
        self._enqueue(user, (future, function))
        self._start_next(loop)
        return await future

    def start(self, function: Callable[[], None]) -> None:
        """Run a function outside of all turns, and wait for nothing. From any thread."""
        with contextlib.suppress(RuntimeError):  # the pool is shut down: the server stops
            self._pool.submit(function)

    def close(self, *, wait: bool = False) -> None:
        self._is_closed = True
        self._pool.shutdown(wait=wait, cancel_futures=True)

    def _may_run(self, user: str) -> bool:
        return self._busy < self._size and (user == SERVER or self._running.get(user, 0) < self._share)

    def _enqueue(self, user: str, call: QueuedCall) -> None:
        queue = self._queues.get(user)
        if queue is None:
            queue = self._queues[user] = deque()
            if user == SERVER:  # refresh, upkeep: all users depend on it
                self._queues.move_to_end(user, last=False)
        most = self._depth_of(user)
        if user != SERVER and exceeds_limit(most, len(queue), 1):
            raise self._refusal(most, len(queue))
        queue.append(call)

    def _start(self, loop: asyncio.AbstractEventLoop, user: str, function: Callable[[], T]) -> asyncio.Future[T]:
        started = run_on_thread(loop, self._pool, function)
        self._busy += 1
        self._running[user] = self._running.get(user, 0) + 1
        started.add_done_callback(lambda _: self._ended(loop, user))
        return started

    def _ended(self, loop: asyncio.AbstractEventLoop, user: str) -> None:
        self._busy -= 1
        left = self._running[user] - 1
        if left:
            self._running[user] = left
        else:
            del self._running[user]
        self._start_next(loop)

    def _start_next(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._busy < self._size and (user := next(filter(self._may_run, self._queues), None)) is not None:
            queue = self._queues[user]
            future, function = queue.popleft()
            if not queue:
                del self._queues[user]
            elif user != SERVER:
                self._queues.move_to_end(user)
            if future.done():  # its caller has given up
                continue
            try:
                self._start(loop, user, function).add_done_callback(partial(copy_result, future))
            except RuntimeError:  # the pool is shut down: the server stops
                future.cancel()
