"""Leases: which ready jobs an agent gets, in order and while they fit; and the sync after a lost answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from switchyard.errors import Gone, Resync
from switchyard.model.idset import IdSet
from switchyard.model.lifecycle import adopt
from switchyard.model.poll import BATCH_MAX, Held, Lease, Room, Stop
from switchyard.model.tasks import cancelling_positions, live_positions
from switchyard.service.arrays import Arrays, cut
from switchyard.service.bounds import decode_bounds
from switchyard.service.committer import Batch
from switchyard.service.report import adoption, life_of, record
from switchyard.store import clusters, jobs, leases, ranges
from switchyard.store import crowds as store


@dataclass(frozen=True, slots=True)
class LeaseAsk:
    """One agent asks for work under its session."""

    agent_id: str
    cluster_id: str
    cluster: str
    session: int
    want: int
    room: Room | None
    cancelling: frozenset[tuple[str, int]] = frozenset()
    backend: str = ""
    backends: frozenset[str] = frozenset()  # of all agents of its cluster

    def job_ids(self) -> Iterable[str]:
        return ()


@dataclass(frozen=True, slots=True)
class SyncAsk:
    """An agent says which attempts it holds; begins a session."""

    agent_id: str
    cluster: str
    incarnation: str
    inventory: frozenset[tuple[str, int]]

    def job_ids(self) -> Iterable[str]:
        return ()


@dataclass(frozen=True, slots=True)
class Given:
    """What goes down to an agent."""

    session: int
    leases: list[Lease]
    cancels: list[Held]
    stops: list[Stop]


def apply_leases(batch: Batch, asks: list[LeaseAsk]) -> list[Any]:
    """One look for all agents that wait; several of one cluster share its line in the order they asked."""
    standing = clusters.agent_sessions(batch.tx, [ask.agent_id for ask in asks])
    sessions = {agent: session for agent, (session, _) in standing.items()}
    paused = {agent for agent, (_, is_paused) in standing.items() if is_paused}
    asks = [replace(ask, want=0) if ask.agent_id in paused else ask for ask in asks]
    valid = [ask for ask in asks if sessions.get(ask.agent_id) == ask.session]
    wants: dict[str, int] = {}
    for ask in valid:
        if ask.want:
            wants[ask.cluster_id] = wants.get(ask.cluster_id, 0) + ask.want
    lines = {
        cluster: in_order(rows) for cluster, rows in (leases.lease_heads(batch.tx, wants) if wants else {}).items()
    }
    cancels = _cancels(batch, [ask.agent_id for ask in valid]) if valid else {}
    results: list[Any] = []
    given: list[tuple[str, str]] = []
    arrays = Arrays(batch)
    arrays.load([row for line in lines.values() for row in line if row.array is not None])
    crowds = Crowds(batch, [row for line in lines.values() for row in line])
    for ask in asks:
        if ask.agent_id not in sessions:
            results.append(Gone("This agent was removed."))
        elif sessions[ask.agent_id] != ask.session:
            results.append(Resync())
        else:
            chosen = choose(lines.get(ask.cluster_id, []), ask, arrays, crowds)
            found = [lease for row, count in chosen for lease in _give(batch, arrays, ask, row, count)]
            given += [(row.id, ask.agent_id) for row, _ in chosen if row.array is None]
            pending = [
                Held(job, fence) for job, fence in cancels.get(ask.agent_id, []) if (job, fence) not in ask.cancelling
            ]
            results.append(Given(ask.session, found, pending, []))
    leases.lease_give(batch.tx, given, at_us=batch.now_us)
    crowds.park()
    arrays.flush()
    return results


def _give(batch: Batch, arrays: Arrays, ask: LeaseAsk, row: leases.Row, count: int) -> list[Lease]:
    """The leases of one job: one, or of an array one per run of neighbours."""
    if row.array is None:
        _record(batch, row, "")
        return [lease_of(row, ask.cluster)]
    cuts = cut(batch, arrays.job(row.id), ask.agent_id, count)
    for each in cuts:
        _record(batch, row, f"tasks {each.lo}-{each.hi}")
    return [
        msgspec.structs.replace(lease_of(row, ask.cluster), fence=each.fence, lo=each.lo, hi=each.hi) for each in cuts
    ]


def in_order(rows: Sequence[leases.Row]) -> list[leases.Row]:
    """The order in which leases are given: priority, then arrival. Fair share and ageing will enter here."""
    return sorted(rows, key=lambda row: (-row.priority, row.id))


def choose(line: list[leases.Row], ask: LeaseAsk, arrays: Arrays, crowds: Crowds) -> list[tuple[leases.Row, int]]:
    """Take from the head of the line while it fits: jobs, and of an array how many tasks.

    The first that does not fit ends it, so that it is not starved. What another backend is to run is passed by; an
    array that reached its own bound steps aside, and so does a job whose crowd is full.
    """
    chosen: list[tuple[leases.Row, int]] = []
    want, room, place = ask.want, ask.room, 0
    while place < len(line) and want > 0:
        row = line[place]
        if not _is_for(row, ask):
            place += 1
            continue
        size = 1 if row.array is None else min(len(arrays.job(row.id).todo), arrays.job(row.id).spare)
        size = crowds.most(row, size)
        count = min(size, want, _fitting(row, room))
        if count:
            chosen.append((row, count))
            crowds.take(row, count)
            want -= count
            room = _less(room, row, count)
        if count < size:
            break
        line.pop(place)
    return chosen


def _is_for(row: leases.Row, ask: LeaseAsk) -> bool:
    """Whether this agent's backend is the one: the first of those the job wants that its cluster has."""
    wanted = row.lane.partition(" ")[2]
    if not wanted:
        return True
    best: str | None = next((backend for backend in wanted.split(",") if backend in ask.backends), None)
    if best is not None:
        return best == ask.backend
    return not decode_bounds(row.bounds).needs_backend


