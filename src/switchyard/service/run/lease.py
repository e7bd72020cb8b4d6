"""Lease ready jobs to agents, in queue order and while they fit. Sync agents after a lost answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from heapq import merge
from itertools import islice
from typing import Any

import msgspec
from msgspec.structs import replace as replaced

from switchyard.errors import Gone, Resync, YardError
from switchyard.model.cluster.cluster import POLLING_BACKEND
from switchyard.model.cluster.idset import IdSet
from switchyard.model.cluster.poll import BATCH_MAX, AttemptRef, Lease, Room, Stop
from switchyard.model.job.bounds import decode_bounds
from switchyard.model.job.event_kind import EventKind
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import adopt_attempt
from switchyard.model.job.task_states import cancelling_positions, live_positions
from switchyard.model.jobspec.quantity import parse_duration_s
from switchyard.model.rules.layout import Layout
from switchyard.model.rules.queue import Lane, queue_named
from switchyard.route.queue_order import BypassTimes, FairQueue, QueuedJob
from switchyard.service.core.agents.agent_sessions import SyncRequest, begin_session, rival_answer
from switchyard.service.core.context import Context
from switchyard.service.core.snapshots.snapshots import Access
from switchyard.service.core.unreadable_rows import read_each
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.service.lifecycle.array_spread import lessee_ids, queue_room
from switchyard.service.lifecycle.arrays import BatchArrays, lease_tasks
from switchyard.service.lifecycle.chosen_sets import number_at, with_chosen_set, with_leased_set
from switchyard.service.lifecycle.lease_request import LOOK_PAST_MAX, LeaseRequest
from switchyard.service.lifecycle.transitions import adoption_update, life_of, record_step
from switchyard.service.reserve.queue_usage import ProjectCores, ordered_job_of
from switchyard.service.run.canaries import CanaryGate, avoided_nodes
from switchyard.service.run.lease_owners import LeaseOwners
from switchyard.store.clusters import clusters
from switchyard.store.engine import ranges
from switchyard.store.engine.ranges import HeldRange
from switchyard.store.jobs import concurrency_groups as store
from switchyard.store.jobs import jobs, leases
from switchyard.store.jobs.job_columns import require_readable
from switchyard.store.jobs.leases import LeaseCandidate, LeasedJob
from switchyard.store.tables import restore_recovery

# How often in turn a cluster whose array is locked asks again at once. Then the next sweep wakes its agents.
ASK_AGAIN_MAX = 20
LeaseSource = LeaseCandidate | LeasedJob | HeldRange  # rows with all that a lease is built from
SPECS_BYTES_MAX = 16 * 2**20  # of one answer, which is built in memory; the next poll gets more


class _TimedResources(msgspec.Struct):
    time_limit: int | str | None = None


class _TimedSpec(msgspec.Struct):
    """The part of a job's spec that says how long the job may run."""

    resources: _TimedResources = msgspec.field(default_factory=_TimedResources)


@dataclass(frozen=True, slots=True)
class LeaseAnswer:
    """The answer to one agent."""

    session: int
    leases: list[Lease]
    cancels: list[AttemptRef]
    stops: list[Stop]
    is_asked: bool = False  # the agent must poll again now to prove that it is alive


