"""Count decisions once they are durable: by pool, label, queue, cluster and outcome; and what rejected a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

from switchyard.model.queue import queue_of_lane
from switchyard.model.unreadable import UNREADABLE_ERRORS
from switchyard.model.verdict import Answer, Plan, Verdict
from switchyard.route.router import STEPS
from switchyard.service.committer import Batch
from switchyard.service.process_metrics import OUTCOMES, LabelValues, ProcessMetrics
from switchyard.service.submit.bounds import decode_bounds
from switchyard.service.submit.new_job import JobInsert
from switchyard.store import jobs

SPILL_STEP = "spill"  # no step of the router's
BOUNDS_CACHE_MAX = 4096  # most jobs of a user have the same bounds, or none


def count_new_jobs(tally: ProcessMetrics, batch: Batch, writes: Sequence[JobInsert]) -> None:
    """Jobs that are inserted with this batch."""
    if not writes:
        return
    keys = [
        _key(write.row["bounds"], write.row["lane"], write.created.cluster, write.created.state.lower())
        for write in writes
    ]
    rejected = [rejecting_step(w.kept.ruling.verdicts) for w in writes if w.created.state == "REJECTED"]

    def settled() -> None:
        tally.decided(keys, rejected)
        tally.accepted.add(amount=len(keys))

    batch.settled.append(settled)


def count_rerouted(tally: ProcessMetrics, batch: Batch, decided: Iterable[tuple[jobs.Row, Plan]]) -> None:
    """Jobs that waited, and got another answer."""
    plans = list(decided)
    if not plans:
        return
    keys = [_key(row.bounds, row.lane, plan.chosen, OUTCOMES[plan.outcome]) for row, plan in plans]
    rejected = [rejecting_step(plan.verdicts) for _, plan in plans if plan.outcome == "reject"]
    batch.settled.append(lambda: tally.decided(keys, rejected))


def count_spill_rejection(tally: ProcessMetrics, batch: Batch, row: jobs.Row) -> None:
    """A job that a spill rule rejects."""
    key = _key(row.bounds, row.lane, None, "rejected")
    batch.settled.append(lambda: tally.decided([key], [SPILL_STEP]))


def count_moved(tally: ProcessMetrics, batch: Batch, moved: Sequence[tuple[jobs.Row, str, str]]) -> None:
    """Jobs that went from one cluster to another: it is a move, and another answer."""
    keys = [_key(row.bounds, row.lane, to, "assigned") for row, _, to in moved]
    went = Counter[LabelValues]((here, to) for _, here, to in moved)

    def settled() -> None:
        tally.decided(keys)
        tally.moves.add_many(went)

    batch.settled.append(settled)


def rejecting_step(verdicts: Iterable[Verdict]) -> str:
    """The step that came furthest says most about why nobody takes it. Somebody would: a rule ended its waiting."""
    found = list(verdicts)
    if any(verdict.say is not Answer.NO for verdict in found):
        return SPILL_STEP
    return max((verdict.step for verdict in found if verdict.step in STEPS), key=STEPS.index, default="none")


def _key(bounds: str, lane: str, cluster: str | None, outcome: str) -> LabelValues:
    pool, label = pool_and_label(bounds)
    return (pool, label, queue_of_lane(lane), cluster or "", outcome)


@lru_cache(maxsize=BOUNDS_CACHE_MAX)
def pool_and_label(bounds: str) -> tuple[str, str]:
    try:
        found = decode_bounds(bounds)
    except UNREADABLE_ERRORS:  # the job itself says so
        return "", ""
    return found.pool or "", found.label or ""
