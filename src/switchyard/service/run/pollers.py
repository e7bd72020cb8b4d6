"""Clusters that only poll: no agent of ours stands beside them. They receive, and accept.

What such a cluster receives is leased to it for a minute under a number that fits in 32 bits; accepted, the job is its
own. What was received and not accepted comes back when the lease is over, and is given out under a new number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from switchyard.errors import Denied, PolicyRefused
from switchyard.model.cluster import POLLING_BACKEND
from switchyard.model.lifecycle import FINAL_STATES, ObservedState, ReportAnswer, assign, return_lease
from switchyard.model.poll import BATCH_MAX, Lease, Report
from switchyard.model.queue import uncounted_lane
from switchyard.service.committer import Batch
from switchyard.service.context import Context
from switchyard.service.fleet import AgentEntry
from switchyard.service.run.lease import LeaseAnswer, LeaseRequest, Leasing
from switchyard.service.run.report import (
    HANDED_OVER_REASON,
    ReportAnswers,
    ReportWrite,
    apply_reports,
    archive_attempt,
    life_of,
    record_step,
    step_columns,
)
from switchyard.service.submit.queue_places import QUEUES_CHANGED
from switchyard.store import handovers, jobs

ANSWER_BYTES = 4 * 2**20 - 64 * 1024  # its clients take 4 MiB, of which the wire needs a little
WIRE_BYTES = 32  # of one job in the answer, besides its text
LEASES_PER_STEP = 64  # jobs leased at once while an answer fills
ROUND_MAX = 500


@dataclass(frozen=True, slots=True)
class Handover:
    """One job for a cluster that polls. `jobspec`: as its submitter wrote it, if they wrote one."""

    number: int
    lease: Lease
    jobspec: str | None


class _AnswerTooLarge(Exception):
    """More than one answer holds: what was leased is put back."""


def receive_jobs(
    context: Context, leasing: Leasing, entry: AgentEntry, *, most: int, lease_us: int, write: Callable[[Handover], str]
) -> dict[int, str]:
    """The next jobs of this cluster, each under a number, as `write` writes them; as many as one answer holds."""
    requeue_unaccepted(context, lease_us=lease_us, cluster_id=entry.cluster_id)
    want = most if 0 < most < BATCH_MAX else BATCH_MAX
    member = context.snapshots.world.by_id.get(entry.cluster_id)
    if member is None:
        raise Denied("request denied: this cluster was deleted.", next_step="Register it again.")

    def apply(batch: Batch) -> dict[int, str]:
        ask = LeaseRequest(
            entry.id,
            member.id,
            member.name,
            session=None,
            want=0,
            room=None,
            backend=POLLING_BACKEND,
            backends=member.backends,
        )
        found: dict[int, str] = {}
        spare, step = ANSWER_BYTES, LEASES_PER_STEP
        while (asked := min(step, want - len(found))) > 0:
            # One that is too large for any answer goes alone: some clients take more.
            room = spare if found or asked > 1 else None
            more = _take(batch, leasing, replace(ask, want=asked), write, room=room)
            if more is None:
                step = asked // 2
                continue
            found |= more
            spare -= _size(more)
            if len(more) < asked:
                break
        return found

    return context.committer.call(apply)


def _take(
    batch: Batch, leasing: Leasing, ask: LeaseRequest, write: Callable[[Handover], str], *, room: int | None
) -> dict[int, str] | None:
    """Lease and number so many; none, and nothing was done, if they do not fit."""
    before = len(batch.events)
    with suppress(_AnswerTooLarge), nullcontext() if room is None else batch.tx.begin_nested():
        given = leasing.apply_leases(batch, [ask])[0]
        if not isinstance(given, LeaseAnswer):
            raise given
        found = {handed.number: write(handed) for handed in _number(batch, ask.cluster_id, given.leases)}
        if room is not None and _size(found) > room:
            raise _AnswerTooLarge
        return found
    del batch.events[before:]
    return None


def _size(texts: dict[int, str]) -> int:
    return sum(len(text.encode()) + WIRE_BYTES for text in texts.values())


def _number(batch: Batch, cluster_id: str, leases: list[Lease]) -> list[Handover]:
    ids = [lease.job for lease in leases]
    drawn, specs = handovers.handover_submitted(batch.tx, ids)
    handovers.handover_receive(
        batch.tx,
        [
            {"number": drawn[lease.job], "fence": lease.fence, "received_us": batch.now_us}
            for lease in leases
            if lease.job in drawn
        ],
    )
    fresh = [lease for lease in leases if lease.job not in drawn]
    numbers = handovers.handover_insert(
        batch.tx,
        [handover_row(lease.job, cluster_id, fence=lease.fence, received_us=batch.now_us) for lease in fresh],
    )
    refuse_number_overflow(numbers)
    number_of = dict(zip((lease.job for lease in fresh), numbers, strict=True))
    number_of |= drawn
    return [Handover(number_of[lease.job], lease, specs.get(lease.job)) for lease in leases]


def handover_row(
    job_id: str,
    cluster_id: str,
    *,
    jobspec: str | None = None,
    fence: int | None = None,
    received_us: int | None = None,
) -> dict[str, object]:
    return {
        "job_id": job_id,
        "cluster_id": cluster_id,
        "fence": fence,
        "jobspec": jobspec,
        "received_us": received_us,
        "accepted_us": None,
        "is_open": fence is not None,
        "is_counted": False,
    }


def accept_jobs(context: Context, entry: AgentEntry, numbers: Sequence[int]) -> int:
    """These are the cluster's own from here on; how many of them it was."""
    found = _read_handovers(context, entry, numbers)

    def apply(batch: Batch) -> int:
        _reread_jobs(batch, found.values())
        rows = handovers.handover_get(batch.tx, entry.cluster_id, list(found))
        still = [row for row in rows.values() if row.is_open]
        reports = [
            Report(row.job_id, row.fence, ObservedState.SUBMITTED, native_id=str(row.number), reason=HANDED_OVER_REASON)
            for row in still
        ]
        taken = _report_for_poller(batch, entry, reports)
        numbers = [row.number for row, answer in zip(still, taken, strict=True) if answer is ReportAnswer.TAKEN]
        handovers.handover_close(batch.tx, numbers, accepted_us=batch.now_us)
        return len(numbers)

    return context.committer.call(apply, locks=[row.job_id for row in found.values()])


