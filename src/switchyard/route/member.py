"""A cluster as the router sees it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from switchyard.model.cluster.cluster import Health
from switchyard.model.graph import Graph


@dataclass(frozen=True, slots=True)
class Member:
    id: str
    name: str
    health: Health
    reason: str = ""
    graph: Graph | None = None
    weight: float = 1.0
    groups: tuple[str, ...] = ()
    is_private: bool = False
    backends: frozenset[str] = frozenset()  # of its agents
    is_interruptible: bool = False  # its nodes may be taken away: only for interruptible jobs
    trouble: str = ""  # why its agents take nothing new now, in a word or two: `disk full`
    files_trouble: str = ""  # why they take no jobs with files now
    left_s: int | None = None  # until an ephemeral cluster ends, rounded up; none: it has no end
    is_silent: bool = False  # of a cordoned cluster: it would be down if uncordoned
    probation: str = ""  # why it gets few tasks for a while, whoever owns them
    is_batch_silent: bool = False  # its agents live, but the batch system behind them does not answer


class GroupMember(Protocol):
    """What clusters of one group have in common: all that a check may read of a cluster.

    A check is asked about one cluster of each group, and answers for all. `RosterCache` groups by these values, so one
    that is added here is added there. By `id` only clusters may be told apart that the request names: they stand alone.
    """

    @property
    def id(self) -> str: ...
    @property
    def health(self) -> Health: ...
    @property
    def reason(self) -> str: ...
    @property
    def graph(self) -> Graph | None: ...
    @property
    def backends(self) -> frozenset[str]: ...
    @property
    def is_interruptible(self) -> bool: ...
    @property
    def trouble(self) -> str: ...
    @property
    def files_trouble(self) -> str: ...
    @property
    def probation(self) -> str: ...
    @property
    def left_s(self) -> int | None: ...
