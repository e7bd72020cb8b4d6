"""Decide jobs whose wait for quotes is over, by the quotes that arrived in time.

Any server does this, not only the leader: the first server that locks the job and finds its wait decides the job.
The same chore measures the error of quotes when jobs start, and deletes expired quotes.
"""

from __future__ import annotations

from typing import cast

from switchyard.model.job.blocker import Blocker, change_blocked
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import FINAL_STATES
from switchyard.route.router import Eligibility
from switchyard.service.core.context import Context
from switchyard.service.core.writes.batch import Batch
from switchyard.service.placement.apply_decisions import apply_decisions
from switchyard.service.placement.evaluation import EvaluatedJob, evaluate_again, spilled_of
from switchyard.service.quote.quote_answers import record_silent_clusters
from switchyard.service.reserve.quotes import QuoteWindow
from switchyard.store.clusters import quotes as store
from switchyard.store.jobs import jobs
from switchyard.store.jobs.job_update import JobUpdate

ROUND_MAX = 100  # jobs decided in one transaction, from one read of the backlogs
MEASURED_MAX = 1000  # jobs checked for a start in one round
FALLBACK_S = 5.0  # next round if a wake-up gets lost
MEASURE_US = 1_000_000  # interval between checks for started jobs
CLEAN_US = 60_000_000
EXPIRED_KEPT_US = 3_600_000_000  # quotes are deleted this long after they expired


class QuoteChore:
    """The quote chore and its cursor. `go` does the work that is due."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._after = ""
        self._measure_us = self._clean_us = 0  # next time, on the steady clock

    def go(self) -> float:
        """Do the work that is due. Returns in how many seconds to call again."""
        context = self._context
        decide_due_jobs(context)
        now_us = context.steady_us()
        if now_us >= self._measure_us:
            self._measure_us = now_us + MEASURE_US
            self._measure()
        if now_us >= self._clean_us:
            self._clean_us = now_us + CLEAN_US
            context.committer.call(lambda batch: store.quotes_clean(batch.tx, before_us=batch.now_us - EXPIRED_KEPT_US))
        with context.database.read() as tx:
            next_us = store.wait_next_due_us(tx)
        return FALLBACK_S if next_us is None else min(FALLBACK_S, max(0.0, (next_us - context.now_us()) / 1e6))

    def _measure(self) -> None:
        """Measure the next page of jobs that were placed by quotes. After the last page, start again."""
        with self._context.database.read() as tx:
            rows = store.use_list_open(tx, after=self._after, limit=MEASURED_MAX)
        self._after = rows[-1].job_id if len(rows) == MEASURED_MAX else ""
        errors: dict[str, int | None] = {}
        for row in rows:
            assigned_us = row.assigned_us or 0
            is_placed_anew = row.on_id is not None and (row.on_id != row.cluster_id or assigned_us > row.at_us)
            if row.state is None or is_placed_anew:
                errors[row.job_id] = None  # the job is gone, or was assigned again without this quote
            elif row.started_us is not None:
                errors[row.job_id] = row.started_us - row.expected_us
            elif State(row.state) in FINAL_STATES:
                errors[row.job_id] = None
        if errors:
            self._context.committer.call(lambda batch: store.use_close(batch.tx, errors))
            self._count({row.job_id: row.cluster_id for row in rows}, errors)

    def _count(self, cluster_of: dict[str, str], errors: dict[str, int | None]) -> None:
        by_id = self._context.snapshots.world.by_id
        for job_id, error_us in errors.items():
            if error_us is not None and (member := by_id.get(cluster_of[job_id])) is not None:
                self._context.tally.started(member.name, error_s=error_us / 1e6)


def decide_due_jobs(context: Context) -> int:
    """Decide every job that is due. Returns the number of jobs."""
    done = 0
    while True:
        with context.database.read() as tx:
            due = store.wait_list_due(tx, now_us=context.now_us(), limit=ROUND_MAX)
            specs = jobs.spec_get_many(tx, (row.spec_hash for row in due if row.spec_hash is not None))
        if not due:
            return done
        done += _decide_page(context, due, specs)


def _decide_page(context: Context, due: list[store.DueQuoteWait], specs: dict[str, str]) -> int:
    world = context.snapshots.world
    eligibilities: dict[str, Eligibility] = {}
    cached: dict[tuple[object, ...], Eligibility] = {}  # jobs of one bulk request are often equal
    for row in due:
        if row.state != State.PENDING.value:
            continue  # cancelled or deleted: only its wait is left
        job = cast("EvaluatedJob", row)  # a row with a state has all columns of its job
        spilled = spilled_of(job, context.now_us())
        key = (row.owner_id, row.spec_hash, row.bounds, row.avoid, spilled, row.asked_us, row.deadline_us)
        if key not in cached:
            window = QuoteWindow(row.asked_us, row.deadline_us)
            cached[key] = evaluate_again(context, world, job, specs[row.spec_hash or ""], window=window)
        eligibilities[row.job_id] = cached[key]
    ids = [row.job_id for row in due]

    def apply(batch: Batch) -> int:
        locked = jobs.job_lock(batch.tx, eligibilities)
        waiting = store.wait_remaining(batch.tx, ids)
        record_silent_clusters(context, batch, (row for row in due if row.job_id in waiting))
        store.wait_delete(batch.tx, ids)
        pending = {row.id: row for row in locked.values() if row.id in waiting and row.state == State.PENDING.value}
        updates = {
            job_id: JobUpdate(blocked=change_blocked(row.blocked, remove=Blocker.QUOTES))
            for job_id, row in pending.items()
        }
        jobs.job_update_many(batch.tx, updates)
        # A job that is also held is decided when it is released.
        unblocked = {job_id: row for job_id, row in pending.items() if updates[job_id].blocked is None}
        apply_decisions(context, batch, world, eligibilities=eligibilities, locked=unblocked)
        return len(pending)

    return context.committer.call(apply, locks=list(eligibilities))
