"""Places in limited queues, which only the leader gives: to waiting jobs in the order of leases, as they become free.

A place is held by being assigned: it is counted from the live jobs, in the transaction that gives the next one. So a
leader that is killed between any two lines has either given a place or not, and two leaders never give the same.
An array holds as many as it was given, which is how many of its tasks may be live; it gets more as there are more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from switchyard.model.job import State
from switchyard.model.lifecycle import unassign
from switchyard.model.queue import Queue, project_of_lane, queue_named, queue_of_lane
from switchyard.model.taskset import TaskSet
from switchyard.route.queue_order import FairQueue
from switchyard.route.router import Eligibility
from switchyard.route.world import World
from switchyard.service.committer import Batch
from switchyard.service.context import Context
from switchyard.service.job.decision_history import record_wait_reason
from switchyard.service.run.arrays import ArrayJob
from switchyard.service.run.report import life_of, record_step, step_columns
from switchyard.service.submit.queue_places import (
    BLOCKED_BY_QUEUE,
    QUEUES_CHANGED,
    PlacesInUse,
    enqueue_for_place,
    leave_queue_columns,
    queue_wait_reason,
)
from switchyard.service.token.token_needs import needs_of_row
from switchyard.service.token.token_queue import (
    TokenReservations,
    TokenRound,
    are_tokens_free,
    forget_groups,
    impossible_reason,
)
from switchyard.service.token.token_reservations import take_tokens_of_queue
from switchyard.service.upkeep.chores import ROUND_MAX, apply_rulings, evaluate_changed
from switchyard.service.upkeep.leadership import Leadership
from switchyard.service.upkeep.queue_usage import cores_by_project, ordered_job_of
from switchyard.store import jobs
from switchyard.store import queues as store
from switchyard.store.database import Tx

ROUNDS_MAX = 20  # of one queue in one turn: others wait, too
ARRAYS_MAX = 1000  # arrays with places that are looked at in one turn
CLOSED_POOLS_MAX = 200  # token pools without tokens that one turn bears; what is behind them waits for the next
HEADS_MAX = 5000  # jobs of a lane looked at in one round, where some of them can never have their tokens


def give_free_places(context: Context, leadership: Leadership, tokens: TokenReservations | None = None) -> int:
    """Give every free place to whoever is next; how many jobs it changed."""
    tokens = tokens or TokenReservations()
    with context.database.read() as tx:
        lanes = [*store.queued_lanes(tx), *(row.lane for row in store.arrays_with_places(tx, ARRAYS_MAX))]
    names = {queue_of_lane(lane) for lane in lanes}
    forget_groups(context, tokens, tokens.ahead.keys() - {TokenRound().group, *names})
    return _rounds(context, leadership, tokens, names)


def enforce_limits(context: Context, leadership: Leadership, tokens: TokenReservations | None = None) -> int:
    """Make limits hold that are newer, or lower, than what was assigned already; how many jobs it changed."""
    with context.database.read() as tx:
        names = _exceeded(context, tx)
    return _rounds(context, leadership, tokens or TokenReservations(), names)


def _rounds(context: Context, leadership: Leadership, tokens: TokenReservations, names: set[str]) -> int:
    done = 0
    for name in sorted(names):
        turn = QueueRound(TokenRound(name))
        forget_groups(context, tokens, [name])  # this look says who waits
        for _ in range(ROUNDS_MAX + CLOSED_POOLS_MAX):
            known = (len(turn.look.closed), turn.is_wide)
            changed = _round(context, leadership, tokens, turn)
            done += changed
            if changed < ROUND_MAX and known == (len(turn.look.closed), turn.is_wide):
                break  # what became free meanwhile wakes the leader again
    return done


@dataclass
class QueueRound:
    """One queue's turn. Jobs whose tokens are not to be had are passed by: others may have the place."""

    look: TokenRound
    is_wide: bool = False  # some at the head can never have their tokens: one must look further


