"""Jobs whose wait for quotes is over: each is decided by what was quoted in time. By any server, not the leader alone.

No counter is shared: whoever locks a job first and finds it waiting decides it. Also here, since they come with time:
how far off quotes were once their jobs have begun, and the end of what nobody needs any more.
"""

from __future__ import annotations

from switchyard.model.job import State
from switchyard.model.lifecycle import FINAL_STATES
from switchyard.route.router import Eligibility
from switchyard.service.committer import Batch
from switchyard.service.context import Context
from switchyard.service.quote.inquiries import BLOCKED_BY_QUOTES, record_silent_clusters
from switchyard.service.quote.quotes import QuoteWindow
from switchyard.service.run.report import change_blocked
from switchyard.service.upkeep.chores import apply_rulings, evaluate_again, spilled_of
from switchyard.store import jobs
from switchyard.store import quotes as store

ROUND_MAX = 100  # jobs decided in one transaction, by one look at what waits where
MEASURED_MAX = 1000  # jobs looked at for whether they have begun, in one turn
FALLBACK_S = 5.0  # the fallback for a wake-up that got lost
MEASURE_US = 1_000_000  # between two looks at what has begun
CLEAN_US = 60_000_000
EXPIRED_KEPT_US = 3_600_000_000  # what expired so long ago goes


class QuoteChore:
    """The chore, with how far it has come. `go` does what is due, and says when to come again."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._after = ""
        self._measure_us = self._clean_us = 0  # when next, on the steady clock

    def go(self) -> float:
        """In how many seconds something may be due again."""
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
        """A window of what was placed by quotes; the next one in the next turn, round and round."""
        with self._context.database.read() as tx:
            rows = store.use_list_open(tx, after=self._after, limit=MEASURED_MAX)
        self._after = rows[-1].job_id if len(rows) == MEASURED_MAX else ""
        errors: dict[str, int | None] = {}
        for row in rows:
            is_placed_anew = row.on_id is not None and (row.on_id != row.cluster_id or row.assigned_us > row.at_us)
            if row.state is None or is_placed_anew:
                errors[row.job_id] = None  # it never began there, or not by this quote
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
    """Decide every job that is due; how many."""
    done = 0
    while True:
        with context.database.read() as tx:
            due = store.wait_list_due(tx, now_us=context.now_us(), limit=ROUND_MAX)
            specs = jobs.spec_get_many(tx, (row.spec_hash for row in due if row.spec_hash is not None))
        if not due:
            return done
        done += _decide_some(context, due, specs)


def _decide_some(context: Context, due: list[store.Row], specs: dict[str, str]) -> int:
    world = context.snapshots.world
    rulings: dict[str, Eligibility] = {}
    known: dict[tuple[object, ...], Eligibility] = {}  # thousands of one bulk request ask the same
    for row in due:
        if row.state != State.PENDING.value:
            continue  # it was cancelled meanwhile, or is gone: only its wait is left
        spilled = spilled_of(row, context.now_us())
        key = (row.owner_id, row.spec_hash, row.bounds, row.avoid, spilled, row.asked_us, row.deadline_us)
        if key not in known:
            round_ = QuoteWindow(row.asked_us, row.deadline_us)
            known[key] = evaluate_again(context, world, row, specs[row.spec_hash], round_)
        rulings[row.job_id] = known[key]
    ids = [row.job_id for row in due]

    def apply(batch: Batch) -> int:
        locked = jobs.job_lock(batch.tx, rulings)
        waiting = store.wait_remaining(batch.tx, ids)
        record_silent_clusters(context, batch, (row for row in due if row.job_id in waiting))
        store.wait_delete(batch.tx, ids)
        mine = {job_id: row for job_id, row in locked.items() if job_id in waiting and row.state == State.PENDING.value}
        # One that is held, too, is decided when it is let go.
        changes = {
            job_id: {"blocked": change_blocked(row.blocked, remove=BLOCKED_BY_QUOTES)} for job_id, row in mine.items()
        }
        jobs.job_update_many(batch.tx, changes)
        free = {job_id: row for job_id, row in mine.items() if changes[job_id]["blocked"] is None}
        apply_rulings(context, batch, world, rulings, free)
        return len(mine)

    return context.committer.call(apply, locks=list(rulings))
