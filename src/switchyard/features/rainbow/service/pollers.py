"""Hand jobs to clusters that poll without an agent, as Rainbow clusters do.

The cluster receives jobs, each leased under a 32-bit number, and then accepts them. An accepted job belongs to the
cluster. A job that is not accepted before its lease ends is requeued, and later received under a new number.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock

import msgspec

from switchyard.errors import Denied
from switchyard.features.rainbow.service.handovers import handover_row, refuse_number_overflow
from switchyard.model.cluster.cluster import POLLING_BACKEND
from switchyard.model.cluster.poll import BATCH_MAX, Lease, Report
from switchyard.model.job.lifecycle import FINAL_STATES, ObservedState, ReportAnswer, assign, return_lease
from switchyard.model.rules.queue import uncounted_lane
from switchyard.route.member import Member
from switchyard.service.core.agents.fleet import AgentEntry
from switchyard.service.core.context import Context
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.service.core.writes.committer import BatchCall
from switchyard.service.lifecycle.lease_request import LeaseRequest
from switchyard.service.lifecycle.transitions import (
    HANDED_OVER_REASON,
    archive_attempt,
    life_of,
    record_step,
    step_update,
)
from switchyard.service.run.lease import LeaseAnswer, Leasing
from switchyard.service.run.report import ReportAnswers, ReportWrite, apply_reports
from switchyard.store.jobs import handovers, jobs
from switchyard.store.jobs.job_rows import JobRow
from switchyard.store.jobs.job_update import JobUpdate

ANSWER_BYTES = 4 * 2**20 - 64 * 1024  # gRPC clients accept 4 MiB, including a little framing
WIRE_BYTES = 32  # framing of one job in the answer
LEASES_PER_STEP = 64  # jobs leased in one step while the answer is filled
ROUND_MAX = 500
RECEIVED_MAX = 10_000  # jobs whose numbers are remembered until they are accepted


@dataclass(frozen=True, slots=True)
class Handover:
    """One job for a polling cluster. `jobspec`: the text that the user submitted, if it was a jobspec."""

    number: int
    lease: Lease
    jobspec: str | None


class ReceivedJobs:
    """The jobs of the last numbers given out here, so that an accept need not look up which jobs to lock.

    A number means one job for ever. The accept reads the hand-over itself in its transaction.
    """

    def __init__(self) -> None:
        self._jobs: OrderedDict[int, str] = OrderedDict()
        self._lock = Lock()

    def note(self, jobs_by_number: dict[int, str]) -> None:
        with self._lock:
            self._jobs |= jobs_by_number
            while len(self._jobs) > RECEIVED_MAX:
                self._jobs.popitem(last=False)

    def take(self, numbers: Sequence[int]) -> list[str] | None:
        """Return the jobs of these numbers and forget them. None: some number is not known here."""
        with self._lock:
            found = [self._jobs.pop(number, None) for number in set(numbers)]
        return None if None in found else [job for job in found if job is not None]


class _AnswerTooLarge(Exception):
    """The jobs exceed the size of one answer. Their leases are rolled back."""


@dataclass(frozen=True, kw_only=True)
class ReceiveRequest:
    """A cluster's request for jobs. `write`: makes the text of a job for the answer."""

    entry: AgentEntry
    most: int  # 0: as many as fit into one answer
    lease_us: int
    write: Callable[[Handover], str]
    received: ReceivedJobs | None = None


def receive_jobs(context: Context, leasing: Leasing, request: ReceiveRequest) -> dict[int, str]:
    """Lease the next jobs of this cluster, up to the size of one answer. Returns their texts, by job number."""
    texts: dict[int, str] | None = context.committer.do(receive_write(context, leasing, request))
    if texts is None:
        requeue_unaccepted(context, lease_us=request.lease_us, cluster_id=request.entry.cluster_id)
        texts = context.committer.do(receive_write(context, leasing, request, may_be_overdue=False))
    assert texts is not None, "overdue jobs are looked for once"
    return texts


def receive_write(
    context: Context, leasing: Leasing, request: ReceiveRequest, *, may_be_overdue: bool = True
) -> BatchCall:
    """Return the write of `receive_jobs`. Its result is None if the cluster has jobs that it did not accept in time.

    Such jobs have to be requeued first, unless `may_be_overdue` is false.
    """
    member = context.snapshots.world.by_id.get(request.entry.cluster_id)
    if member is None:
        raise Denied("request denied: this cluster was deleted.", next_step="Register it again.")
    return BatchCall(partial(_receive, leasing=leasing, request=request, member=member, may_be_overdue=may_be_overdue))


