"""Moving on: what nobody has leased leaves a cluster that cannot take it now, or goes where it can begin at once.

Only what is in line moves, and only under its lock and the fence it was seen with: whoever leases it first has it, and
the agent of the old cluster never had it. The chores of the leader, like those of chores.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeVar

import msgspec

from switchyard.model.cluster import Health
from switchyard.model.job import JobSpec, State
from switchyard.model.lifecycle import LifecycleState, Transition, make_transition, reassign, unassign
from switchyard.model.queue import queue_named, queue_of_lane
from switchyard.model.spill import opened_pools
from switchyard.route.moving import (
    HANDOVERS_BEFORE_BACKOFF,
    BacklogJobs,
    FreeCapacity,
    find_better_quote,
    pick_taker,
    rest_time_us,
)
from switchyard.route.router import Eligibility
from switchyard.route.select.selector import reads_quotes
from switchyard.route.world import Member, World
from switchyard.service.cluster.fit import fits_now
from switchyard.service.committer import Batch
from switchyard.service.context import Context
from switchyard.service.quote.quotes import QuoteWindow, quote_use_row
from switchyard.service.run.lease import LOOK_PAST_MAX
from switchyard.service.run.report import archive_attempt, life_of, record_step, step_columns
from switchyard.service.submit.bounds import Bounds, decode_bounds
from switchyard.service.submit.decision_counts import count_moved
from switchyard.service.submit.demands import demand_of_spec
from switchyard.service.submit.new_job import cache_eligibility
from switchyard.service.upkeep.chores import ROUND_MAX, evaluate_again
from switchyard.service.upkeep.leadership import Leadership
from switchyard.service.upkeep.wait_clock import waited_s
from switchyard.store import backlog, clusters, jobs, leases, quotes

T = TypeVar("T")
ROUNDS_MAX = 20  # of what is taken back in one look: ten thousand jobs; the rest follows in the next
LANES_MAX = 200  # lines looked at in one look
LINES_MAX = 100  # clusters with a line that are asked in one look what it leaves free, each by at most LOOK_PAST jobs
LINE_JOBS_READ_MAX = 1000  # jobs in them, together: some tens of milliseconds, however many wait
DECIDE_S_MAX = 1.0  # for deciding in one look: a job whose selection has many steps takes long
RULINGS_MAX = 200  # kinds of jobs that the router is asked about in one look: some tens of milliseconds


def take_back_unleased(context: Context, leadership: Leadership) -> int:
    """Take back what waits at a cluster that is gone or cordoned, or that is down or paused while another is up."""
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
    # Silence may be short: with nowhere to go they keep their place in line. Cordoned is an operator's word.
    left = (Health.CORDONED, Health.DOWN, Health.PAUSED) if is_any_up else (Health.CORDONED,)
    away = [member.id for member in world.members if member.health in left]
    with context.database.read() as tx:
        away += clusters.cluster_deleted_with_ready(tx)
        ids = leases.ready_job_ids(tx, away, ROUND_MAX) if away else []
    if not ids:
        return 0

    def apply(batch: Batch) -> int:
        if not leadership.holds(batch):
            return 0
        changes: dict[str, dict[str, Any]] = {}
        for job_id, row in jobs.job_lock(batch.tx, ids).items():
            step = _take_back(life_of(row), row, world)
            if step is not None:
                changes[job_id] = step_columns(batch, row, step)
                record_step(batch, row, step)
        jobs.job_update_many(batch.tx, changes)
        return len(changes)

    return context.committer.call(apply, locks=ids)


def _take_back(life: LifecycleState, row: jobs.Row, world: World) -> Transition | None:
    """Of a job the attempt nobody leased; of an array the tasks nobody leased, while the others go on."""
    member = world.by_id.get(row.cluster_id)
    said = f"{member.name} is {member.health.value}" if member else "its cluster was removed"
    said += ", and the rest of its tasks had not begun" if row.array is not None else ", and nobody had begun it"
    if row.array is not None and life.state is State.RUNNING:
        return make_transition(life, State.PENDING, "unassigned", said, fence=life.next_fence)
    return unassign(life, said)


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """One job to another cluster, as it was seen."""

    id: str
    fence: int
    ruling: Eligibility
    to: str
    reason: str


class JobMover:
    """Idle clusters take over what waits elsewhere. Remembers how far it looked into each line, and to whom it gave."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, str], backlog.BacklogCursor] = {}  # of a line: behind whom to look on
        self._idle: frozenset[str] = frozenset()
        self._given_us: dict[str, int] = {}  # cluster → when it was last given something, on the steady clock
        self._turn = 0

    def look(self, context: Context, leadership: Leadership) -> int:
        """One bounded look; how many moved. Costs two small queries while nobody has room or nothing waits."""
        self._turn += 1
        world = context.snapshots.world
        with context.database.read() as tx:
            waiting = set(leases.cluster_ids_with_ready(tx))
            is_quoted = bool(waiting) and quotes.quote_any_valid(tx, now_us=context.now_us())
        spares, with_lines = self._spares(context, world, waiting)
        if self._idle != spares.keys():
            self._places, self._idle = {}, frozenset(spares)  # the first in line may have somewhere to go now
        spares |= self._left_by_lines(context, with_lines)
        busy = sorted(waiting & world.by_id.keys())
        if not busy or not (spares or is_quoted):
            return 0
        moves = self._moves(context, busy, _MoveSearch(context, world, spares, is_quoted=is_quoted))
        moved = _apply(context, leadership, world, moves) if moves else 0
        if moved:
            self._given_us |= {world.by_name[found.to].id: context.steady_us() for found in moves}
        return moved

    def _has_not_told(self, context: Context, cluster_id: str) -> bool:
        """Whether a cluster said nothing since it was last given something."""
        given_us = self._given_us.get(cluster_id)
        told_ago_us = context.now_us() - context.snapshots.told_of(cluster_id)
        return given_us is not None and context.steady_us() - given_us <= told_ago_us

    def _spares(
        self, context: Context, world: World, waiting: set[str]
    ) -> tuple[dict[str, FreeCapacity], list[tuple[Member, FreeCapacity]]]:
        """The clusters that could begin something, by what they said since they were last given something: those that
        stand idle, and those where something is in line."""
        found: dict[str, FreeCapacity] = {}
        with_lines: list[tuple[Member, FreeCapacity]] = []
        for member in world.members if waiting else ():
            spare = FreeCapacity.of(context.snapshots.load_of(member.id)) if member.health is Health.UP else None
            if spare is None or self._has_not_told(context, member.id):
                continue
            if member.id in waiting:
                with_lines.append((member, spare))
            else:
                found[member.name] = spare
        return found, with_lines

    def _left_by_lines(self, context: Context, some: list[tuple[Member, FreeCapacity]]) -> dict[str, FreeCapacity]:
        """What clusters have that nobody in line there can use now."""
        found: dict[str, FreeCapacity] = {}
        queues, now_us = context.snapshots.laid.layout.queues, context.now_us()
        for member, spare in _rotated(some, self._turn * LINES_MAX)[:LINES_MAX]:
            with context.database.read() as tx:
                rows = backlog.backlog_demands(tx, member.id, limit=LOOK_PAST_MAX + 1)
            if sum(row.jobs for row in rows) > LOOK_PAST_MAX:
                continue  # who came here might stand behind more than a lease looks past
            line = []
            for row in rows:
                is_aged = now_us - row.since_us >= queue_named(queues, queue_of_lane(row.lane)).ageing_us
                line.append(BacklogJobs(row.jobs, row.cores, row.gpus, row.memory_bytes, row.is_array, is_aged))
            load = context.snapshots.load_of(member.id)
            left = spare.beside(line, is_busy=load is not None and load.running > 0)
            if left.cores > 0:
                found[member.name] = left
        return found

    def _moves(self, context: Context, busy: list[str], finding: _MoveSearch) -> list[PlannedMove]:
        lines = self._lines(context, busy)
        page = max(LINE_JOBS_READ_MAX // max(len(lines), 1), 1)
        for cluster_id, lane in lines:
            with context.database.read() as tx:
                rows = backlog.backlog_page(
                    tx, cluster_id, lane, after=self._places.get((cluster_id, lane)), limit=page
                )
                specs = jobs.spec_get_many(tx, (row.spec_hash for row in rows))
                # One that was begun and tried again, or whose cluster flaps, has not wandered by that. Nor has an
                # array whose tasks were begun.
                moves = backlog.moves_count(tx, [row.id for row in rows if row.attempt > HANDOVERS_BEFORE_BACKOFF])
            finding.handovers |= {job_id: 1 + count for job_id, count in moves.items()}
            before, looked_at = len(finding.moves), 0
            for row in rows:
                if finding.is_done:
                    break
                finding.take(row, specs[row.spec_hash])
                looked_at += 1
            if len(finding.moves) > before or (looked_at == len(rows) and len(rows) < page):
                self._places.pop((cluster_id, lane), None)  # from the head again
            elif looked_at:
                last = rows[looked_at - 1]
                self._places[cluster_id, lane] = backlog.BacklogCursor(last.priority, last.id)
        return finding.moves

    def _lines(self, context: Context, busy: list[str]) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        for cluster_id in _rotated(busy, self._turn):
            if len(found) >= LANES_MAX:
                break
            with context.database.read() as tx:
                lanes = backlog.backlog_lanes(tx, cluster_id, limit=LANES_MAX - len(found))
            found += [(cluster_id, lane) for lane in lanes]
        return _rotated(found, self._turn)


def _rotated(items: list[T], turn: int) -> list[T]:
    """Another one first at each turn: a look may end before the last."""
    first = turn % len(items) if items else 0
    return items[first:] + items[:first]


class _MoveSearch:
    """What one look finds, while what the idle clusters have left becomes less."""

    def __init__(self, context: Context, world: World, spares: dict[str, FreeCapacity], *, is_quoted: bool) -> None:
        self._context = context
        self._world = world
        self._now_us = context.now_us()
        self._spent_s = 0.0  # for deciding
        self._sticky = frozenset(context.snapshots.laid.layout.sticky)
        self._is_quoted = is_quoted
        self._sooner: set[str] = set()  # who was found to be sooner; with one more in line it may not be
        self._rulings: dict[tuple[object, ...], Eligibility] = {}
        self._fitting: dict[tuple[str, str, str | None], bool] = {}
        self._rooms: dict[tuple[int, int, int], frozenset[str]] = {}  # until something moves
        self.handovers: dict[str, int] = {}  # of jobs that had many attempts: how often one was moved, and the last one
        self.spares = dict(spares)
        self.moves: list[PlannedMove] = []

    @property
    def is_done(self) -> bool:
        return (
            len(self._rulings) >= RULINGS_MAX or self._spent_s >= DECIDE_S_MAX or not (self.spares or self._is_quoted)
        )

    def take(self, row: backlog.Row, spec: str) -> None:
        """Look at one job in line."""
        bounds = decode_bounds(row.bounds)
        spilled = opened_pools(bounds.spill, waited_s(row, self._now_us)) if bounds.spill else ()
        here = self._world.by_id[row.cluster_id].name
        needs = {"cores": row.cores, "gpus": row.gpus, "memory_bytes": row.memory_bytes}
        idle = self._having(**needs)
        open_to = [name for name in self._open_to(row, bounds, spilled, idle) if name != here]
        goes_by_quotes = self._is_quoted and self._goes_by_quotes(row, bounds)
        if not open_to and not goes_by_quotes:
            return
        ruling = self._rule(row, spec, spilled)
        open_to = [name for name in open_to if self._fits_now(row, spec, name, by=bounds.engine)]
        if (to := pick_taker(ruling, open_to, seed=row.id)) is not None:
            in_line_s = (self._now_us - row.assigned_us) // 1_000_000
            waited = "its tasks wait" if row.is_array else f"it waited {in_line_s} s"
            said = f"{to} has room, and {waited} at {here}"
            self.moves.append(PlannedMove(row.id, row.fence, ruling, to, said))
            spare = self.spares[to]
            self.spares[to] = spare.less(**needs, count=spare.fitting(**needs) if row.is_array else 1)
            if self.spares[to].cores <= 0:
                del self.spares[to]
            self._rooms = {}
            return
        found = find_better_quote(ruling, here, self._context.moving, seed=row.id) if goes_by_quotes else None
        if found is not None and found.to not in self._sooner:
            self._sooner.add(found.to)
            self.moves.append(PlannedMove(row.id, row.fence, ruling, found.to, found.reason))

    def _has_room_here(self, row: backlog.Row) -> bool:
        """By what its cluster said since it came."""
        snapshots = self._context.snapshots
        spare = FreeCapacity.of(snapshots.load_of(row.cluster_id))
        has_told = snapshots.told_of(row.cluster_id) > row.assigned_us
        needs = {"cores": row.cores, "gpus": row.gpus, "memory_bytes": row.memory_bytes}
        return spare is not None and has_told and spare.holds(**needs)

    def _having(self, *, cores: int, gpus: int, memory_bytes: int) -> frozenset[str]:
        """Who has room for so much: asked once for many that ask for the same."""
        key = (cores, gpus, memory_bytes)
        if key not in self._rooms:
            held = (
                name
                for name, spare in self.spares.items()
                if spare.holds(cores=cores, gpus=gpus, memory_bytes=memory_bytes)
            )
            self._rooms[key] = frozenset(held)
        return self._rooms[key]

    def _rule(self, row: backlog.Row, spec: str, spilled: tuple[str, ...]) -> Eligibility:
        """By the quotes that are held to now: what is in line already waits for no more of them."""
        key = (row.owner_id, row.spec_hash, row.bounds, row.avoid, spilled)
        found = self._rulings.get(key)
        if found is None:
            kept = QuoteWindow(self._now_us + 1, self._now_us)
            began = monotonic()
            found = self._rulings[key] = evaluate_again(self._context, self._world, row, spec, kept)
            self._spent_s += monotonic() - began
        return found

    def _fits_now(self, row: backlog.Row, spec: str, name: str, *, by: str | None) -> bool:
        """Whether it fits on what is free on which node, where the agent says that: a sum says too little."""
        key = (row.spec_hash, name, by)
        if key not in self._fitting:
            demand = demand_of_spec(msgspec.json.decode(spec, type=JobSpec))
            engine = by or self._context.engines.default
            found, _ = fits_now(self._context, self._world.by_name[name], demand, by=engine)
            self._fitting[key] = found is not False
        return self._fitting[key]

    def _goes_by_quotes(self, row: backlog.Row, bounds: Bounds) -> bool:
        """Whether its cluster is chosen by quotes, and it has rested."""
        if bounds.pool in self._sticky or row.cluster_id not in self._world.by_id:
            return False
        rested_us = self._now_us - row.assigned_us
        _, algorithm = self._context.selections.choose(bounds.select)
        return reads_quotes(algorithm) and rested_us >= rest_time_us(
            self._context.moving.rest_us, self.handovers.get(row.id, 1)
        )

    def _open_to(
        self, row: backlog.Row, bounds: Bounds, spilled: tuple[str, ...], idle: frozenset[str]
    ) -> Iterable[str]:
        """The idle clusters that its waiting lets it go to: all after a time, at once those its rules have opened."""
        after_us = self._context.moving.idle_after_us
        if after_us is not None and bounds.pool not in self._sticky and self._is_long(row, after_us):
            return idle
        own = self._world.pools.get(bounds.pool or "", {})
        wider = {name for pool in spilled for name in self._world.pools.get(pool, {}) if name not in own}
        return idle & wider

    def _is_long(self, row: backlog.Row, after_us: int) -> bool:
        """Whether it has waited for so long where it is. An array that was handed over before, and of which tasks were
        begun where it is now, does not rest again once there is no room for more: its other tasks have waited since it
        came."""
        is_begun = row.is_array and row.attempt > 1 and row.state == State.RUNNING.value
        if is_begun and not self._has_room_here(row):
            return waited_s(row, self._now_us) * 1_000_000 >= after_us
        return bool(self._now_us - row.assigned_us >= rest_time_us(after_us, self.handovers.get(row.id, 1)))


def _apply(context: Context, leadership: Leadership, world: World, moves: list[PlannedMove]) -> int:
    return sum(_apply_some(context, leadership, world, some) for some in _rounds(moves))


def _rounds(moves: list[PlannedMove]) -> Iterator[dict[str, PlannedMove]]:
    for first in range(0, len(moves), ROUND_MAX):
        yield {move.id: move for move in moves[first : first + ROUND_MAX]}


def _apply_some(context: Context, leadership: Leadership, world: World, moves: dict[str, PlannedMove]) -> int:
    def apply(batch: Batch) -> int:
        if not leadership.holds(batch):
            return 0
        changes: dict[str, dict[str, Any]] = {}
        bodies: dict[str, str] = {}
        used: list[dict[str, Any]] = []
        went: list[tuple[jobs.Row, str, str]] = []
        for job_id, row in jobs.job_lock(batch.tx, moves).items():
            wanted = moves[job_id]
            step = reassign(life_of(row), wanted.reason) if row.is_ready and row.fence == wanted.fence else None
            if step is None:
                continue  # leased, cancelled or moved since it was seen
            kept, cluster_id = cache_eligibility(wanted.ruling), world.by_name[wanted.to].id
            bodies[kept.verdicts_hash] = kept.verdicts_body
            changes[job_id] = _move_columns(batch, row, step, cluster_id) | {"plan_hash": kept.verdicts_hash}
            here = world.by_id.get(row.cluster_id)
            went.append((row, here.name if here else "", wanted.to))
            if wanted.ruling.quoted and row.started_us is None:  # an array that runs tells nothing about its quote
                used.append(quote_use_row(job_id, wanted.ruling, wanted.to, cluster_id, now_us=batch.now_us))
        jobs.verdicts_put(batch.tx, bodies, at_us=batch.now_us)
        jobs.job_update_many(batch.tx, changes)
        quotes.use_put(batch.tx, used)
        count_moved(context.tally, batch, went)
        return len(changes)

    return context.committer.call(apply, locks=list(moves))


def _move_columns(batch: Batch, row: jobs.Row, step: Transition, cluster_id: str) -> dict[str, Any]:
    # An array that goes from cluster to cluster while its tasks are begun makes no new attempt each time: its ranges
    # tell who had what, and a job may make only so many.
    is_new = row.state == State.ASSIGNED.value or row.attempt == 1
    attempt = step.life.attempt if is_new else row.attempt
    if is_new:
        archive_attempt(batch, row, step)
    batch.event(
        row.id,
        step.event,
        state=step.life.state.value,
        attempt=attempt,
        fence=step.life.fence,
        cluster_id=cluster_id,
        reason=step.reason,
    )
    batch.clusters.add(cluster_id)
    return {
        "state": step.life.state.value,
        "reason": "",
        "cluster_id": cluster_id,
        "attempt": attempt,
        "fence": step.life.fence,
        "assigned_us": batch.now_us,
    }
