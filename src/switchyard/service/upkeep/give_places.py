"""Give free places in limited queues to waiting jobs, in the order of leases. Only the leader does this.

An assigned job holds a place. Places in use are counted from live jobs, in the transaction that gives the next place.
So a killed leader leaves no half-given place, and two leaders never give the same place. The places of an array bound
how many of its tasks may be live; the array gets more places as they become free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from switchyard.model.cluster.verdict import Outcome
from switchyard.model.job.blocker import Blocker
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import unassign
from switchyard.model.job.taskset import TaskSet
from switchyard.model.rules.queue import Lane, Queue, queue_named
from switchyard.route.queue_order import FairQueue
from switchyard.route.router import Eligibility
from switchyard.route.world import World
from switchyard.service.core.context import Context
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.service.lifecycle.array_job import ArrayJob
from switchyard.service.lifecycle.array_spread import lessee_ids
from switchyard.service.lifecycle.decision_history import record_wait_reason
from switchyard.service.lifecycle.transitions import life_of, record_step, step_update
from switchyard.service.placement.apply_decisions import apply_decisions
from switchyard.service.placement.evaluation import evaluate_changed
from switchyard.service.reserve.queue_places import (
    PlacesInUse,
    enqueue_for_place,
    leave_queue,
    queue_wait_reason,
)
from switchyard.service.reserve.queue_usage import cores_by_project, ordered_job_of
from switchyard.service.reserve.token_needs import needs_of_row
from switchyard.service.reserve.token_queue import (
    TokenReservations,
    TokenRound,
    are_tokens_free,
    forget_groups,
    impossible_reason,
)
from switchyard.service.reserve.token_reservations import take_tokens_of_queue
from switchyard.service.upkeep.leadership import ROUND_MAX, Leadership
from switchyard.store.engine.database import Tx
from switchyard.store.jobs import jobs
from switchyard.store.jobs.job_rows import JobRow
from switchyard.store.jobs.job_update import JobUpdate
from switchyard.store.rules import queues as store

ROUNDS_MAX = 20  # rounds of one queue before the next queue
ARRAYS_MAX = 1000  # arrays with places read in one round
EXHAUSTED_POOLS_MAX = 200  # exhausted token pools that one call skips; further jobs wait for the next call
HEADS_MAX = 5000  # jobs of a lane read in one round, if some of them can never get their tokens


def give_free_places(context: Context, leadership: Leadership, tokens: TokenReservations | None = None) -> int:
    """Give all free places to the next jobs of their queues. Returns the number of changed jobs."""
    tokens = tokens or TokenReservations()
    with context.database.read() as tx:
        lanes = [*store.queued_lanes(tx), *(row.lane for row in store.arrays_with_places(tx, ARRAYS_MAX))]
    names = {Lane.read(lane).queue for lane in lanes}
    forget_groups(context, tokens, tokens.refused_by_group.keys() - {TokenRound().group, *names})
    return _rounds(context, leadership, tokens, names)


def enforce_limits(context: Context, leadership: Leadership, tokens: TokenReservations | None = None) -> int:
    """Apply limits that are new, or lower than the places in use. Returns the number of changed jobs."""
    with context.database.read() as tx:
        names = _exceeded(context, tx)
    return _rounds(context, leadership, tokens or TokenReservations(), names)


def _rounds(context: Context, leadership: Leadership, tokens: TokenReservations, names: set[str]) -> int:
    total = 0
    for name in sorted(names):
        queue_round = QueueRound(TokenRound(name))
        forget_groups(context, tokens, [name])  # this round finds the waiting jobs again
        for _ in range(ROUNDS_MAX + EXHAUSTED_POOLS_MAX):
            progress = (len(queue_round.tokens.exhausted), queue_round.reads_further)
            changed = _round(context, leadership, tokens, queue_round)
            total += changed
            if changed < ROUND_MAX and progress == (len(queue_round.tokens.exhausted), queue_round.reads_further):
                break  # places that become free later wake the leader again
    return total


@dataclass
class QueueRound:
    """The rounds over one queue so far. Jobs that cannot get their tokens are skipped: other jobs get the place."""

    tokens: TokenRound
    reads_further: bool = False  # jobs at the head can never get their tokens: read HEADS_MAX jobs


def _exceeded(context: Context, tx: Tx) -> set[str]:
    names = set()
    for name, queue in context.snapshots.laid.layout.queues.items():
        if counted_scopes := queue.counted(name):
            is_over = PlacesInUse.of(queue, store.places_taken(tx, counted_scopes)).is_over
            if is_over or store.arrays_without_places(tx, counted_scopes, 1):
                names.add(name)
    return names


def _round(context: Context, leadership: Leadership, tokens: TokenReservations, queue_round: QueueRound) -> int:
    """Give places of one queue in one transaction. Returns the number of changed jobs."""
    name = queue_round.tokens.group
    queue, world = queue_named(context.snapshots.laid.layout.queues, name), context.snapshots.world
    counted_scopes = queue.counted(name)
    with context.database.read() as tx:
        arrays = [row for row in store.arrays_with_places(tx, ARRAYS_MAX) if Lane.read(row.lane).queue == name]
        taken = store.places_taken(tx, counted_scopes)
        arrays += store.arrays_without_places(tx, counted_scopes, ROUND_MAX) if counted_scopes else []
        surplus = _unassign_candidates(tx, counted_scopes, PlacesInUse.of(queue, taken))
        candidates = _next_rows(context, tx, queue, arrays, taken, queue_round=queue_round)
        rows = candidates.rows
        specs = jobs.spec_get_many(tx, (row.spec_hash for row in rows))
    eligibilities = dict(
        evaluate_changed(context, world, [row for row in rows if row.state == State.PENDING.value], specs)
    )
    short = candidates.short_of_tokens
    refused = take_tokens_of_queue(
        context, tokens, queue_round.tokens, rows=rows, eligibilities=eligibilities, short_of_tokens=short
    )
    order = [row.id for row in rows if row.id not in refused]
    old_reasons = {row.id: row.reason for row in (*rows, *short)}
    token_reasons = {job_id: reason for job_id, reason in refused.items() if old_reasons[job_id] != reason}
    new_reasons = candidates.new_reasons | token_reasons
    ids = {*order, *surplus, *(row.id for row in arrays), *new_reasons}
    if not ids:
        return 0

    def apply(batch: Batch) -> int:
        in_use = PlacesInUse.of(queue, store.places_taken(batch.tx, counted_scopes))
        locked = jobs.job_lock(batch.tx, ids)
        changed = _trim(batch, in_use, [row for row in locked.values() if row.array is not None])
        changed |= _take_back(batch, in_use, [locked[job_id] for job_id in surplus if job_id in locked])
        ordered = [locked[job_id] for job_id in order if job_id in locked and job_id not in changed]
        _update_reasons(batch, new_reasons, locked)
        return len(changed) + _give(context, batch, world, in_use, rows=ordered, eligibilities=eligibilities)

    return leadership.commit(context, apply, locks=sorted(ids))


def _update_reasons(batch: Batch, new_reasons: Mapping[str, str], locked: Mapping[str, JobRow]) -> None:
    """Store the new reasons of queued jobs that still show another reason."""
    queued = {job_id: row for job_id, row in locked.items() if job_id in new_reasons and row.blocked == Blocker.QUEUE}
    changed = {job_id: new_reasons[job_id] for job_id, row in queued.items() if row.reason != new_reasons[job_id]}
    for job_id, reason in changed.items():
        record_wait_reason(batch, locked[job_id], reason)
    jobs.job_update_many(batch.tx, {job_id: JobUpdate(reason=reason) for job_id, reason in changed.items()})


@dataclass
class PlaceCandidates:
    """The next jobs that may get a place, in order, and the jobs that cannot get their tokens."""

    rows: list[store.PlaceCandidate] = field(default_factory=list)
    short_of_tokens: list[store.PlaceCandidate] = field(default_factory=list)
    new_reasons: dict[str, str] = field(default_factory=dict)  # of jobs that no longer wait for tokens, but for a place


def _unassign_candidates(tx: Tx, counted_scopes: list[str], places: PlacesInUse) -> list[str]:
    """Return unleased jobs of projects that are over their limit, the last first, at most ROUND_MAX."""
    if not places.is_over:
        return []
    lanes = [
        (cluster_id, lane)
        for cluster_id, lane in store.ready_lanes_of_queues(tx, counted_scopes)
        if places.spare_for(Lane.read(lane).project) < 0
    ]
    rows = [row for cluster_id, lane in lanes for row in store.ready_tail(tx, cluster_id, lane, ROUND_MAX)]
    return [row.id for row in sorted(rows, key=_rank, reverse=True)[:ROUND_MAX]]


def _next_rows(
    context: Context,
    tx: Tx,
    queue: Queue,
    arrays: list[store.PlaceCandidate],
    taken: Mapping[str, tuple[int, float]],
    *,
    queue_round: QueueRound,
) -> PlaceCandidates:
    """Return the candidates for the free places. The transaction may find fewer free places later."""
    name = queue_round.tokens.group
    places, candidates = PlacesInUse.of(queue, taken), PlaceCandidates()
    lanes = [lane for lane in store.queued_lanes(tx) if Lane.read(lane).queue == name]
    full = [lane for lane in lanes if places.spare_for(Lane.read(lane).project) <= 0]
    for lane in full:
        candidates.new_reasons |= _outdated_reasons(context, tx, lane)
    if places.spare <= 0:
        return candidates
    lanes = [lane for lane in lanes if lane not in full]
    lane_max = max(1, min(places.spare, ROUND_MAX, 10 * ROUND_MAX // (len(lanes) or 1)))
    heads = [_heads(context, tx, lane, lane_max, candidates=candidates, queue_round=queue_round) for lane in lanes]
    heads += [[row] for row in arrays if _has_places(row) and _usable_places(row) > 0]
    cores = cores_by_project(tx) if len(heads) > 1 else {}
    for lane, (_, waiting_cores) in taken.items():  # count the cores of assigned jobs that wait for a lease as in use
        project = Lane.read(lane).project
        cores[project] = cores.get(project, 0.0) + waiting_cores
    fair_queue = FairQueue.of(([ordered_job_of(row, queue) for row in rows] for rows in heads), cores)
    while len(candidates.rows) < ROUND_MAX and places.spare > 0 and (waiting := fair_queue.next()) is not None:
        count = min(_usable_places(waiting.row), places.spare_for(waiting.project))
        if count > 0:
            candidates.rows.append(waiting.row)
            places.take(waiting.project, count)
            fair_queue.give(waiting, waiting.row.cores * count)
    return candidates


def _heads(
    context: Context, tx: Tx, lane: str, limit: int, *, candidates: PlaceCandidates, queue_round: QueueRound
) -> list[store.PlaceCandidate]:
    """Return the first jobs of a lane. Jobs that cannot get their tokens go to `candidates.short_of_tokens`."""
    exhausted = list(queue_round.tokens.exhausted)[:EXHAUSTED_POOLS_MAX]
    rows = store.queued_heads(tx, lane, HEADS_MAX if queue_round.reads_further else limit, without=exhausted)
    if not context.tokens.pools.is_enforced:
        return rows
    impossible = [
        row for row in rows if row.tokens and not row.tasks_live and impossible_reason(context, needs_of_row(row))
    ]
    queue_round.reads_further = queue_round.reads_further or bool(impossible)
    refused = store.queued_needing_tokens(tx, lane, ROUND_MAX, namespaces=exhausted) if exhausted else []
    seen = queue_round.tokens.seen
    candidates.short_of_tokens += [row for row in (*impossible, *refused) if row.id not in seen]
    impossible_ids = {row.id for row in impossible}
    return [row for row in rows if row.id not in impossible_ids][:limit]


def _outdated_reasons(context: Context, tx: Tx, lane: str) -> dict[str, str]:
    """Return the new reason of jobs that show a wait for tokens, although the tokens are free and a place is not."""
    if not context.tokens.pools.is_enforced:
        return {}
    reason = queue_wait_reason(Lane.read(lane))
    rows = store.queued_with_other_reason(tx, lane, ROUND_MAX, reason=reason)
    is_free: dict[str, bool] = {}  # by needs
    for row in rows:
        needs = needs_of_row(row)
        key = str(needs)
        if key not in is_free:
            is_free[key] = impossible_reason(context, needs) is None and are_tokens_free(context, needs)
    return {row.id: reason for row in rows if is_free[str(needs_of_row(row))]}


def _trim(batch: Batch, taken: PlacesInUse, arrays: Iterable[JobRow]) -> set[str]:
    """Adjust the places of arrays to a changed limit. Returns the ids of changed arrays.

    Over the limit, an array loses unused places. Without a limit, it loses the bound. An array assigned before there
    was a limit gets a place for each live task, and more later.
    """
    updates: dict[str, JobUpdate] = {}
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
        updates[row.id] = _update_places(batch, array)
        batch.topics.add(Topic.QUEUES)  # the array may get more places in the next round
    jobs.job_update_many(batch.tx, updates)
    return set(updates)


def _take_back(batch: Batch, taken: PlacesInUse, rows: Iterable[JobRow]) -> set[str]:
    """Unassign unleased jobs of projects over their limit, the last first. They wait for a place again."""
    updates: dict[str, JobUpdate] = {}
    for row in sorted(rows, key=_rank, reverse=True):
        step = unassign(
            life_of(row), f"queue {Lane.read(row.lane).queue}: its limit is lower than when this was assigned"
        )
        if row.array is not None or not row.is_ready or step is None or taken.spare_for(row.project) >= 0:
            continue
        record_step(batch, row, step)
        updates[row.id] = step_update(batch, row, step).then(leave_queue(row, None)).then(enqueue_for_place(batch, row))
        taken.take(row.project, -1)
    jobs.job_update_many(batch.tx, updates)
    return set(updates)


def _rank(row: JobRow | store.ReadyTailJob) -> tuple[int, str]:
    """Return the sort key of jobs within a project."""
    return (-row.priority, row.id)


def _give(
    context: Context,
    batch: Batch,
    world: World,
    taken: PlacesInUse,
    *,
    rows: Iterable[JobRow],
    eligibilities: dict[str, Eligibility],
) -> int:
    """Assign jobs and give arrays more places, in order, while places are free. Returns the number of changed jobs.

    A job without an eligible cluster takes no place.
    """
    places: dict[str, int] = {}
    ready: dict[str, JobRow] = {}
    grown: dict[str, JobUpdate] = {}
    for row in rows:
        is_queued = row.state == State.PENDING.value and row.blocked == Blocker.QUEUE and row.id in eligibilities
        count = min(_usable_places(row), taken.spare_for(row.project))
        if is_queued and eligibilities[row.id].outcome is not Outcome.ASSIGN:
            ready[row.id] = row
            batch.topics.add(Topic.QUEUES)  # the next job gets its chance immediately
        elif is_queued and count > 0:
            taken.take(row.project, count)
            places[row.id] = (row.tasks_live or 0) + count
            ready[row.id] = row
        elif _has_places(row) and count > 0:
            taken.take(row.project, count)
            array = ArrayJob.of(row)
            array.places = (row.places or 0) + count
            grown[row.id] = _update_places(batch, array)
    jobs.job_update_many(batch.tx, grown)
    apply_decisions(context, batch, world, eligibilities=eligibilities, locked=ready, places=places, holding=places)
    return len(ready) + len(grown)


def _update_places(batch: Batch, array: ArrayJob) -> JobUpdate:
    if array.is_ready:
        batch.clusters.update(lessee_ids(array.row))
    return JobUpdate(places=array.places, is_ready=array.is_ready)


def _usable_places(row: Any) -> int:
    """Return how many more places a job could use."""
    if row.array is None:
        return 1
    tasks = len(TaskSet.read(row.todo, row.array))
    if row.array_max is not None:
        tasks = min(tasks, row.array_max - row.tasks_live)
    return tasks - max(0, row.places - row.tasks_live) if _has_places(row) else tasks


def _has_places(row: Any) -> bool:
    """Return whether the job is an assigned array with places."""
    return row.array is not None and row.places is not None and _is_assigned(row)


def _is_assigned(row: Any) -> bool:
    return row.state in (State.ASSIGNED.value, State.RUNNING.value)
