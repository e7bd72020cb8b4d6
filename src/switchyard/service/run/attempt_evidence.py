"""Count how attempts end, and put clusters on probation, in the transaction of the reports.

Only a quick failure leaves a row. From then on the successes of the same jobs count, too, and those of all owners at
the clusters that are suspected. While nothing fails quickly, a report costs one comparison more.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

import structlog
from msgspec.structs import replace

from switchyard.model.cluster.cluster import Health
from switchyard.model.cluster.poll import Report
from switchyard.model.failures.failure_kind import FailureKind
from switchyard.model.job.bounds import decode_bounds
from switchyard.model.job.lifecycle import ObservedState, ReportAnswer
from switchyard.model.job.retry import Cause
from switchyard.model.job.unreadable import UNREADABLE_ERRORS
from switchyard.model.rules.names import printable_line
from switchyard.route.probation import Fault, find_fault, is_fault_of_all, reason_for_all, reason_of
from switchyard.service.core.context import Context, bump_version
from switchyard.service.core.snapshots.probation_snapshot import EvidenceKey, key_of
from switchyard.service.core.writes.audit import record_audit
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.service.lifecycle.arrays import BatchArrays, is_refused_before_start
from switchyard.service.lifecycle.probation import (
    begin_probation,
    end_probation,
    fail_canary,
    pass_canary,
    read_canaries,
    write_canaries,
)
from switchyard.store.clusters import probations as store
from switchyard.store.clusters.probations import EvidenceRow, ProbationRow
from switchyard.store.engine import ranges
from switchyard.store.jobs import jobs
from switchyard.store.jobs.job_rows import JobRow

REPEAT_US = 10_000_000  # evidence that changes nothing is written this often
SUBJECT_CHARS_MAX = 100
REASON_CHARS_MAX = 200
FAILS_MAX = 1000  # more are not counted
ROWS_MAX = 32  # of one owner at one cluster: the oldest make room
AUDIT_ACTOR = "probation"
ProbationKey = tuple[str, str, str]  # cluster, owner, node
NODE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?\Z")

log = structlog.get_logger()


class Ending(Enum):
    """What a report says about the cluster."""

    QUICK = "failed quickly"
    WELL = "succeeded, or ran for longer than a quick failure does"
    RUNS = "runs"
    OTHER = "ended, which says nothing"


@dataclass(frozen=True, slots=True)
class AttemptOutcome:
    """What became of an attempt at a cluster."""

    cluster_id: str
    owner_id: str
    subject: str  # an array's id, or the name of plain jobs
    node: str
    job: str
    fence: int
    ending: Ending
    reason: str = ""


class AttemptEvidence:
    """Reads outcomes from reports, and has them counted."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def outcomes(
        self,
        batch: Batch,
        arrays: BatchArrays,
        agent_id: str,
        reports: Sequence[Report],
        answers: Sequence[ReportAnswer],
    ) -> list[AttemptOutcome]:
        """Return what these reports say of their cluster, if it counts. Their changes are made, but not yet written."""
        snapshot = self._context.snapshots.probation
        if snapshot.is_empty and not any(item.seen is ObservedState.FAILED for item in reports):
            return []
        agent = self._context.snapshots.fleet.agents.get(agent_id)
        if agent is None or not self._context.probation.is_enabled or agent.cluster_id in snapshot.exempt:
            return []
        began_us = {(item.job, item.fence): item.ago_us for item in reports if item.seen is ObservedState.RUNNING}
        outcomes = []
        for item, answer in zip(reports, answers, strict=True):
            row = batch.rows.get(item.job)
            if answer is not ReportAnswer.TAKEN or row is None or row.cancel_us is not None:
                continue
            began_ago_us = began_us.get((item.job, item.fence))
            lasted_us = _lasted_us(batch, arrays, row, item, began_ago_us)
            outcome = self._outcome(agent.cluster_id, row, item, lasted_us)
            if not self._counts(outcome, batch.now_us) or _is_pinned(row, outcome):
                continue
            may_begin = outcome.ending is Ending.QUICK and agent.cluster_id not in snapshot.gated
            if may_begin and _has_run_there(batch, row, item, agent.cluster_id):
                continue  # one task that is tried again and again is one failure
            outcomes.append(outcome)
        return outcomes

    def apply(self, batch: Batch, outcomes: list[AttemptOutcome]) -> None:
        """Count these outcomes, and begin or end probations."""
        round_ = EvidenceRound(self._context, batch, {(one.cluster_id, one.owner_id) for one in outcomes})
        for one in outcomes:
            key = (one.owner_id, one.cluster_id, one.subject, one.node)
            if one.ending is Ending.QUICK:
                round_.note_failure(key, one.reason)
            elif one.ending is Ending.WELL:
                round_.note_success(key)
            round_.note_canary(
                one.cluster_id,
                (one.job, one.fence),
                did_well={Ending.QUICK: False, Ending.WELL: True}.get(one.ending),
                is_running=one.ending is Ending.RUNS,
            )
        round_.decide()
        round_.write()

    def _outcome(self, cluster_id: str, row: JobRow, item: Report, lasted_us: int | None) -> AttemptOutcome:
        subject = row.id if row.array is not None else row.name[:SUBJECT_CHARS_MAX] or "-"
        node = item.usage.nodes if item.usage is not None and NODE_NAME.match(item.usage.nodes) else ""
        ending = _ending_of(item, lasted_us, self._context.probation.quick_us)
        reason = printable_line(item.reason)[:REASON_CHARS_MAX] if ending is Ending.QUICK else ""
        return AttemptOutcome(
            cluster_id, row.owner_id or row.owner, subject, node, item.job, item.fence, ending, reason
        )

    def _counts(self, one: AttemptOutcome, now_us: int) -> bool:
        """Whether the outcome says anything new: most reports of most days do not."""
        snapshot = self._context.snapshots.probation
        if one.cluster_id in snapshot.gated:
            return True
        if one.ending not in (Ending.QUICK, Ending.WELL):
            return False
        known = snapshot.evidence.get((one.owner_id, one.cluster_id, one.subject, one.node))
        is_fresh = known is not None and now_us - known.last_us < REPEAT_US
        if one.ending is Ending.QUICK:
            # After so many failures, what was decided does not change with the next ones.
            return not (known is not None and is_fresh and known.fails > 2 * self._context.probation.failures)
        is_watched = (one.owner_id, one.subject) in snapshot.watched or one.cluster_id in snapshot.suspects
        return is_watched and not (known is not None and is_fresh and not known.fails)