class Crowds:
    """The crowds of the jobs in line: how many of each run, counted under a lock that all servers take."""

    def __init__(self, batch: Batch, rows: Iterable[leases.Row]) -> None:
        self._batch = batch
        self._parked: dict[str, list[str]] = {}  # why → jobs
        names = sorted({row.crowd for row in rows if row.crowd is not None})
        if names:
            store.crowd_lock(batch.tx, names)
        self._live = store.crowd_live(batch.tx, names) if names else {}

    def most(self, row: leases.Row, size: int) -> int:
        """How many of a job's tasks its crowd leaves room for; one for which there is none is parked."""
        if row.crowd is None or not size:
            return size
        spare: int = max(0, row.crowd_max - self._live[row.crowd])
        if not spare:
            said = f"waits: {row.crowd_max} jobs of workflow {row.workflow} run, and no more may (max_parallelism)"
            self._parked.setdefault(said, []).append(row.id)
        return min(size, spare)

    def take(self, row: leases.Row, count: int) -> None:
        if row.crowd is not None:
            self._live[row.crowd] += count

    def park(self) -> None:
        for said, job_ids in self._parked.items():
            store.crowd_park(self._batch.tx, job_ids, said)


def _fitting(row: leases.Row, room: Room | None) -> int:
    """How many of these there is room for."""
    if room is None:
        return BATCH_MAX
    pairs = ((row.cores, room.cores), (row.gpus, room.gpus), (row.memory_bytes, room.memory_bytes))
    return min((has // asks for asks, has in pairs if asks), default=BATCH_MAX)


def _less(room: Room | None, row: leases.Row, count: int) -> Room | None:
    if room is None:
        return None
    return Room(
        room.cores - count * row.cores,
        room.gpus - count * row.gpus,
        room.memory_bytes - count * row.memory_bytes,
    )


def _cancels(batch: Batch, agent_ids: list[str]) -> dict[str, list[tuple[str, int]]]:
    """The attempts whose end was asked for, by the agent that has them: jobs, and tasks of arrays."""
    found: dict[str, list[tuple[str, int]]] = {}
    for agent_id, rows in leases.held_cancels(batch.tx, agent_ids).items():
        found.setdefault(agent_id, []).extend((row.id, row.fence) for row in rows)
    for row in ranges.range_cancels(batch.tx, agent_ids):
        asked = live_positions(row.tasks) if row.cancel_us is not None else cancelling_positions(row.tasks)
        found.setdefault(row.agent_id, []).extend((row.job_id, row.fence + position) for position in asked)
    return found


def apply_syncs(batch: Batch, asks: list[SyncAsk]) -> list[Any]:
    """Begin sessions: redeliver what was leased and never arrived, name what is to be stopped."""
    results: dict[int, Any] = {}
    # By id, as every replica locks them; an agent that asks twice has two answers, each with its own session.
    for index in sorted(range(len(asks)), key=lambda each: asks[each].agent_id):
        ask = asks[index]
        session = clusters.agent_sync(batch.tx, ask.agent_id, ask.incarnation, at_us=batch.now_us)
        batch.versions.add("seen")  # the other replicas hear at once that this agent is alive
        if session is None:
            results[index] = Gone("This agent was removed.")
            continue
        held = {(row.id, row.fence): row for row in leases.held_by(batch.tx, ask.agent_id)}
        missing = [lease_of(row, ask.cluster) for key, row in held.items() if key not in ask.inventory]
        tasks, again = _held_tasks(batch, ask)
        cancels = [Held(job, fence) for job, fence in _cancels(batch, [ask.agent_id]).get(ask.agent_id, [])]
        gone = sorted(ask.inventory - set(held) - tasks - _adopted(batch, ask, set(held) | tasks))
        stops = [Stop(job, fence, "not leased to this agent") for job, fence in gone]
        results[index] = Given(session, [*missing, *again], cancels, stops)
    return [results[index] for index in range(len(asks))]


def _adopted(batch: Batch, ask: SyncAsk, known: set[tuple[str, int]]) -> set[tuple[str, int]]:
    """What the agent has from before a restore, and the store knows nothing of: it goes on with it."""
    restored = jobs.job_restored(batch.tx, sorted({job for job, _ in ask.inventory - known}))
    if not restored:
        return set()
    found: set[tuple[str, int]] = set()
    for row in jobs.job_lock(batch.tx, restored).values():
        fences = sorted(fence for job, fence in ask.inventory - known if job == row.id)
        step = adopt(life_of(row), fences[-1])  # of several the last one: the others were followed by it
        change = adoption(batch, row, ask.agent_id, step) if step is not None else None
        if step is not None and change is not None:
            jobs.job_change(batch.tx, {row.id: change})
            record(batch, row, step)
            found.add((row.id, fences[-1]))
    return found


def _held_tasks(batch: Batch, ask: SyncAsk) -> tuple[set[tuple[str, int]], list[Lease]]:
    """All live tasks an agent holds, and the leases of those it does not know of."""
    known: set[tuple[str, int]] = set()
    again: list[Lease] = []
    for row in ranges.range_held_by(batch.tx, ask.agent_id):
        live = live_positions(row.tasks)
        known |= {(row.job_id, row.fence + position) for position in live}
        missing = IdSet.of(position for position in live if (row.job_id, row.fence + position) not in ask.inventory)
        for first, last in missing.ranges:
            lease = lease_of(row, ask.cluster, job=row.job_id)
            place = {"fence": row.fence + first, "lo": row.lo + first, "hi": row.lo + last}
            again.append(msgspec.structs.replace(lease, **place))
    return known, again


def lease_of(row: leases.Row, cluster: str, *, job: str | None = None) -> Lease:
    return Lease(
        job=job or row.id,
        attempt=row.attempt,
        fence=row.fence,
        name=row.name,
        owner=row.owner,
        project=row.project,
        domain=row.domain,
        workflow=row.workflow,
        launch_plan=row.launch_plan,
        priority=row.priority,
        labels=msgspec.json.decode(row.labels, type=dict[str, str]),
        cluster=cluster,
        known=row.fence_known,
        spec=msgspec.Raw(row.spec.encode()),
    )


def _record(batch: Batch, row: leases.Row, reason: str) -> None:
    batch.event(
        row.id,
        "leased",
        state=row.state,
        attempt=row.attempt,
        fence=row.fence,
        cluster_id=row.cluster_id,
        reason=reason,
    )
