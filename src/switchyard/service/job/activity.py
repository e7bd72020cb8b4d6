"""Where jobs went lately, for one reader: spans of time by state and cluster, and flows from pools to clusters."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from switchyard.model.wire.ids import make_id
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.lifecycle.visibility import HIDDEN, Visibility
from switchyard.service.placement.decision_counts import pool_and_label
from switchyard.store.clusters import route_counts

READ_MAX = 10_000  # jobs read, twice: some 100 ms of CPU
GROUPS_MAX = 5000
NO_CLUSTER = "no cluster yet"
NO_POOL = "any cluster"


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
