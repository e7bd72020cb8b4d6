"""The background loops of a server: refresh, flush, sweep, upkeep, checkpoint. A loop logs an error and goes on."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
import structlog

from switchyard.errors import YardError
from switchyard.log_pace import LogPace
from switchyard.model.cluster.cluster import Load
from switchyard.model.job.unreadable import UNREADABLE_ERRORS
from switchyard.server.config.config import RetentionSection
from switchyard.server.feature import server_features
from switchyard.server.loops import garbage_collection
from switchyard.server.loops.background_loop import BackgroundLoop
from switchyard.server.loops.runtime import ServerRuntime
from switchyard.service.cluster import agent_leave, pilots
from switchyard.service.core.user_usage import COUNT_INTERVAL_S
from switchyard.service.core.writes.batch import Batch
from switchyard.service.quote.quote_decisions import QuoteChore
from switchyard.service.upkeep.collect_files import FileCollection
from switchyard.service.upkeep.leadership import Leadership
from switchyard.service.upkeep.quarantine import Quarantine
from switchyard.service.upkeep.retention import RetentionTerms
from switchyard.service.upkeep.round import Chore, LeaderRound, clean_pause_s
from switchyard.store.access import access
from switchyard.store.clusters import clusters
from switchyard.store.feature import store_features
from switchyard.store.jobs import leases, spread_arrays

log = structlog.get_logger()
FAILURE_PAUSE_S = 1.0  # after a round that failed: each writes a log line, and the disk may be full
UNNOTIFIED_SWEEP_S = 1.0  # between two sweeps of a server that cannot LISTEN
FILES_PAUSE_S = 20.0  # between two rounds of the collection of files
FILES_STEP_PAUSE_S = 1.0  # of a round that is not done: at most half of the time is spent on it
QUOTE_PAUSE_S = 0.01  # between two rounds, however often they are woken


class BackgroundLoops:
    """Starts and stops all loops together."""

    def __init__(self, server: ServerRuntime, leadership: Leadership) -> None:
        self._server = server
        self._leadership = leadership
        self._tasks: list[asyncio.Task[None]] = []
        self._terms = retention_terms(server.settings.config.retention)
        self._round = LeaderRound(
            server.context,
            leadership,
            terms=self._terms,
            enforce_every_s=server.settings.intervals.upkeep_s,
            further=self._further_chores(),
        )
        self._files = FileCollection()
        self._quoting = QuoteChore(server.context)
        self._quarantine = Quarantine(server.context.database)

    def start(self) -> None:
        server, intervals = self._server, self._server.settings.intervals
        for loop in (
            BackgroundLoop("refresh", self._refresh, intervals.refresh_s),
            BackgroundLoop("flush", self._flush, intervals.flush_s),
            BackgroundLoop("sweep", self._sweep, intervals.sweep_s, pause_s=self._sweep_pause_s),
            BackgroundLoop(
                "upkeep",
                self._upkeep,
                intervals.upkeep_s,
                pause_s=self._upkeep_pause_s,
                kick=server.wakeups.pending_kick,
            ),
            BackgroundLoop("quotes", self._quotes, 1.0),
            BackgroundLoop("checkpoint", self._checkpoint, intervals.checkpoint_s),
            BackgroundLoop("give up", self._give_up, 1.0),
            BackgroundLoop("usage", self._usage, COUNT_INTERVAL_S),
            BackgroundLoop("collect", self._collect, 10.0),
            BackgroundLoop("files", self._collect_files, FILES_PAUSE_S),
            *(loop for feature in server_features() for loop in feature.loops(server, self._leadership)),
        ):
            self._tasks.append(asyncio.create_task(self._repeat(loop), name=loop.name))

    async def stop(self) -> bool:
        """Stop the loops and hand over the lead. Returns false if the database does not answer."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            # On a thread of its own: calls that are being given up may hold all threads of the pool.
            await asyncio.wait_for(asyncio.to_thread(self._hand_over), timeout=1)
        except (TimeoutError, YardError) as exc:
            log.warning("left without handing over the lead")
            return not isinstance(exc, TimeoutError)
        return True

    def _hand_over(self) -> None:
        self._flush_now()
        self._leadership.leave(self._server.context)

    async def _repeat(self, loop: BackgroundLoop) -> None:
        fault_pace = LogPace()
        while True:
            try:
                await loop.once()
                if fault_pace.end():
                    log.info("loop works again", name=loop.name)
            except YardError as exc:
                if fault_pace.note(exc.inner):
                    log.warning("loop", name=loop.name, error=exc.inner, next=exc.next_step)
                await asyncio.sleep(FAILURE_PAUSE_S)
            except Exception as exc:
                log.error("loop", name=loop.name, exc_info=exc)
                if not (isinstance(exc, UNREADABLE_ERRORS) and await self._block_unreadable()):
                    await asyncio.sleep(FAILURE_PAUSE_S)
            await loop.pause()

    async def _block_unreadable(self) -> bool:
        """Block jobs whose rows cannot be read, so that the next round skips them. Returns whether there are any."""
        try:
            return await self._server.workers.in_thread(self._quarantine.sweep, self._server.context) > 0
        except YardError as exc:
            log.warning("loop", name="quarantine", error=exc.inner)
            return False

    def _sweep_pause_s(self, every_s: float) -> float:
        return every_s if self._server.wakeups.is_listening else min(every_s, UNNOTIFIED_SWEEP_S)

    def _upkeep_pause_s(self, every_s: float) -> float:
        self._tell_routing()
        return self._round.pause_s(every_s)

    def _tell_routing(self) -> None:
        """Tell the routing of pending jobs what commits have told this server."""
        if self._server.wakeups.is_pending_new:
            self._server.wakeups.is_pending_new = False  # first: a commit from here on needs another round
            self._round.routing.is_pending_new = True

    async def _refresh(self) -> None:
        changed = await self._server.workers.in_thread(self._read_anew)
        self._server.agents.forget_removed()
        self._server.readiness.database_answered_at = asyncio.get_running_loop().time()
        if changed:
            self._server.wakeups.pending_kick.set()

    def _read_anew(self) -> bool:
        self._server.context.database.watch_revision()
        return self._server.context.snapshots.refresh()

    async def _give_up(self) -> None:
        self._server.commits.give_up_stalled(asyncio.get_running_loop().time())

    async def _usage(self) -> None:
        context = self._server.context
        await self._server.workers.in_thread(context.usage.refresh, context.database, context.committer)

    async def _collect(self) -> None:
        if garbage_collection.is_full_collection_due() and not self._server.workers.has_large_request:
            await self._server.workers.in_thread(garbage_collection.collect_all)

    async def _collect_files(self) -> None:
        """Remove files that no job needs. Not in upkeep: an object store that is away must not delay other chores."""
        context, leadership = self._server.context, self._leadership
        while leadership.epoch is not None:
            is_left = await self._server.workers.in_file_thread(self._files.go, context, leadership)
            if self._files.removed:
                log.info(
                    "files removed", **{name.replace(" ", "_"): count for name, count in self._files.removed.items()}
                )
            if not is_left:
                return
            await asyncio.sleep(FILES_STEP_PAUSE_S)

    async def _flush(self) -> None:
        if (
            self._server.agents.unflushed
            or self._server.authenticator.tokens_used
            or self._server.agents.processes.unflushed
        ):
            await self._server.workers.in_thread(self._flush_now)

    def _flush_now(self) -> None:
        server = self._server
        seen, server.agents.unflushed = server.agents.unflushed, {}
        used, server.authenticator.tokens_used = server.authenticator.tokens_used, {}
        writes, server.agents.processes.unflushed = server.agents.processes.unflushed, {}
        stored, snapshots = server.agents.flushed_loads, server.context.snapshots
        loads = {key: load for key in seen if (load := snapshots.loads.get(key)) != stored.get(key)}
        loads_json = {key: _load_json(loads.get(key)) for key in seen}
        # The exact time where the load changed: a sync has just stored one, and an earlier time would be ignored.
        seen |= {key: server.context.snapshots.seen.get(key, seen[key]) for key in loads}

        def apply(batch: Batch) -> None:
            # Not later than now: the clock may have been set back since.
            rows = {key: (min(at_us, batch.now_us), loads_json[key]) for key, at_us in seen.items()}
            clusters.agent_set_seen(batch.tx, rows)
            clusters.agent_set_writes(batch.tx, writes)
            access.token_set_last_used(batch.tx, used)

        if seen or used or writes:
            server.context.committer.call(apply)
            stored.update(loads)

    async def _sweep(self) -> None:
        ready = await self._server.workers.in_thread(self._ready)
        self._server.wakeups.hub.wake([key for key in ready if self._server.wakeups.hub.is_waited_for(key)], ())
        if not self._server.wakeups.is_listening:
            self._server.wakeups.wake_without_notices()

    def _ready(self) -> list[str]:
        with self._server.context.database.read() as tx:
            return [*leases.cluster_ids_with_ready(tx), *spread_arrays.clusters_with_ready_arrays(tx)]

    async def _upkeep(self) -> None:
        self._server.wakeups.pending_kick.clear()
        await self._server.workers.in_thread(self._upkeep_now)

    def _upkeep_now(self) -> None:
        context, wakeup = self._server.context, self._server.services.submit.pending_wakeup
        # Here and not in a loop of its own: all chores of a round see the same clock, and none sees a jump before the
        # leader's term has followed it.
        if self._server.services.clock.follow_database(context.snapshots.follow_jump):
            self._round.delay_clean_up()
        if not self._leadership.take(context):
            wakeup.tell_leader()
            return
        self._tell_routing()
        self._round.routing.is_pending_new |= wakeup.take()
        self._round.go()

    def _further_chores(self) -> list[Chore]:
        context, leadership = self._server.context, self._leadership
        return [
            *(chore for feature in server_features() for chore in feature.chores(self._server, leadership)),
            Chore("end pilots", lambda: pilots.end_pilots(context, leadership.commit)),
            Chore(
                "remove silent clusters",
                lambda: agent_leave.remove_silent_clusters(context, leadership.commit),
                lambda _: clean_pause_s(self._terms),
                counted="clusters_removed",
                is_clean_up=True,
            ),
        ]

    async def _quotes(self) -> None:
        """Decide jobs that wait for quotes, on every server: when woken, or when the next deadline is due."""
        while True:
            self._server.wakeups.quote_kick.clear()
            wait_s = await self._server.workers.in_thread(self._quoting.go)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._server.wakeups.quote_kick.wait(), wait_s)
            await asyncio.sleep(QUOTE_PAUSE_S)

    async def _checkpoint(self) -> None:
        if self._server.context.database.is_sqlite:
            await self._server.workers.in_thread(self._server.context.database.checkpoint)


def retention_terms(section: RetentionSection) -> RetentionTerms:
    """How long the config keeps what the core has, and what features have."""
    names = {name for feature in store_features() for name in feature.old}
    return RetentionTerms(
        jobs_us=section.period_us("jobs"),
        logs_us=section.period_us("logs"),
        events_us=section.period_us("events"),
        audit_us=section.period_us("audit"),
        of_features={name: section.period_us(name) for name in sorted(names)},
    )


def _load_json(load: Load | None) -> str | None:
    return None if load is None else msgspec.json.encode(load).decode()
