"""Where jobs went, from what is stored: the same in every replica, and after any restart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from switchyard.model.ids import make_id
from switchyard.model.queue import queue_of_lane
from switchyard.model.stats import STATS_DIMENSIONS, OutcomeCounts, RouteStats
from switchyard.service.context import Context
from switchyard.service.job.decision_history import readable_verdicts
from switchyard.service.job.live_job_counts import blocked_category, reason_category
from switchyard.service.job.visibility import HIDDEN, Visibility
from switchyard.service.rights import Actor
from switchyard.service.submit.decision_counts import pool_and_label, rejecting_step
from switchyard.store import decision_events, route_counts

LOOK_MAX = 20_000  # jobs: some tens of milliseconds
GROUPS_MAX = 5000  # different ways that they went; of more, those that most went
BARS_MAX = 50  # of one kind; the rest together are `other`
NONE, OTHER = "-", "other"


def route_stats(context: Context, actor: Actor, since_s: int) -> RouteStats:
    since_us = max(0, context.now_us() - since_s * 1_000_000)
    with context.database.read() as tx:
        groups, looked_at = route_counts.count_by_route(
            tx,
            oldest=make_id(since_us, 0),
            projects=actor.viewable_projects(),
            reader=actor.id,
            budget=LOOK_MAX,
            limit=GROUPS_MAX,
        )
        bodies = decision_events.verdicts_get_many(tx, [row.plan_hash for row in groups if row.plan_hash])
    sight = Visibility(context, actor)
    steps = {key: rejecting_step(verdicts) for key, verdicts in readable_verdicts(bodies).items()}
    counts: dict[str, dict[str, dict[str, int]]] = {by: {} for by in STATS_DIMENSIONS}
    for row in groups:
        outcome = _outcome(row)
        is_seen = sight.sees(row.cluster_id, row.cluster, is_own=bool(row.is_own))
        for by, name in _names(row, outcome, steps, is_seen=is_seen):
            bar = counts[by].setdefault(name, {})
            bar[outcome] = bar.get(outcome, 0) + row.size
    bars = {by: _bars(found) for by, found in counts.items()}
    return RouteStats(since_us, looked_at, looked_at < LOOK_MAX, sum(row.size for row in groups), bars)


def _outcome(row: route_counts.Row) -> str:
    if row.state in ("PENDING", "REJECTED"):
        return str(row.state).lower()
    return "assigned" if row.is_assigned else "ended"


def _names(
    row: route_counts.Row, outcome: str, steps: Mapping[str, str], *, is_seen: bool
) -> Iterator[tuple[str, str]]:
    """What a group of jobs is counted under, for each way to count. `is_seen`: the reader may know its cluster."""
    pool, label = pool_and_label(row.bounds)
    yield "cluster", (row.cluster or NONE) if is_seen else HIDDEN
    yield "pool", pool or NONE
    yield "label", label or NONE
    yield "queue", queue_of_lane(row.lane) if isinstance(row.lane, str) else OTHER
    yield "outcome", outcome
    if outcome == "rejected":
        yield "reason", f"rejected: {steps.get(row.plan_hash, OTHER)}"
    if outcome == "pending":
        yield "reason", f"pending: {blocked_category(row.blocked) if row.blocked else reason_category(row.reason)}"


def _bars(counts: Mapping[str, Mapping[str, int]]) -> list[OutcomeCounts]:
    ranked = sorted(
        (OutcomeCounts(name, **found) for name, found in counts.items()), key=lambda bar: (-bar.total, bar.name)
    )
    shown, rest = ranked[:BARS_MAX], ranked[BARS_MAX:]
    if rest:
        sums = {word: sum(getattr(bar, word) for bar in rest) for word in ("assigned", "pending", "rejected", "ended")}
        shown.append(OutcomeCounts(OTHER, **sums))
    return shown
