"""Pools, cluster labels and queues: their members and weights, who set them, and the shares that they gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from switchyard.features.dashboard.server.pages.rules import json_text
from switchyard.features.dashboard.service import queue_shares
from switchyard.model.cluster.cluster import Health
from switchyard.model.rules.layout import ClusterSet
from switchyard.server.http.call import Call
from switchyard.server.pages.web_page import PageValues, WebPage
from switchyard.service.cluster import clusters, queue_settings
from switchyard.service.job import stats

DAY_S, SPANS = 86_400, 48
SETS_MAX = 50  # pools or labels on the page; `yard pool ls` lists all
MEMBERS_MAX = 24  # of one pool
NEW_SET = '{"members": [{"id": "CLUSTER", "weight": 1}]}'
NEW_QUEUE = '{"limits": {"running": 10}}'


@dataclass(frozen=True, slots=True)
class SetShare:
    """A member of a pool or label. `percent`: what its weight gives; `jobs`: that went there in the last day."""

    cluster: str
    weight: float
    percent: float
    jobs: int
    health: Health | None


@dataclass(frozen=True, slots=True)
class SetCard:
    """A pool or a label with its first members. `body`: as the API takes it."""

    set: ClusterSet
    members: list[SetShare]
    members_left: int
    jobs: int
    body: str


def load(call: Call) -> PageValues:
    context, actor = call.context, call.actor
    layout = queue_settings.full_layout_view(context, actor)
    healths = {member.name: member.health for member in clusters.visible_members(context, actor)}
    recent = stats.recent_activity(context, actor, since_s=DAY_S, spans=SPANS)
    pools = [set_card("pool", one, recent.flows, healths) for one in layout.pools[:SETS_MAX]]
    labels = [set_card("label", one, recent.flows, healths) for one in layout.labels[:SETS_MAX]]
    return {
        "layout": layout,
        "kinds": (
            ("pools", "Pools", "pool", pools, max(0, len(layout.pools) - SETS_MAX)),
            ("cluster-labels", "Cluster labels", "label", labels, max(0, len(layout.labels) - SETS_MAX)),
        ),
        "is_whole": recent.is_whole,
        "jobs_read": recent.jobs_read,
        "shares": queue_shares.queue_shares(context, actor),
        "may_change": actor.is_platform_admin,
        "new_set": NEW_SET,
        "new_queue": NEW_QUEUE,
        "json_text": json_text,
    }


def set_card(
    word: str, one: ClusterSet, flows: Mapping[tuple[str, str], int], healths: Mapping[str, Health]
) -> SetCard:
    """A pool or label for the page. `flows`: jobs by source and cluster. `healths`: of the visible clusters."""
    total = sum(member.weight for member in one.members) or 1
    source = f"{word} {one.name}"
    members = [
        SetShare(
            member.id,
            member.weight,
            percent=round(100 * member.weight / total, 1),
            jobs=flows.get((source, member.id), 0),
            health=healths.get(member.id),
        )
        for member in sorted(one.members, key=lambda member: (-member.weight, member.id))
    ]
    jobs = sum(size for (origin, _), size in flows.items() if origin == source)
    body = {"members": [{"id": member.id, "weight": member.weight} for member in one.members]}
    whole = {**body, "sticky": one.sticky} if word == "pool" else body
    return SetCard(
        one, members[:MEMBERS_MAX], members_left=max(0, len(members) - MEMBERS_MAX), jobs=jobs, body=json_text(whole)
    )


PAGE = WebPage(
    "/pools",
    "pools.html",
    "Pools",
    load,
    live=("sets", "queues"),
    refresh_s=10.0,
    pause_s=3.0,
    is_heavy=True,
    menu="Pools",
)