def _exceeded(context: Context, tx: Tx) -> set[str]:
    found = set()
    for name, queue in context.snapshots.laid.layout.queues.items():
        if whose := queue.counted(name):
            is_over = PlacesInUse.of(queue, store.places_taken(tx, whose)).is_over
            if is_over or store.arrays_without_places(tx, whose, 1):
                found.add(name)
    return found


def _round(context: Context, leadership: Leadership, tokens: TokenReservations, turn: QueueRound) -> int:
    """One transaction's worth of one queue."""
    name = turn.look.group
    queue, world = queue_named(context.snapshots.laid.layout.queues, name), context.snapshots.world
    whose = queue.counted(name)
    with context.database.read() as tx:
        arrays = [row for row in store.arrays_with_places(tx, ARRAYS_MAX) if queue_of_lane(row.lane) == name]
        taken = store.places_taken(tx, whose)
        arrays += store.arrays_without_places(tx, whose, ROUND_MAX) if whose else []
        last = _unassign_candidates(tx, whose, PlacesInUse.of(queue, taken))
        found = _next_rows(context, tx, queue, arrays, taken, turn=turn)
        rows = found.rows
        specs = jobs.spec_get_many(tx, (row.spec_hash for row in rows))
    rulings = dict(evaluate_changed(context, world, [row for row in rows if row.state == State.PENDING.value], specs))
    refused = take_tokens_of_queue(context, tokens, turn.look, rows=rows, rulings=rulings, behind=found.behind)
    order = [row.id for row in rows if row.id not in refused]
    said = {row.id: row.reason for row in (*rows, *found.behind)}
    told = found.told | {job_id: why for job_id, why in refused.items() if said[job_id] != why}
    ids = {*order, *last, *(row.id for row in arrays), *told}
    if not ids:
        return 0

    def apply(batch: Batch) -> int:
        if not leadership.holds(batch):
            return 0
        taken = PlacesInUse.of(queue, store.places_taken(batch.tx, whose))
        locked = jobs.job_lock(batch.tx, ids)
        done = _trim(batch, taken, [row for row in locked.values() if row.array is not None])
        done |= _take_back(batch, taken, [locked[job_id] for job_id in last if job_id in locked])
        ordered = [locked[job_id] for job_id in order if job_id in locked and job_id not in done]
        _update_reasons(batch, told, locked)
        return len(done) + _give(context, batch, world, taken, rows=ordered, rulings=rulings)

    return context.committer.call(apply, locks=sorted(ids))


def _update_reasons(batch: Batch, told: Mapping[str, str], locked: Mapping[str, jobs.Row]) -> None:
    """Those that wait for another reason than they heard last: their tokens, or a place, now that there are tokens."""
    rows = {job_id: row for job_id, row in locked.items() if job_id in told and row.blocked == BLOCKED_BY_QUEUE}
    new = {job_id: told[job_id] for job_id, row in rows.items() if row.reason != told[job_id]}
    for job_id, why in new.items():
        record_wait_reason(batch, locked[job_id], why)
    jobs.job_update_many(batch.tx, {job_id: {"reason": why} for job_id, why in new.items()})


@dataclass
class PlaceCandidates:
    """Who is next, as far as there are places, in order; and who needs tokens that are not to be had."""

    rows: list[store.Row] = field(default_factory=list)
    behind: list[store.Row] = field(default_factory=list)
    told: dict[str, str] = field(default_factory=dict)  # whose reason is over: what they wait for is a place


def _unassign_candidates(tx: Tx, whose: list[str], places: PlacesInUse) -> list[str]:
    """Of projects that have more places than they may, the jobs that nobody has leased, as many as may have to go."""
    if not places.is_over:
        return []
    lanes = [each for each in store.ready_lanes_of_queues(tx, whose) if places.spare_for(project_of_lane(each[1])) < 0]
    rows = [row for cluster_id, lane in lanes for row in store.ready_tail(tx, cluster_id, lane, ROUND_MAX)]
    return [row.id for row in sorted(rows, key=_rank, reverse=True)[:ROUND_MAX]]


