"""The parts of one running server, each with one purpose. Made once, and handed to what serves requests."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from switchyard.errors import YardError
from switchyard.server.commits import Commits
from switchyard.server.config.settings import Settings
from switchyard.server.grpc.limiter import Limiter
from switchyard.server.http.authenticate import Authenticator
from switchyard.server.http.bodies.body_budget import BodyBudgets
from switchyard.server.loops.agent_presence import AgentPresence
from switchyard.server.loops.wakeups import Wakeups
from switchyard.server.loops.workers import Workers
from switchyard.server.services import Services
from switchyard.service.core.context import Context
from switchyard.service.core.process_metrics import Histogram
from switchyard.service.core.writes.batch import Batch
from switchyard.service.core.writes.committer import BatchCall
from switchyard.store.engine.probe import write_probe
from switchyard.store.jobs.failures import DatabaseDiskError

TICK_S = 0.01  # a pause may be this much longer than measured; costs a thousandth of a core


@dataclass(frozen=True, slots=True)
class LoopPause:
    """`wall_s`: as requests felt it. `cpu_s`: the part in which this process computed; else it waited for a core."""

    wall_s: float = 0.0
    cpu_s: float = 0.0


class LoopPauses:
    """The meters of all event loops of this process, by the loop's name."""

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._meters: dict[str, LoopPauseMeter] = {}

    def measure(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        """Called on that loop's thread, or before it runs."""
        meter = LoopPauseMeter(name, self._histogram)
        meter.start(loop)
        self._meters = {**self._meters, name: meter}

    def take(self) -> dict[str, LoopPause]:
        """The longest pause of each loop since the last call. From any thread."""
        return {name: meter.take() for name, meter in sorted(self._meters.items())}


class LoopPauseMeter:
    """A callback that should run every 10 ms and records how late it is."""

    def __init__(self, name: str, pauses: Histogram) -> None:
        self._name = name  # of the loop: `http` or `grpc`
        self._pauses = pauses
        self._longest = LoopPause()
        self._due = self._cpu_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._next()

    def take(self) -> LoopPause:
        """The longest pause since the last call. From any thread."""
        longest, self._longest = self._longest, LoopPause()
        return longest

    def _next(self) -> None:
        assert self._loop is not None
        # uvloop's own clock stands still within one turn of the loop.
        self._due, self._cpu_s = time.monotonic() + TICK_S, time.process_time()
        self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        """CPU time is that of all threads, because a thread that holds the interpreter stops the loop, too.

        The threads may also have worked while the loop waited for a core, so the shorter of both times counts.
        """
        late_s = max(0.0, time.monotonic() - self._due)
        cpu_s = min(late_s, time.process_time() - self._cpu_s)
        self._pauses.add(late_s, self._name)
        longest = self._longest
        self._longest = LoopPause(max(longest.wall_s, late_s), max(longest.cpu_s, cpu_s))
        self._next()


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
        self._refusal = ""  # why the last write failed

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
        if not self._refusal and time.monotonic() - self._database.disk_failed_at < DISK_S:
            return DatabaseDiskError().detail
        return self._refusal

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
        self._refusal = "" if error is None else error.detail if isinstance(error, YardError) else "A write failed."


def _probe(batch: Batch) -> None:
    write_probe(batch.tx)


@dataclass(frozen=True)
class ServerRuntime:
    services: Services
    limiter: Limiter
    bodies: BodyBudgets
    uploads: BodyBudgets  # of files
    downloads: BodyBudgets
    workers: Workers
    commits: Commits
    wakeups: Wakeups
    agents: AgentPresence
    authenticator: Authenticator
    readiness: Readiness
    pauses: LoopPauses

    @property
    def settings(self) -> Settings:
        return self.services.settings

    @property
    def context(self) -> Context:
        return self.services.context

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tell this loop of commits from here on."""
        self.commits.attach(loop)
        self.wakeups.attach(loop)
        self.pauses.measure("http", loop)


def make_runtime(services: Services) -> ServerRuntime:
    settings, context = services.settings, services.context
    limiter = Limiter(
        settings.config.limits.of,
        context.tally.limits.add,
        connections=settings.connections.http_max,
        address_connections=settings.connections.address_max,
        uploads=settings.bounds.uploads,
    )
    workers = Workers(settings.bounds.threads, limiter)
    commits = Commits(context.committer)
    wakeups = Wakeups(context, workers)
    return ServerRuntime(
        services=services,
        limiter=limiter,
        bodies=BodyBudgets(context.tally.limits.add),
        uploads=BodyBudgets(context.tally.limits.add),
        downloads=BodyBudgets(context.tally.limits.add),
        workers=workers,
        commits=commits,
        wakeups=wakeups,
        agents=AgentPresence(context, wakeups),
        authenticator=Authenticator(context, workers, limiter, is_open=settings.is_open),
        readiness=Readiness(context, commits),
        pauses=LoopPauses(context.tally.pause_s),
    )
