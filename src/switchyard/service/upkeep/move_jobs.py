"""Move unleased jobs, as chores of the leader.

Jobs leave clusters that are cordoned, removed, or (while another is up) down or paused. Idle clusters take over jobs
that are queued elsewhere. Only unleased jobs move, under their lock: a job that an agent leases first stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from time import monotonic
from typing import TypeVar

import msgspec

from switchyard.match.demand import Demand
from switchyard.model.cluster.cluster import Health
from switchyard.model.job.bounds import Bounds, decode_bounds
from switchyard.model.job.job import JobSpec, State
from switchyard.model.job.lifecycle import Transition, reassign
from switchyard.model.job.spill import opened_pools
from switchyard.model.rules.queue import Lane, queue_named
from switchyard.route.member import Member
from switchyard.route.moving import (
    HANDOVERS_BEFORE_BACKOFF,
    BacklogJobs,
    FreeCapacity,
    find_better_quote,
    pick_taker,
    rest_time_us,
)
from switchyard.route.router import ChosenSets, Eligibility
from switchyard.route.select.selector import reads_quotes
from switchyard.route.world import World
from switchyard.service.core.context import Context
from switchyard.service.core.writes.batch import Batch
from switchyard.service.lifecycle.array_spread import lessee_ids, spread_text
from switchyard.service.lifecycle.chosen_sets import chosen_update
from switchyard.service.lifecycle.demands import demand_of_spec
from switchyard.service.lifecycle.lease_request import LOOK_PAST_MAX
from switchyard.service.lifecycle.transitions import life_of, move_update, record_step, step_update, unassign_waiting
from switchyard.service.lifecycle.wait_clock import waited_s
from switchyard.service.placement.decision_counts import count_moved, count_set
from switchyard.service.placement.eligibility_cache import cache_eligibility
from switchyard.service.placement.evaluation import evaluate_again, fits_now
from switchyard.service.reserve.quotes import QuoteWindow, quote_use_row
from switchyard.service.upkeep.leadership import ROUND_MAX, Leadership
from switchyard.store.clusters import clusters, quotes
from switchyard.store.jobs import backlog, jobs, leases
from switchyard.store.jobs.job_rows import JobRow
from switchyard.store.jobs.job_update import JobUpdate

T = TypeVar("T")
ROUNDS_MAX = 20  # transactions that take back jobs in one round: ten thousand jobs
LANES_MAX = 200  # lanes read in one round
LINES_MAX = 100  # clusters with a backlog whose remaining capacity is computed in one round
LINE_JOBS_READ_MAX = 1000  # jobs read from all lanes in one round: some tens of milliseconds
DECIDE_S_MAX = 1.0  # time for evaluations in one round: selections with many steps are slow
ELIGIBILITIES_MAX = 200  # distinct evaluations in one round: some tens of milliseconds


def take_back_unleased(context: Context, leadership: Leadership) -> int:
    """Unassign unleased jobs of clusters that are removed or cordoned, or down or paused while another is up."""
    moved = 0
    for _ in range(ROUNDS_MAX):
        count = _take_back_round(context, leadership)
        moved += count
        if count < ROUND_MAX:
            break
    return moved


def _take_back_round(context: Context, leadership: Leadership) -> int:
    world = context.snapshots.world
    is_any_up = any(member.health is Health.UP for member in world.members)
    # An outage may be short: if no cluster is up, jobs keep their position. An operator's cordon always counts.
    unavailable = (Health.CORDONED, Health.DOWN, Health.PAUSED) if is_any_up else (Health.CORDONED,)
    cluster_ids = [member.id for member in world.members if member.health in unavailable]
    with context.database.read() as tx:
        cluster_ids += clusters.cluster_deleted_with_ready(tx)
        ids = leases.ready_job_ids(tx, cluster_ids, ROUND_MAX) if cluster_ids else []
    if not ids:
        return 0

    def change(batch: Batch, row: JobRow) -> JobUpdate | None:
        step = _take_back(row, world)
        if step is None:
            return None
        record_step(batch, row, step)
        return step_update(batch, row, step)

    return leadership.change_jobs(context, ids, change)


def _take_back(row: JobRow, world: World) -> Transition | None:
    """Return the transition that unassigns a job. Leased tasks of an array run on; only its unleased tasks go back."""
    member = world.by_id.get(row.cluster_id or "")
    reason = "its cluster was removed"
    if member is not None:
        reason = f"{member.name} is {member.health.value}"
        reason += f" ({member.reason})" if member.is_batch_silent and member.health is Health.DOWN else ""
    reason += ", and the rest of its tasks had not begun" if row.array is not None else ", and nobody had begun it"
    return unassign_waiting(row, reason)


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """The move of one job to another cluster. It is dropped if the job's fence has changed meanwhile."""

    id: str
    fence: int
    eligibility: Eligibility
    to: str
    reason: str


