"""The worker threads of one server: a pool for each kind of work. Users take turns in all of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from switchyard.server.bulk_turns import BulkTurns
from switchyard.server.grpc.limiter import Limiter, current_caller
from switchyard.server.loops.bounded_pool import BoundedPool
from switchyard.server.loops.fair_threads import FairThreads

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
