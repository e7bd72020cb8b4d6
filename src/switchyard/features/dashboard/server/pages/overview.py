"""The overview: clusters and their load, what waits and why, where jobs went, queues, pools, agents in trouble."""

from __future__ import annotations

from dataclasses import dataclass

from switchyard.features.dashboard.server.charts import draw_columns, draw_flows
from switchyard.features.dashboard.service import job_groups, queue_shares
from switchyard.features.dashboard.service.fleet_summary import fleet_summary, troubled_agents
from switchyard.model.cluster.cluster import Cluster, Health
from switchyard.model.job.job import State
from switchyard.model.rules.access import ROLE_RANK, Role
from switchyard.server.http.call import Call
from switchyard.server.http.query_parameters import QueryParameter
from switchyard.server.pages.web_page import PageValues, WebPage
from switchyard.service.job import failure_stats, live_job_counts, stats
from switchyard.service.token import pool_calls
from switchyard.store.jobs.jobs import JobFilter

SPANS = {"hour": (3600, 60), "day": (86_400, 48)}  # seconds, and columns in the drawing
CLUSTERS_MAX = 24  # cards; of more clusters those in trouble and the fullest are shown
ROWS_MAX = 12  # of queues, token pools, agents
WEEK_S = 7 * 86_400
STATE_ORDER = ("SUCCEEDED", "RUNNING", "SUBMITTED", "ASSIGNED", "PENDING", "FAILED", "CANCELLED", "REJECTED")
CAUSES = {
    "queue": "for a place in a limited queue",
    "tokens": "for tokens of a pool",
    "down": "for a cluster that is down",
    "cordoned": "for a cluster that is cordoned",
    "paused": "for a cluster whose agents are paused",
    "selection": "for a cluster that the selection allows",
    "quotes": "for quotes of clusters",
    "spill": "for its time to spill over",
    "hold": "held by a person",
    "after": "for other jobs to end",
    "backoff": "for its next try",
    "unreadable": "damaged, needs an operator",
    "other": "for another reason",
}


@dataclass(frozen=True, slots=True)
class ClusterUse:
    """What a cluster has, and how much of it is in use; None: its agent does not say."""

    cluster: Cluster
    cores: tuple[int | None, int]
    gpus: tuple[int | None, int]
    memory: tuple[int | None, int]


def load(call: Call) -> PageValues:
    context, actor = call.context, call.actor
    span = call.text("span") or "hour"
    seconds, columns = SPANS[span]
    recent = stats.recent_activity(context, actor, since_s=seconds, spans=columns)
    groups = job_groups.count_groups(context, actor, JobFilter(), by="state")
    fleet = fleet_summary(context, actor, limit=CLUSTERS_MAX)
    shares = queue_shares.queue_shares(context, actor)
    pools = sorted(pool_calls.pool_list(context), key=lambda pool: (-pool.waiting, pool.namespace))
    troubled, troubled_count = troubled_agents(context, actor, limit=ROWS_MAX)
    return {
        "span": span,
        "span_begin": f"one {span} ago",
        "activity": recent,
        "by_state": draw_columns([(item.begin_us, item.by_state) for item in recent.spans], STATE_ORDER),
        "by_cluster": draw_columns([(item.begin_us, item.by_cluster) for item in recent.spans]),
        "flows": draw_flows(recent.flows),
        "failures": failure_stats.failure_stats(context, actor, by="kind", since_s=seconds, project=None),
        "counts": dict(groups.counts),
        "counts_whole": groups.is_whole,
        "counts_read": groups.jobs_read,
        "states": [state.value for state in State],
        "waiting": _waiting(call),
        "causes": CAUSES,
        "uses": [use_of(cluster) for cluster in fleet.first],
        "uses_left": fleet.healths.total() - len(fleet.first),
        "total": fleet.use,
        "healths": {health.value: fleet.healths[health] for health in Health if fleet.healths[health]},
        "shares": shares,
        "queues": list(shares.queues.items())[:ROWS_MAX],
        "pools": pools[:ROWS_MAX],
        "pools_left": max(0, len(pools) - ROWS_MAX),
        "troubled": troubled,
        "troubled_left": troubled_count - len(troubled),
    }


def use_of(cluster: Cluster) -> ClusterUse:
    """The use of a cluster, from its graph and what its agent last said is free."""
    load_now, totals = cluster.load, cluster.totals
    free: tuple[int | None, ...] = (None,) * 3
    if load_now is not None and load_now.silent_s is None:
        free = (load_now.free_cores, load_now.free_gpus, load_now.free_memory_bytes)
    whole = (totals.get("core", 0), totals.get("gpu", 0), totals.get("memory", 0))
    used = [(None if left is None else max(0, total - left), total) for left, total in zip(free, whole, strict=True)]
    return ClusterUse(cluster, *used)


def _waiting(call: Call) -> list[tuple[str, int]]:
    """The causes of waiting, the largest first. Who may not view the platform gets the counts of visible jobs."""
    if call.actor.rights.platform >= ROLE_RANK[Role.VIEW]:
        counts = live_job_counts.count_live_jobs(call.context).waiting
    else:
        bars = stats.route_stats(call.context, call.actor, WEEK_S).by["reason"]
        counts = {bar.name.removeprefix("pending: "): bar.pending for bar in bars if bar.pending}
    return sorted(((cause, count) for cause, count in counts.items() if count), key=lambda item: -item[1])


PAGE = WebPage(
    "/",
    "overview.html",
    title="Overview",
    load=load,
    query=(QueryParameter("span", about="hour or day", words=tuple(SPANS)),),
    live=("now", "clusters", "went", "queues"),
    refresh_s=5.0,
    pause_s=3.0,
    is_heavy=True,
    is_same_for_viewers=True,
    menu="Overview",
)
