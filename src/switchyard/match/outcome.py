"""An engine's answer, and the protocol that every engine implements. Pure.

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
    """The demand fits, `slots` times; none: the number has no meaning, or was not computed.

    `undecided`: why the engine could not decide. The job may run then: a false no would be the worse error.
    """

    slots: int | None = None
    undecided: str = ""


@dataclass(frozen=True, slots=True)
class Misfit:
    """The demand never fits: the first level that failed, in words, and by how much.

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
        """Return whether the cluster could run the demand if it were empty."""
