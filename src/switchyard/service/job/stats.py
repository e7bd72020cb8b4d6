"""Count where jobs went, from the database: all servers give the same counts, also after a restart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from switchyard.model.rules.queue import Lane
from switchyard.model.wire.ids import make_id
from switchyard.model.wire.stats import STATS_DIMENSIONS, OutcomeCounts, RouteStats
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.job.live_job_counts import blocked_category, reason_category
from switchyard.service.lifecycle.decision_history import readable_verdicts
from switchyard.service.lifecycle.visibility import HIDDEN, Visibility
from switchyard.service.placement.decision_counts import pool_and_label, rejecting_step
from switchyard.store.clusters import route_counts
from switchyard.store.jobs import decision_events

LOOK_MAX = 10_000  # jobs read: 60 ms of CPU
GROUPS_MAX = 5000  # groups of jobs with the same route; the largest are counted
BARS_MAX = 50  # bars of one dimension; all others are summed as `other`
NONE, OTHER = "-", "other"
READ_MAX = 10_000  # jobs read, twice: some 100 ms of CPU
GROUPS_MAX = 5000
NO_CLUSTER = "no cluster yet"
NO_POOL = "any cluster"


def route_stats(context: Context, actor: Actor, since_s: int) -> RouteStats:
    since_us = max(0, context.now_us() - since_s * 1_000_000)
    with context.database.read() as tx:
        groups, jobs_read = route_counts.count_by_route(
            tx,
            oldest=make_id(since_us, 0),
            projects=actor.viewable_projects(),
            reader=actor.id,
            budget=LOOK_MAX,
            limit=GROUPS_MAX,
        )
        bodies = decision_events.verdicts_get_many(tx, [row.plan_hash for row in groups if row.plan_hash])
    visibility = Visibility(context, actor)
    steps = {key: rejecting_step(verdicts) for key, verdicts in readable_verdicts(bodies).items()}
    counts: dict[str, dict[str, dict[str, int]]] = {by: {} for by in STATS_DIMENSIONS}
    for row in groups:
        outcome = _outcome(row)
        is_seen = visibility.sees(row.cluster_id, row.cluster, is_own=bool(row.is_own))
        for by, name in _names(row, outcome, steps, is_seen=is_seen):
            bar = counts[by].setdefault(name, {})
            bar[outcome] = bar.get(outcome, 0) + row.size
    bars = {by: _bars(outcomes) for by, outcomes in counts.items()}
    return RouteStats(since_us, jobs_read, jobs_read < LOOK_MAX, sum(row.size for row in groups), bars)


def _outcome(row: route_counts.RouteCount) -> str:
    if row.state in ("PENDING", "REJECTED"):
        return str(row.state).lower()
    return "assigned" if row.is_assigned else "ended"


def _names(
    row: route_counts.RouteCount, outcome: str, steps: Mapping[str, str], *, is_seen: bool
) -> Iterator[tuple[str, str]]:
    """Yield the dimensions and the names that a group of jobs counts for. `is_seen`: the reader may see its cluster."""
    pool, label = pool_and_label(row.bounds)
    yield "cluster", (row.cluster or NONE) if is_seen else HIDDEN
    yield "pool", pool or NONE
    yield "label", label or NONE
    yield "queue", Lane.read(row.lane).queue if isinstance(row.lane, str) else OTHER
    yield "outcome", outcome
    if outcome == "rejected":
        yield "reason", f"rejected: {steps.get(row.plan_hash or '', OTHER)}"
    if outcome == "pending":
        yield "reason", f"pending: {blocked_category(row.blocked) if row.blocked else reason_category(row.reason)}"


def _bars(counts: Mapping[str, Mapping[str, int]]) -> list[OutcomeCounts]:
    ranked = sorted(
        (OutcomeCounts(name, **outcomes) for name, outcomes in counts.items()), key=lambda bar: (-bar.total, bar.name)
    )
    bars, smaller = ranked[:BARS_MAX], ranked[BARS_MAX:]
    if smaller:
        sums = {key: sum(getattr(bar, key) for bar in smaller) for key in ("assigned", "pending", "rejected", "ended")}
        bars.append(OutcomeCounts(OTHER, **sums))
    return bars


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """The jobs that were made in one span of time."""

    begin_us: int
    by_state: Counter[str]
    by_cluster: Counter[str]


@dataclass(frozen=True, slots=True)
class Activity:
    """`flows`: from a pool or label to a cluster. `is_whole`: all jobs were counted; else only the newest."""

    since_us: int
    spans: list[TimeSpan]
    flows: Counter[tuple[str, str]]
    jobs: int
    jobs_read: int
    is_whole: bool


def recent_activity(context: Context, actor: Actor, *, since_s: int, spans: int) -> Activity:
    """Count the jobs of the last `since_s` seconds in so many spans of time."""
    now_us, span_us = context.now_us(), since_s * 1_000_000 // spans
    last = now_us // span_us
    since_us = (last - spans + 1) * span_us
    oldest, projects = make_id(max(0, since_us), 0), actor.viewable_projects()
    with context.database.read() as tx:
        timed = route_counts.count_by_time(
            tx,
            oldest=oldest,
            span_us=span_us,
            projects=projects,
            reader=actor.id,
            budget=READ_MAX,
            limit=GROUPS_MAX,
        )
        routed, jobs_read = route_counts.count_by_route(
            tx, oldest=oldest, projects=projects, reader=actor.id, budget=READ_MAX, limit=GROUPS_MAX
        )
    visibility = Visibility(context, actor)
    by_span = {number: TimeSpan(number * span_us, Counter(), Counter()) for number in range(last - spans + 1, last + 1)}
    for row in timed:
        span = by_span.get(row.span)
        if span is not None:
            span.by_state[str(row.state)] += row.size
            span.by_cluster[_place(visibility, row)] += row.size
    flows: Counter[tuple[str, str]] = Counter()
    for group in routed:
        pool, label = pool_and_label(group.bounds)
        source = f"pool {pool}" if pool else f"label {label}" if label else NO_POOL
        flows[source, _place(visibility, group)] += group.size
    return Activity(
        since_us, list(by_span.values()), flows, sum(row.size for row in routed), jobs_read, jobs_read < READ_MAX
    )


def _place(visibility: Visibility, row: route_counts.TimeCount | route_counts.RouteCount) -> str:
    if row.cluster is None:
        return NO_CLUSTER
    return row.cluster if visibility.sees(row.cluster_id, row.cluster, is_own=bool(row.is_own)) else HIDDEN
