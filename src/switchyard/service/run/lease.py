"""Leases: which ready jobs an agent gets, in order and while they fit; and the sync after a lost answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace as replaced

from switchyard.errors import Gone, Resync, YardError
from switchyard.model.cluster import POLLING_BACKEND
from switchyard.model.idset import IdSet
from switchyard.model.job import State
from switchyard.model.layout import Layout
from switchyard.model.poll import BATCH_MAX, AttemptRef, Lease, Room, Stop
from switchyard.model.queue import queue_named, queue_of_lane
from switchyard.model.task_states import cancelling_positions, live_positions
from switchyard.route.queue_order import BypassTimes, FairQueue, QueuedJob
from switchyard.service.committer import Batch
from switchyard.service.run.agent_sessions import SyncRequest, begin_session, rival_answer_columns
from switchyard.service.run.arrays import BatchArrays, lease_tasks
from switchyard.service.run.concurrency_groups import ConcurrencyGroups
from switchyard.service.run.lease_owners import LeaseOwners
from switchyard.service.run.unknown_attempts import attempts_to_stop
from switchyard.service.snapshots import Access
from switchyard.service.submit.bounds import decode_bounds
from switchyard.service.unreadable_rows import read_each
from switchyard.service.upkeep.queue_usage import ProjectCores, ordered_job_of
from switchyard.store import clusters, leases, ranges
from switchyard.store.job_columns import require_readable

SPECS_BYTES_MAX = 16 * 2**20  # in one answer: it is held in memory, and encoded; the next poll gets the next
LOOK_PAST_MAX = 100  # jobs of all lanes together that are looked at behind those that do not fit


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """One agent asks for work under its session."""

    agent_id: str
    cluster_id: str
    cluster: str
    session: int | None  # none: it only polls, and begins no sessions
    want: int
    room: Room | None
    cancelling: frozenset[tuple[str, int]] = frozenset()
    backend: str = ""
    backends: frozenset[str] = frozenset()  # of all agents of its cluster
    incarnation: str | None = None  # the process that asks; none: it only polls
    is_fresh: bool = False  # the poll has just come; else it is parked, and its agent may be gone

    def job_ids(self) -> Iterable[str]:
        return ()


@dataclass(frozen=True, slots=True)
class LeaseAnswer:
    """What goes down to an agent."""

    session: int
    leases: list[Lease]
    cancels: list[AttemptRef]
    stops: list[Stop]
    is_asked: bool = False  # the agent is to poll again now, to show that it lives


class Leasing:
    """The use case, with what it remembers: how many cores each project has, and whom others passed by."""

    def __init__(self, layout: Callable[[], Layout], *, access: Callable[[], Access] | None = None) -> None:
        """`access`: the users as they are now; none: nobody asks whether owners exist, and nobody administers."""
        self._layout = layout
        self._access = access
        self._owners = LeaseOwners(access) if access is not None else None
        self._usage = ProjectCores()
        self._passed = BypassTimes()

    def apply_leases(self, batch: Batch, asks: list[LeaseRequest]) -> list[Any]:
        """One look for all agents that wait; several of one cluster share its line in the order they asked."""
        standing = clusters.agent_sessions(batch.tx, [ask.agent_id for ask in asks])
        paused = {agent for agent, row in standing.items() if row.is_paused}
        asks = [replace(ask, want=0) if ask.agent_id in paused else ask for ask in asks]
        valid = [ask for ask in asks if ask.agent_id in standing and _has_session(ask, standing[ask.agent_id])]
        wants: dict[str, int] = {}
        for ask in valid:
            if ask.want:
                wants[ask.cluster_id] = wants.get(ask.cluster_id, 0) + ask.want
        heads = self._candidates(batch, wants) if wants else {}
        looking = _LeaseRound(batch, self._passed, heads)
        lines = self._lines(batch, heads)
        told = [
            ask.agent_id for ask in valid if ask.backend != POLLING_BACKEND
        ]  # who only polls hears of no cancels here
        cancels = _cancels(batch, told) if told else {}
        results: list[Any] = []
        given: list[tuple[str, str]] = []
        for ask in asks:
            if ask.agent_id not in standing:
                results.append(Gone("This agent was removed."))
            elif not _has_session(ask, row := standing[ask.agent_id]):
                results.append(Resync())
            elif (shown := rival_answer_columns(row, batch.now_us)) and not ask.is_fresh:
                results.append(LeaseAnswer(row.session, [], [], [], is_asked=True))
            else:
                if shown:
                    clusters.agent_change(batch.tx, ask.agent_id, shown)
                chosen = []
                if (line := lines.get(ask.cluster_id)) is not None:
                    more = partial(self._look_past, looking, ask.cluster_id, wants[ask.cluster_id], line)
                    chosen = choose_jobs(line, ask, looking, more=more)
                found = [lease for row, count in chosen for lease in self._give(batch, looking.arrays, ask, row, count)]
                given += [(row.id, ask.agent_id) for row, _ in chosen if row.array is None]
                pending = [AttemptRef(*each) for each in cancels.get(ask.agent_id, []) if each not in ask.cancelling]
                results.append(LeaseAnswer(row.session, found, pending, []))
        leases.lease_give(batch.tx, given, at_us=batch.now_us)
        looking.crowds.park()
        looking.arrays.flush()
        return results

    def _candidates(self, batch: Batch, wants: dict[str, int]) -> dict[str, list[leases.Row]]:
        """The first ready jobs of each cluster whose owner exists and is enabled."""
        found = leases.lease_candidates(batch.tx, wants)
        for rows in found.values():
            leases.require_readable_candidates(rows)
        return found if self._owners is None else self._owners.take_back(batch, found)

    def _lines(self, batch: Batch, heads: dict[str, list[leases.Row]]) -> dict[str, FairQueue[leases.Row]]:
        """The ready jobs of each cluster in the order of leases. What one line gives counts in the others, too."""
        projects = {row.project for rows in heads.values() for row in rows}
        # Of one project alone nobody asks how much it has.
        cores = self._usage.cores(batch.tx, batch.now_us) if len(projects) > 1 else {}
        return {cluster: FairQueue.of(self._lanes(cluster, rows, batch), cores) for cluster, rows in heads.items()}

    def _lanes(self, cluster_id: str, rows: list[leases.Row], batch: Batch) -> list[list[QueuedJob[leases.Row]]]:
        queues, lanes = self._layout().queues, []
        by_lane: dict[str, list[leases.Row]] = {}
        for row in rows:
            by_lane.setdefault(row.lane, []).append(row)
        for lane, found in by_lane.items():
            queue = queue_named(queues, queue_of_lane(lane))
            aged = self._passed.aged(
                cluster_id, (row.id for row in found), now_us=batch.now_us, ageing_us=queue.ageing_us
            )
            lanes.append([ordered_job_of(row, queue, is_aged=row.id in aged) for row in found])
        return lanes

    def _look_past(self, looking: _LeaseRound, cluster_id: str, want: int, line: FairQueue[leases.Row]) -> bool:
        """Bring up those who stand behind jobs that do not fit, once in a batch; whether there are any."""
        rows = looking.heads.pop(cluster_id, [])
        lengths = Counter(row.lane for row in rows)
        if max(lengths.values(), default=0) < want:
            return False  # all of every lane has been looked at
        seen = {row.id for row in rows}
        deeper = self._candidates(looking.batch, {cluster_id: want + LOOK_PAST_MAX // len(lengths) + 1})
        found = [row for row in deeper[cluster_id] if row.id not in seen and looking.crowds.knows(row)]
        leases.require_readable_candidates(found)
        looking.arrays.load([row for row in found if row.array is not None], is_tolerant=False)
        line.add(self._lanes(cluster_id, found, looking.batch))
        return bool(found)

    def _give(self, batch: Batch, arrays: BatchArrays, ask: LeaseRequest, row: leases.Row, count: int) -> list[Lease]:
        """The leases of one job: one, or of an array one per run of neighbours."""
        State(row.state)  # a job of which it cannot be said how it stands is handed to nobody
        self._passed.forget(ask.cluster_id, row.id)
        lease = self._lease(row, ask.cluster)
        if row.array is None:
            _record_leased(batch, row, "")
            return [lease]
        cuts = lease_tasks(batch, arrays.job(row.id), ask.agent_id, count)
        for each in cuts:
            _record_leased(batch, row, f"tasks {each.lo}-{each.hi}")
        return [replaced(lease, attempt=each.attempt, fence=each.fence, lo=each.lo, hi=each.hi) for each in cuts]

    def _lease(self, row: leases.Row, cluster: str, *, job: str | None = None) -> Lease:
        native = queue_named(self._layout().queues, queue_of_lane(row.lane)).native.get(cluster)
        is_admin = self._access is not None and row.owner_id in self._access().platform_admins
        return build_lease(row, cluster, native=native, job=job, is_owner_admin=is_admin)

    def _lease_again(self, row: leases.Row, cluster: str, *, job: str | None = None) -> Lease:
        require_readable(row)
        return self._lease(row, cluster, job=job)

    def apply_syncs(self, batch: Batch, asks: list[SyncRequest]) -> list[Any]:
        """Begin sessions: redeliver what was leased and never arrived, name what is to be stopped."""
        results: dict[int, Any] = {}
        # By id, as every replica locks them; an agent that asks twice has two answers, each with its own session.
        for index in sorted(range(len(asks)), key=lambda each: asks[each].agent_id):
            ask = asks[index]
            session = begin_session(batch, ask)
            if isinstance(session, YardError):
                results[index] = session
                continue
            batch.versions.add("seen")  # the other replicas hear at once that this agent is alive
            held = {(row.id, row.fence): row for row in leases.leased_by(batch.tx, ask.agent_id)}
            unknown = [row for key, row in held.items() if key not in ask.inventory]
            if self._owners is not None:
                unknown = self._owners.end_undelivered(batch, unknown)
            missing = read_each("jobs", unknown, partial(self._lease_again, cluster=ask.cluster))
            tasks, again = self._held_tasks(batch, ask)
            cancels = [AttemptRef(job, fence) for job, fence in _cancels(batch, [ask.agent_id]).get(ask.agent_id, [])]
            gone = attempts_to_stop(batch, ask, set(held) | tasks | _with_unknown_fence(held, ask))
            stops = [Stop(job, fence, "not leased to this agent") for job, fence in gone]
            results[index] = LeaseAnswer(session, [*missing, *again], cancels, stops)
        return [results[index] for index in range(len(asks))]

    def _held_tasks(self, batch: Batch, ask: SyncRequest) -> tuple[set[tuple[str, int]], list[Lease]]:
        """All live tasks an agent holds, and the leases of those it does not know of."""
        known: set[tuple[str, int]] = set()
        again: list[Lease] = []
        rows = ranges.range_leased_by(batch.tx, ask.agent_id)
        if self._owners is not None and self._owners.return_undelivered_tasks(batch, ask, rows):
            rows = ranges.range_leased_by(batch.tx, ask.agent_id)
        for row in rows:
            live = live_positions(row.tasks)
            known |= {(row.job_id, row.fence + position) for position in live}
            missing = IdSet.of(position for position in live if (row.job_id, row.fence + position) not in ask.inventory)
            if not missing:
                continue
            again_of = partial(self._lease_again, cluster=ask.cluster, job=row.job_id)
            found = read_each("jobs", [row], again_of, key="job_id")
            if not found:
                continue
            lease = found[0]
            attempt = 1 + len(ranges.range_spans(batch.tx, row.job_id, row.lo, row.lo, before_fence=row.fence))
            for first, last in missing.spans():
                fence, lo, hi = row.fence + first, row.lo + first, row.lo + last
                again.append(replaced(lease, attempt=attempt, fence=fence, lo=lo, hi=hi))
        return known, again


class _LeaseRound:
    """What one look at the lines of all clusters shares."""

    def __init__(self, batch: Batch, passed: BypassTimes, heads: dict[str, list[leases.Row]]) -> None:
        self.batch = batch
        self.passed = passed
        self.heads = dict(heads)
        rows = [row for found in heads.values() for row in found]
        self.arrays = BatchArrays(batch)
        self.arrays.load([row for row in rows if row.array is not None], is_tolerant=False)
        self.crowds = ConcurrencyGroups(batch, rows)

    def size(self, row: leases.Row) -> int:
        """How much of a job there is to lease: one, or of an array as many tasks as may run."""
        array = None if row.array is None else self.arrays.job(row.id)
        return self.crowds.most(row, 1 if array is None else min(len(array.todo), array.spare))

    def is_busy(self, agent_id: str) -> bool:
        """Whether an agent has something that will end."""
        return leases.leased_count(self.batch.tx, [agent_id]) > 0


def choose_jobs(
    line: FairQueue[leases.Row], ask: LeaseRequest, looking: _LeaseRound, *, more: Callable[[], bool]
) -> list[tuple[leases.Row, int]]:
    """Take from the line, in order, what fits: jobs, and of an array how many tasks.

    One that does not fit lets others pass, until they did so for its queue's `ageing`: from then on it comes first of
    its priority, and while it does not fit nobody behind it gets anything; unless nothing runs here, for then no room
    will come of waiting. What another backend is to run is passed by; an array that reached its own bound steps aside,
    and so does a job whose crowd is full. `more`: lengthens the line, where it can.
    """
    chosen: list[tuple[leases.Row, int]] = []
    passed: list[QueuedJob[leases.Row]] = []
    want, room, spare, has_misfits = ask.want, ask.room, SPECS_BYTES_MAX, False
    while want > 0 and spare > 0:
        waiting = line.next()
        if waiting is None:
            if has_misfits and more():
                continue
            break
        row = waiting.row
        if not _is_for(row, ask):
            passed.append(waiting)
            continue
        size = looking.size(row)
        count = min(size, want, _count_fitting(row, room), spare // len(row.spec) + 1)
        if count:
            spare -= count * len(row.spec)
            chosen.append((row, count))
            looking.crowds.take(row, count)
            line.give(waiting, row.cores * count)
            want -= count
            room = _room_after(room, row, count)
        if count < size:
            passed.append(waiting)
        if size and not count:
            has_misfits = True
            looking.passed.note(ask.cluster_id, row.id, looking.batch.now_us)
            if waiting.is_aged and (chosen or looking.is_busy(ask.agent_id)):
                break
    line.put_back(passed)
    return chosen


def _with_unknown_fence(held: Iterable[tuple[str, Any]], ask: SyncRequest) -> set[tuple[str, int]]:
    """The attempts of an agent whose rows have a fence that cannot be read: they go on."""
    damaged = {job for job, fence in held if not isinstance(fence, int)}
    return {(job, fence) for job, fence in ask.inventory if job in damaged} if damaged else set()


def _has_session(ask: LeaseRequest, agent: clusters.Row) -> bool:
    """Whether an agent's session is the one it asks under, and begun by the process that asks."""
    return ask.session is None or (ask.session == agent.session and ask.incarnation in (None, agent.incarnation))


