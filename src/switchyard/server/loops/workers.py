"""The worker threads of one server: a pool for each kind of work. Users take turns in all of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from switchyard.errors import Busy, Unavailable, YardError
from switchyard.policy.limits import exceeds_limit
from switchyard.server.commits import BulkTurns
from switchyard.server.grpc.limiter import SERVER, Limiter, current_caller
from switchyard.server.loops.loop_calls import copy_result, run_on_thread

T = TypeVar("T")
# Threads that only compute share one interpreter: eight of them took four times as long for the same work. Two, so that
# one decision that takes seconds does not hold up all others.
DECISION_THREADS = 2
# Reads of thousands of rows take up to a second each, much of it in Python: more of them at once hold up the loop.
HEAVY_THREADS = 2
WAITING_DECISIONS_MAX = 1000  # of one user
# Large bodies are decoded one after the other, each within a second or two. More threads would only compete for the
# interpreter, with the loop among them.
DECODE_THREADS = 1
FILE_THREADS = 8  # hash objects and wait for the disk or the object store; one user has at most half of them
BULK_THREADS = 2  # bulk requests that are decided at the same time: thousands of jobs each, for many seconds
LARGE_BYTES_MAX = 256 * 2**20  # of large bodies that wait for a thread, in memory


class Workers:
    """Lives on the event loop."""

    def __init__(self, threads: int, limiter: Limiter) -> None:
        self._use_cases = FairThreads(
            "use-case", size=threads, share=threads - 2, depth_of=limiter.calls_of, refusal=limiter.calls_refusal
        )
        self._decisions = FairThreads(
            "decision",
            size=DECISION_THREADS,
            share=1,
            depth_of=lambda _: WAITING_DECISIONS_MAX,
            refusal=limiter.decisions_refusal,
        )
        self._heavy_reads = FairThreads(
            "heavy-read", size=HEAVY_THREADS, share=1, depth_of=limiter.calls_of, refusal=limiter.calls_refusal
        )
        self._files = FairThreads(
            "files",
            size=FILE_THREADS,
            share=FILE_THREADS // 2,
            depth_of=limiter.calls_of,
            refusal=limiter.calls_refusal,
        )
        self.decoders = BoundedPool("decode", DECODE_THREADS, calls_max=200, bytes_max=LARGE_BYTES_MAX)
        self.bulks = BoundedPool("bulk", BULK_THREADS, calls_max=50, bytes_max=LARGE_BYTES_MAX)
        self.bulk_turns = BulkTurns()

    async def in_thread(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Run a use case where it may block."""
        return await self._use_cases.run(current_caller.get(), partial(function, *arguments, **named))

    async def in_decision_thread(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Run a decision that may take long and reads no database. One user has one such thread at a time."""
        return await self._decisions.run(current_caller.get(), partial(function, *arguments, **named))

    async def in_heavy_thread(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Run a use case that reads many rows. One user has one such thread at a time."""
        return await self._heavy_reads.run(current_caller.get(), partial(function, *arguments, **named))

    async def in_file_thread(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Run work on files: it hashes, and waits for the object store."""
        return await self._files.run(current_caller.get(), partial(function, *arguments, **named))

    def start(self, function: Callable[[], None]) -> None:
        """Run work of the server itself on a thread, and wait for nothing. From any thread."""
        self._use_cases.start(function)

    @property
    def has_large_request(self) -> bool:
        """Whether a large request is being decoded or decided."""
        return not (self.decoders.is_idle and self.bulks.is_idle)

    def close(self, *, wait: bool = False) -> None:
        for pool in (self._use_cases, self._decisions, self._heavy_reads, self._files, self.decoders, self.bulks):
            pool.close(wait=wait)


class BoundedPool:
    """A few threads for long work, with a bound on the calls that wait and on their bytes. Calls over it are refused.

    Users take turns, and one user has at most half of what may wait; the calls of one user are served in
    the order of arrival. Used from one loop.
    """

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

    @contextlib.contextmanager
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