def _receive(
    batch: Batch, *, leasing: Leasing, request: ReceiveRequest, member: Member, may_be_overdue: bool
) -> dict[int, str] | None:
    entry, before_us = request.entry, batch.now_us - request.lease_us
    if may_be_overdue and handovers.handover_overdue(
        batch.tx, received_before_us=before_us, limit=1, cluster_id=entry.cluster_id
    ):
        return None
    jobs_by_number: dict[int, str] = {}

    def write(handover: Handover) -> str:
        jobs_by_number[handover.number] = handover.lease.job
        return request.write(handover)

    lease_request = LeaseRequest(
        entry.id,
        member.id,
        member.name,
        session=None,
        want=0,
        room=None,
        backend=POLLING_BACKEND,
        backends=member.backends,
    )
    want = request.most if 0 < request.most < BATCH_MAX else BATCH_MAX
    texts: dict[int, str] = {}
    free_bytes, step = ANSWER_BYTES, LEASES_PER_STEP
    while (count := min(step, want - len(texts))) > 0:
        # A job that is too large for any answer is sent alone: some clients accept more.
        bytes_max = free_bytes if texts or count > 1 else None
        asked = replace(lease_request, want=count)
        new_texts = _lease_and_number(batch, leasing, asked, write, bytes_max=bytes_max)
        if new_texts is None:
            step = count // 2
            continue
        texts |= new_texts
        free_bytes -= _size(new_texts)
        if len(new_texts) < count:
            break
    if (received := request.received) is not None:
        batch.settled.append(lambda: received.note({number: jobs_by_number[number] for number in texts}))
    return texts


def _lease_and_number(
    batch: Batch, leasing: Leasing, request: LeaseRequest, write: Callable[[Handover], str], *, bytes_max: int | None
) -> dict[int, str] | None:
    """Lease jobs and number them. If the texts exceed `bytes_max`, roll back and return none."""
    with suppress(_AnswerTooLarge), nullcontext() if bytes_max is None else batch.savepoint():
        answer = leasing.apply_leases(batch, [request])[0]
        if not isinstance(answer, LeaseAnswer):
            raise answer
        texts = {handover.number: write(handover) for handover in _number(batch, request.cluster_id, answer.leases)}
        if bytes_max is not None and _size(texts) > bytes_max:
            raise _AnswerTooLarge
        return texts
    return None


def _size(texts: dict[int, str]) -> int:
    return sum(len(text.encode()) + WIRE_BYTES for text in texts.values())


def _number(batch: Batch, cluster_id: str, leases: list[Lease]) -> list[Handover]:
    """Number the leases. A job submitted through Rainbow is first received under the number of its submission."""
    number_of, specs = handovers.handover_submitted(batch.tx, [lease.job for lease in leases])
    fences = {number_of[lease.job]: lease.fence for lease in leases if lease.job in number_of}
    handovers.handover_receive(batch.tx, fences, at_us=batch.now_us)
    unnumbered = [lease for lease in leases if lease.job not in number_of]
    numbers = handovers.handover_insert(
        batch.tx,
        [handover_row(lease.job, cluster_id, fence=lease.fence, received_us=batch.now_us) for lease in unnumbered],
    )
    refuse_number_overflow(numbers)
    number_of |= zip((lease.job for lease in unnumbered), numbers, strict=True)
    return [Handover(number_of[lease.job], lease, specs.get(lease.job)) for lease in leases]


def accept_jobs(
    context: Context, entry: AgentEntry, numbers: Sequence[int], received: ReceivedJobs | None = None
) -> int:
    """Mark these jobs as handed over to the cluster. Returns the number of jobs."""
    locks = received.take(numbers) if received is not None else None
    if locks is None:
        locks = [row.job_id for row in _read_handovers(context, entry, numbers).values()]
    accepted: int = context.committer.do(accept_write(entry, numbers, locks))
    return accepted


def accept_write(entry: AgentEntry, numbers: Sequence[int], locks: Sequence[str]) -> BatchCall:
    """Return the write of `accept_jobs`. `locks`: the jobs that have these numbers."""

    def apply(batch: Batch) -> int:
        _reread_jobs(batch, locks)
        rows = handovers.handover_get(batch.tx, entry.cluster_id, numbers)
        open_rows = [row for row in rows.values() if row.is_open]
        reports = [
            Report(row.job_id, row.fence, ObservedState.SUBMITTED, native_id=str(row.number), reason=HANDED_OVER_REASON)
            for row in open_rows
        ]
        answers = _report_for_poller(batch, entry, reports)
        accepted = [row.number for row, answer in zip(open_rows, answers, strict=True) if answer is ReportAnswer.TAKEN]
        handovers.handover_close(batch.tx, accepted, accepted_us=batch.now_us)
        return len(accepted)

    return BatchCall(apply, locks)


