"""Chores of probation: jobs leave a cluster, canaries go there, those that run long have done well, old rows go."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from switchyard.model.cluster.verdict import Answer
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import reassign
from switchyard.route.probation import ON_PROBATION
from switchyard.service.core.context import Context, bump_version
from switchyard.service.core.snapshots.probation_snapshot import ProbationSnapshot
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.service.lifecycle.array_spread import lessee_ids
from switchyard.service.lifecycle.probation import (
    CANARY_US_MAX,
    end_probation,
    is_due,
    pass_canary,
    read_canaries,
    write_canaries,
)
from switchyard.service.lifecycle.transitions import (
    life_of,
    move_update,
    record_step,
    step_update,
    unassign_waiting,
)
from switchyard.service.placement.evaluation import evaluate_again
from switchyard.service.upkeep.leadership import ROUND_MAX, Leadership
from switchyard.store.clusters import probations as store
from switchyard.store.clusters.probations import ProbationRow
from switchyard.store.jobs import jobs
from switchyard.store.jobs.job_rows import JobRow
from switchyard.store.jobs.job_update import JobUpdate

LOOK_US = 1_000_000  # between two looks at canaries, and between two wake-ups of a cluster that is due for one
FORGET_EVERY_US = 60_000_000
CANDIDATES_MAX = 5  # jobs that are evaluated for one canary


@dataclass
class ProbationCare:
    """The times of the last looks, on the steady clock."""

    looked_us: int | None = None
    forgot_us: int | None = None

    def go(self, context: Context, leadership: Leadership) -> int:
        """Returns how many jobs moved. It costs nothing while there is neither evidence nor a probation."""
        snapshot = context.snapshots.probation
        if snapshot.is_empty:
            return 0
        moved = leave_clusters(context, leadership, snapshot) if snapshot.gated else 0
        steady_us = context.steady_us()
        if self.looked_us is None or steady_us - self.looked_us >= LOOK_US:
            self.looked_us = steady_us
            moved += self._look(context, leadership, snapshot)
        if self.forgot_us is None or steady_us - self.forgot_us >= FORGET_EVERY_US:
            self.forgot_us = steady_us
            leadership.commit(context, lambda batch: _forget(context, batch))
        return moved

    def _look(self, context: Context, leadership: Leadership, snapshot: ProbationSnapshot) -> int:
        now_us = context.now_us()
        changing = [row.cluster_id for row in snapshot.rows if _changed(context, row, now_us) is not None]
        # The canaries of a snapshot may be old: leases and reports change them without a new version.
        changing += [row.cluster_id for row in snapshot.rows if row.state == "on" and not row.is_confirmed]
        # A task that has run for long removes the doubt that the first failures raised: the agents ask again.
        fresh_us = now_us - 3 * context.probation.quick_us
        doubtful = {cluster_id for (cluster_id, _, _), (_, at_us) in snapshot.doubts.items() if at_us > fresh_us}
        if not changing and not doubtful:
            return 0
        due: list[ProbationRow] = []

        def change(batch: Batch) -> int:
            batch.clusters |= doubtful
            return _change_rows(context, batch, set(changing), due)

        leadership.commit(context, change)
        return sum(send_canary(context, leadership, row) for row in due)


def leave_clusters(context: Context, leadership: Leadership, snapshot: ProbationSnapshot) -> int:
    """Unassign jobs that were assigned to a cluster before its probation: they are routed again."""
    moved = 0
    for row in snapshot.rows:
        if row.state != "on" or row.node or row.since_us > context.now_us():  # the clock was set back
            continue
        with context.database.read() as tx:
            waiting = store.ready_before(tx, row.cluster_id, before_us=row.since_us, limit=ROUND_MAX)
        ids = [job.id for job in waiting if row.owner_id in ("", job.owner_id)]
        reason = f"{_name(context, row.cluster_id)} is {ON_PROBATION}"

        def change(batch: Batch, job: JobRow, row: ProbationRow = row, reason: str = reason) -> JobUpdate | None:
            if job.cluster_id != row.cluster_id or (job.assigned_us or 0) > row.since_us or job.spread is not None:
                return None
            step = unassign_waiting(job, reason)
            if step is None:
                return None
            record_step(batch, job, step)
            return step_update(batch, job, step)

        moved += leadership.change_jobs(context, ids, change)
    return moved


def send_canary(context: Context, leadership: Leadership, row: ProbationRow) -> int:
    """Move one job that waits elsewhere to a cluster that is due for a canary, or let it lease a task of one array."""
    world = context.snapshots.world
    member = world.by_id.get(row.cluster_id)
    if member is None:
        return 0
    with context.database.read() as tx:
        others = [one.id for one in world.members if one.id != member.id]
        candidates = store.jobs_waiting_at(tx, others, owner_id=row.owner_id, limit=CANDIDATES_MAX)
        specs = jobs.spec_get_many(tx, (job.spec_hash for job in candidates))
    for job in candidates:
        verdicts = evaluate_again(context, world, job, specs[job.spec_hash]).verdicts
        if not any(verdict.cluster == member.name and verdict.say is Answer.YES for verdict in verdicts):
            continue

        def change(batch: Batch, locked: JobRow, fence: int = job.fence) -> JobUpdate | None:
            if locked.spread is not None and locked.is_ready:
                batch.clusters.add(member.id)
                lessees = lessee_ids(locked)
                return None if member.id in lessees else JobUpdate(spread=",".join([*lessees, member.id]))
            if locked.fence != fence or locked.state != State.ASSIGNED.value or not locked.is_ready:
                return None
            step = reassign(life_of(locked), f"canary of {member.name}, which is {ON_PROBATION}")
            if step is None:
                return None
            return move_update(batch, locked, step, member.id, plan_hash=locked.plan_hash)

        return leadership.change_jobs(context, [job.id], change)
    return 0


def _changed(context: Context, row: ProbationRow, now_us: int) -> ProbationRow | None:
    """Return a probation after the time that has passed; None: it stays as it is."""
    terms = context.probation
    if row.state != "on" or row.is_confirmed:
        return None
    if row.node:
        return end_probation(row, now_us) if now_us >= row.next_us else None
    canaries = read_canaries(row)
    for canary in canaries:
        rest = [other for other in canaries if other != canary]
        if canary.running_us is not None and now_us - canary.running_us >= terms.quick_us:
            return pass_canary(row, rest, terms, now_us)
        if now_us - canary.leased_us > CANARY_US_MAX:
            return replace(row, canaries=write_canaries(rest))
    is_old = not canaries and now_us - max(row.last_us, row.next_us) > terms.forget_us
    return end_probation(row, now_us) if is_old or not terms.is_enabled else None


def _change_rows(context: Context, batch: Batch, cluster_ids: set[str], due: list[ProbationRow]) -> int:
    """Apply what time has changed, and note the clusters that are due for a canary: their agents are woken."""
    changes = []
    for row in store.probation_lock(batch.tx, cluster_ids):
        changed = _changed(context, row, batch.now_us)
        if changed is not None:
            changes.append(changed)
            if changed.state == "ended" and changed.passed:
                store.evidence_forgive(batch.tx, row.cluster_id, row.owner_id, now_us=batch.now_us)
        if row.state == "on" and not row.node and is_due(changed or row, context.probation, batch.now_us):
            batch.clusters.add(row.cluster_id)
            batch.settled.append(partial(due.append, row))
    store.probation_put(batch.tx, changes)
    if changes:
        bump_version(batch, Topic.PROBATION)
        batch.clusters |= {row.cluster_id for row in changes}
    return len(changes)


def _forget(context: Context, batch: Batch) -> int:
    """Delete old evidence, ended probations, and what is about clusters that are gone."""
    before_us = batch.now_us - context.probation.forget_us
    fleet = context.snapshots.fleet.rows
    old = [
        row
        for row in context.snapshots.probation.rows
        if row.cluster_id not in fleet or (row.state == "ended" and row.last_us < before_us)
    ]
    store.probation_delete(batch.tx, old)
    count = len(old) + store.evidence_forget(batch.tx, before_us=before_us)
    if count:
        bump_version(batch, Topic.PROBATION)
    return count


def _name(context: Context, cluster_id: str) -> str:
    row = context.snapshots.fleet.rows.get(cluster_id)
    return row.name if row is not None else "its cluster"