def _has_run_there(batch: Batch, row: JobRow, item: Report, cluster_id: str) -> bool:
    """Whether an earlier attempt ran on this cluster; of a task of an array: whether there was one at all."""
    if row.array is not None:
        return row.retries > 0 and ranges.task_attempts_count(batch.tx, row.id, item.fence) > 1
    return row.tries > 0 and any(attempt.cluster_id == cluster_id for attempt in jobs.attempt_list(batch.tx, row.id))


def _ending_of(item: Report, lasted_us: int | None, quick_us: int) -> Ending:
    if item.seen is ObservedState.SUCCEEDED:
        return Ending.WELL
    if item.seen is ObservedState.RUNNING:
        return Ending.RUNS
    if item.failure == FailureKind.OUT_OF_MEMORY:  # of what the job asked for
        return Ending.OTHER
    if item.seen is ObservedState.FAILED and item.cause in (Cause.JOB, Cause.CLUSTER) and lasted_us is not None:
        return Ending.QUICK if lasted_us < quick_us else Ending.WELL
    return Ending.OTHER


def _lasted_us(batch: Batch, arrays: BatchArrays, row: JobRow, item: Report, began_ago_us: int | None) -> int | None:
    """Return how long the attempt ran, or an upper bound; None: unknown."""
    if item.seen is not ObservedState.FAILED:
        return None
    if is_refused_before_start(item, None):
        return 0
    if item.usage is not None:
        return item.usage.elapsed_s * 1_000_000
    if began_ago_us is not None:
        return max(0, began_ago_us - item.ago_us)
    since_us = row.started_us or row.leased_us
    if row.array is not None:
        range_ = arrays.job(row.id).range_with(item.fence)
        since_us = range_.leased_us if range_ is not None else None
    return None if since_us is None else max(0, batch.now_us - item.ago_us - since_us)


def _is_pinned(row: JobRow, outcome: AttemptOutcome) -> bool:
    """Whether the failure of a job says nothing, since the job may run on this cluster alone: nothing compares."""
    if outcome.ending is not Ending.QUICK:
        return False
    try:
        bounds = decode_bounds(row.bounds)
        return bounds.is_one_cluster or bounds.begun_on is not None
    except UNREADABLE_ERRORS:  # others log it, and set the row aside
        return True