class Leasing:
    """Leases jobs. Remembers the cores in use by project, and since when each misfitting job is bypassed."""

    def __init__(
        self,
        layout: Callable[[], Layout],
        *,
        access: Callable[[], Access] | None = None,
        is_stopped: Callable[[], bool] = lambda: False,
        context: Context | None = None,
    ) -> None:
        """`access` returns the current users. None: owners are not checked, and no owner counts as administrator.

        `is_stopped`: whether no work is handed out now. `context`: without, no cluster is on probation.
        """
        self._context = context
        self._is_stopped = is_stopped
        self._layout = layout
        self._access = access
        self._owners = LeaseOwners(access) if access is not None else None
        self._usage = ProjectCores()
        self._bypassed = BypassTimes()
        self._passed_over: dict[str, int] = {}  # cluster → how often in turn an array was locked by another server

    def apply_leases(self, batch: Batch, requests: list[LeaseRequest]) -> list[Any]:
        """Answer all agents in one round. Agents of one cluster take from its queue in the order of their requests."""
        sessions = clusters.agent_sessions(batch.tx, [request.agent_id for request in requests])
        paused = {agent for agent, row in sessions.items() if row.is_paused}
        is_stopped = self._is_stopped()
        requests = [
            replace(request, want=0) if is_stopped or request.agent_id in paused else request for request in requests
        ]
        valid = [
            request
            for request in requests
            if request.agent_id in sessions and _has_session(request, sessions[request.agent_id])
        ]
        wants: dict[str, int] = {}
        for request in valid:
            if request.want:
                wants[request.cluster_id] = wants.get(request.cluster_id, 0) + request.want
        candidates = self._candidates(batch, wants) if wants else {}
        round_ = _LeaseRound(batch, self._bypassed, candidates, CanaryGate(self._context, batch, wants))
        queues = self._queues(batch, candidates)
        # Clusters that only poll get the cancels with their reports (pollers.py).
        agent_ids = [request.agent_id for request in valid if request.backend != POLLING_BACKEND]
        cancels = _cancels(batch, agent_ids) if agent_ids else {}
        results: list[Any] = []
        leased: list[tuple[str, str]] = []
        for request in requests:
            if request.agent_id not in sessions:
                results.append(Gone("This agent was removed."))
            elif not _has_session(request, agent := sessions[request.agent_id]):
                results.append(Resync())
            elif (answer := rival_answer(agent, batch.now_us)) is not None and not request.is_fresh:
                results.append(LeaseAnswer(agent.session, [], [], [], is_asked=True))
            else:
                if answer is not None:
                    clusters.agent_change(batch.tx, request.agent_id, answer)
                picks = []
                if (queue := queues.get(request.cluster_id)) is not None:
                    more = partial(self._extend, round_, request.cluster_id, wants[request.cluster_id], queue)
                    picks = choose_jobs(queue, request, round_, more=more)
                job_leases = [lease for row, count in picks for lease in self._give(round_, request, row, count)]
                leased += [(row.id, request.agent_id) for row, _ in picks if row.array is None]
                attempts = cancels.get(request.agent_id, [])
                new_cancels = [AttemptRef(*attempt) for attempt in attempts if attempt not in request.cancelling]
                results.append(LeaseAnswer(agent.session, job_leases, new_cancels, []))
        leases.lease_give(batch.tx, leased, at_us=batch.now_us)
        round_.groups.park()
        round_.gate.flush()
        round_.arrays.flush()
        return results

    def _candidates(self, batch: Batch, wants: dict[str, int]) -> dict[str, list[LeaseCandidate]]:
        """Return the first ready jobs of each cluster. Jobs whose owner is deleted or disabled are unassigned."""
        passed_over: set[str] = set()
        candidates = leases.lease_candidates(batch.tx, wants, passed_over=passed_over)
        self._passed_over = {name: 1 + self._passed_over.get(name, 0) for name in passed_over}
        # Another server leases the same array now: ask again after this commit.
        batch.clusters |= {name for name, times in self._passed_over.items() if times <= ASK_AGAIN_MAX}
        for rows in candidates.values():
            leases.require_readable_candidates(rows)
        for cluster_id, rows in candidates.items():
            if any(row.alternatives is not None for row in rows):
                rows[:] = [row if row.alternatives is None else with_chosen_set(row, cluster_id) for row in rows]
        return candidates if self._owners is None else self._owners.eligible_candidates(batch, candidates)

    def _queues(
        self, batch: Batch, candidates: dict[str, list[LeaseCandidate]]
    ) -> dict[str, FairQueue[LeaseCandidate]]:
        """Return a fair queue for each cluster. The queues share one count of cores by project."""
        projects = {row.project for rows in candidates.values() for row in rows}
        # Fair share between projects needs no count of cores when there is only one project.
        cores = self._usage.cores(batch.tx, batch.now_us) if len(projects) > 1 else {}
        return {cluster: FairQueue.of(self._lanes(cluster, rows, batch), cores) for cluster, rows in candidates.items()}

    def _lanes(
        self, cluster_id: str, rows: list[LeaseCandidate], batch: Batch
    ) -> list[list[QueuedJob[LeaseCandidate]]]:
        queues, lanes = self._layout().queues, []
        by_lane: dict[str, list[LeaseCandidate]] = {}
        for row in rows:
            by_lane.setdefault(row.lane, []).append(row)
        for lane, jobs_of_lane in by_lane.items():
            queue = queue_named(queues, Lane.read(lane).queue)
            aged = self._bypassed.aged(
                cluster_id, (row.id for row in jobs_of_lane), now_us=batch.now_us, ageing_us=queue.ageing_us
            )
            lanes.append([ordered_job_of(row, queue, is_aged=row.id in aged) for row in jobs_of_lane])
        return lanes

    def _extend(self, round_: _LeaseRound, cluster_id: str, want: int, queue: FairQueue[LeaseCandidate]) -> bool:
        """Add jobs from behind misfitting jobs to the queue, once in a round. Returns whether jobs were added."""
        rows = round_.candidates.pop(cluster_id, [])
        lengths = Counter(row.lane for row in rows)
        if max(lengths.values(), default=0) < want:
            return False  # the candidates were all jobs of every lane
        seen = {row.id for row in rows}
        candidates = self._candidates(round_.batch, {cluster_id: want + LOOK_PAST_MAX // len(lengths) + 1})
        new = [row for row in candidates[cluster_id] if row.id not in seen and round_.groups.is_locked(row)]
        leases.require_readable_candidates(new)
        round_.arrays.load([row for row in new if row.array is not None], is_tolerant=False)
        queue.add(self._lanes(cluster_id, new, round_.batch))
        return bool(new)

    def _give(self, round_: _LeaseRound, request: LeaseRequest, row: LeaseCandidate, count: int) -> list[Lease]:
        """Lease one job. Returns one lease, or for an array one lease for each range of consecutive tasks."""
        State(row.state)  # raises ValueError if the state is damaged: such a job is not leased
        self._bypassed.forget(request.cluster_id, row.id)
        lease = self._lease(row, request.cluster, job=row.id)
        if row.array is None:
            round_.batch.job_event(row, EventKind.LEASED)
            round_.gate.note(row, request.cluster_id, [row.fence])
            return [lease]
        array, number = round_.arrays.job(row.id), number_at(row, request.cluster_id)
        cuts = lease_tasks(round_.batch, array, request.cluster_id, request.agent_id, count, alternative=number)
        row = replaced(row, cluster_id=request.cluster_id)  # the events name the cluster that leases the tasks
        for cut in cuts:
            round_.batch.job_event(row, EventKind.LEASED, f"tasks {cut.lo}-{cut.hi}")
        fences = (fence for cut in cuts for fence in range(cut.fence, cut.fence + cut.hi - cut.lo + 1))
        round_.gate.note(row, request.cluster_id, fences)
        return [replaced(lease, attempt=cut.attempt, fence=cut.fence, lo=cut.lo, hi=cut.hi) for cut in cuts]

    def _lease(self, row: LeaseSource, cluster: str, *, job: str) -> Lease:
        native = queue_named(self._layout().queues, Lane.read(row.lane).queue).native.get(cluster)
        is_admin = self._access is not None and row.owner_id in self._access().platform_admins
        lease = build_lease(row, cluster, native=native, job=job, is_owner_admin=is_admin)
        avoided = avoided_nodes(self._context, cluster, row.owner_id or row.owner)
        return replaced(lease, avoid_nodes=avoided) if avoided else lease

    def _repeated_lease(self, row: LeasedJob | HeldRange, cluster: str) -> Lease:
        """Return the lease of an attempt, or of a whole range, that its agent may not have received."""
        require_readable(row)
        if isinstance(row, HeldRange):
            return self._lease(with_leased_set(row), cluster, job=row.job_id)
        if row.alternatives is not None:
            row = with_chosen_set(row, row.cluster_id or "")
        return self._lease(row, cluster, job=row.id)

    def apply_syncs(self, batch: Batch, requests: list[SyncRequest]) -> list[Any]:
        """Begin sessions: deliver leases again that never arrived, and list the attempts to stop."""
        results: dict[int, Any] = {}
        # Sorted by agent id, so that all servers lock in one order. Two requests of one agent begin two sessions.
        for index in sorted(range(len(requests)), key=lambda position: requests[position].agent_id):
            request = requests[index]
            session = begin_session(batch, request)
            if isinstance(session, YardError):
                results[index] = session
                continue
            batch.topics.add(Topic.SEEN)  # tells the other servers immediately that the agent is alive
            agent_id = request.agent_id
            leased = {(row.id, row.fence): row for row in leases.leased_by(batch.tx, agent_id)}
            undelivered = [row for key, row in leased.items() if key not in request.inventory]
            if self._owners is not None:
                undelivered = self._owners.end_undelivered(batch, undelivered)
            job_leases = read_each("jobs", undelivered, partial(self._repeated_lease, cluster=request.cluster))
            tasks, task_leases = self._leased_tasks(batch, request)
            cancels = [AttemptRef(job, fence) for job, fence in _cancels(batch, [agent_id]).get(agent_id, [])]
            known = set(leased) | tasks | _with_unknown_fence(leased, request)
            stops = [Stop(*attempt, "not leased to this agent") for attempt in attempts_to_stop(batch, request, known)]
            results[index] = LeaseAnswer(session, [*job_leases, *task_leases], cancels, stops)
        return [results[index] for index in range(len(requests))]

    def _leased_tasks(self, batch: Batch, request: SyncRequest) -> tuple[set[tuple[str, int]], list[Lease]]:
        """Return all live tasks leased to an agent, and new leases of the tasks that the agent does not know."""
        leased: set[tuple[str, int]] = set()
        task_leases: list[Lease] = []
        rows = ranges.range_leased_by(batch.tx, request.agent_id)
        if self._owners is not None and self._owners.return_undelivered_tasks(batch, request, rows):
            rows = ranges.range_leased_by(batch.tx, request.agent_id)
        for row in rows:
            attempts = {position: (row.job_id, row.fence + position) for position in live_positions(row.tasks)}
            leased.update(attempts.values())
            missing = IdSet.of(position for position, attempt in attempts.items() if attempt not in request.inventory)
            if not missing:
                continue
            lease_of_row = partial(self._repeated_lease, cluster=request.cluster)
            readable = read_each("jobs", [row], lease_of_row, key="job_id")
            if not readable:
                continue
            lease = readable[0]
            attempt = 1 + len(ranges.range_spans(batch.tx, row.job_id, row.lo, row.lo, before_fence=row.fence))
            for first, last in missing.spans():
                fence, lo, hi = row.fence + first, row.lo + first, row.lo + last
                task_leases.append(replaced(lease, attempt=attempt, fence=fence, lo=lo, hi=hi))
        return leased, task_leases


class _LeaseRound:
    """Data that all clusters share in one round of leases."""

    def __init__(
        self, batch: Batch, bypassed: BypassTimes, candidates: dict[str, list[LeaseCandidate]], gate: CanaryGate
    ) -> None:
        self.batch = batch
        self.gate = gate
        self.bypassed = bypassed
        self.candidates = dict(candidates)
        rows = [row for rows_of_cluster in candidates.values() for row in rows_of_cluster]
        self.arrays = BatchArrays(batch)
        self.arrays.load([row for row in rows if row.array is not None], is_tolerant=False)
        self.groups = ConcurrencyGroups(batch, rows)

    def size(self, row: LeaseCandidate, request: LeaseRequest) -> int:
        """Return how many tasks the cluster may lease by the limits of the array and of its group; a plain job: one."""
        if row.array is None:
            return self.groups.limit(row, self.gate.limit(row, request.cluster_id, 1))
        array = self.arrays.job(row.id)
        if not array.is_ready:
            return 0  # its cluster refused it: the release of its group made the row ready without knowing that
        count = min(len(array.split_todo(request.cluster_id)[0]), array.spare)
        if request.room is None and len(lessee_ids(row)) > 1:
            count = min(count, queue_room(array.ranges.values(), request.cluster_id))
        return self.groups.limit(row, self.gate.limit(row, request.cluster_id, count, array))

    def is_busy(self, agent_id: str) -> bool:
        """Return whether the agent has leased jobs, whose end will free resources."""
        return leases.leased_count(self.batch.tx, [agent_id]) > 0


def choose_jobs(
    queue: FairQueue[LeaseCandidate], request: LeaseRequest, round_: _LeaseRound, *, more: Callable[[], bool]
) -> list[tuple[LeaseCandidate, int]]:
    """Take the jobs that fit, in queue order. Returns each job with its number of tasks (1 unless an array).

    Jobs for another backend, arrays at their limit and jobs of full groups are skipped. A job that does not fit is
    bypassed for its queue's `ageing`. Then it goes first in its priority and blocks all jobs behind it until it fits,
    unless nothing runs here: waiting would free no resources. `more` adds jobs to the queue if there are any.
    """
    picks: list[tuple[LeaseCandidate, int]] = []
    skipped: list[QueuedJob[LeaseCandidate]] = []
    want, room, spec_bytes, has_misfits = request.want, request.room, SPECS_BYTES_MAX, False
    while want > 0 and spec_bytes > 0:
        job = queue.next()
        if job is None:
            if has_misfits and more():
                continue
            break
        row = job.row
        if not _is_for_backend(row, request):
            skipped.append(job)
            continue
        if request.left_s is not None and not _ends_in_time(row, request.left_s):
            skipped.append(job)
            has_misfits = True  # another agent of the cluster goes on for longer
            continue
        size = round_.size(row, request)
        has_misfits |= round_.gate.has_held
        count = min(size, want, _count_fitting(row, room), spec_bytes // len(row.spec) + 1)
        if count:
            spec_bytes -= count * len(row.spec)
            picks.append((row, count))
            round_.groups.add_running(row, count)
            queue.give(job, row.cores * count)
            want -= count
            room = _room_after(room, row, count)
        if count < size:
            skipped.append(job)
        if size and not count and row.cluster_id != request.cluster_id:
            has_misfits = True  # an array of another cluster, which keeps room for it once it is aged
        elif size and not count:
            has_misfits = True
            round_.bypassed.note(request.cluster_id, row.id, round_.batch.now_us)
            if job.is_aged and (picks or round_.is_busy(request.agent_id)):
                break
    queue.put_back(skipped)
    return picks


def _with_unknown_fence(leased: Iterable[tuple[str, Any]], request: SyncRequest) -> set[tuple[str, int]]:
    """Return the agent's attempts whose job row has an unreadable fence. They are not stopped."""
    damaged = {job for job, fence in leased if not isinstance(fence, int)}
    return {(job, fence) for job, fence in request.inventory if job in damaged} if damaged else set()


def _has_session(request: LeaseRequest, agent: clusters.AgentSession) -> bool:
    """Return whether the request belongs to the agent's current session and to the process that began it."""
    is_same_process = request.incarnation in (None, agent.incarnation)
    return request.session is None or (request.session == agent.session and is_same_process)


def _is_for_backend(row: LeaseCandidate, request: LeaseRequest) -> bool:
    """Return whether this agent's backend is the first backend of the job's list that the cluster has.

    A cluster that only polls gets no arrays: it cannot report on single tasks.
    """
    if request.backend == POLLING_BACKEND and row.array is not None:
        return False
    wanted = row.lane.partition(" ")[2]
    if not wanted:
        return True
    first: str | None = next((backend for backend in wanted.split(",") if backend in request.backends), None)
    if first is not None:
        return first == request.backend
    return not decode_bounds(row.bounds).needs_backend


def _ends_in_time(row: LeaseCandidate, left_s: int) -> bool:
    """Return whether the job's time limit allows it to end before its agent does."""
    limit = msgspec.json.decode(row.spec, type=_TimedSpec).resources.time_limit
    return limit is not None and parse_duration_s(limit) <= left_s


def _count_fitting(row: LeaseCandidate, room: Room | None) -> int:
    """Return how many tasks of this job fit into the room."""
    if room is None:
        return BATCH_MAX
    pairs = ((row.cores, room.cores), (row.gpus, room.gpus), (row.memory_bytes, room.memory_bytes))
    return min((free // needed for needed, free in pairs if needed), default=BATCH_MAX)


def _room_after(room: Room | None, row: LeaseCandidate, count: int) -> Room | None:
    if room is None:
        return None
    memory_bytes = room.memory_bytes - count * row.memory_bytes
    return Room(room.cores - count * row.cores, room.gpus - count * row.gpus, memory_bytes)


def _cancels(batch: Batch, agent_ids: list[str]) -> dict[str, list[tuple[str, int]]]:
    """Return, by agent, the attempts of jobs and tasks that are to be cancelled."""
    cancels: dict[str, list[tuple[str, int]]] = {}
    for agent_id, rows in leases.leased_cancels(batch.tx, agent_ids).items():
        cancels.setdefault(agent_id, []).extend((row.id, row.fence) for row in rows)
    for row in ranges.range_cancelling(batch.tx, agent_ids):
        positions = live_positions(row.tasks) if row.cancel_us is not None else cancelling_positions(row.tasks)
        cancels.setdefault(row.agent_id, []).extend((row.job_id, row.fence + position) for position in positions)
    return cancels


def build_lease(row: LeaseSource, cluster: str, *, native: str | None, job: str, is_owner_admin: bool) -> Lease:
    return Lease(
        job=job,
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
        queue=Lane.read(row.lane).queue,
        native_queue=native,
        known=row.fence_known,
        spec=msgspec.Raw(_spec_for_agent(row.spec).encode()),
    )


def _spec_for_agent(body: str) -> str:
    """Return the spec without the rules of its retries: an agent needs none, and one of an older version knows none."""
    if '"on":{' not in body:
        return body
    spec = msgspec.json.decode(body)
    if isinstance(spec.get("retry"), dict):
        spec["retry"].pop("on", None)
    return msgspec.json.encode(spec).decode()


class ConcurrencyGroups:
    """The groups of the queued jobs. The count of each group is read under a lock that all servers take."""

    def __init__(self, batch: Batch, rows: Iterable[LeaseCandidate]) -> None:
        self._batch = batch
        self._parked: dict[str, list[str]] = {}  # job ids by reason
        names = sorted({row.crowd for row in rows if row.crowd is not None})
        if names:
            store.concurrency_group_lock(batch.tx, names)
        self._live = store.concurrency_group_live_counts(batch.tx, names) if names else {}

    def is_locked(self, row: LeaseCandidate) -> bool:
        """Return whether the job's group is locked. Locking further groups later could deadlock two servers."""
        return row.crowd is None or row.crowd in self._live

    def limit(self, row: LeaseCandidate, size: int) -> int:
        """Return how many of `size` tasks the job's group allows now. If none is allowed, note the job to be parked."""
        if row.crowd is None or not size:
            return size
        assert row.crowd_max is not None, "require_readable_candidates has checked it"
        free = max(0, row.crowd_max - self._live[row.crowd])
        if not free:
            reason = f"waits: {row.crowd_max} jobs of workflow {row.workflow} run, and no more may (max_parallelism)"
            self._parked.setdefault(reason, []).append(row.id)
        return min(size, free)

    def add_running(self, row: LeaseCandidate, count: int) -> None:
        if row.crowd is not None:
            self._live[row.crowd] += count

    def park(self) -> None:
        for reason, job_ids in self._parked.items():
            store.concurrency_group_park(self._batch.tx, job_ids, reason)


# Handle attempts that an agent has and the database does not know: adopt them after a restore, else stop them.
#
# An agent may name 100,000 attempts. One sort or set difference of that size holds the interpreter lock for a tenth of
# a second and delays all other threads, so this module works item by item or in short runs.

SORT_RUN = 5_000  # attempts sorted in one call, which takes some milliseconds
JobFence = tuple[str, int]


def attempts_to_stop(batch: Batch, request: SyncRequest, known: set[JobFence]) -> list[JobFence]:
    """Return the attempts that are not leased to this agent and cannot be adopted, sorted."""
    unknown = [attempt for attempt in request.inventory if attempt not in known]
    adopted = _adopt(batch, request, unknown)
    return sort_in_runs(attempt for attempt in unknown if attempt not in adopted)


def sort_in_runs(attempts: Iterable[JobFence]) -> list[JobFence]:
    """Sort in short runs: other threads get the interpreter in between."""
    remaining = iter(attempts)
    runs: list[list[JobFence]] = []
    while run := sorted(islice(remaining, SORT_RUN)):
        runs.append(run)
    return runs[0] if len(runs) == 1 else list(merge(*runs))


def _adopt(batch: Batch, request: SyncRequest, unknown: list[JobFence]) -> set[JobFence]:
    """Adopt attempts that the agent has had since before a database restore. Returns the adopted attempts."""
    fences: dict[str, int] = {}
    for job, fence in unknown:
        fences[job] = max(fence, fences.get(job, fence))  # the last attempt of a job replaced the earlier ones
    job_ids = restore_recovery.job_ids_from_backup(batch.tx, list(fences))
    adopted: set[JobFence] = set()
    for row in jobs.job_lock(batch.tx, job_ids).values() if job_ids else ():
        step = adopt_attempt(life_of(row), fences[row.id])
        update = adoption_update(batch, row, request.agent_id, step) if step is not None else None
        if step is not None and update is not None:
            jobs.job_update_many(batch.tx, {row.id: update})
            record_step(batch, row, step)
            adopted.add((row.id, fences[row.id]))
    return adopted