def _next_rows(
    context: Context,
    tx: Tx,
    queue: Queue,
    arrays: list[store.Row],
    taken: Mapping[str, tuple[int, float]],
    *,
    turn: QueueRound,
) -> PlaceCandidates:
    """As it is now; what the transaction finds may be less."""
    name = turn.look.group
    places, found = PlacesInUse.of(queue, taken), PlaceCandidates()
    lanes = [lane for lane in store.queued_lanes(tx) if queue_of_lane(lane) == name]
    full = [lane for lane in lanes if places.spare_for(project_of_lane(lane)) <= 0]
    for lane in full:
        found.told |= _outdated_reasons(context, tx, lane)
    if places.spare <= 0:
        return found
    lanes = [lane for lane in lanes if lane not in full]
    each_max = max(1, min(places.spare, ROUND_MAX, 10 * ROUND_MAX // (len(lanes) or 1)))
    heads = [_heads(context, tx, lane, each_max, found=found, turn=turn) for lane in lanes]
    heads += [[row] for row in arrays if _has_places(row) and _usable_places(row) > 0]
    cores = cores_by_project(tx) if len(heads) > 1 else {}
    for lane, (_, waiting_cores) in taken.items():  # who is in line for a lease has its cores already, so to speak
        cores[project_of_lane(lane)] = cores.get(project_of_lane(lane), 0.0) + waiting_cores
    line = FairQueue.of(([ordered_job_of(row, queue) for row in rows] for rows in heads), cores)
    while len(found.rows) < ROUND_MAX and places.spare > 0 and (waiting := line.next()) is not None:
        count = min(_usable_places(waiting.row), places.spare_for(waiting.project))
        if count > 0:
            found.rows.append(waiting.row)
            places.take(waiting.project, count)
            line.give(waiting, waiting.row.cores * count)
    return found


def _heads(
    context: Context, tx: Tx, lane: str, limit: int, *, found: PlaceCandidates, turn: QueueRound
) -> list[store.Row]:
    """The first of a lane without those whose tokens are not to be had, who join those behind."""
    look, closed = turn.look, list(turn.look.closed)[:CLOSED_POOLS_MAX]
    rows = store.queued_heads(tx, lane, HEADS_MAX if turn.is_wide else limit, without=closed)
    if not context.tokens.pools.is_enforced:
        return rows
    hopeless = [
        row for row in rows if row.tokens and not row.tasks_live and impossible_reason(context, needs_of_row(row))
    ]
    turn.is_wide = turn.is_wide or bool(hopeless)
    shut = store.queued_needing_tokens(tx, lane, ROUND_MAX, namespaces=closed) if closed else []
    found.behind += [row for row in (*hopeless, *shut) if row.id not in look.seen]
    passed = {row.id for row in hopeless}
    return [row for row in rows if row.id not in passed][:limit]


def _outdated_reasons(context: Context, tx: Tx, lane: str) -> dict[str, str]:
    """Jobs that were told to wait for tokens, which they could have by now, had they a place."""
    why = queue_wait_reason(lane)
    told = store.queued_with_other_reason(tx, lane, ROUND_MAX, reason=why) if context.tokens.pools.is_enforced else []
    by_needs: dict[str, bool] = {}
    for row in told:
        needs = needs_of_row(row)
        key = str(needs)
        if key not in by_needs:
            by_needs[key] = impossible_reason(context, needs) is None and are_tokens_free(context, needs)
    return {row.id: why for row in told if by_needs[str(needs_of_row(row))]}


def _trim(batch: Batch, taken: PlacesInUse, arrays: Iterable[jobs.Row]) -> set[str]:
    """Arrays lose the places they do not use where the limit was lowered, and every bound where there is none.

    Those that were assigned before there was a limit get one: what runs of them, until they are given more.
    """
    changes: dict[str, dict[str, Any]] = {}
    for row in sorted(arrays, key=_rank, reverse=True):
        array, is_limited = ArrayJob.of(row), taken.queue.limits_project(row.project)
        if not _is_assigned(row):
            continue
        spare = taken.spare_for(row.project)
        if row.places is None:
            array.places = array.live if is_limited else None
        elif not is_limited:
            array.places = None
        elif spare < 0 and row.places > array.live:
            array.places = max(array.live, row.places + spare)
        if array.places == row.places:
            continue
        if row.places is not None:
            taken.take(row.project, (array.places or 0) - row.places)
        changes[row.id] = _array_columns(batch, array)
        batch.versions.add(QUEUES_CHANGED)  # now that it is known to need some, it may be given them
    jobs.job_update_many(batch.tx, changes)
    return set(changes)


def _take_back(batch: Batch, taken: PlacesInUse, rows: Iterable[jobs.Row]) -> set[str]:
    """Jobs that nobody has leased wait for a place again where there are too few, those that came last first."""
    changes: dict[str, dict[str, Any]] = {}
    for row in sorted(rows, key=_rank, reverse=True):
        step = unassign(
            life_of(row), f"queue {queue_of_lane(row.lane)}: its limit is lower than when this was assigned"
        )
        if row.array is not None or not row.is_ready or step is None or taken.spare_for(row.project) >= 0:
            continue
        record_step(batch, row, step)
        changes[row.id] = (
            step_columns(batch, row, step) | leave_queue_columns(row, None) | enqueue_for_place(batch, row)
        )
        taken.take(row.project, -1)
    jobs.job_update_many(batch.tx, changes)
    return set(changes)


def _rank(row: jobs.Row) -> tuple[int, str]:
    """Who comes first within a project, first."""
    return (-row.priority, row.id)


def _give(
    context: Context,
    batch: Batch,
    world: World,
    taken: PlacesInUse,
    *,
    rows: Iterable[jobs.Row],
    rulings: dict[str, Eligibility],
) -> int:
    """Assign these and let these arrays grow, in order, while there are places. What cannot be assigned takes none."""
    places: dict[str, int] = {}
    ready: dict[str, jobs.Row] = {}
    grown: dict[str, dict[str, Any]] = {}
    for row in rows:
        is_queued = row.state == State.PENDING.value and row.blocked == BLOCKED_BY_QUEUE and row.id in rulings
        count = min(_usable_places(row), taken.spare_for(row.project))
        if is_queued and rulings[row.id].outcome != "assign":
            ready[row.id] = row
            batch.versions.add(QUEUES_CHANGED)  # the next one is looked at at once
        elif is_queued and count > 0:
            taken.take(row.project, count)
            places[row.id] = (row.tasks_live or 0) + count
            ready[row.id] = row
        elif _has_places(row) and count > 0:
            taken.take(row.project, count)
            array = ArrayJob.of(row)
            array.places = row.places + count
            grown[row.id] = _array_columns(batch, array)
    jobs.job_update_many(batch.tx, grown)
    apply_rulings(context, batch, world, rulings, ready, places=places, holding=places)
    return len(ready) + len(grown)


def _array_columns(batch: Batch, array: ArrayJob) -> dict[str, Any]:
    if array.is_ready and array.row.cluster_id:
        batch.clusters.add(array.row.cluster_id)
    return {"places": array.places, "is_ready": array.is_ready}


def _usable_places(row: Any) -> int:
    """How many places a job could use beyond those it has."""
    if row.array is None:
        return 1
    left = len(TaskSet.read(row.todo, row.array))
    if row.array_max is not None:
        left = min(left, row.array_max - row.tasks_live)
    return left - max(0, row.places - row.tasks_live) if _has_places(row) else left


def _has_places(row: Any) -> bool:
    """Whether it is an array that was given some and is assigned."""
    return row.array is not None and row.places is not None and _is_assigned(row)


def _is_assigned(row: Any) -> bool:
    return row.state in (State.ASSIGNED.value, State.RUNNING.value)
