"""The loops of a server: refresh, flush, sweep, upkeep, checkpoint. Each logs what goes wrong and goes on."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

import msgspec
import structlog

from switchyard.errors import YardError
from switchyard.model.cluster import Load
from switchyard.model.unreadable import UNREADABLE_ERRORS
from switchyard.server import garbage_collection
from switchyard.server.config import SECRET_CHARS_MIN, RainbowSection
from switchyard.server.runtime import ServerRuntime
from switchyard.service.committer import Batch
from switchyard.service.quarantine import Quarantine
from switchyard.service.quote.quote_decisions import QuoteChore
from switchyard.service.repeated_faults import RepeatedFaults
from switchyard.service.run import pollers
from switchyard.service.token import token_reservations
from switchyard.service.token.token_queue import TokenReservations
from switchyard.service.upkeep import chores, give_places, move_jobs, pending_chores
from switchyard.service.upkeep.leadership import Leadership
from switchyard.service.upkeep.retention import RetentionChore, RetentionTerms
from switchyard.service.upkeep.route_budget import RouteBudget
from switchyard.service.user_usage import COUNT_INTERVAL_S
from switchyard.store import access, clusters, leases

log = structlog.get_logger()
# What waits is looked at after this at the latest, should all words about what it waits for have been lost.
ROUTE_PAUSE_S_MAX = 10.0
DEFAULT_RAINBOW = RainbowSection(
    "-" * SECRET_CHARS_MIN
)  # what was handed out comes back, also when the door has been closed since
CLEAN_S_MAX = 600.0  # between two clean-ups; terms that are shorter than days are looked at sooner
CLEAN_AFTER_JUMP_S = 3600.0  # what is old by a clock that was set wrong is not removed before somebody can see that
# after a look that moved something the next one: what it moved may have been begun, and the rest go on
NEXT_MOVE_S = 0.25
FAILURE_PAUSE_S = 1.0  # after a round that failed: a line of the log each, and the disk may be what is full
UNNOTIFIED_SWEEP_S = 1.0  # between two sweeps of a server that cannot LISTEN
QUOTE_PAUSE_S = 0.01  # between two looks at what waits for quotes, however often it is kicked


class BackgroundLoops:
    """Started and stopped together."""

    def __init__(self, yard: ServerRuntime, leadership: Leadership) -> None:
        self._yard = yard
        self._leadership = leadership
        self._tasks: list[asyncio.Task[None]] = []
        wanted = yard.settings.config.retention
        self._retention = RetentionChore(
            RetentionTerms(*(wanted.kept_us(name) for name in ("jobs", "logs", "events", "audit"))),
        )
        self._flushed: dict[str, Load | None] = {}  # agent → the load that is written down
        self._clean_at = 0.0  # on the monotonic clock
        self._quoting = QuoteChore(yard.context)
        self._looked: tuple[int, int] | None = None  # the versions of world and access at the last look at what waits
        self._rest_until = self._look_at = self._enforce_at = 0.0
        self._mover = move_jobs.JobMover()
        self._moving_from = 0.0
        self._move_after_s = float("inf")  # at most so long after this look; said once, as another server may lead
        self._tokens = TokenReservations()
        self._budget = RouteBudget()
        self._faults = RepeatedFaults()
        self._quarantine = Quarantine(yard.context.database)

    def start(self) -> None:
        pace = self._yard.settings.pace
        for name, every_s, once in (
            ("refresh", pace.refresh_s, self._refresh),
            ("flush", pace.flush_s, self._flush),
            ("sweep", pace.sweep_s, self._sweep),
            ("upkeep", pace.upkeep_s, self._upkeep),
            ("quotes", 1.0, self._quotes),
            ("checkpoint", pace.checkpoint_s, self._checkpoint),
            ("give up", 1.0, self._give_up),
            ("usage", COUNT_INTERVAL_S, self._usage),
            ("collect", 10.0, self._collect),
        ):
            self._tasks.append(asyncio.create_task(self._repeat(name, every_s, once), name=name))

    async def stop(self) -> bool:
        """Hand over and end; false if the database does not even say no."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            # On a thread of its own: the pool may be full of what is being given up.
            await asyncio.wait_for(asyncio.to_thread(self._say_goodbye), timeout=1)
        except (TimeoutError, YardError) as exc:
            log.warning("left without handing over the lead")
            return not isinstance(exc, TimeoutError)
        return True

    def _say_goodbye(self) -> None:
        self._flush_now()
        self._leadership.leave(self._yard.context)

    async def _repeat(self, name: str, every_s: float, once: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await once()
                if self._faults.is_over(name):
                    log.info("loop works again", name=name)
            except YardError as exc:
                if self._faults.is_new(name, exc.inner):
                    log.warning("loop", name=name, error=exc.inner, next=exc.next_step)
                await asyncio.sleep(FAILURE_PAUSE_S)
            except Exception as exc:
                log.error("loop", name=name, exc_info=exc)
                if not (isinstance(exc, UNREADABLE_ERRORS) and await self._set_aside()):
                    await asyncio.sleep(FAILURE_PAUSE_S)
            await self._pause(name, every_s)

    async def _set_aside(self) -> bool:
        """A loop could not read a row: find the jobs that cannot be read, so that the next round goes by them."""
        try:
            return await self._yard.in_thread(self._quarantine.sweep, self._yard.context) > 0
        except YardError as exc:
            log.warning("loop", name="quarantine", error=exc.inner)
            return False

    async def _pause(self, name: str, every_s: float) -> None:
        """Upkeep is also kicked: what a PENDING job waits for may just have come."""
        if name == "sweep" and not self._yard.is_listening:
            every_s = min(every_s, UNNOTIFIED_SWEEP_S)
        if name != "upkeep":
            await asyncio.sleep(every_s)
            return
        if self._yard.is_pending_new:  # it came while the last look was being rested from
            every_s = min(every_s, max(0.01, self._rest_until - time.monotonic()))
        if self._budget.is_left:
            every_s = min(every_s, max(0.01, self._budget.rest_until - time.monotonic()))
        every_s, self._move_after_s = min(every_s, self._move_after_s), float("inf")
        try:
            await asyncio.wait_for(self._yard.pending_kick.wait(), every_s)
        except TimeoutError:
            return

    async def _refresh(self) -> None:
        changed = await self._yard.in_thread(self._read_anew)
        self._yard.refreshed_at = asyncio.get_running_loop().time()
        if changed:
            self._yard.pending_kick.set()

    def _read_anew(self) -> bool:
        self._yard.context.database.watch_revision()
        return self._yard.context.snapshots.refresh()

    async def _give_up(self) -> None:
        self._yard.give_up_commits(asyncio.get_running_loop().time())

    async def _usage(self) -> None:
        context = self._yard.context
        await self._yard.in_thread(context.usage.look, context.database, context.committer)

    async def _collect(self) -> None:
        if garbage_collection.is_full_collection_due() and not self._yard.has_large:
            await self._yard.in_thread(garbage_collection.collect_all)

    async def _flush(self) -> None:
        if self._yard.unflushed or self._yard.tokens_used or self._yard.voices.unflushed:
            await self._yard.in_thread(self._flush_now)

    def _flush_now(self) -> None:
        yard = self._yard
        seen, yard.unflushed = yard.unflushed, {}
        used, yard.tokens_used = yard.tokens_used, {}
        writes, yard.voices.unflushed = yard.voices.unflushed, {}
        loads = {key: load for key in seen if (load := yard.context.snapshots.loads.get(key)) != self._flushed.get(key)}
        said = {key: _load_json(loads.get(key)) for key in seen}
        # The exact moment where there is news: a sync has just stored one, and nothing from before it is taken.
        seen |= {key: yard.context.snapshots.seen.get(key, seen[key]) for key in loads}

        def apply(batch: Batch) -> None:
            # Not later than now: the clock may have been set back since they were seen.
            rows = {key: (min(at_us, batch.now_us), said[key]) for key, at_us in seen.items()}
            clusters.agent_set_seen(batch.tx, rows)
            clusters.agent_set_writes(batch.tx, writes)
            access.token_set_last_used(batch.tx, used)

        if seen or used or writes:
            yard.context.committer.call(apply)
            self._flushed |= loads

    async def _sweep(self) -> None:
        ready = await self._yard.in_thread(self._ready)
        self._yard.hub.wake([key for key in ready if self._yard.hub.is_waited_for(key)], ())
        if not self._yard.is_listening:
            self._yard.hear_nothing()

    def _ready(self) -> list[str]:
        with self._yard.context.database.read() as tx:
            return leases.cluster_ids_with_ready(tx)

    async def _upkeep(self) -> None:
        self._yard.pending_kick.clear()
        await self._yard.in_thread(self._upkeep_now)

    def _upkeep_now(self) -> None:
        began = time.monotonic()
        context, leadership = self._yard.context, self._leadership
        # Here, not beside the other loops: all chores of a round see the same clock, and none sees a jump before
        # the leader's term has followed it.
        if self._yard.clock.look(context.snapshots.follow_jump):
            self._clean_at = began + CLEAN_AFTER_JUMP_S
        if not leadership.take(context):
            self._yard.submit.let_wait.tell_leader()
            return
        self._yard.is_pending_new |= self._yard.submit.let_wait.take()
        moved = move_jobs.take_back_unleased(context, leadership)
        lost = chores.lose_silent_attempts(context, leadership) + chores.lose_silent_tasks(context, leadership)
        polling = self._yard.settings.config.rainbow or DEFAULT_RAINBOW
        pollers.requeue_unaccepted(context, lease_us=polling.receive_lease_us)
        pollers.release_unreported(context, ttl_us=polling.handover_ttl_us)
        pending_chores.end_backoffs(context, leadership)
        pending_chores.settle_dependencies(context, leadership)
        pending_chores.expire_jobs(context, leadership)
        pending_chores.report_late_jobs(context, leadership)
        pending_chores.release_concurrency_groups(context, leadership)
        self._tend_tokens()
        routed = self._route_now()
        promoted = self._enforce_now() + give_places.give_free_places(context, leadership, self._tokens)
        moved += self._move_now(began)  # last: what waits comes before who waits somewhere already
        if moved or lost or routed or promoted:
            log.info("upkeep", moved=moved, lost=lost, routed=routed, promoted=promoted)
        if time.monotonic() >= self._clean_at:
            self._clean_now()

    def _move_now(self, round_began: float) -> int:
        """For at most a fifth of the time. Where something moved, more may soon, as an array does from cluster to
        cluster: then the next round comes early, as far as rounds take no more than a fifth of the time."""
        began = time.monotonic()
        if began < self._moving_from:
            return 0
        moved = self._mover.look(self._yard.context, self._leadership)
        over = time.monotonic()
        self._moving_from = over + 4 * (over - began)
        if moved:
            self._move_after_s = max(NEXT_MOVE_S, 4 * (over - round_began))
        return moved

    def _tend_tokens(self) -> None:
        """Token pools that are away must keep no other chore from being done."""
        term = self._leadership.epoch
        if term is None:  # the server stops, and has handed the lead over meanwhile
            return
        try:
            token_reservations.reconcile_tokens(self._yard.context, self._tokens, term=term)
        except YardError as exc:
            if self._faults.is_new("token pools", exc.inner):
                log.warning("token pools", error=exc.inner)

    def _enforce_now(self) -> int:
        """Limits change rarely, and whether they hold is counted: not at each kick."""
        if time.monotonic() < self._enforce_at:
            return 0
        changed = give_places.enforce_limits(self._yard.context, self._leadership, self._tokens)
        self._enforce_at = time.monotonic() + self._yard.settings.pace.upkeep_s
        return changed

    def _route_now(self) -> int:
        """Look at what waits when something may have changed for it, for at most a fifth of the time."""
        yard, began = self._yard, time.monotonic()
        versions = yard.context.snapshots.versions
        is_news = began >= self._look_at or (
            began >= self._rest_until
            # Leases of callers end by themselves, and nobody says so.
            and (yard.is_pending_new or versions != self._looked or yard.context.tokens.counts.waiting)
        )
        if not is_news and (not self._budget.is_left or began < max(self._rest_until, self._budget.rest_until)):
            return 0
        if is_news:
            yard.is_pending_new, self._looked = False, versions  # first: what comes from here on needs another look
        self._budget.begin(is_news=bool(is_news))
        try:
            routed = chores.route_pending(yard.context, self._leadership, self._tokens, self._budget)
        except YardError:
            yard.is_pending_new = True
            raise
        self._budget.end()
        # The jobs of users who took long have a rest of their own: it holds up nobody else.
        took = max(0.0, time.monotonic() - began - self._budget.heavy_s)
        over = time.monotonic()
        self._rest_until, self._look_at = over + 4 * took, over + ROUTE_PAUSE_S_MAX
        return routed

    def _clean_now(self) -> None:
        is_left = self._retention.go(self._yard.context, self._leadership)
        shortest_us = self._retention.terms.shortest_us
        pause_s = CLEAN_S_MAX if shortest_us is None else min(CLEAN_S_MAX, shortest_us / 10_000_000)
        self._clean_at = 0.0 if is_left else time.monotonic() + pause_s
        if self._retention.removed:
            log.info("removed", **self._retention.removed)

    async def _quotes(self) -> None:
        """Every server decides what waits for quotes; it is kicked, or comes when the next one is due."""
        while True:
            self._yard.quote_kick.clear()
            wait_s = await self._yard.in_thread(self._quoting.go)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._yard.quote_kick.wait(), wait_s)
            await asyncio.sleep(QUOTE_PAUSE_S)

    async def _checkpoint(self) -> None:
        if self._yard.context.database.is_sqlite:
            await self._yard.in_thread(self._yard.context.database.checkpoint)


def _load_json(load: Load | None) -> str | None:
    return None if load is None else msgspec.json.encode(load).decode()
