"""Large bulk requests: one of each user at a time, committed in pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from switchyard.errors import YardError
from switchyard.server.commits import Commits
from switchyard.service.submit.bulk import LARGE_FROM_JOBS, AcceptedBulk, BulkPieces

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