class JobMover:
    """Lets idle clusters take over jobs queued elsewhere. Remembers a cursor per lane and the times of moves."""

    def __init__(self) -> None:
        self._cursors: dict[tuple[str, str], backlog.BacklogCursor] = {}  # cluster, lane → last job read
        self._idle: frozenset[str] = frozenset()
        self._moved_us: dict[str, int] = {}  # target cluster → time of the last move to it, on the steady clock
        self._round = 0

    def look(self, context: Context, leadership: Leadership) -> int:
        """Run one bounded round. Returns the number of moved jobs.

        It costs two small queries while no cluster has room, or no job waits.
        """
        self._round += 1
        world = context.snapshots.world
        with context.database.read() as tx:
            waiting = set(leases.cluster_ids_with_ready(tx))
            is_quoted = bool(waiting) and quotes.quote_any_valid(tx, now_us=context.now_us())
        spares, with_backlog = self._spares(context, world, waiting)
        if self._idle != spares.keys():
            self._cursors, self._idle = {}, frozenset(spares)  # start again: the first jobs may now fit somewhere
        spares |= self._left_by_backlogs(context, with_backlog)
        busy = sorted(waiting & world.by_id.keys())
        if not busy or not (spares or is_quoted):
            return 0
        moves = self._moves(context, busy, _MoveSearch(context, world, spares, is_quoted=is_quoted))
        moved = _apply(context, leadership, world, moves) if moves else 0
        if moved:
            known_us = {cluster: at_us for cluster, at_us in self._moved_us.items() if cluster in world.by_id}
            self._moved_us = known_us | {world.by_name[move.to].id: context.steady_us() for move in moves}
        return moved

    def _is_load_stale(self, context: Context, cluster_id: str) -> bool:
        """Return whether the cluster has not reported its load since jobs last moved there."""
        moved_us = self._moved_us.get(cluster_id)
        load_age_us = context.now_us() - context.snapshots.reported_us(cluster_id)
        return moved_us is not None and context.steady_us() - moved_us <= load_age_us

    def _spares(
        self, context: Context, world: World, waiting: set[str]
    ) -> tuple[dict[str, FreeCapacity], list[tuple[Member, FreeCapacity]]]:
        """Return the clusters with free capacity: those without queued jobs, and those with a backlog.

        Clusters that have not reported their load since jobs last moved there are left out.
        """
        spares: dict[str, FreeCapacity] = {}
        with_backlog: list[tuple[Member, FreeCapacity]] = []
        for member in world.members if waiting else ():
            spare = FreeCapacity.of(context.snapshots.load_of(member.id)) if member.health is Health.UP else None
            if spare is None or self._is_load_stale(context, member.id):
                continue
            if member.id in waiting:
                with_backlog.append((member, spare))
            else:
                spares[member.name] = spare
        return spares, with_backlog

    def _left_by_backlogs(
        self, context: Context, with_backlog: list[tuple[Member, FreeCapacity]]
    ) -> dict[str, FreeCapacity]:
        """Return the capacity of clusters that no job of their own backlog can use now."""
        remaining: dict[str, FreeCapacity] = {}
        queues, now_us = context.snapshots.laid.layout.queues, context.now_us()
        for member, spare in _rotated(with_backlog, self._round * LINES_MAX)[:LINES_MAX]:
            with context.database.read() as tx:
                rows = backlog.backlog_demands(tx, member.id, limit=LOOK_PAST_MAX + 1)
            if sum(row.jobs for row in rows) > LOOK_PAST_MAX:
                continue  # a moved job might stand behind more jobs than a lease skips
            queued = []
            for row in rows:
                is_aged = now_us - row.since_us >= queue_named(queues, Lane.read(row.lane).queue).ageing_us
                queued.append(
                    BacklogJobs(
                        row.jobs,
                        cores=row.cores,
                        gpus=row.gpus,
                        memory_bytes=row.memory_bytes,
                        is_array=row.is_array,
                        is_aged=is_aged,
                    )
                )
            load = context.snapshots.load_of(member.id)
            left_over = spare.beside(queued, is_busy=load is not None and load.running > 0)
            if left_over.cores > 0:
                remaining[member.name] = left_over
        return remaining

    def _moves(self, context: Context, busy: list[str], search: _MoveSearch) -> list[PlannedMove]:
        lanes = self._lanes(context, busy)
        page = max(LINE_JOBS_READ_MAX // max(len(lanes), 1), 1)
        for cluster_id, lane in lanes:
            with context.database.read() as tx:
                rows = backlog.backlog_page(
                    tx, cluster_id, lane, after=self._cursors.get((cluster_id, lane)), limit=page
                )
                specs = jobs.spec_get_many(tx, (row.spec_hash for row in rows))
                # Count moves, not attempts: retries, flapping clusters and started tasks of arrays are no moves.
                moves = backlog.moves_count(tx, [row.id for row in rows if row.attempt > HANDOVERS_BEFORE_BACKOFF])
            search.handovers |= {job_id: 1 + count for job_id, count in moves.items()}
            moves_before, read_count = len(search.moves), 0
            for row in rows:
                if search.is_done:
                    break
                search.consider(row, specs[row.spec_hash])
                read_count += 1
            if len(search.moves) > moves_before or (read_count == len(rows) and len(rows) < page):
                self._cursors.pop((cluster_id, lane), None)  # start at the head again
            elif read_count:
                last = rows[read_count - 1]
                self._cursors[cluster_id, lane] = backlog.BacklogCursor(last.priority, last.id)
        return search.moves

    def _lanes(self, context: Context, busy: list[str]) -> list[tuple[str, str]]:
        lanes: list[tuple[str, str]] = []
        for cluster_id in _rotated(busy, self._round):
            if len(lanes) >= LANES_MAX:
                break
            with context.database.read() as tx:
                names = backlog.backlog_lanes(tx, cluster_id, limit=LANES_MAX - len(lanes))
            lanes += [(cluster_id, name) for name in names]
        return _rotated(lanes, self._round)


def _rotated(items: list[T], round_number: int) -> list[T]:
    """Start with another item in each round, as a round may end before the last item."""
    first = round_number % len(items) if items else 0
    return items[first:] + items[:first]


class _MoveSearch:
    """The search for moves in one round. Each planned move uses up free capacity of its target."""

    def __init__(self, context: Context, world: World, spares: dict[str, FreeCapacity], *, is_quoted: bool) -> None:
        self._context = context
        self._world = world
        self._now_us = context.now_us()
        self._spent_s = 0.0  # in evaluations
        self._sticky = frozenset(context.snapshots.laid.layout.sticky)
        self._is_quoted = is_quoted
        self._sooner: set[str] = set()  # targets chosen by quotes; with one more job their quote may not hold
        self._eligibilities: dict[tuple[object, ...], Eligibility] = {}
        self._fitting: dict[tuple[str, str, str | None], bool] = {}
        self._rooms: dict[tuple[int, int, int], frozenset[str]] = {}  # needs → clusters; cleared by each move
        self.handovers: dict[str, int] = {}  # job with many attempts → 1 + its number of moves
        self.spares = dict(spares)
        self.moves: list[PlannedMove] = []

    @property
    def is_done(self) -> bool:
        return (
            len(self._eligibilities) >= ELIGIBILITIES_MAX
            or self._spent_s >= DECIDE_S_MAX
            or not (self.spares or self._is_quoted)
        )

    def consider(self, row: backlog.BacklogJob, spec: str) -> None:
        """Plan a move of this queued job, if another cluster is better."""
        bounds = decode_bounds(row.bounds)
        spilled = opened_pools(bounds.spill, waited_s(row, self._now_us)) if bounds.spill else ()
        here = self._world.by_id[row.cluster_id].name
        needs = {"cores": row.cores, "gpus": row.gpus, "memory_bytes": row.memory_bytes}
        # A job with alternatives may need something else at each cluster: that is looked at below.
        idle = self._clusters_with_room(**needs) if row.alternatives is None else frozenset(self.spares)
        lessees = {self._world.by_id[lessee].name for lessee in lessee_ids(row) if lessee in self._world.by_id}
        allowed = [name for name in self._allowed_idle(row, bounds, spilled, idle) if name not in lessees]
        goes_by_quotes = self._is_quoted and self._goes_by_quotes(row, bounds)
        if not allowed and not goes_by_quotes:
            return
        eligibility = self._evaluate(row, spec, spilled)
        if eligibility.sets is not None:
            allowed = self._with_room_for_set(eligibility, eligibility.sets, allowed)
        fitting = [name for name in allowed if self._fits_now(row, spec, name, by=bounds.engine, sets=eligibility.sets)]
        if (to := pick_taker(eligibility, fitting, seed=row.id)) is not None:
            needs = needs if eligibility.sets is None else _needs_of(eligibility.sets.demand(to))
            queued_s = (self._now_us - row.assigned_us) // 1_000_000
            waited = "its tasks wait" if row.is_array else f"it waited {queued_s} s"
            reason = f"{to} has room, and {waited} at {here}"
            self.moves.append(PlannedMove(row.id, row.fence, eligibility=eligibility, to=to, reason=reason))
            spare = self.spares[to]
            self.spares[to] = spare.less(**needs, count=spare.fitting(**needs) if row.is_array else 1)
            if self.spares[to].cores <= 0:
                del self.spares[to]
            self._rooms = {}
            return
        better = find_better_quote(eligibility, here, self._context.moving, seed=row.id) if goes_by_quotes else None
        if better is not None and better.to not in self._sooner | lessees:
            self._sooner.add(better.to)
            self.moves.append(
                PlannedMove(row.id, row.fence, eligibility=eligibility, to=better.to, reason=better.reason)
            )

    def _with_room_for_set(self, eligibility: Eligibility, sets: ChosenSets, names: Iterable[str]) -> list[str]:
        """Return the clusters with room for the set that the job has there. A draw is among those of the first set."""
        fitting = (name for name in names if name in sets.by_cluster)
        with_room = [name for name in fitting if self.spares[name].holds(**_needs_of(sets.demand(name)))]
        preferred = min((sets.number(name) for name in with_room), default=0)
        return [name for name in with_room if eligibility.remaining or sets.number(name) == preferred]

    def _has_room_here(self, row: backlog.BacklogJob) -> bool:
        """Return whether the job's cluster has room, by a load reported after the job came."""
        snapshots = self._context.snapshots
        spare = FreeCapacity.of(snapshots.load_of(row.cluster_id))
        is_reported = snapshots.reported_us(row.cluster_id) > row.assigned_us
        needs = {"cores": row.cores, "gpus": row.gpus, "memory_bytes": row.memory_bytes}
        return spare is not None and is_reported and spare.holds(**needs)

    def _clusters_with_room(self, *, cores: int, gpus: int, memory_bytes: int) -> frozenset[str]:
        """Return the clusters with this much free. Cached: many jobs have equal needs."""
        key = (cores, gpus, memory_bytes)
        if key not in self._rooms:
            names = (
                name
                for name, spare in self.spares.items()
                if spare.holds(cores=cores, gpus=gpus, memory_bytes=memory_bytes)
            )
            self._rooms[key] = frozenset(names)
        return self._rooms[key]

    def _evaluate(self, row: backlog.BacklogJob, spec: str, spilled: tuple[str, ...]) -> Eligibility:
        """Evaluate the job by the quotes that are valid now. A queued job does not wait for new quotes."""
        key = (row.owner_id, row.spec_hash, row.bounds, row.avoid, spilled)
        eligibility = self._eligibilities.get(key)
        if eligibility is None:
            valid_only = QuoteWindow(self._now_us + 1, self._now_us)
            began = monotonic()
            eligibility = self._eligibilities[key] = evaluate_again(
                self._context, self._world, row, spec, window=valid_only, is_preferring=False
            )
            self._spent_s += monotonic() - began
        return eligibility

    def _fits_now(
        self, row: backlog.BacklogJob, spec: str, name: str, *, by: str | None, sets: ChosenSets | None
    ) -> bool:
        """Return whether the job fits into the free nodes, if the agent reports them. Free totals are not enough."""
        key = (row.spec_hash, name, by)
        if key not in self._fitting:
            demand = sets.demand(name) if sets is not None else demand_of_spec(msgspec.json.decode(spec, type=JobSpec))
            engine = by or self._context.engines.default
            fits, _ = fits_now(self._context, self._world.by_name[name], demand, by=engine)
            self._fitting[key] = fits is not False
        return self._fitting[key]

    def _goes_by_quotes(self, row: backlog.BacklogJob, bounds: Bounds) -> bool:
        """Return whether the job's cluster is chosen by quotes, and the job has been there long enough."""
        if bounds.pool in self._sticky or row.cluster_id not in self._world.by_id:
            return False
        rested_us = self._now_us - row.assigned_us
        _, algorithm = self._context.selections.choose(bounds.select)
        return reads_quotes(algorithm) and rested_us >= rest_time_us(
            self._context.moving.rest_us, self.handovers.get(row.id, 1)
        )

    def _allowed_idle(
        self, row: backlog.BacklogJob, bounds: Bounds, spilled: tuple[str, ...], idle: frozenset[str]
    ) -> Iterable[str]:
        """Return the idle clusters the job may move to: all after a rest, before it those that a spill rule opened."""
        after_us = self._context.moving.idle_after_us
        if after_us is not None and bounds.pool not in self._sticky and self._has_rested(row, after_us):
            return idle
        job_pool = self._world.pools.get(bounds.pool or "", {})
        spill_clusters = {name for pool in spilled for name in self._world.pools.get(pool, {}) if name not in job_pool}
        return idle & spill_clusters

    def _has_rested(self, row: backlog.BacklogJob, after_us: int) -> bool:
        """Return whether the job has been at its cluster long enough to move again.

        For an array that was moved here and has started tasks here, the whole wait counts once the cluster is full.
        """
        is_started = row.is_array and row.attempt > 1 and row.state == State.RUNNING.value
        if is_started and not self._has_room_here(row):
            return waited_s(row, self._now_us) * 1_000_000 >= after_us
        return bool(self._now_us - row.assigned_us >= rest_time_us(after_us, self.handovers.get(row.id, 1)))


def _apply(context: Context, leadership: Leadership, world: World, moves: list[PlannedMove]) -> int:
    return sum(_apply_page(context, leadership, world, page) for page in _pages(moves))


def _pages(moves: list[PlannedMove]) -> Iterator[dict[str, PlannedMove]]:
    for first in range(0, len(moves), ROUND_MAX):
        yield {move.id: move for move in moves[first : first + ROUND_MAX]}


def _apply_page(context: Context, leadership: Leadership, world: World, moves: dict[str, PlannedMove]) -> int:
    def apply(batch: Batch) -> int:
        updates: dict[str, JobUpdate] = {}
        bodies: dict[str, str] = {}
        quote_uses: list[quotes.QuoteUseRow] = []
        moved: list[tuple[JobRow, str, str]] = []
        for job_id, row in jobs.job_lock(batch.tx, moves).items():
            move = moves[job_id]
            step = reassign(life_of(row), move.reason) if row.is_ready and row.fence == move.fence else None
            if step is None:
                continue  # leased, cancelled or moved meanwhile
            cached, cluster_id = cache_eligibility(move.eligibility), world.by_name[move.to].id
            bodies[cached.verdicts_hash] = cached.verdicts_body
            update = move_update(batch, row, step, cluster_id, plan_hash=cached.verdicts_hash)
            updates[job_id] = update.then(_new_lessees(context, batch, world, row, move.eligibility, to=move.to))
            source = world.by_id.get(row.cluster_id or "")
            moved.append((row, source.name if source else "", move.to))
            count_set(context.tally, batch, move.eligibility.sets, move.to)
            if move.eligibility.quoted and row.started_us is None:  # a running array says nothing about its quote
                quote_uses.append(quote_use_row(job_id, move.eligibility, move.to, cluster_id, now_us=batch.now_us))
        jobs.verdicts_put(batch.tx, bodies, at_us=batch.now_us)
        jobs.job_update_many(batch.tx, updates)
        quotes.use_put(batch.tx, quote_uses)
        count_moved(context.tally, batch, moved)
        return len(updates)

    return leadership.commit(context, apply, locks=list(moves))


def _new_lessees(
    context: Context, batch: Batch, world: World, row: JobRow, eligibility: Eligibility, *, to: str
) -> JobUpdate:
    """Return which clusters may lease an array after its move, and the sets of a job with alternatives.

    Nothing for other jobs that one cluster leases.
    """
    if row.spread is None:
        return chosen_update(eligibility.sets, world, to)
    bounds, sticky_pools = decode_bounds(row.bounds), context.snapshots.laid.layout.sticky
    spread = spread_text(eligibility, bounds, world, cluster=to, seed=row.id, sticky_pools=sticky_pools)
    batch.clusters.update(spread.split(",") if spread else ())
    return JobUpdate(spread=spread).then(chosen_update(eligibility.sets, world, to, spread))


def _needs_of(demand: Demand) -> dict[str, int]:
    return {"cores": demand.cores_total, "gpus": demand.gpus_total, "memory_bytes": demand.memory_bytes_total}
