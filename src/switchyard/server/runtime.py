"""The wired server: services on one side, the event loop on the other. Built once, in `app.py`."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import structlog

from switchyard.errors import Unavailable, YardError
from switchyard.model.cluster import Load
from switchyard.server.agent_processes import AgentProcesses
from switchyard.server.bounded_pool import BoundedPool
from switchyard.server.bulk_turns import BulkTurns
from switchyard.server.fair_threads import FairThreads
from switchyard.server.limiter import Limiter, current_caller
from switchyard.server.loop_pauses import LoopPauseMeter
from switchyard.server.open_request_slots import OpenRequestSlots
from switchyard.server.rainbow.secret_guesses import SecretGuessLimiter
from switchyard.server.settings import Settings
from switchyard.server.shared_reads import SharedReads
from switchyard.server.wakeup_hub import WakeupHub
from switchyard.service.clock import Clock
from switchyard.service.cluster.fit import FitChecker
from switchyard.service.committer import CommitNotice, Deliveries, Write
from switchyard.service.context import Context
from switchyard.service.quote.inquiries import BLOCKED_BY_QUOTES, InquiryDelivery
from switchyard.service.run.lease import Leasing
from switchyard.service.submit.bulk import BulkSubmit
from switchyard.service.submit.submit import Submit

T = TypeVar("T")
log = structlog.get_logger()
LIVENESS_BATCH_S = 0.02
LAST_SEEN_ROUND_US = 1_000_000  # when agents were seen is written to the second: thousands of them in one statement
# Threads that only reckon take turns at one interpreter: eight of them took four times as long for the same work. Two,
# so that one question that takes seconds does not hold up all others.
DECISION_THREADS = 2
# Reads of thousands of rows take up to a second each, much of it in Python: more of them at once hold up the loop.
HEAVY_THREADS = 2
WAITING_DECISIONS_MAX = 1000  # decisions of one user that wait for them
# Large bodies are decoded one after the other, each within a second or two. More threads would only fight for the
# interpreter, with the loop among them.
DECODE_THREADS = 1
BULK_THREADS = 2  # bulk requests that are decided at the same time: thousands of jobs each, for many seconds
LARGE_BYTES_MAX = 256 * 2**20  # of the bodies that wait for one of these, in memory
COMMIT_WAIT_S_MAX = 30.0  # an accepted change waits no longer for its commit
DATABASE_SILENCE_S = 5.0  # without an answer of the database for this long, a balancer should ask another replica
SNAPSHOT_VERSIONS = frozenset({"access", "clusters", "layout", "policy", "tokens"})  # what is kept in memory here
ROUTING_VERSIONS = frozenset(
    {"pending", "clusters", "layout", "access", "tokens"}
)  # changes that may let a waiting job go
PROMOTION_VERSIONS = frozenset({"queues"})  # changes that may give a job its place in a limited queue


class ServerRuntime:
    """What the doors are handed."""

    def __init__(
        self, settings: Settings, context: Context, submit: Submit, bulk: BulkSubmit, leasing: Leasing, *, clock: Clock
    ) -> None:
        self.settings = settings
        self.context = context
        self.clock = clock
        self.submit = submit
        self.bulk = bulk
        self.leasing = leasing
        self.fit = FitChecker(context)
        self.hub = WakeupHub()
        self.threads = ThreadPoolExecutor(settings.bounds.threads, thread_name_prefix="use-case")
        self.reckoners = ThreadPoolExecutor(DECISION_THREADS, thread_name_prefix="reckon")
        self.limiter = Limiter(settings.config.limits.of, context.tally.limits.add)
        size = settings.bounds.threads
        self._fair_threads = FairThreads(
            self.threads,
            size=size,
            share=size - 2,
            depth_of=self.limiter.calls_of,
            refusal=self.limiter.calls_refusal,
        )
        self._fair_reckoners = FairThreads(
            self.reckoners,
            size=DECISION_THREADS,
            share=1,
            depth_of=lambda _: WAITING_DECISIONS_MAX,
            refusal=self.limiter.decisions_refusal,
        )
        self.heavy_threads = ThreadPoolExecutor(HEAVY_THREADS, thread_name_prefix="heavy-read")
        self._fair_heavy = FairThreads(
            self.heavy_threads,
            size=HEAVY_THREADS,
            share=1,
            depth_of=self.limiter.calls_of,
            refusal=self.limiter.calls_refusal,
        )
        self.reads = SharedReads()
        self.decoders = BoundedPool("decode", DECODE_THREADS, calls_max=200, bytes_max=LARGE_BYTES_MAX)
        self.bulks = BoundedPool("bulk", BULK_THREADS, calls_max=50, bytes_max=LARGE_BYTES_MAX)
        self.bulk_turns = BulkTurns()
        self.parked: dict[str, int] = {}  # agent → polls parked here
        self.voices = AgentProcesses(is_alone=context.database.is_sqlite)
        self.idle: dict[str, tuple[object, ...]] = {}  # agent → what it asked when it last got nothing
        self.guesses = SecretGuessLimiter(time.monotonic)  # at Rainbow's registration secret
        self.streams = 0  # followers of events connected here
        most = settings.connections.http_max
        # The other connections are for agents, whose polls are parked, and for short requests.
        self.waits = OpenRequestSlots(most // 2, most // 4, "waits")
        self.stream_places = OpenRequestSlots(most // 4, most // 8, "streams of events")
        self.uploads: Counter[str] = Counter()  # caller → graphs being taken in
        self.tokens_used: dict[str, int] = {}
        self.unflushed: dict[str, int] = {}  # agent → when it was last seen
        self.is_ready = False
        self.is_listening = True  # to PostgreSQL's notices; without, what other replicas commit is looked for
        self.refreshed_at = 0.0  # on the loop's clock: when the database last answered
        self._commits: deque[tuple[float, asyncio.Future[Any]]] = deque()  # oldest first
        self.looked_us = 0  # when a credential that was not found last made us look at the store
        self.next_look: asyncio.Task[None] | None = None  # the look that all who miss something now wait for
        self.handing = InquiryDelivery(context)  # questions to agents
        self.quote_kick = asyncio.Event()  # somebody asks for quotes, or has answered
        self.pending_kick = asyncio.Event()
        self.is_pending_new = True  # a job came to wait, or what some wait for may have come
        self._is_reckoning = False
        self._is_refreshing = False
        self.pauses: dict[str, LoopPauseMeter] = {}  # of each event loop
        self.loop: asyncio.AbstractEventLoop | None = None

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """From here on commits are told to this loop."""
        self.loop = loop
        self.measure_pauses("http", loop)
        committer = self.context.committer
        committer.after_commit = self._after_commit
        committer.deliver = self._deliver

    def measure_pauses(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        """On that loop's thread, or before it runs."""
        meter = LoopPauseMeter(name, self.context.tally.pause_s)
        meter.start(loop)
        self.pauses = {**self.pauses, name: meter}

    def commit(self, write: Write) -> asyncio.Future[Any]:
        """Queue a write; the future holds its result once it is durable."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.context.committer.put(write, partial(settle_future, future))
        return self._until_settled(future)

    def commit_large(self, write: Write, *, user: str) -> asyncio.Future[Any]:
        """The same for a write of many rows: users take turns, and small writes go in between."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.context.committer.put_large(write, partial(settle_future, future), user=user)
        return self._until_settled(future)

    def _until_settled(self, future: asyncio.Future[Any]) -> asyncio.Future[Any]:
        """Note when the write came: it waits only so long (`give_up_commits`)."""
        self._forget_settled()
        self._commits.append((future.get_loop().time(), future))
        return future

    def give_up_commits(self, now: float) -> None:
        """Whoever waits for a database that hangs hears so in time: no queue of requests grows without end."""
        self._forget_settled()
        while self._commits and now - self._commits[0][0] > COMMIT_WAIT_S_MAX:
            settle_future(
                self._commits.popleft()[1],
                Unavailable(
                    f"The database did not take the change within {COMMIT_WAIT_S_MAX:.0f} s; it may still come about.",
                    next_step="Send it again with the same Idempotency-Key: it is done once.",
                ),
            )

    def _forget_settled(self) -> None:
        while self._commits and self._commits[0][1].done():
            self._commits.popleft()

    def commit_later(self, write: Write, size: int) -> asyncio.Future[Any]:
        """The same for what lets others go first."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.context.committer.put_later(write, partial(settle_future, future), size=size)
        return future

    async def in_thread(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Run a sync use case where it may block. Users whose calls wait for a thread take turns."""
        return await self._fair_threads.run(current_caller.get(), partial(function, *arguments, **named))

    async def in_turn(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Run what only reckons, and may take long. One user has one such thread at a time."""
        return await self._fair_reckoners.run(current_caller.get(), partial(function, *arguments, **named))

    async def in_heavy_thread(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Run a use case that reads many rows. One user has one such thread at a time."""
        return await self._fair_heavy.run(current_caller.get(), partial(function, *arguments, **named))

    @property
    def has_large(self) -> bool:
        """Whether a large request is being read or decided."""
        return not (self.decoders.is_idle and self.bulks.is_idle)

    def seen(self, agent_id: str, load: Load | None) -> None:
        """An agent spoke: it is alive, and this is how its cluster is.

        A poll that is parked does not count: if its agent vanished, nobody would tell us for as long as it is parked.
        """
        if load is not None:
            self.context.snapshots.take_load(agent_id, load, self.context.now_us())
        now_us = self.context.now_us()
        self.unflushed[agent_id] = now_us - now_us % LAST_SEEN_ROUND_US
        is_back = self.context.snapshots.mark_seen(agent_id, now_us)
        if is_back and not self._is_reckoning:
            # Not for each of a thousand agents that come back at once: what they bring is reckoned together.
            self._is_reckoning = True
            asyncio.get_running_loop().call_later(LIVENESS_BATCH_S, self._reckon)

    def _reckon(self) -> None:
        self._is_reckoning = False
        if self.context.snapshots.reckon():
            self.pending_kick.set()

    def woken(self, woken: CommitNotice) -> None:
        """Somebody committed something, here or in another replica. On the loop."""
        if BLOCKED_BY_QUOTES in woken.versions:
            self.handing.note()
            self.quote_kick.set()
        self.hub.wake(woken.clusters, woken.jobs)
        if not ROUTING_VERSIONS.isdisjoint(woken.versions):
            self.is_pending_new = True
            self.pending_kick.set()
        elif not PROMOTION_VERSIONS.isdisjoint(woken.versions):
            self.pending_kick.set()

    def kick_pending(self) -> None:
        """What a waiting job waits for may have come, and no commit says so. From any thread."""
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.woken, CommitNotice([], [], ["pending"]))

    def heard(self, woken: CommitNotice) -> None:
        """Another replica committed something. On the loop."""
        self.woken(woken)
        if woken.versions:
            self._refresh_soon()

    def heard_anything(self) -> None:
        """Another replica committed more than fits into a notice, or nobody listened for a while. On the loop."""
        self.hub.wake_all()
        self.handing.note()
        self.quote_kick.set()
        self.is_pending_new = True
        self.pending_kick.set()
        self._refresh_soon()

    def hear_nothing(self) -> None:
        """Nobody tells this replica what others commit. Waiters look again; parked polls are left to the sweep."""
        self.hub.wake_jobs()
        self.handing.note()
        self.quote_kick.set()
        self.is_pending_new = True
        self.pending_kick.set()

    def _refresh_soon(self) -> None:
        if not self._is_refreshing:
            self._is_refreshing = True
            self.threads.submit(self._refresh)

    def _refresh(self) -> None:
        self._is_refreshing = False  # first: what is heard from here on needs another look
        try:
            self.context.snapshots.refresh()
        except YardError as exc:
            log.warning("snapshot not refreshed", error=exc.inner)  # the loop tries again within a second
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self.pending_kick.set)

    def _deliver(self, told: Deliveries) -> None:
        """On the committer's thread: one hop to the loop for the whole batch."""
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(deliver_results, told)

    def _after_commit(self, woken: CommitNotice) -> None:
        """On the committer's thread, before the waiters are told: a caller sees its own change."""
        if not SNAPSHOT_VERSIONS.isdisjoint(woken.versions):
            self._refresh()
        if self.loop is not None and (woken.clusters or woken.jobs or woken.versions):
            self.loop.call_soon_threadsafe(self.woken, woken)


def deliver_results(told: Deliveries) -> None:
    for done, result in told:
        done(result)


def settle_future(future: asyncio.Future[Any], result: Any) -> None:
    """Tell a write's waiter, on the waiter's own loop."""
    if future.done():
        return  # the client hung up; what it asked for is done all the same
    if isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)
