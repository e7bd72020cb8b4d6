"""Bulk requests in work: one large one of each user at a time, decided on a thread and committed in pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

from switchyard.errors import YardError
from switchyard.service.committer import Write
from switchyard.service.submit.bulk import AcceptedBulk
from switchyard.service.submit.bulk_pieces import LARGE_FROM_JOBS, BulkPieces

TURN_FROM_BYTES = 2**20


class Committing(Protocol):
    """The server, as far as it commits."""

    def commit(self, write: Write) -> asyncio.Future[Any]: ...

    def commit_large(self, write: Write, *, user: str) -> asyncio.Future[Any]: ...


class BulkTurns:
    """One large bulk request of a user at a time: decided jobs that wait for the database take much memory."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._waiting: dict[str, int] = {}  # user → requests that have the turn or wait for it

    @asynccontextmanager
    async def taken(self, user: str, *, size: int) -> AsyncIterator[None]:
        """`size`: bytes of the request; a small one waits for no other."""
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


async def commit_bulk(yard: Committing, pieces: BulkPieces, *, user: str) -> AcceptedBulk:
    """Commit the pieces of a request one after the other. A piece waits for its turn among all users' large writes."""
    while True:
        piece = pieces.next()
        try:
            if len(piece.writes) <= LARGE_FROM_JOBS:
                accepted: AcceptedBulk = await yard.commit(piece)
            else:
                accepted = await yard.commit_large(piece, user=user)
        except YardError as exc:
            failure = pieces.failure(exc)
            if failure is exc:
                raise
            raise failure from exc
        pieces.take(accepted)
        if pieces.done >= pieces.total:
            return pieces.result()
