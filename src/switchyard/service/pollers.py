"""Clusters that only poll: no agent of ours stands beside them. They register themselves, receive, and accept.

What such a cluster receives is leased to it for a minute under a number that fits in 32 bits; accepted, the job is its
own. What was received and not accepted comes back when the lease is over, and is given out under a new number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from switchyard.errors import Denied, NameTaken, Unavailable
from switchyard.model.access import On
from switchyard.model.cluster import POLLS, ClusterRequest
from switchyard.model.lifecycle import FINAL, Answer, Seen, assign, give_back
from switchyard.model.poll import BATCH_MAX, Join, Lease, Report
from switchyard.model.queue import UNCOUNTED, lane_of
from switchyard.service import graphs
from switchyard.service.clusters import admitted_by, agent_row, register
from switchyard.service.committer import Batch
from switchyard.service.context import Context, audited, bump
from switchyard.service.credential import holds, make_credential, split_credential
from switchyard.service.lease import Given, LeaseAsk, Leasing
from switchyard.service.limits import FREED
from switchyard.service.report import ReportWrite, Settled, apply_reports, archive, change_of, life_of, record
from switchyard.service.snapshots import AgentEntry
from switchyard.service.submit_tokens import put_token
from switchyard.store import clusters, handovers, jobs
from switchyard.store import graphs as graph_store

AGENT_NAME = "poller"
HANDED_OVER = "handed over, end not reported"
ANSWER_BYTES = 2 * 2**20  # its clients take 4 MiB, of which the wire needs a little
ROUND_MAX = 500


@dataclass(frozen=True, slots=True)
class Registered:
    """Both are shown once."""

    token: str
    secret: str


@dataclass(frozen=True, slots=True)
class Handed:
    """One job for a cluster that polls. `jobspec`: as its submitter wrote it, if they wrote one."""

    number: int
    lease: Lease
    jobspec: str | None


def poller_register(context: Context, name: str, source: graphs.Source, *, join_token: str | None) -> Registered | None:
    """Register a cluster with what it has, all or nothing; none: the name is taken.

    `join_token`: the invitation by which it comes, which is used up; without, the caller has seen the server's secret.
    """
    request = Join(cluster=name, name=AGENT_NAME, journal=context.new_id(), backend=POLLS)
    parts = split_credential(join_token, "join") if join_token is not None else None
    if join_token is not None and parts is None:
        raise Denied("request denied: this is neither the registration secret nor a join token.")
    graph = graphs.compiled(context, {graphs.OPERATOR: source}, where=f"cluster {name}")
    assert graph is not None
    encoded = msgspec.json.encode(graph).decode()
    agent_id = context.new_id()
    secret, hash_ = make_credential("agent", agent_id)

    def apply(batch: Batch) -> Registered | None:
        row = clusters.cluster_by_name(batch.tx, name)
        if row is not None and not _is_vacant(batch, context, row, is_invited=parts is not None):
            return None
        if parts is not None:
            cluster_id = admitted_by(batch, parts, request)
        else:
            cluster_id = row.id if row else register(batch, context, AGENT_NAME, ClusterRequest(name))
        clusters.agent_insert(batch.tx, agent_row(batch, agent_id, cluster_id, hash_, request))
        graph_store.source_put(batch.tx, graphs.source_row(batch, cluster_id, graphs.OPERATOR, source, by=AGENT_NAME))
        clusters.cluster_change(batch.tx, cluster_id, {"backend": POLLS, "graph": encoded})
        bump(batch, "clusters")
        audited(batch, context, AGENT_NAME, "cluster.register", name, after={"agent": agent_id})
        return Registered(put_token(batch, context, On.CLUSTER, cluster_id), secret)

    try:
        found: Registered | None = context.committer.call(apply)
    except NameTaken:
        return None
    return found


def _is_vacant(batch: Batch, context: Context, row: clusters.Row, *, is_invited: bool) -> bool:
    """A name that the server's file has, or that an invitation is for, waits for whoever has the right to it."""
    is_expected = is_invited or row.name in context.snapshots.laid.base.clusters
    return is_expected and row.graph is None and not clusters.agent_count(batch.tx, row.id)


