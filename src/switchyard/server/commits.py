"""Writes of requests that wait for the committer: as futures of an event loop, large bulk requests in pieces."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from switchyard.errors import Unavailable, YardError
from switchyard.server.loops.loop_calls import call_on_loop
from switchyard.service.core.writes.committer import Committer, Deliveries, Write
from switchyard.service.submit.bulk import LARGE_FROM_JOBS, AcceptedBulk, BulkPieces

COMMIT_WAIT_S_MAX = 30.0  # an accepted change waits no longer for its commit


class Commits:
    """Queues writes. The future of each holds the result once it is durable."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._waiting: deque[tuple[float, asyncio.Future[Any]]] = deque()  # oldest first

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Deliver results to this loop."""
        self._committer.deliver = partial(deliver_to_loop, loop)

    def put(self, write: Write) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._committer.put(write, partial(settle_future, future))
        return self._noted(future)

    def put_large(self, write: Write, *, user: str) -> asyncio.Future[Any]:
        """Queue a write of many rows: users take turns, and small writes go in between."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._committer.put_large(write, partial(settle_future, future), user=user)
        return self._noted(future)

    def put_later(self, write: Write, size: int) -> asyncio.Future[Any]:
        """Queue a write that lets others go first."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._committer.put_deferred(write, partial(settle_future, future), size=size)
        return future

    def give_up_stalled(self, now: float) -> None:
        """Fail the futures of writes that have waited too long: requests must not pile up while the database hangs.

        `now`: on the loop's clock.
        """
        self._forget_settled()
        while self._waiting and now - self._waiting[0][0] > COMMIT_WAIT_S_MAX:
            settle_future(
                self._waiting.popleft()[1],
                Unavailable(
                    f"The database did not take the change within {COMMIT_WAIT_S_MAX:.0f} s; it may still come about.",
                    next_step="Send it again with the same Idempotency-Key: it is done once.",
                ),
            )

    def _noted(self, future: asyncio.Future[Any]) -> asyncio.Future[Any]:
        self._forget_settled()
        self._waiting.append((future.get_loop().time(), future))
        return future

    def _forget_settled(self) -> None:
        while self._waiting and self._waiting[0][1].done():
            self._waiting.popleft()


def deliver_to_loop(loop: asyncio.AbstractEventLoop, deliveries: Deliveries) -> None:
    """Settle the futures of a batch on their loop. Called on the committer's thread: one hop for the whole batch."""
    call_on_loop(loop, _deliver, deliveries)


def _deliver(deliveries: Deliveries) -> None:
    for done, result in deliveries:
        done(result)


def settle_future(future: asyncio.Future[Any], result: Any) -> None:
    if future.done():
        return  # the client hung up; its write is committed all the same
    if isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)


TURN_FROM_BYTES = 2**20


class BulkTurns:
    """Lets one large bulk request of a user in at a time: decided jobs that wait for the database take much memory."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._waiting: dict[str, int] = {}  # user → requests that have the turn or wait for it

    @asynccontextmanager
    async def hold(self, user: str, *, size: int) -> AsyncIterator[None]:
        """Wait for this user's turn and hold it. `size`: bytes of the request; a small one does not wait."""
        if size <= TURN_FROM_BYTES:
            yield
            return
        lock = self._locks.setdefault(user, asyncio.Lock())
        self._waiting[user] = self._waiting.get(user, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._waiting[user] -= 1
            if not self._waiting[user]:
                del self._waiting[user], self._locks[user]


async def commit_bulk(
    commits: Commits, pieces: BulkPieces, *, user: str, stop_if_gone: Callable[[], None] = lambda: None
) -> AcceptedBulk:
    """Commit the pieces of a request one by one. Each waits for its turn among the large writes of all users.

    `stop_if_gone` is called before each piece and raises an error if the client has left. The pieces before stay
    stored. A repeated request with the same idempotency key inserts only the missing pieces.
    """
    while True:
        stop_if_gone()
        piece = pieces.next()
        try:
            if len(piece.writes) <= LARGE_FROM_JOBS:
                accepted: AcceptedBulk = await commits.put(piece)
            else:
                accepted = await commits.put_large(piece, user=user)
        except YardError as exc:
            failure = pieces.failure(exc)
            if failure is exc:
                raise
            raise failure from exc
        pieces.take(accepted)
        if pieces.done >= pieces.total:
            return pieces.result()
