"""Count decisions after their commit: by pool, label, queue, cluster, outcome, and by the step that rejected a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

from switchyard.model.cluster.verdict import Answer, Outcome, Plan, Verdict
from switchyard.model.job.bounds import decode_bounds
from switchyard.model.job.unreadable import UNREADABLE_ERRORS
from switchyard.model.rules.queue import Lane
from switchyard.route.checks import STEPS
from switchyard.route.router import ChosenSets
from switchyard.service.core.process_metrics import OUTCOMES, LabelValues, ProcessMetrics
from switchyard.service.core.writes.batch import Batch
from switchyard.store.jobs.job_rows import JobRow

SPILL_STEP = "spill"  # not a step of the router
BOUNDS_CACHE_MAX = 4096  # most jobs of a user have the same bounds, or none


def count_rerouted(tally: ProcessMetrics, batch: Batch, plans: Iterable[tuple[JobRow, Plan]]) -> None:
    """Count new decisions about jobs that were PENDING."""
    plans = list(plans)
    if not plans:
        return
    keys = [decision_key(row.bounds, row.lane, plan.chosen, OUTCOMES[plan.outcome]) for row, plan in plans]
    rejected = [rejecting_step(plan.verdicts) for _, plan in plans if plan.outcome == Outcome.REJECT]
    batch.settled.append(lambda: tally.decided(keys, rejected))


def count_spill_rejection(tally: ProcessMetrics, batch: Batch, row: JobRow) -> None:
    """Count a job that a spill rule rejects."""
    key = decision_key(row.bounds, row.lane, None, "rejected")
    batch.settled.append(lambda: tally.decided([key], [SPILL_STEP]))


def count_moved(tally: ProcessMetrics, batch: Batch, moved: Sequence[tuple[JobRow, str, str]]) -> None:
    """Count jobs that moved to another cluster, both as moves and as decisions."""
    keys = [decision_key(row.bounds, row.lane, target, "assigned") for row, _, target in moved]
    moves = Counter[LabelValues]((source, target) for _, source, target in moved)

    def count() -> None:
        tally.decided(keys)
        tally.moves.add_many(moves)

    batch.settled.append(count)


def count_set(tally: ProcessMetrics, batch: Batch, sets: ChosenSets | None, cluster: str) -> None:
    """Count the set that a job with alternatives got. Does nothing for other jobs."""
    if sets is not None:
        key = (cluster, str(sets.number(cluster)))
        batch.settled.append(lambda: tally.alternatives.add(*key))


def rejecting_step(verdicts: Iterable[Verdict]) -> str:
    """Return the last step that a cluster reached: it tells most about why no cluster takes the job.

    If a cluster would take the job, a spill rule ended its wait.
    """
    all_verdicts = list(verdicts)
    if any(verdict.say is not Answer.NO for verdict in all_verdicts):
        return SPILL_STEP
    return max((verdict.step for verdict in all_verdicts if verdict.step in STEPS), key=STEPS.index, default="none")


def decision_key(bounds: str, lane: str, cluster: str | None, outcome: str) -> LabelValues:
    pool, label = pool_and_label(bounds)
    return (pool, label, Lane.read(lane).queue, cluster or "", outcome)


@lru_cache(maxsize=BOUNDS_CACHE_MAX)
def pool_and_label(bounds: str) -> tuple[str, str]:
    try:
        decoded = decode_bounds(bounds)
    except UNREADABLE_ERRORS:  # the job shows the damage itself
        return "", ""
    return decoded.pool or "", decoded.label or ""