def poller(context: Context, name: str, secret: str) -> AgentEntry:
    """Whoever knows the secret of this cluster. A wrong name and a wrong secret are told the same."""
    parts = split_credential(secret, "agent")
    found = _held(context, name, parts) if parts else None
    if found is None and parts is not None:
        context.snapshots.refresh()  # it may have been registered at another server a moment ago
        found = _held(context, name, parts)
    if found is None:
        raise Denied("request denied: there is no such cluster, or this is not its secret.")
    return found


def _held(context: Context, name: str, parts: tuple[str, str]) -> AgentEntry | None:
    fleet = context.snapshots.fleet
    entry = fleet.agents.get(parts[0])
    if entry is None or entry.backend != POLLS or not holds(parts[1], entry.hash):
        return None
    row = fleet.rows.get(entry.cluster_id)
    return entry if row is not None and row.name == name else None


def receive(
    context: Context, leasing: Leasing, entry: AgentEntry, cluster: str, *, most: int, lease_us: int
) -> list[Handed]:
    """The next jobs of this cluster, each under a number; as many as one answer holds."""
    take_back(context, lease_us=lease_us, cluster_id=entry.cluster_id)
    want = most if 0 < most < BATCH_MAX else BATCH_MAX

    def apply(batch: Batch) -> list[Handed]:
        found: list[Lease] = []
        size, step = 0, 1
        while want > len(found) and size < ANSWER_BYTES:
            more = _lease(batch, leasing, entry, cluster, min(step, want - len(found)))
            found += more
            size += sum(len(lease.spec) for lease in more if isinstance(lease.spec, msgspec.Raw))
            if len(more) < step:
                break
            step *= 2  # few at first: one job may fill the whole answer
        return _number(batch, entry, found)

    return context.committer.call(apply)


def _lease(batch: Batch, leasing: Leasing, entry: AgentEntry, cluster: str, want: int) -> list[Lease]:
    session, _ = clusters.agent_sessions(batch.tx, [entry.id]).get(entry.id, (-1, False))
    ask = LeaseAsk(
        agent_id=entry.id,
        cluster_id=entry.cluster_id,
        cluster=cluster,
        session=session,
        want=want,
        room=None,
        backend=POLLS,
        backends=frozenset({POLLS}),
    )
    given = leasing.apply_leases(batch, [ask])[0]
    if not isinstance(given, Given):
        raise given
    return given.leases


def _number(batch: Batch, entry: AgentEntry, leases: list[Lease]) -> list[Handed]:
    ids = [lease.job for lease in leases]
    drawn = handovers.handover_undelivered(batch.tx, ids)
    handovers.handover_receive(
        batch.tx,
        [
            {"number": drawn[lease.job].number, "fence": lease.fence, "received_us": batch.now_us}
            for lease in leases
            if lease.job in drawn
        ],
    )
    fresh = [lease for lease in leases if lease.job not in drawn]
    specs = handovers.handover_jobspecs(batch.tx, ids)
    numbers = handovers.handover_insert(
        batch.tx,
        [handover_row(lease.job, entry.cluster_id, fence=lease.fence, received_us=batch.now_us) for lease in fresh],
    )
    number_of = dict(zip((lease.job for lease in fresh), numbers, strict=True))
    number_of |= {job: row.number for job, row in drawn.items()}
    return [Handed(number_of[lease.job], lease, specs.get(lease.job)) for lease in leases]


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


def accept(context: Context, entry: AgentEntry, numbers: Sequence[int]) -> int:
    """These are the cluster's own from here on; how many of them it was."""
    found = _given(context, entry, numbers)

    def apply(batch: Batch) -> int:
        rows = handovers.handover_get(batch.tx, entry.cluster_id, list(found))
        still = [row for row in rows.values() if row.is_open]
        reports = [
            Report(row.job_id, row.fence, Seen.SUBMITTED, native_id=str(row.number), reason=HANDED_OVER)
            for row in still
        ]
        taken = _reported(batch, entry, reports)
        numbers = [row.number for row, answer in zip(still, taken, strict=True) if answer is Answer.TAKEN]
        handovers.handover_close(batch.tx, numbers, accepted_us=batch.now_us)
        return len(numbers)

    return context.committer.call(apply, locks=[row.job_id for row in found.values()])


