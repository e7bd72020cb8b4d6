"""Places in limited queues, which only the leader gives: to waiting jobs in the order of leases, as they become free.

A place is held by being assigned: it is counted from the live jobs, in the transaction that gives the next one. So a
leader that is killed between any two lines has either given a place or not, and two leaders never give the same.
An array holds as many as it was given, which is how many of its tasks may be live; it gets more as there are more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from switchyard.model.idset import IdSet
from switchyard.model.job import State
from switchyard.model.lifecycle import unassign
from switchyard.model.queue import Queue, project_of, queue_named, queue_of
from switchyard.route.order import Line
from switchyard.route.route import Ruling
from switchyard.route.world import World
from switchyard.service.arrays import ArrayJob
from switchyard.service.committer import Batch
from switchyard.service.context import Context
from switchyard.service.limits import FREED, QUEUE, Places, place_columns, queue_up
from switchyard.service.queues import cores_by_project, waiting_of
from switchyard.service.report import change_of, life_of, record
from switchyard.service.upkeep import ROUND_MAX, Leadership, place, rule_all
from switchyard.store import jobs
from switchyard.store import queues as store
from switchyard.store.database import Tx

ROUNDS_MAX = 20  # of one queue in one turn: others wait, too
ARRAYS_MAX = 1000  # arrays with places that are looked at in one turn


def promote(context: Context, leadership: Leadership) -> int:
    """Give every free place to whoever is next; how many jobs it changed."""
    with context.database.read() as tx:
        lanes = [*store.queued_lanes(tx), *(row.lane for row in store.arrays_placed(tx, ARRAYS_MAX))]
    return _rounds(context, leadership, {queue_of(lane) for lane in lanes})


def enforce(context: Context, leadership: Leadership) -> int:
    """Make limits hold that are newer, or lower, than what was assigned already; how many jobs it changed."""
    with context.database.read() as tx:
        names = _exceeded(context, tx)
    return _rounds(context, leadership, names)


def _rounds(context: Context, leadership: Leadership, names: set[str]) -> int:
    done = 0
    for name in sorted(names):
        for _ in range(ROUNDS_MAX):
            changed = _round(context, leadership, name)
            done += changed
            if changed < ROUND_MAX:
                break  # what became free meanwhile wakes the leader again
    return done


def _exceeded(context: Context, tx: Tx) -> set[str]:
    found = set()
    for name, queue in context.snapshots.laid.layout.queues.items():
        if whose := queue.counted(name):
            is_over = Places.of(queue, store.places_taken(tx, whose)).is_over
            if is_over or store.arrays_unplaced(tx, whose, 1):
                found.add(name)
    return found


def _round(context: Context, leadership: Leadership, name: str) -> int:
    """One transaction's worth of one queue."""
    queue, world = queue_named(context.snapshots.laid.layout.queues, name), context.snapshots.world
    whose = queue.counted(name)
    with context.database.read() as tx:
        arrays = [row for row in store.arrays_placed(tx, ARRAYS_MAX) if queue_of(row.lane) == name]
        taken = store.places_taken(tx, whose)
        arrays += store.arrays_unplaced(tx, whose, ROUND_MAX) if whose else []
        last = _last_ids(tx, whose, Places.of(queue, taken))
        rows = _next_rows(tx, queue, name, arrays, taken)
        specs = jobs.spec_many(tx, (row.spec_hash for row in rows))
    rulings = dict(rule_all(context, world, [row for row in rows if row.state == State.PENDING.value], specs))
    order = [row.id for row in rows]
    ids = {*order, *last, *(row.id for row in arrays)}
    if not ids:
        return 0

    def apply(batch: Batch) -> int:
        if not leadership.holds(batch):
            return 0
        taken = Places.of(queue, store.places_taken(batch.tx, whose))
        locked = jobs.job_lock(batch.tx, ids)
        done = _trim(batch, taken, [row for row in locked.values() if row.array is not None])
        done |= _take_back(batch, taken, [locked[job_id] for job_id in last if job_id in locked])
        ordered = [locked[job_id] for job_id in order if job_id in locked and job_id not in done]
        return len(done) + _give(context, batch, world, taken, rows=ordered, rulings=rulings)

    return context.committer.call(apply, locks=sorted(ids))


def _last_ids(tx: Tx, whose: list[str], places: Places) -> list[str]:
    """Of projects that have more places than they may, the jobs that nobody has leased, as many as may have to go."""
    if not places.is_over:
        return []
    lanes = [each for each in store.ready_in(tx, whose) if places.spare_for(project_of(each[1])) < 0]
    rows = [row for cluster_id, lane in lanes for row in store.ready_last(tx, cluster_id, lane, ROUND_MAX)]
    return [row.id for row in sorted(rows, key=_rank, reverse=True)[:ROUND_MAX]]


