"""The list of clusters, and one cluster: its nodes by use, agents, values and jobs."""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from switchyard.features.dashboard.server.history_drawing import WIDTH as HISTORY_WIDTH
from switchyard.features.dashboard.server.history_drawing import HistoryDrawing, draw_history
from switchyard.features.dashboard.server.node_map import LEVELS, draw_nodes, draw_tree
from switchyard.features.dashboard.server.pages.overview import use_of
from switchyard.features.dashboard.service.fleet_summary import search_clusters, trouble_first
from switchyard.model.cluster.cluster import Health
from switchyard.model.rules.access import Role
from switchyard.server.http.call import Call
from switchyard.server.http.query_parameters import QueryParameter
from switchyard.server.pages.web_page import PageValues, WebPage
from switchyard.service.cluster import agents, cluster_show, clusters, graphs
from switchyard.service.core.agents.visible_clusters import visible_cluster
from switchyard.service.job import jobs
from switchyard.store.clusters.cluster_samples import ClusterSample
from switchyard.store.jobs.jobs import JobFilter

ROWS = 100  # clusters on a page
JOBS_SHOWN = 12
AGENTS_SHOWN = 50
SPANS = {"hour": 3600, "day": 86_400, "week": 7 * 86_400}
ONE_QUERY = (QueryParameter("span", about="how far back the history goes", words=tuple(SPANS)),)
LIST_QUERY = (
    QueryParameter("text", about="a part of the name, of a label or of a group"),
    QueryParameter("health", about="only with this health", words=tuple(health.value for health in Health)),
    QueryParameter("cursor"),
)


def load_list(call: Call) -> PageValues:
    """Those in trouble first, then by name. The cursor is the place in this order."""
    context, health = call.context, call.text("health")
    listed = clusters.visible_members(context, call.actor)
    matching = [
        member
        for member in search_clusters(context, listed, call.text("text") or "")
        if health is None or member.health.value == health
    ]
    matching.sort(key=trouble_first)
    cursor = call.text("cursor") or "0"
    start = int(cursor) if cursor.isdigit() and len(cursor) < 8 else 0
    healths = Counter(member.health for member in listed)
    page = clusters.cluster_views(context, matching[start : start + ROWS], call.actor)
    return {
        "uses": [use_of(cluster) for cluster in page],
        "shown": len(matching),
        "listed": len(listed),
        "start": start,
        "next": start + ROWS if start + ROWS < len(matching) else None,
        "healths": {one.value: healths[one] for one in Health if healths[one]},
        "health": health,
        "may_add": call.actor.is_platform_admin,
    }


def load_one(call: Call) -> PageValues:
    context, actor, name = call.context, call.actor, call.path["cluster"]
    cluster = cluster_show.cluster_get(context, actor, name)
    member = visible_cluster(context, actor, name)
    graph = graphs.graph_get(context, call.caller, name) if member.graph is not None else None
    recent = jobs.job_list(
        context, actor, JobFilter(cluster=name, is_by_task=True), before=None, limit=JOBS_SHOWN, with_spec=False
    )
    listed = agents.agent_list(context, actor, name)
    span = call.text("span") or "day"
    samples = cluster_show.cluster_history(context, actor, name, since_s=SPANS[span])
    return {
        "title": cluster.name,
        "cluster": cluster,
        "use": use_of(cluster),
        "kinds": draw_nodes(graph, cluster.load) if graph is not None else [],
        "tree": draw_tree(graph) if graph is not None else [],
        "nodes": graph.nodes if graph is not None else 0,
        "levels": LEVELS,
        "agents": listed[:AGENTS_SHOWN],
        "agents_left": max(0, len(listed) - AGENTS_SHOWN),
        "jobs": recent.items,
        "span": span,
        "spans": tuple(SPANS),
        "history": _history(samples, SPANS[span] * 1_000_000),
        "may_operate": actor.may_cluster(Role.OPERATE, member),
        "may_admin": actor.may_cluster(Role.ADMIN, member),
    }


def _history(samples: list[ClusterSample], span_us: int) -> HistoryDrawing:
    """The drawing ends at a round time: it is the same, and not sent again, until the next round time."""
    step_us = span_us // HISTORY_WIDTH
    end_us = -(-samples[-1].at_us // step_us) * step_us
    stored_us = samples[-2].at_us if len(samples) > 1 else 0
    last = replace(samples[-1], at_us=max(end_us - step_us, stored_us + 1))
    return draw_history([*samples[:-1], last], begin_us=end_us - span_us, end_us=end_us)


LIST_PAGE = WebPage(
    "/clusters",
    "clusters.html",
    title="Clusters",
    load=load_list,
    query=LIST_QUERY,
    live=("healths", "rows"),
    refresh_s=5.0,
    pause_s=3.0,
    is_heavy=True,
    menu="Clusters",
)
ONE_PAGE = WebPage(
    "/clusters/{cluster}",
    "cluster.html",
    title="Cluster",
    load=load_one,
    query=ONE_QUERY,
    live=("heading", "use", "history", "nodes", "agents", "state", "jobs"),
    refresh_s=5.0,
    pause_s=2.0,
    is_heavy=True,
)