def report_ends(
    context: Context, entry: AgentEntry, reports: Sequence[tuple[int, Report]]
) -> tuple[list[int], list[int], list[int]]:
    """What became of accepted jobs, by number: which reports were taken, which refused, and whose end was asked for."""
    found = _read_handovers(context, entry, [number for number, _ in reports])

    def apply(batch: Batch) -> tuple[list[int], list[int], list[int]]:
        _reread_jobs(batch, found.values())
        rows = handovers.handover_get(batch.tx, entry.cluster_id, list(found))
        known = [(number, item) for number, item in reports if number in rows and rows[number].accepted_us is not None]
        told = [
            msgspec.structs.replace(item, job=rows[number].job_id, fence=rows[number].fence) for number, item in known
        ]
        answers = _report_for_poller(batch, entry, told)
        states = {number: job.state for number, _ in known if (job := batch.rows.get(rows[number].job_id)) is not None}
        taken = []
        for (number, item), answer in zip(known, answers, strict=True):
            # The same once more is no mistake: an answer may have been lost.
            if answer is ReportAnswer.TAKEN or (answer is ReportAnswer.STALE and states.get(number) == item.seen.value):
                states[number] = item.seen.value
                taken.append(number)
        asked = [number for number, _ in known if _is_cancelling(batch, rows[number])]
        return taken, sorted({number for number, _ in reports} - set(taken)), asked

    return context.committer.call(apply, locks=[row.job_id for row in found.values()])


def _read_handovers(context: Context, entry: AgentEntry, numbers: Sequence[int]) -> dict[int, handovers.Row]:
    with context.database.read() as tx:
        return handovers.handover_get(tx, entry.cluster_id, numbers)


