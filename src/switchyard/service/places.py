"""Places in limited queues, which only the leader gives: to waiting jobs in the order of leases, as they become free.

A place is held by being assigned: it is counted from the live jobs, in the transaction that gives the next one. So a
leader that is killed between any two lines has either given a place or not, and two leaders never give the same.
An array holds as many as it was given, which is how many of its tasks may be live; it gets more as there are more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from switchyard.model.idset import IdSet
from switchyard.model.job import State
from switchyard.model.queue import PLACES_MAX, Queue, project_of, queue_named, queue_of
from switchyard.route.order import Line
from switchyard.route.route import Ruling
from switchyard.route.world import World
from switchyard.service.arrays import ArrayJob
from switchyard.service.committer import Batch
from switchyard.service.context import Context
from switchyard.service.history import waits
from switchyard.service.limits import FREED, QUEUE
from switchyard.service.queues import cores_by_project, waiting_of
from switchyard.service.token_jobs import TokenCare, refused_tokens
from switchyard.service.upkeep import ROUND_MAX, Leadership, place, rule_all
from switchyard.store import jobs
from switchyard.store import queues as store
from switchyard.store.database import Tx

ROUNDS_MAX = 20  # of one queue in one turn: others wait, too
ARRAYS_MAX = 1000  # arrays with places that are looked at in one turn


def promote(context: Context, leadership: Leadership, tokens: TokenCare | None = None) -> int:
    """Give every free place to whoever is next; how many jobs it changed."""
    tokens = tokens or TokenCare()
    with context.database.read() as tx:
        lanes = [*store.queued_lanes(tx), *(row.lane for row in store.arrays_placed(tx, ARRAYS_MAX))]
    done = 0
    for name in sorted({queue_of(lane) for lane in lanes}):
        passed: dict[str, str] = {}  # jobs whose tokens are not to be had, and why: others may have the place
        for _ in range(ROUNDS_MAX):
            known = len(passed)
            changed = _round(context, leadership, name, tokens, passed)
            done += changed
            if changed < ROUND_MAX and len(passed) == known:
                break  # what became free meanwhile wakes the leader again
    return done


@dataclass
class Places:
    """What is taken of a queue's places, as more are given."""

    queue: Queue
    by_project: dict[str, int] = field(default_factory=dict)

    @staticmethod
    def of(queue: Queue, taken: Mapping[str, tuple[int, float]]) -> Places:
        found = Places(queue)
        for lane, (places, _) in taken.items():
            found.take(project_of(lane), places)
        return found

    @property
    def spare(self) -> int:
        """Free ones; below zero: the limit was lowered, and so many are to become free before it holds."""
        running = self.queue.limits.running
        return PLACES_MAX if running is None else running - sum(self.by_project.values())

    def spare_for(self, project: str) -> int:
        most = self.queue.limits.projects.get(project)
        return self.spare if most is None else min(self.spare, most - self.by_project.get(project, 0))

    def take(self, project: str, places: int) -> None:
        self.by_project[project] = self.by_project.get(project, 0) + places


def _round(context: Context, leadership: Leadership, name: str, tokens: TokenCare, passed: dict[str, str]) -> int:
    """One transaction's worth of one queue."""
    queue, world = queue_named(context.snapshots.laid.layout.queues, name), context.snapshots.world
    with context.database.read() as tx:
        arrays = [row for row in store.arrays_placed(tx, ARRAYS_MAX) if queue_of(row.lane) == name]
        rows = _next_rows(tx, queue, name, arrays, passed)
        specs = jobs.spec_many(tx, (row.spec_hash for row in rows))
    rulings = dict(rule_all(context, world, [row for row in rows if row.state == State.PENDING.value], specs))
    refused = refused_tokens(context, tokens, rows, rulings)
    passed |= refused
    order = [row.id for row in rows if row.id not in refused]
    ids = {*order, *(row.id for row in arrays), *refused}
    if not ids:
        return 0

    def apply(batch: Batch) -> int:
        if not leadership.holds(batch):
            return 0
        taken = Places.of(queue, store.places_taken(batch.tx, [name]))
        locked = jobs.job_lock(batch.tx, ids)
        trimmed = _trim(batch, taken, [row for row in locked.values() if _has_places(row)])
        ordered = [locked[job_id] for job_id in order if job_id in locked and job_id not in trimmed]
        _tell(batch, refused, locked)
        return len(trimmed) + _give(context, batch, world, taken, rows=ordered, rulings=rulings)

    return context.committer.call(apply, locks=sorted(ids))


def _tell(batch: Batch, refused: Mapping[str, str], locked: Mapping[str, jobs.Row]) -> None:
    """Those that could have a place, were it not for their tokens, hear so."""
    new = {job_id: why for job_id, why in refused.items() if job_id in locked and locked[job_id].reason != why}
    for job_id, why in new.items():
        waits(batch, locked[job_id], why)
    jobs.job_change(batch.tx, {job_id: {"reason": why} for job_id, why in new.items()})


def _next_rows(tx: Tx, queue: Queue, name: str, arrays: list[store.Row], passed: Collection[str]) -> list[store.Row]:
    """Those that are next as far as there are places now, in order; what the transaction finds may be less."""
    taken = store.places_taken(tx, [name])
    places = Places.of(queue, taken)
    lanes = [lane for lane in store.queued_lanes(tx) if queue_of(lane) == name]
    lanes = [lane for lane in lanes if places.spare_for(project_of(lane)) > 0]
    if places.spare <= 0:
        return []
    each_max = max(1, min(places.spare, ROUND_MAX, 10 * ROUND_MAX // (len(lanes) or 1)))
    heads = [
        [row for row in store.queued_heads(tx, lane, each_max + len(passed)) if row.id not in passed] for lane in lanes
    ]
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
    """Arrays lose the places they do not use where the limit was lowered, and every bound where there is none."""
    changes: dict[str, dict[str, Any]] = {}
    for row in sorted(arrays, key=lambda row: (row.priority, row.id)):
        array, spare = ArrayJob.of(row), taken.spare_for(row.project)
        if not taken.queue.limits_project(row.project):
            array.places = None
        elif spare < 0 and row.places > array.live:
            array.places = max(array.live, row.places + spare)
        else:
            continue
        taken.take(row.project, (array.places or 0) - row.places)
        changes[row.id] = _array_columns(batch, array)
    jobs.job_change(batch.tx, changes)
    return set(changes)


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
    place(context, batch, world, rulings, ready, places=places, holding=places)
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
    is_assigned = row.state in (State.ASSIGNED.value, State.RUNNING.value)
    return row.array is not None and row.places is not None and is_assigned