def report_ends(
    context: Context, entry: AgentEntry, reports: Sequence[tuple[int, Report]]
) -> tuple[list[int], list[int], list[int]]:
    """What became of accepted jobs, by number: which reports were taken, which refused, and whose end was asked for."""
    found = _given(context, entry, [number for number, _ in reports])

    def apply(batch: Batch) -> tuple[list[int], list[int], list[int]]:
        rows = handovers.handover_get(batch.tx, entry.cluster_id, list(found))
        known = [(number, item) for number, item in reports if number in rows and rows[number].accepted_us is not None]
        told = [
            msgspec.structs.replace(item, job=rows[number].job_id, fence=rows[number].fence) for number, item in known
        ]
        answers = _reported(batch, entry, told)
        taken = [number for (number, _), answer in zip(known, answers, strict=True) if answer is Answer.TAKEN]
        asked = [number for number, _ in known if _is_cancelling(batch, rows[number])]
        return taken, sorted({number for number, _ in reports} - set(taken)), asked

    return context.committer.call(apply, locks=[row.job_id for row in found.values()])


def _given(context: Context, entry: AgentEntry, numbers: Sequence[int]) -> dict[int, handovers.Row]:
    with context.database.read() as tx:
        return handovers.handover_get(tx, entry.cluster_id, numbers)


def _is_cancelling(batch: Batch, row: handovers.Row) -> bool:
    job = batch.rows.get(row.job_id)
    return job is not None and job.cancel_us is not None and job.fence == row.fence


def _reported(batch: Batch, entry: AgentEntry, reports: list[Report]) -> list[Answer]:
    if not reports:
        return []
    settled: Settled = apply_reports(batch, [ReportWrite(entry.id, tuple(reports))])[0]
    return settled.answers


def take_back(context: Context, *, lease_us: int, cluster_id: str | None = None) -> int:
    """What was received and not accepted within its lease waits in its cluster's line again."""
    before_us = context.now_us() - lease_us
    with context.database.read() as tx:
        overdue = handovers.handover_overdue(tx, received_before_us=before_us, limit=ROUND_MAX, cluster_id=cluster_id)
    if not overdue:
        return 0

    def apply(batch: Batch) -> int:
        changes = {}
        for row in overdue:
            job = batch.rows.get(row.job_id)
            if job is None or job.fence != row.fence or job.agent_id is None or job.state != "ASSIGNED":
                continue  # it ended, or went elsewhere
            changes[job.id] = _again(batch, job)
        jobs.job_change(batch.tx, changes)
        handovers.handover_close(batch.tx, [row.number for row in overdue], accepted_us=None)
        return len(changes)

    return context.committer.call(apply, locks=[row.job_id for row in overdue])


def _again(batch: Batch, job: jobs.Row) -> dict[str, Any]:
    """The next attempt at the same cluster; the one before is over under a fence that holds no more."""
    back = give_back(life_of(job), "received, and not accepted in time")
    assert back is not None
    record(batch, job, back)
    if back.life.state in FINAL:
        return change_of(batch, job, back)
    archive(batch, job, back)
    batch.free(job)
    step = assign(back.life)
    record(batch, job, step)
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


def let_go(context: Context, *, ttl_us: int) -> int:
    """A job whose end nobody reported for so long stays as it is, and takes up no place any more."""
    with context.database.read() as tx:
        old = handovers.handover_unreported(tx, accepted_before_us=context.now_us() - ttl_us, limit=ROUND_MAX)
    if not old:
        return 0

    def apply(batch: Batch) -> int:
        changes: dict[str, dict[str, Any]] = {}
        for row in old:
            job = batch.rows.get(row.job_id)
            if job is not None and job.fence == row.fence and job.state in ("SUBMITTED", "RUNNING"):
                batch.free(job)
                batch.versions.add(FREED)
                changes[job.id] = {
                    "lane": lane_of(UNCOUNTED, job.project),
                    "crowd": None,
                    "crowd_max": None,
                    "tokens": None,
                }
        jobs.job_change(batch.tx, changes)
        handovers.handover_uncount(batch.tx, [row.number for row in old])
        return len(changes)

    return context.committer.call(apply, locks=[row.job_id for row in old])


def refuse_full(numbers: Sequence[int]) -> None:
    if numbers and max(numbers) > handovers.NUMBER_MAX:
        raise Unavailable("All numbers that Rainbow's clients can hold are used up.", next_step="Use `yard submit`.")