def _is_for(row: leases.Row, ask: LeaseRequest) -> bool:
    """Whether this agent's backend is the one: the first of those the job wants that its cluster has.

    Who only polls gets no arrays: it could not say which task it means.
    """
    if ask.backend == POLLING_BACKEND and row.array is not None:
        return False
    wanted = row.lane.partition(" ")[2]
    if not wanted:
        return True
    best: str | None = next((backend for backend in wanted.split(",") if backend in ask.backends), None)
    if best is not None:
        return best == ask.backend
    return not decode_bounds(row.bounds).needs_backend


def _count_fitting(row: leases.Row, room: Room | None) -> int:
    """How many of these there is room for."""
    if room is None:
        return BATCH_MAX
    pairs = ((row.cores, room.cores), (row.gpus, room.gpus), (row.memory_bytes, room.memory_bytes))
    return min((has // asks for asks, has in pairs if asks), default=BATCH_MAX)


def _room_after(room: Room | None, row: leases.Row, count: int) -> Room | None:
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
    for agent_id, rows in leases.leased_cancels(batch.tx, agent_ids).items():
        found.setdefault(agent_id, []).extend((row.id, row.fence) for row in rows)
    for row in ranges.range_cancelling(batch.tx, agent_ids):
        asked = live_positions(row.tasks) if row.cancel_us is not None else cancelling_positions(row.tasks)
        found.setdefault(row.agent_id, []).extend((row.job_id, row.fence + position) for position in asked)
    return found


def build_lease(row: leases.Row, cluster: str, *, native: str | None, job: str | None, is_owner_admin: bool) -> Lease:
    return Lease(
        job=job or row.id,
        attempt=row.attempt,
        fence=row.fence,
        name=row.name,
        owner=row.owner,
        is_owner_admin=is_owner_admin,
        project=row.project,
        domain=row.domain,
        workflow=row.workflow,
        launch_plan=row.launch_plan,
        priority=row.priority,
        labels=msgspec.json.decode(row.labels, type=dict[str, str]),
        cluster=cluster,
        queue=queue_of_lane(row.lane),
        native_queue=native,
        known=row.fence_known,
        spec=msgspec.Raw(row.spec.encode()),
    )


def _record_leased(batch: Batch, row: leases.Row, reason: str) -> None:
    batch.event(
        row.id,
        "leased",
        state=row.state,
        attempt=row.attempt,
        fence=row.fence,
        cluster_id=row.cluster_id,
        reason=reason,
    )
