"""Does it fit? The engines that answer it, by name: two of ours, others by entry point `switchyard.engines`. Pure.

An engine is a class without arguments that keeps the protocol below. Answers are exact, or say that they are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import entry_points
from typing import Protocol

from switchyard.errors import UnknownName
from switchyard.match.demand import Demand
from switchyard.model.graph import Graph

GROUP = "switchyard.engines"
DEFAULT = "shapes"
BUILT_IN = ("shapes", "walk")
STEPS_MAX = 10_000  # of the search where shapes compete for the same nodes; some tens of milliseconds
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


def engine(name: str = DEFAULT) -> Engine:
    """The engine of that name; one instance for all who ask."""
    return _engine(name)


@lru_cache(maxsize=64)
def _engine(name: str) -> Engine:
    if name == "shapes":
        from switchyard.match.shapes import Shapes

        return Shapes()
    if name == "walk":
        from switchyard.match.walk import Walk

        return Walk()
    for found in entry_points(group=GROUP):
        if found.name == name:
            made: Engine = found.load()()
            return made
    raise UnknownName(
        f"There is no match engine {name[:80]!r}.", next_step=f"Installed are {', '.join(engine_names())}."
    )


def engine_names() -> list[str]:
    """Ours first, then what is installed."""
    return [*BUILT_IN, *sorted({found.name for found in entry_points(group=GROUP)} - set(BUILT_IN))]
