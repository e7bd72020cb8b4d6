"""What an engine says, and the protocol that every engine keeps. Pure.

Answers are exact, or say that they are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from switchyard.match.demand import Demand
from switchyard.model.graph import Graph

SEARCH_STEPS_MAX = 10_000  # of the search where shapes compete for the same nodes; some tens of milliseconds
TOO_COMPLEX = "too complex to decide"


@dataclass(frozen=True, slots=True)
class Match:
    """It fits, `slots` times; none: how often is not meaningful, or was not worked out.

    `undecided`: why it could not be decided. That counts as "may run": a false no is the worse error.
    """

    slots: int | None = None
    undecided: str = ""


@dataclass(frozen=True, slots=True)
class Misfit:
    """It never fits: the first level that failed, in words, and by how much.

    `needs` of `level` were asked for at one place; the best place has `best`; so many places have that: `places`.
    `slots`: how many slots the cluster holds all the same.
    """

    level: str
    reason: str
    needs: int = 0
    best: int = 0
    places: int = 0
    slots: int | None = None


class Engine(Protocol):
    def satisfy(self, demand: Demand, graph: Graph) -> Match | Misfit:
        """Whether the cluster, empty, could run this."""
