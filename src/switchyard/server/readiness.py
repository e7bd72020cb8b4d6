"""`/readyz`: whether this server can serve, which needs a database that answers and that takes a write."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from switchyard.errors import YardError
from switchyard.server.runtime import DATABASE_SILENCE_S, ServerRuntime
from switchyard.service.committer import Batch, BatchCall
from switchyard.store.failures import DatabaseDiskError
from switchyard.store.probe import write_probe

WRITE_INTERVAL_S = 2.0  # between two writes, however many probes ask
ANSWER_S = 2.0  # how long a probe waits for the write; balancers wait for some seconds
WRITE_S_MAX = 10.0  # without an answer to the write for this long, the database takes no writes
DISK_S = 5.0  # for so long after the disk refused a write, whatever else it took since


class Readiness:
    """Writes when it is asked, and not more often than every two seconds. Lives on the event loop."""

    def __init__(self, yard: ServerRuntime) -> None:
        self._yard = yard
        self._writing: asyncio.Future[Any] | None = None
        self._began = float("-inf")  # when the last write was queued
        self._refused = ""  # why the last one failed

    async def why_not(self) -> str:
        """Why this server cannot serve; empty if it can."""
        loop = asyncio.get_running_loop()
        if not self._yard.is_ready:
            return "The server is starting or stopping."
        if reason := self._yard.context.database.foreign_reason:
            return reason
        if loop.time() - self._yard.refreshed_at >= DATABASE_SILENCE_S:
            return f"The database has not answered for {DATABASE_SILENCE_S:g} s."
        if self._writing is None and loop.time() - self._began >= WRITE_INTERVAL_S:
            self._write(loop.time())
        if self._writing is not None:
            await asyncio.wait({self._writing}, timeout=ANSWER_S)
        if self._writing is not None and loop.time() - self._began >= WRITE_S_MAX:
            return f"The database has not taken a write for {WRITE_S_MAX:g} s."
        if not self._refused and time.monotonic() - self._yard.context.database.disk_failed_at < DISK_S:
            return DatabaseDiskError().detail
        return self._refused

    def _write(self, now: float) -> None:
        self._began = now
        try:
            self._writing = self._yard.commit(BatchCall(_probe))
        except YardError:
            return  # the queue is full: the changes in it show how the database is, and busy is not broken
        self._writing.add_done_callback(self._written)

    def _written(self, future: asyncio.Future[Any]) -> None:
        self._writing = None
        error = None if future.cancelled() else future.exception()
        self._refused = "" if error is None else error.detail if isinstance(error, YardError) else "A write failed."


def _probe(batch: Batch) -> None:
    write_probe(batch.tx)
