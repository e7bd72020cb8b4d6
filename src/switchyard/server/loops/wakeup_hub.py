"""Wakes parked polls, waiting requests and event streams in this process. Lives on the event loop.

A wake-up raises the cluster's version. So a wake-up between a poll's read and its wait is not lost: the poll sees a new
version and reads again. Requests that wait for a job register before they read.

Many waiters are woken a slice at a time: each of them will be answered, and other requests come in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

WAKE_SLICE = 32  # waiters that are woken at once; each then costs the loop some tenths of a millisecond
WAKE_SLICE_PAUSE_S = 0.02  # between two slices


class WakeupHub:
    """Waiters by cluster (parked polls), by job (waits, logs) and for any event (streams)."""

    def __init__(self) -> None:
        self._clusters: dict[str, set[asyncio.Future[None]]] = {}
        self._jobs: dict[str, set[asyncio.Future[None]]] = {}
        self._versions: dict[str, int] = {}
        self._streams: set[asyncio.Future[None]] = set()
        self.is_closing = False

    def version(self, cluster_id: str) -> int:
        return self._versions.get(cluster_id, 0)

    def forget(self, cluster_id: str) -> None:
        """The cluster was removed. Polls that are still parked see another version, and look again."""
        self._versions.pop(cluster_id, None)

    def is_waited_for(self, cluster_id: str) -> bool:
        return bool(self._clusters.get(cluster_id))

    def is_any_waiting(self, jobs: Collection[str]) -> bool:
        """Whether anybody waits for one of these jobs, or follows all events. From any thread.

        Waiters register before they read. So whoever is not registered after a commit reads what it changed.
        """
        return bool(jobs) and (bool(self._streams) or any(job_id in self._jobs for job_id in jobs))

    def wake(self, clusters: Iterable[str], jobs: Collection[str]) -> None:
        for cluster_id in clusters:
            self._versions[cluster_id] = self.version(cluster_id) + 1
            _finish(self._clusters.get(cluster_id))
        self.wake_jobs(jobs)
        if jobs:
            self._wake_slices(self._streams)

    def wake_polls(self, cluster_id: str) -> None:
        """Wake the parked polls of a cluster without a new version: there is nothing to lease."""
        _finish(self._clusters.get(cluster_id))

    def wake_polls_in_turn(self, cluster_ids: Iterable[str]) -> None:
        """The same for many clusters, a slice at a time."""
        self._wake_slices(waiter for cluster_id in cluster_ids for waiter in self._clusters.get(cluster_id, ()))

    def wake_jobs(self, jobs: Iterable[str]) -> None:
        """Wake requests that wait for these jobs. Streams are not woken: new output is no event."""
        self._wake_slices(waiter for job_id in jobs for waiter in self._jobs.get(job_id, ()))

    def wake_all(self) -> None:
        """Wake every waiter: after a listener reconnected, anything may have happened."""
        self.wake(list(self._clusters), ())
        self.wake_all_jobs()

    def wake_all_jobs(self) -> None:
        """Wake everything that waits for jobs or events."""
        self.wake_jobs(self._jobs)
        self._wake_slices(self._streams)

    def close(self) -> None:
        """The server stops: wake every waiter, and park none any more."""
        self.is_closing = True
        self.wake_all()

    async def wait_cluster(
        self, cluster_id: str, seen_version: int, timeout_s: float, gone: asyncio.Task[object]
    ) -> None:
        """Wait until the cluster is woken, the client is gone, or the time is over."""
        if self.version(cluster_id) == seen_version and not self.is_closing:
            with self._registered(self._clusters, cluster_id) as waiter:
                await wait_for_first(waiter, gone, timeout_s)

    def job_waiter(self, job_id: str) -> AbstractContextManager[asyncio.Future[None]]:
        """A future that is done once something happens to the job, or the server stops. Register first, then read."""
        return self._registered(self._jobs, job_id)

    @contextmanager
    def event_waiter(self, job_id: str | None) -> Iterator[asyncio.Future[None]]:
        """The same for a stream of events, of one job or of all jobs."""
        if job_id is not None:
            with self.job_waiter(job_id) as waiter:
                yield waiter
            return
        waiter = asyncio.get_running_loop().create_future()
        self._streams.add(waiter)
        try:
            yield waiter
        finally:
            waiter.cancel()
            self._streams.discard(waiter)

    def _wake_slices(self, waiters: Iterable[asyncio.Future[None]]) -> None:
        waiting = list(waiters)
        if self.is_closing or len(waiting) <= WAKE_SLICE:
            _finish(waiting)
            return
        loop = asyncio.get_running_loop()
        for number, start in enumerate(range(0, len(waiting), WAKE_SLICE)):
            loop.call_later(number * WAKE_SLICE_PAUSE_S, _finish, waiting[start : start + WAKE_SLICE])

    @contextmanager
    def _registered(self, table: dict[str, set[asyncio.Future[None]]], key: str) -> Iterator[asyncio.Future[None]]:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        table.setdefault(key, set()).add(waiter)
        try:
            yield waiter
        finally:
            waiter.cancel()
            waiters = table[key]
            waiters.discard(waiter)
            if not waiters:
                del table[key]


async def wait_for_first(waiter: asyncio.Future[None], gone: asyncio.Task[object], timeout_s: float) -> None:
    """Wait until one of both is done, or the time is over."""
    both: set[asyncio.Future[Any]] = {waiter, gone}
    await asyncio.wait(both, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)


def _finish(waiters: Iterable[asyncio.Future[None]] | None) -> None:
    for waiter in waiters or ():
        if not waiter.done():
            waiter.set_result(None)
