"""The snapshot the router decides on: every cluster with what it has and how it is. Immutable, with a version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from switchyard.match.index import MatchIndex
from switchyard.model.cluster import Health
from switchyard.model.graph import Graph
from switchyard.model.layout import NO_LAYOUT, ClusterWeights, Layout
from switchyard.route.roster import RosterCache
from switchyard.route.select.weighted_draw import hash_text


@dataclass(frozen=True, slots=True)
class Member:
    """One cluster as the router sees it."""

    id: str
    name: str
    health: Health
    reason: str = ""
    graph: Graph | None = None
    weight: float = 1.0
    groups: tuple[str, ...] = ()
    is_private: bool = False
    backends: frozenset[str] = frozenset()  # of its agents
    is_interruptible: bool = False  # its nodes may be taken away: only for jobs that bear it
    is_silent: bool = False  # of a cordoned one: uncordoned, it would be down


@dataclass(frozen=True, slots=True)
class World:
    """All clusters at one version, and the pools and labels they are in, by name.

    `index` outlives it: what was answered of a graph stays true of that graph.
    """

    version: int
    members: tuple[Member, ...] = ()
    by_name: dict[str, Member] = field(default_factory=dict)
    by_id: dict[str, Member] = field(default_factory=dict)
    index: MatchIndex = field(default_factory=MatchIndex, compare=False)
    pools: Mapping[str, ClusterWeights] = field(default_factory=dict)
    labels: Mapping[str, ClusterWeights] = field(default_factory=dict)
    rosters: RosterCache = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rosters", RosterCache(self.members))

    @staticmethod
    def of(version: int, members: Sequence[Member], *, layout: Layout = NO_LAYOUT, after: World | None = None) -> World:
        """`after`: the world before this one, whose index is brought up to date and kept."""
        ordered = tuple(sorted(members, key=lambda member: member.name))
        by_id = {member.id: member for member in ordered}
        index = after.index if after else MatchIndex()
        for gone in after.by_id.keys() - by_id.keys() if after else ():
            index.remove(gone)
        for member in ordered:
            if after and after.by_id.get(member.id) is member:
                continue
            if member.graph is None:
                index.remove(member.id)
            else:
                index.put(member.id, member.graph, key=hash_text(member.name), weight=member.weight)
        by_name = {member.name: member for member in ordered}
        return World(version, ordered, by_name, by_id, index, layout.pools, layout.labels)
