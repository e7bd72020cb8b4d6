"""`/readyz`: whether this server can serve, which needs a database that answers and that takes a write."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from switchyard.errors import YardError
from switchyard.server.commits import Commits
from switchyard.service.core.context import Context
from switchyard.service.core.writes.batch import Batch
from switchyard.service.core.writes.committer import BatchCall
from switchyard.store.engine.probe import write_probe
from switchyard.store.jobs.failures import DatabaseDiskError

DATABASE_SILENCE_S = 5.0  # after so long without an answer of the database, a balancer should use another server
WRITE_INTERVAL_S = 2.0  # between two writes, however many probes ask
ANSWER_S = 2.0  # how long a probe waits for the write; balancers wait for some seconds
WRITE_S_MAX = 10.0  # without an answer to the write for this long, the database takes no writes
DISK_S = 5.0  # not ready for so long after the disk refused a write, even if later writes succeed


class Readiness:
    """Writes when it is asked, but at most every two seconds. Lives on the event loop."""

    def __init__(self, context: Context, commits: Commits) -> None:
        self._database = context.database
        self._watermark = context.committer.watermark
        self._commits = commits
        self.is_serving = False
        self.database_answered_at = 0.0  # on the loop's clock
        self._writing: asyncio.Future[Any] | None = None
        self._began = float("-inf")  # when the last write was queued
        self._refused = ""  # why the last write failed

    async def why_not(self) -> str:
        """Return why this server cannot serve; empty if it can."""
        loop = asyncio.get_running_loop()
        if not self.is_serving:
            return "The server is starting or stopping."
        if reason := self._database.foreign_reason:
            return reason
        if self._watermark.is_turned_back:
            refusal = self._watermark.refusal()
            return f"{refusal.detail} {refusal.next_step}"
        if loop.time() - self.database_answered_at >= DATABASE_SILENCE_S:
            return f"The database has not answered for {DATABASE_SILENCE_S:g} s."
        if self._writing is None and loop.time() - self._began >= WRITE_INTERVAL_S:
            self._write(loop.time())
        if self._writing is not None:
            await asyncio.wait({self._writing}, timeout=ANSWER_S)
        if self._writing is not None and loop.time() - self._began >= WRITE_S_MAX:
            return f"The database has not taken a write for {WRITE_S_MAX:g} s."
        if not self._refused and time.monotonic() - self._database.disk_failed_at < DISK_S:
            return DatabaseDiskError().detail
        return self._refused

    def _write(self, now: float) -> None:
        self._began = now
        try:
            self._writing = self._commits.put(BatchCall(_probe))
        except YardError:
            return  # the queue is full: a busy database is not a broken one
        self._writing.add_done_callback(self._written)

    def _written(self, future: asyncio.Future[Any]) -> None:
        self._writing = None
        error = None if future.cancelled() else future.exception()
        self._refused = "" if error is None else error.detail if isinstance(error, YardError) else "A write failed."


def _probe(batch: Batch) -> None:
    write_probe(batch.tx)
