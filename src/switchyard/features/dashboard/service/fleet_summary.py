"""All clusters at a glance: their health, their use, and agents in trouble. Cheap for 10,000 clusters."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version as package_version

from switchyard.model.cluster.cluster import Agent, Cluster, Health
from switchyard.model.rules.access import Role
from switchyard.route.member import Member
from switchyard.service.cluster.agents import agent_seen_by
from switchyard.service.cluster.clusters import cluster_views, visible_members
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor

TROUBLES = frozenset({Health.DOWN, Health.CORDONED, Health.PAUSED})
COUNTED_TYPES = {"cores": "core", "gpus": "gpu", "memory": "memory"}


@dataclass(frozen=True, slots=True)
class FleetSummary:
    """`first`: some clusters, those in trouble before the others. `use`: used and total of clusters that say theirs."""

    first: list[Cluster]
    healths: Counter[Health]
    use: dict[str, tuple[int, int]]


def fleet_summary(context: Context, actor: Actor, *, limit: int) -> FleetSummary:
    """Summarize the clusters that the actor may view. Only `limit` of them are made ready to be shown."""
    members = visible_members(context, actor)
    first = heapq.nsmallest(limit, members, key=trouble_first)
    healths = Counter(member.health for member in members)
    return FleetSummary(cluster_views(context, first, actor), healths, _use(context, members))


def trouble_first(member: Member) -> tuple[bool, str]:
    """The order of clusters in lists: those in trouble, then by name."""
    return member.health not in TROUBLES, member.name


def search_clusters(context: Context, members: list[Member], text: str) -> list[Member]:
    """Return the clusters that have the text in their name, backend, a group or a label, in any case."""
    if not text:
        return members
    text, rows = text.lower(), context.snapshots.fleet.rows

    def has_text(member: Member) -> bool:
        row = rows.get(member.id)
        words = [member.name, *member.groups]
        words += [row.backend, *(f"{key}={value}" for key, value in row.labels.items())] if row is not None else []
        return any(text in word.lower() for word in words)

    return [member for member in members if has_text(member)]


def _use(context: Context, members: Sequence[Member]) -> dict[str, tuple[int, int]]:
    used, totals = dict.fromkeys(COUNTED_TYPES, 0), dict.fromkeys(COUNTED_TYPES, 0)
    for member in members:
        load = context.snapshots.load_of(member.id)
        if load is None or load.silent_s is not None:
            continue
        all_types = member.graph.totals if member.graph else {}
        free = {"cores": load.free_cores, "gpus": load.free_gpus, "memory": load.free_memory_bytes}
        for name, kind in COUNTED_TYPES.items():
            left, total = free[name], all_types.get(kind, 0)
            if left is not None:
                used[name] += max(0, total - left)
                totals[name] += total
    return {name: (used[name], totals[name]) for name in COUNTED_TYPES}


def troubled_agents(context: Context, actor: Actor, *, limit: int) -> tuple[list[tuple[Agent, str]], int]:
    """Return some agents in trouble, each with the trouble, and how many there are."""
    server_version, snapshots = _server_version(), context.snapshots
    first: list[tuple[Agent, str]] = []
    count = 0
    for entry in snapshots.fleet.agents.values():
        is_silent = not snapshots.is_live(entry.id)
        is_same_version = entry.version in ("", server_version)
        load = snapshots.loads.get(entry.id)
        silence = load.trouble if load is not None and load.silent_s is not None else ""
        if not (is_silent or silence) and entry.rival is None and not entry.is_paused and is_same_version:
            continue
        member = snapshots.world.by_id.get(entry.cluster_id)
        if member is None or not actor.may_cluster(Role.VIEW, member):
            continue
        if is_silent and len(first) >= limit:
            count += 1
            continue
        agent = agent_seen_by(context, actor, entry, member)
        if trouble := (silence if not is_silent else "") or agent_trouble(agent, server_version):
            count += 1
            first += [(agent, trouble)] if len(first) < limit else []
    return first, count


@cache
def _server_version() -> str:
    """The version of this package. To find it reads folders, for tens of milliseconds."""
    return package_version("switchyard")


def agent_trouble(agent: Agent, server_version: str) -> str:
    """Why an agent needs a person: it is silent, paused, refused or of another version than the server; or empty."""
    if not agent.is_live:
        return "silent"
    if agent.rival is not None:
        return "another process uses its credential"
    if agent.is_paused:
        return f"paused{f': {agent.reason}' if agent.reason else ''}"
    if agent.version and agent.version != server_version:
        return f"version {agent.version}, the server has {server_version}"
    return ""