def _reread_jobs(batch: Batch, rows: Iterable[handovers.Row]) -> None:
    """The jobs are locked; but another call of this very batch may have changed them since."""
    if batch.writes == 1:
        return
    batch.rows |= jobs.job_lock(batch.tx, [row.job_id for row in rows])


def _is_cancelling(batch: Batch, row: handovers.Row) -> bool:
    job = batch.rows.get(row.job_id)
    return job is not None and job.cancel_us is not None and job.fence == row.fence


def _report_for_poller(batch: Batch, entry: AgentEntry, reports: list[Report]) -> list[ReportAnswer]:
    if not reports:
        return []
    settled: ReportAnswers = apply_reports(batch, [ReportWrite(entry.id, tuple(reports))])[0]
    return settled.answers


def requeue_unaccepted(context: Context, *, lease_us: int, cluster_id: str | None = None) -> int:
    """What was received and not accepted within its lease waits in its cluster's line again."""
    before_us = context.now_us() - lease_us
    with context.database.read() as tx:
        overdue = handovers.handover_overdue(tx, received_before_us=before_us, limit=ROUND_MAX, cluster_id=cluster_id)
    if not overdue:
        return 0

    def apply(batch: Batch) -> int:
        changes = {}
        _reread_jobs(batch, overdue)
        still = handovers.handover_still_open(batch.tx, [row.number for row in overdue])
        for row in still:  # the others were accepted meanwhile
            job = batch.rows.get(row.job_id)
            if job is None or job.fence != row.fence or job.agent_id is None or job.state != "ASSIGNED":
                continue  # it ended, or went elsewhere
            changes[job.id] = _next_attempt_columns(batch, job)
        jobs.job_update_many(batch.tx, changes)
        handovers.handover_close(batch.tx, [row.number for row in still], accepted_us=None)
        return len(changes)

    return context.committer.call(apply, locks=[row.job_id for row in overdue])


def _next_attempt_columns(batch: Batch, job: jobs.Row) -> dict[str, Any]:
    """The next attempt at the same cluster; the one before is over under a fence that holds no more."""
    back = return_lease(life_of(job), "received, and not accepted in time")
    assert back is not None
    record_step(batch, job, back)
    if back.life.state in FINAL_STATES:
        return step_columns(batch, job, back)
    archive_attempt(batch, job, back)
    batch.free(job)
    step = assign(back.life)
    record_step(batch, job, step)
    batch.clusters.add(job.cluster_id)
    return {
        "state": step.life.state.value,
        "reason": back.reason,
        "agent_id": None,
        "leased_us": None,
        "attempt": step.life.attempt,
        "fence": step.life.fence,
        "assigned_us": batch.now_us,
        "is_ready": True,
    }


def release_unreported(context: Context, *, ttl_us: int) -> int:
    """A job whose end nobody reported for so long stays as it is, and takes up no place any more."""
    with context.database.read() as tx:
        old = handovers.handover_unreported(tx, accepted_before_us=context.now_us() - ttl_us, limit=ROUND_MAX)
    if not old:
        return 0

    def apply(batch: Batch) -> int:
        changes: dict[str, dict[str, Any]] = {}
        _reread_jobs(batch, old)
        for row in old:
            job = batch.rows.get(row.job_id)
            if job is not None and job.fence == row.fence and job.state in ("SUBMITTED", "RUNNING"):
                batch.free(job)
                batch.versions.add(QUEUES_CHANGED)
                changes[job.id] = {
                    "lane": uncounted_lane(job.lane),
                    "crowd": None,
                    "crowd_max": None,
                    "tokens": None,
                }
        jobs.job_update_many(batch.tx, changes)
        handovers.handover_stop_counting(batch.tx, [row.number for row in old])
        return len(changes)

    return context.committer.call(apply, locks=[row.job_id for row in old])


def refuse_number_overflow(numbers: Sequence[int]) -> None:
    if numbers and max(numbers) > handovers.NUMBER_MAX:
        # Not Unavailable: that would be said to everybody in the batch.
        raise PolicyRefused("All numbers that Rainbow's clients can hold are used up.", next_step="Use `yard submit`.")