class EvidenceRound:
    """Locked in this order: jobs, then owners' evidence, then probations of clusters; each sorted."""

    def __init__(self, context: Context, batch: Batch, places: Collection[tuple[str, str]]) -> None:
        """`places`: the clusters and owners that the batch has outcomes of."""
        self._context, self._batch, self._terms = context, batch, context.probation
        since_us = batch.now_us - self._terms.forget_us
        rows = store.evidence_lock(batch.tx, {owner_id for _, owner_id in places})
        self._evidence = {key_of(row): row for row in rows if row.last_us > since_us}
        self._old: list[EvidenceRow] = []
        cluster_ids = {cluster_id for cluster_id, _ in places} | {row.cluster_id for row in self._evidence.values()}
        self._probations = {
            (row.cluster_id, row.owner_id, row.node): row for row in store.probation_lock(batch.tx, cluster_ids)
        }
        self._before = dict(self._probations)
        self._dirty: set[EvidenceKey] = set()
        self._failed: set[EvidenceKey] = set()
        self._is_news = False  # servers must know it before the next lease

    # --- counting

    def note_failure(self, key: EvidenceKey, reason: str) -> None:
        row = self._row(key)
        # Until the cluster goes on probation, each failure lets it lease fewer tasks of the array.
        self._is_news |= row.fails < self._terms.failures or row.fails == 2 * self._terms.failures
        now_us = self._batch.now_us
        self._evidence[key] = replace(row, fails=min(row.fails + 1, FAILS_MAX), last_us=now_us, reason=reason)
        self._dirty.add(key)
        self._failed.add(key)

    def note_success(self, key: EvidenceKey) -> None:
        """Count a success of jobs that failed somewhere; of others only that their owner does well here."""
        owner_id, cluster_id, subject, _ = key
        if not any(row.subject == subject for row in self._evidence.values() if row.owner_id == owner_id):
            key = owner_id, cluster_id, "", ""
        row, now_us = self._row(key), self._batch.now_us
        self._is_news |= row.fails > 0 or row.ok_us == 0
        self._evidence[key] = replace(row, fails=0, ok_us=now_us, last_us=now_us, reason="")
        self._dirty.add(key)

    def note_canary(
        self, cluster_id: str, attempt: tuple[str, int], *, did_well: bool | None, is_running: bool
    ) -> None:
        """Take the result of a canary. `did_well` is None if its end says nothing."""
        for key, row in self._probations.items():
            if row.cluster_id != cluster_id or row.state != "on" or row.canaries == "[]":
                continue
            canaries = read_canaries(row)
            own = [canary for canary in canaries if (canary.job, canary.fence) == attempt]
            if not own:
                continue
            rest = [canary for canary in canaries if canary not in own]
            now_us = self._batch.now_us
            if is_running:
                started = [replace(canary, running_us=now_us) for canary in own]
                changed = replace(row, canaries=write_canaries([*rest, *started]))
            elif did_well is None:
                changed = replace(row, canaries=write_canaries(rest))
            else:
                take = pass_canary if did_well else fail_canary
                changed = take(row, rest, self._terms, now_us)
            self._probations[key] = changed

    def _row(self, key: EvidenceKey) -> EvidenceRow:
        owner_id, cluster_id, subject, node = key
        row = self._evidence.get(key)
        return row or EvidenceRow(owner_id, cluster_id, subject, node, fails=0, ok_us=0, last_us=0, reason="")

    # --- deciding

    def decide(self) -> None:
        for owner_id, subject in sorted({(key[0], key[2]) for key in self._dirty if key[2]}):
            about = [row for row in self._evidence.values() if (row.owner_id, row.subject) == (owner_id, subject)]
            for cluster_id in sorted({row.cluster_id for row in about}):
                self._decide_cluster(about, cluster_id, owner_id, subject)
        if self._dirty:
            for cluster_id in sorted({row.cluster_id for row in self._probations.values()}):
                self._close_for_all(cluster_id)

    def _decide_cluster(self, about: list[EvidenceRow], cluster_id: str, owner_id: str, subject: str) -> None:
        finding = find_fault(about, cluster_id, self._terms, node_count=self._node_count(cluster_id))
        key = cluster_id, owner_id, ""
        row = self._probations.get(key)
        if finding.fault is Fault.JOB:
            if row is not None and row.state == "on" and row.subject == subject and not row.is_confirmed:
                self._probations[key] = end_probation(row, self._batch.now_us)
            return
        has_failed = any(failed[:3] == (owner_id, cluster_id, subject) for failed in self._failed)
        if not has_failed or not self._has_other(cluster_id, owner_id):
            return
        failing = [one for one in about if one.cluster_id == cluster_id and one.fails]
        if finding.fault is Fault.NODES:
            for one in failing:
                if one.node in finding.nodes:
                    self._begin((cluster_id, owner_id, one.node), subject, self._reason([one]))
        elif finding.fault is Fault.CLUSTER:
            self._begin(key, subject, self._reason(failing))

    def _reason(self, failing: list[EvidenceRow]) -> str:
        last = max(failing, key=lambda row: row.last_us)
        return reason_of(sum(row.fails for row in failing), self._terms, last.reason)

    def _close_for_all(self, cluster_id: str) -> None:
        """Put the cluster on probation for all, if jobs of enough owners fail there and have done well elsewhere, and
        if those of no other owner do well there."""
        failing = {
            row.owner_id: row
            for row in self._probations.values()
            if row.cluster_id == cluster_id and row.state == "on" and row.owner_id and not row.node
        }
        if len(failing) < self._terms.owners:
            return
        evidence = {**self._context.snapshots.probation.evidence, **self._evidence}.values()
        well_elsewhere = {
            row.owner_id
            for row in evidence
            if row.ok_us
            and row.cluster_id != cluster_id
            and row.owner_id in failing
            and failing[row.owner_id].subject == row.subject
        }
        since = [failing[owner_id].since_us for owner_id in sorted(well_elsewhere)]
        here = [row.ok_us for row in evidence if row.cluster_id == cluster_id and row.owner_id not in failing]
        if is_fault_of_all(since, here, self._terms):
            self._begin((cluster_id, "", ""), "", reason_for_all(since))

    def _begin(self, key: ProbationKey, subject: str, reason: str) -> bool:
        """Begin a probation. Returns false if it is on already, or an operator exempted the cluster."""
        now_us = self._batch.now_us
        before = self._probations.get(key)
        if before is not None and before.state != "ended" and not (before.node and before.next_us <= now_us):
            return False
        is_exempt = (key[0], "", "") in self._probations and self._probations[key[0], "", ""].state == "off"
        if is_exempt:
            return False
        if before is not None and now_us - before.last_us > self._terms.forget_us:
            before = None
        self._probations[key] = begin_probation(
            before, key=key, subject=subject, reason=reason, terms=self._terms, now_us=now_us
        )
        return True

    def _has_other(self, cluster_id: str, owner_id: str) -> bool:
        """Whether another cluster could take the jobs: else a probation would help nobody."""
        return any(
            member.id != cluster_id and member.health is Health.UP and not self._is_on(member.id, owner_id)
            for member in self._context.snapshots.world.members
        )

    def _is_on(self, cluster_id: str, owner_id: str) -> bool:
        return bool(self._context.snapshots.probation.about(cluster_id, owner_id))

    def _node_count(self, cluster_id: str) -> int:
        member = self._context.snapshots.world.by_id.get(cluster_id)
        return member.graph.totals.get("node", 0) if member is not None and member.graph is not None else 0

    # --- writing

    def write(self) -> None:
        batch, changed = self._batch, [row for key, row in self._probations.items() if row != self._before.get(key)]
        self._make_room()
        store.evidence_put(batch.tx, [self._evidence[key] for key in sorted(self._dirty) if key in self._evidence])
        store.evidence_delete(batch.tx, self._old)
        store.probation_put(batch.tx, changed)
        for row in changed:
            self._record(row)
        if changed or self._is_news:
            bump_version(batch, Topic.PROBATION)
        if changed:
            batch.clusters |= {row.cluster_id for row in changed}

    def _make_room(self) -> None:
        """Forget the oldest evidence about an owner at a cluster, so that one user cannot fill the table."""
        by_place: dict[tuple[str, str], list[EvidenceRow]] = {}
        for row in self._evidence.values():
            by_place.setdefault((row.owner_id, row.cluster_id), []).append(row)
        for rows in by_place.values():
            for row in sorted(rows, key=lambda row: row.last_us)[:-ROWS_MAX]:
                self._old.append(self._evidence.pop(key_of(row)))

    def _record(self, row: ProbationRow) -> None:
        """Log, audit and count that a probation began or ended."""
        before = self._before.get((row.cluster_id, row.owner_id, row.node))
        was_on = before is not None and before.state == "on" and before.since_us == row.since_us
        if was_on == (row.state == "on"):
            return
        entry = self._context.snapshots.fleet.rows.get(row.cluster_id)
        name = entry.name if entry is not None else row.cluster_id
        word = "begin" if row.state == "on" else "end"
        after = {"owner": row.owner_id, "node": row.node, "reason": row.reason}
        if row.state == "ended" and row.passed:
            store.evidence_forgive(self._batch.tx, row.cluster_id, row.owner_id, now_us=self._batch.now_us)
        record_audit(self._batch, self._context, AUDIT_ACTOR, f"cluster.probation-{word}", name, after=after)
        self._batch.settled.append(partial(log.info, f"probation {word}", cluster=name, **after))
        if row.state == "on":
            self._batch.settled.append(partial(self._context.tally.probations.add, name))
