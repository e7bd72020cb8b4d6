"""The snapshot the router decides on: every cluster with what it has and how it is. Immutable, with a version."""

from __future__ import annotations

from dataclasses import dataclass, field

from switchyard.model.cluster import Health
from switchyard.model.graph import Graph


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


@dataclass(frozen=True, slots=True)
class World:
    """All clusters at one version."""

    version: int
    members: tuple[Member, ...] = ()
    by_name: dict[str, Member] = field(default_factory=dict)
    by_id: dict[str, Member] = field(default_factory=dict)

    @staticmethod
    def of(version: int, members: list[Member]) -> World:
        ordered = tuple(sorted(members, key=lambda member: member.name))
        return World(
            version, ordered, {member.name: member for member in ordered}, {member.id: member for member in ordered}
        )