def report_ends(
    context: Context, entry: AgentEntry, reports: Sequence[tuple[int, Report]]
) -> tuple[list[int], list[int], list[int]]:
    """Apply reports on accepted jobs. Returns the numbers of taken and of refused reports, and of jobs to cancel."""
    handover_rows = _read_handovers(context, entry, [number for number, _ in reports])

    def apply(batch: Batch) -> tuple[list[int], list[int], list[int]]:
        _reread_jobs(batch, [row.job_id for row in handover_rows.values()])
        rows = handovers.handover_get(batch.tx, entry.cluster_id, list(handover_rows))
        known = [(number, item) for number, item in reports if number in rows and rows[number].accepted_us is not None]
        with_fences = [
            msgspec.structs.replace(item, job=rows[number].job_id, fence=rows[number].fence) for number, item in known
        ]
        answers = _report_for_poller(batch, entry, with_fences)
        states: dict[int, str] = {
            number: job.state for number, _ in known if (job := batch.rows.get(rows[number].job_id)) is not None
        }
        taken = []
        for (number, item), answer in zip(known, answers, strict=True):
            # A repeated report is taken: the answer to the first one may have been lost.
            if answer is ReportAnswer.TAKEN or (answer is ReportAnswer.STALE and states.get(number) == item.seen.value):
                states[number] = item.seen.value
                taken.append(number)
        cancelling = [number for number, _ in known if _is_cancelling(batch, rows[number])]
        return taken, sorted({number for number, _ in reports} - set(taken)), cancelling

    return context.committer.call(apply, locks=[row.job_id for row in handover_rows.values()])


def _read_handovers(context: Context, entry: AgentEntry, numbers: Sequence[int]) -> dict[int, handovers.HandoverRow]:
    with context.database.read() as tx:
        return handovers.handover_get(tx, entry.cluster_id, numbers)


def _reread_jobs(batch: Batch, job_ids: Iterable[str]) -> None:
    """Read the locked jobs again if another call of this batch may have changed them."""
    if batch.writes == 1:
        return
    batch.rows |= jobs.job_lock(batch.tx, job_ids)


def _is_cancelling(batch: Batch, row: handovers.HandoverRow) -> bool:
    job = batch.rows.get(row.job_id)
    return job is not None and job.cancel_us is not None and job.fence == row.fence


def _report_for_poller(batch: Batch, entry: AgentEntry, reports: list[Report]) -> list[ReportAnswer]:
    if not reports:
        return []
    result: ReportAnswers = apply_reports(batch, [ReportWrite(entry.id, tuple(reports))])[0]
    return result.answers


def requeue_unaccepted(context: Context, *, lease_us: int, cluster_id: str | None = None) -> int:
    """Requeue jobs that were received but not accepted within `lease_us`. They stay at their cluster."""
    before_us = context.now_us() - lease_us
    with context.database.read() as tx:
        overdue = handovers.handover_overdue(tx, received_before_us=before_us, limit=ROUND_MAX, cluster_id=cluster_id)
    if not overdue:
        return 0

    def apply(batch: Batch) -> int:
        updates: dict[str, JobUpdate] = {}
        _reread_jobs(batch, [row.job_id for row in overdue])
        still_open = handovers.handover_still_open(batch.tx, [row.number for row in overdue])
        for row in still_open:  # the others were accepted meanwhile
            job = batch.rows.get(row.job_id)
            if job is None or job.fence != row.fence or job.agent_id is None or job.state != "ASSIGNED":
                continue  # the job ended or moved
            updates[job.id] = _next_attempt(batch, job)
        jobs.job_update_many(batch.tx, updates)
        handovers.handover_close(batch.tx, [row.number for row in still_open], accepted_us=None)
        return len(updates)

    return context.committer.call(apply, locks=[row.job_id for row in overdue])


def _next_attempt(batch: Batch, job: JobRow) -> JobUpdate:
    """Begin the next attempt at the same cluster, under a higher fence."""
    returned = return_lease(life_of(job), "received, and not accepted in time")
    assert returned is not None
    record_step(batch, job, returned)
    if returned.life.state in FINAL_STATES:
        return step_update(batch, job, returned)
    archive_attempt(batch, job, returned)
    batch.free(job)
    step = assign(returned.life)
    record_step(batch, job, step)
    if job.cluster_id:
        batch.clusters.add(job.cluster_id)
    return JobUpdate(
        state=step.life.state,
        reason=returned.reason,
        agent_id=None,
        leased_us=None,
        attempt=step.life.attempt,
        fence=step.life.fence,
        assigned_us=batch.now_us,
        is_ready=True,
    )


def release_unreported(context: Context, *, ttl_us: int) -> int:
    """Free queue place, group slot and tokens of jobs accepted over `ttl_us` ago without a reported end."""
    with context.database.read() as tx:
        unreported = handovers.handover_unreported(tx, accepted_before_us=context.now_us() - ttl_us, limit=ROUND_MAX)
    if not unreported:
        return 0

    def apply(batch: Batch) -> int:
        updates: dict[str, JobUpdate] = {}
        _reread_jobs(batch, [row.job_id for row in unreported])
        for row in unreported:
            job = batch.rows.get(row.job_id)
            if job is not None and job.fence == row.fence and job.state in ("SUBMITTED", "RUNNING"):
                batch.free(job)
                batch.topics.add(Topic.QUEUES)
                updates[job.id] = JobUpdate(lane=uncounted_lane(job.lane), crowd=None, crowd_max=None, tokens=None)
        jobs.job_update_many(batch.tx, updates)
        handovers.handover_stop_counting(batch.tx, [row.number for row in unreported])
        return len(updates)

    return context.committer.call(apply, locks=[row.job_id for row in unreported])