def _next_rows(
    tx: Tx, queue: Queue, name: str, arrays: list[store.Row], taken: Mapping[str, tuple[int, float]]
) -> list[store.Row]:
    """Those that are next as far as there are places now, in order; what the transaction finds may be less."""
    places = Places.of(queue, taken)
    lanes = [lane for lane in store.queued_lanes(tx) if queue_of(lane) == name]
    lanes = [lane for lane in lanes if places.spare_for(project_of(lane)) > 0]
    if places.spare <= 0:
        return []
    each_max = max(1, min(places.spare, ROUND_MAX, 10 * ROUND_MAX // (len(lanes) or 1)))
    heads = [store.queued_heads(tx, lane, each_max) for lane in lanes]
    heads += [[row] for row in arrays if _has_places(row) and _width(row) > 0]
    cores = cores_by_project(tx) if len(heads) > 1 else {}
    for lane, (_, waiting_cores) in taken.items():  # who is in line for a lease has its cores already, so to speak
        cores[project_of(lane)] = cores.get(project_of(lane), 0.0) + waiting_cores
    line = Line.of(([waiting_of(row, queue) for row in rows] for rows in heads), cores)
    found: list[store.Row] = []
    while len(found) < ROUND_MAX and places.spare > 0 and (waiting := line.next()) is not None:
        count = min(_width(waiting.row), places.spare_for(waiting.project))
        if count > 0:
            found.append(waiting.row)
            places.take(waiting.project, count)
            line.give(waiting, waiting.row.cores * count)
    return found


def _trim(batch: Batch, taken: Places, arrays: Iterable[jobs.Row]) -> set[str]:
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
        batch.versions.add(FREED)  # now that it is known to need some, it may be given them
    jobs.job_change(batch.tx, changes)
    return set(changes)


def _take_back(batch: Batch, taken: Places, rows: Iterable[jobs.Row]) -> set[str]:
    """Jobs that nobody has leased wait for a place again where there are too few, those that came last first."""
    changes: dict[str, dict[str, Any]] = {}
    for row in sorted(rows, key=_rank, reverse=True):
        step = unassign(life_of(row), f"queue {queue_of(row.lane)}: its limit is lower than when this was assigned")
        if row.array is not None or not row.is_ready or step is None or taken.spare_for(row.project) >= 0:
            continue
        record(batch, row, step)
        changes[row.id] = change_of(batch, row, step) | place_columns(row, None) | queue_up(batch, row)
        taken.take(row.project, -1)
    jobs.job_change(batch.tx, changes)
    return set(changes)


def _rank(row: jobs.Row) -> tuple[int, str]:
    """Who comes first within a project, first."""
    return (-row.priority, row.id)


def _give(
    context: Context, batch: Batch, world: World, taken: Places, *, rows: Iterable[jobs.Row], rulings: dict[str, Ruling]
) -> int:
    """Assign these and let these arrays grow, in order, while there are places. What cannot be assigned takes none."""
    places: dict[str, int] = {}
    ready: dict[str, jobs.Row] = {}
    grown: dict[str, dict[str, Any]] = {}
    for row in rows:
        is_queued = row.state == State.PENDING.value and row.blocked == QUEUE and row.id in rulings
        count = min(_width(row), taken.spare_for(row.project))
        if is_queued and rulings[row.id].outcome != "assign":
            ready[row.id] = row
            batch.versions.add(FREED)  # the next one is looked at at once
        elif is_queued and count > 0:
            taken.take(row.project, count)
            places[row.id] = (row.tasks_live or 0) + count
            ready[row.id] = row
        elif _has_places(row) and count > 0:
            taken.take(row.project, count)
            array = ArrayJob.of(row)
            array.places = row.places + count
            grown[row.id] = _array_columns(batch, array)
    jobs.job_change(batch.tx, grown)
    place(context, batch, world, rulings, ready, places=places)
    return len(ready) + len(grown)


def _array_columns(batch: Batch, array: ArrayJob) -> dict[str, Any]:
    if array.is_ready and array.row.cluster_id:
        batch.clusters.add(array.row.cluster_id)
    return {"places": array.places, "is_ready": array.is_ready}


def _width(row: Any) -> int:
    """How many places a job could use beyond those it has."""
    if row.array is None:
        return 1
    left = len(IdSet.parse(row.todo)) if row.todo else 0
    if row.array_max is not None:
        left = min(left, row.array_max - row.tasks_live)
    return left - max(0, row.places - row.tasks_live) if _has_places(row) else left


def _has_places(row: Any) -> bool:
    """Whether it is an array that was given some and is assigned."""
    return row.array is not None and row.places is not None and _is_assigned(row)


def _is_assigned(row: Any) -> bool:
    return row.state in (State.ASSIGNED.value, State.RUNNING.value)
