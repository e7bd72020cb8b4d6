"""The snapshot that the router decides from: every cluster with its graph and health, at one version. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from switchyard.match.index import MatchIndex
from switchyard.model.rules.layout import NO_LAYOUT, ClusterWeights, Layout
from switchyard.route.member import Member
from switchyard.route.roster import RosterCache


@dataclass(frozen=True, slots=True)
class World:
    """All clusters at one version, in the order of their names, and the pools and labels they are in.

    The clusters, pools and labels of a world never change. `index` and `rosters` are caches: they only remember what
    follows from graphs and members. The next world takes over the index.
    """

    version: int
    members: tuple[Member, ...] = ()
    by_name: Mapping[str, Member] = field(default_factory=dict)
    by_id: Mapping[str, Member] = field(default_factory=dict)
    index: MatchIndex = field(default_factory=MatchIndex, compare=False)
    pools: Mapping[str, ClusterWeights] = field(default_factory=dict)
    labels: Mapping[str, ClusterWeights] = field(default_factory=dict)
    has_ends: bool = False  # a cluster ends at a set time: then the time limits of jobs count
    # Clusters on probation for the jobs of one owner, by the owner's id, each with the reason.
    owner_probations: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    has_probation: bool = False  # a cluster is on probation for all
    rosters: RosterCache = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rosters", RosterCache(self.members))

    @staticmethod
    def of(
        version: int,
        members: Sequence[Member],
        *,
        layout: Layout = NO_LAYOUT,
        after: World | None = None,
        owner_probations: Mapping[str, tuple[tuple[str, str], ...]] = MappingProxyType({}),
    ) -> World:
        """Make a world. `after`: the world before this one."""
        ordered = tuple(sorted(members, key=lambda member: member.name))
        by_id = {member.id: member for member in ordered}
        index = after.index if after else MatchIndex()
        index.set_classes(member.graph for member in ordered if member.graph is not None)
        by_name = {member.name: member for member in ordered}
        has_ends = any(member.left_s is not None for member in ordered)
        return World(
            version,
            ordered,
            by_name,
            by_id,
            index,
            layout.pools,
            layout.labels,
            has_ends,
            owner_probations,
            has_probation=any(member.probation for member in ordered),
        )
