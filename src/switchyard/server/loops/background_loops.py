"""The background loops of a server: refresh, flush, sweep, upkeep, checkpoint. A loop logs an error and goes on."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec
import structlog

from switchyard.errors import YardError
from switchyard.log_pace import LogPace
from switchyard.model.cluster.cluster import Load
from switchyard.model.job.unreadable import UNREADABLE_ERRORS
from switchyard.server.config.config import SECRET_CHARS_MIN, RainbowSection
from switchyard.server.flyte.flyteidl_check import is_flyteidl_installed
from switchyard.server.loops import garbage_collection
from switchyard.server.loops.runtime import ServerRuntime
from switchyard.service.cluster import agent_leave, pilots
from switchyard.service.core.user_usage import COUNT_INTERVAL_S
from switchyard.service.core.writes.batch import Batch
from switchyard.service.placement.route_budget import RouteBudget
from switchyard.service.quote.quote_decisions import QuoteChore
from switchyard.service.reserve import token_reservations
from switchyard.service.reserve.token_queue import TokenReservations
from switchyard.service.run import pollers
from switchyard.service.upkeep import give_places, move_jobs
from switchyard.service.upkeep import route_pending as chores
from switchyard.service.upkeep.collect_files import FileCollection
from switchyard.service.upkeep.end_backoffs import end_backoffs
from switchyard.service.upkeep.expire_jobs import expire_jobs
from switchyard.service.upkeep.expire_pilots import expire_pilots
from switchyard.service.upkeep.leadership import Leadership
from switchyard.service.upkeep.lose_silent_attempts import lose_silent_attempts
from switchyard.service.upkeep.lose_silent_tasks import lose_silent_tasks
from switchyard.service.upkeep.quarantine import Quarantine
from switchyard.service.upkeep.refresh_lessees import LesseeRefresh
from switchyard.service.upkeep.release_concurrency_groups import release_concurrency_groups
from switchyard.service.upkeep.render_namespaces import NamespaceRendering
from switchyard.service.upkeep.report_late_jobs import report_late_jobs
from switchyard.service.upkeep.retention import RetentionChore, RetentionTerms
from switchyard.service.upkeep.sample_clusters import ClusterSampling
from switchyard.service.upkeep.settle_dependencies import settle_dependencies
from switchyard.store.access import access
from switchyard.store.clusters import clusters
from switchyard.store.executions import execution_due, schedules
from switchyard.store.jobs import leases, spread_arrays

if TYPE_CHECKING:
    from switchyard.service.executions.driving.driver import ExecutionDriver
    from switchyard.service.executions.driving.schedules import ScheduleChore

log = structlog.get_logger()
# Pending jobs are routed at least this often, in case every wake-up was lost.
ROUTE_PAUSE_S_MAX = 10.0
DEFAULT_RAINBOW = RainbowSection(
    "-" * SECRET_CHARS_MIN
)  # for jobs that were handed over while the config had a `rainbow` section: they are still taken back
CLEAN_S_MAX = 600.0  # between two clean-ups; sooner where a retention period is shorter than days
CLEAN_AFTER_JUMP_S = 3600.0  # after the clock jumped: nothing is removed before somebody can notice a wrong clock
# until the next round after one that moved jobs: more may move, as the tasks of an array do
NEXT_MOVE_S = 0.25
RETENTION_NAMES = ("jobs", "logs", "events", "audit", "executions")
FAILURE_PAUSE_S = 1.0  # after a round that failed: each writes a log line, and the disk may be full
UNNOTIFIED_SWEEP_S = 1.0  # between two sweeps of a server that cannot LISTEN
FILES_PAUSE_S = 20.0  # between two rounds of the collection of files
FILES_STEP_PAUSE_S = 1.0  # of a round that is not done: at most half of the time is spent on it
NAMESPACES_PAUSE_S = 1.0  # between two looks whether templates or their values changed
EXECUTIONS_PAUSE_S = 1.0  # between two looks for executions with something to do, if nothing wakes the loop
QUOTE_PAUSE_S = 0.01  # between two rounds, however often they are woken


class BackgroundLoops:
    """Starts and stops all loops together."""

    def __init__(self, server: ServerRuntime, leadership: Leadership) -> None:
        self._server = server
        self._leadership = leadership
        self._tasks: list[asyncio.Task[None]] = []
        retention = server.settings.config.retention
        self._retention = RetentionChore(
            RetentionTerms(*(retention.period_us(name) for name in RETENTION_NAMES)),
        )
        self._clean_at = 0.0  # on the monotonic clock
        self._files = FileCollection()
        self._namespaces = NamespaceRendering(server.settings.templates)
        self._executions: ExecutionDriver | None = None  # made for the first execution
        self._schedules: ScheduleChore | None = None
        self._quoting = QuoteChore(server.context)
        self._routed_versions: tuple[int, int] | None = None  # versions of the snapshots at the last routing
        self._rest_until = self._look_at = self._enforce_at = 0.0
        self._mover = move_jobs.JobMover()
        self._sampling = ClusterSampling()
        self._lessees = LesseeRefresh()
        self._lessees_from = 0.0
        self._moving_from = 0.0
        self._move_after_s = float("inf")  # until the next round, used once: another server may lead by then
        self._tokens = TokenReservations()
        self._budget = RouteBudget()
        self._fault_paces: defaultdict[str, LogPace] = defaultdict(LogPace)  # by loop
        self._quarantine = Quarantine(server.context.database)

    def start(self) -> None:
        intervals = self._server.settings.intervals
        for name, every_s, once in (
            ("refresh", intervals.refresh_s, self._refresh),
            ("flush", intervals.flush_s, self._flush),
            ("sweep", intervals.sweep_s, self._sweep),
            ("upkeep", intervals.upkeep_s, self._upkeep),
            ("quotes", 1.0, self._quotes),
            ("checkpoint", intervals.checkpoint_s, self._checkpoint),
            ("give up", 1.0, self._give_up),
            ("usage", COUNT_INTERVAL_S, self._usage),
            ("collect", 10.0, self._collect),
            ("files", FILES_PAUSE_S, self._collect_files),
            ("executions", EXECUTIONS_PAUSE_S, self._drive_executions),
            ("namespaces", NAMESPACES_PAUSE_S, self._render_namespaces),
        ):
            self._tasks.append(asyncio.create_task(self._repeat(name, every_s, once), name=name))

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

    async def _repeat(self, name: str, every_s: float, once: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await once()
                if self._fault_paces[name].end():
                    log.info("loop works again", name=name)
            except YardError as exc:
                if self._fault_paces[name].note(exc.inner):
                    log.warning("loop", name=name, error=exc.inner, next=exc.next_step)
                await asyncio.sleep(FAILURE_PAUSE_S)
            except Exception as exc:
                log.error("loop", name=name, exc_info=exc)
                if not (isinstance(exc, UNREADABLE_ERRORS) and await self._block_unreadable()):
                    await asyncio.sleep(FAILURE_PAUSE_S)
            await self._pause(name, every_s)

    async def _block_unreadable(self) -> bool:
        """Block jobs whose rows cannot be read, so that the next round skips them. Returns whether there are any."""
        try:
            return await self._server.workers.in_thread(self._quarantine.sweep, self._server.context) > 0
        except YardError as exc:
            log.warning("loop", name="quarantine", error=exc.inner)
            return False

    async def _pause(self, name: str, every_s: float) -> None:
        """Sleep until the next round. Upkeep is also woken: a pending job may just have become eligible."""
        if name == "sweep" and not self._server.wakeups.is_listening:
            every_s = min(every_s, UNNOTIFIED_SWEEP_S)
        if name == "executions":
            every_s = self._executions.pause_s if self._executions is not None else every_s
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._server.wakeups.execution_kick.wait(), every_s)
            return
        if name != "upkeep":
            await asyncio.sleep(every_s)
            return
        if self._server.wakeups.is_pending_new:  # since the last round
            every_s = min(every_s, max(0.01, self._rest_until - time.monotonic()))
        if self._budget.is_left:
            every_s = min(every_s, max(0.01, self._budget.rest_until - time.monotonic()))
        every_s, self._move_after_s = min(every_s, self._move_after_s), float("inf")
        try:
            await asyncio.wait_for(self._server.wakeups.pending_kick.wait(), every_s)
        except TimeoutError:
            return

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

    async def _render_namespaces(self) -> None:
        context, leadership = self._server.context, self._leadership
        if leadership.epoch is not None:
            changed = await self._server.workers.in_file_thread(self._namespaces.go, context, leadership)
            if changed:
                log.info("namespaces rendered", changed=changed)

    async def _drive_executions(self) -> None:
        self._server.wakeups.execution_kick.clear()
        if self._leadership.epoch is not None:
            is_more_due = await self._server.workers.in_file_thread(self._drive_due_executions)
            if is_more_due:
                self._server.wakeups.execution_kick.set()

    def _drive_due_executions(self) -> bool:
        """Returns whether more is due. Flyte's messages are imported only where there are executions."""
        context = self._server.context
        with context.database.read() as tx:
            is_any_live = execution_due.is_any_live(tx)
            is_time = schedules.is_any_due(tx, context.now_us())
        if not (is_any_live or is_time) or not is_flyteidl_installed():
            return False
        if is_time and context.workflows.has_executions:
            if self._schedules is None:
                from switchyard.service.executions.driving.schedules import ScheduleChore

                self._schedules = ScheduleChore()
            self._schedules.go(context, self._leadership)
        if self._executions is None:
            from switchyard.service.executions.driving.driver import ExecutionDriver

            self._executions = ExecutionDriver(self._server.services.submit)
        return self._executions.go(context, self._leadership)

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
        began = time.monotonic()
        context, leadership = self._server.context, self._leadership
        # Here and not in a loop of its own: all chores of a round see the same clock, and none sees a jump before the
        # leader's term has followed it.
        if self._server.services.clock.follow_database(context.snapshots.follow_jump):
            self._clean_at = began + CLEAN_AFTER_JUMP_S
        if not leadership.take(context):
            self._server.services.submit.pending_wakeup.tell_leader()
            return
        self._server.wakeups.is_pending_new |= self._server.services.submit.pending_wakeup.take()
        moved = move_jobs.take_back_unleased(context, leadership) + self._refresh_lessees()
        lost = lose_silent_attempts(context, leadership) + lose_silent_tasks(context, leadership)
        polling = self._server.settings.config.rainbow or DEFAULT_RAINBOW
        pollers.requeue_unaccepted(context, lease_us=polling.receive_lease_us)
        pollers.release_unreported(context, ttl_us=polling.handover_ttl_us)
        for chore in (end_backoffs, settle_dependencies, expire_jobs, expire_pilots, report_late_jobs):
            chore(context, leadership)
        release_concurrency_groups(context, leadership)
        pilots.end_pilots(context, leadership.commit)
        self._reconcile_tokens()
        routed = self._route_now()
        promoted = self._enforce_now() + give_places.give_free_places(context, leadership, self._tokens)
        moved += self._move_now(began)  # last: pending jobs have priority over jobs that already have a cluster
        if moved or lost or routed or promoted:
            log.info("upkeep", moved=moved, lost=lost, routed=routed, promoted=promoted)
        self._sampling.go(context, leadership)
        if time.monotonic() >= self._clean_at:
            self._clean_now()

    def _refresh_lessees(self) -> int:
        """Decide again which clusters may lease arrays, for at most a fifth of the time."""
        began = time.monotonic()
        if began < self._lessees_from:
            return 0
        changed = self._lessees.look(self._server.context, self._leadership)
        over = time.monotonic()
        self._lessees_from = over + 4 * (over - began)
        return changed

    def _move_now(self, round_began: float) -> int:
        """Move jobs between clusters, for at most a fifth of the time.

        If jobs moved, the next round comes early, because more may move, as the tasks of an array do. Rounds still
        take at most a fifth of the time.
        """
        began = time.monotonic()
        if began < self._moving_from:
            return 0
        moved = self._mover.look(self._server.context, self._leadership)
        over = time.monotonic()
        self._moving_from = over + 4 * (over - began)
        if moved:
            self._move_after_s = max(NEXT_MOVE_S, 4 * (over - round_began))
        return moved

    def _reconcile_tokens(self) -> None:
        """Reconcile token pools with live jobs. If the pools are unreachable, the other chores still run."""
        term = self._leadership.epoch
        if term is None:  # the server is stopping and has handed over the lead
            return
        try:
            token_reservations.reconcile_tokens(self._server.context, self._tokens, term=term)
        except YardError as exc:
            if self._fault_paces["token pools"].note(exc.inner):
                log.warning("token pools", error=exc.inner)

    def _enforce_now(self) -> int:
        """Enforce the limits of queues. Not at every wake-up: limits change rarely, and counting takes time."""
        if time.monotonic() < self._enforce_at:
            return 0
        changed = give_places.enforce_limits(self._server.context, self._leadership, self._tokens)
        self._enforce_at = time.monotonic() + self._server.settings.intervals.upkeep_s
        return changed

    def _route_now(self) -> int:
        """Route pending jobs if something may have changed for them, for at most a fifth of the time."""
        server, began = self._server, time.monotonic()
        versions = server.context.snapshots.versions
        is_news = began >= self._look_at or (
            began >= self._rest_until
            # Leases of tokens expire without a notice.
            and (
                server.wakeups.is_pending_new
                or versions != self._routed_versions
                or server.context.tokens.counts.waiting
            )
        )
        if not is_news and (not self._budget.is_left or began < max(self._rest_until, self._budget.rest_until)):
            return 0
        if is_news:
            # First: a change from here on needs another round.
            server.wakeups.is_pending_new, self._routed_versions = False, versions
        self._budget.begin(is_news=bool(is_news))
        try:
            routed = chores.route_pending(server.context, self._leadership, self._tokens, self._budget)
        except YardError:
            server.wakeups.is_pending_new = True
            raise
        self._budget.end()
        # Users whose jobs took long have a pause of their own, which delays nobody else.
        took = max(0.0, time.monotonic() - began - self._budget.heavy_s)
        over = time.monotonic()
        self._rest_until, self._look_at = over + 4 * took, over + ROUTE_PAUSE_S_MAX
        return routed

    def _clean_now(self) -> None:
        if removed := agent_leave.remove_silent_clusters(self._server.context, self._leadership.commit):
            log.info("ephemeral clusters removed", clusters=removed)
        is_left = self._retention.go(self._server.context, self._leadership)
        shortest_us = self._retention.terms.shortest_us
        pause_s = CLEAN_S_MAX if shortest_us is None else min(CLEAN_S_MAX, shortest_us / 10_000_000)
        self._clean_at = 0.0 if is_left else time.monotonic() + pause_s
        if self._retention.removed:
            log.info("removed", **self._retention.removed)

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


def _load_json(load: Load | None) -> str | None:
    return None if load is None else msgspec.json.encode(load).decode()
