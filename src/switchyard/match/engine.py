"""Does it fit? The engines that answer it, by name: two of ours, others by entry point `switchyard.engines`. Pure.

An engine is a class without arguments that keeps the protocol of `outcome.py`.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import entry_points

from switchyard.errors import UnknownName
from switchyard.match.outcome import Engine, Match, Misfit
from switchyard.match.shapes import Shapes
from switchyard.match.walk import Walk
from switchyard.warm import warm_loaded

__all__ = ["Engine", "Match", "Misfit", "engine", "engine_names"]  # all that an engine of others needs

GROUP = "switchyard.engines"
DEFAULT = "shapes"
BUILT_IN = ("shapes", "walk")


def engine(name: str = DEFAULT) -> Engine:
    """The engine of that name; one instance for all who ask."""
    return _engine(name)


@lru_cache(maxsize=64)
def _engine(name: str) -> Engine:
    if name == "shapes":
        return Shapes()
    if name == "walk":
        return Walk()
    for found in entry_points(group=GROUP):
        if found.name == name:
            made: Engine = found.load()()
            warm_loaded()  # threads run already
            return made
    raise UnknownName(
        f"There is no match engine {name[:80]!r}.", next_step=f"Installed are {', '.join(engine_names())}."
    )


def engine_names() -> list[str]:
    """Ours first, then what is installed."""
    return [*BUILT_IN, *sorted({found.name for found in entry_points(group=GROUP)} - set(BUILT_IN))]
