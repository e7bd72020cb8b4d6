"""Does it fit? The engines that answer it, by name: two of ours, others by entry point `switchyard.engines`. Pure.

An engine is a class without arguments that keeps the protocol of `outcome.py`.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import entry_points

from switchyard.decoder_warmup import warm_loaded_types
from switchyard.errors import UnknownName
from switchyard.match.outcome import Engine, Match, Misfit
from switchyard.match.shapes import ShapesEngine
from switchyard.match.walk import WalkEngine

__all__ = ["Engine", "Match", "Misfit", "engine", "engine_names"]  # all that an engine of others needs

ENTRY_POINT_GROUP = "switchyard.engines"
DEFAULT_ENGINE = "shapes"
BUILT_IN_ENGINES = ("shapes", "walk")


def engine(name: str = DEFAULT_ENGINE) -> Engine:
    """The engine of that name; one instance for all who ask."""
    return _engine(name)


@lru_cache(maxsize=64)
def _engine(name: str) -> Engine:
    if name == "shapes":
        return ShapesEngine()
    if name == "walk":
        return WalkEngine()
    for found in entry_points(group=ENTRY_POINT_GROUP):
        if found.name == name:
            made: Engine = found.load()()
            warm_loaded_types()  # threads run already
            return made
    raise UnknownName(
        f"There is no match engine {name[:80]!r}.", next_step=f"Installed are {', '.join(engine_names())}."
    )


def engine_names() -> list[str]:
    """Ours first, then what is installed."""
    return [
        *BUILT_IN_ENGINES,
        *sorted({found.name for found in entry_points(group=ENTRY_POINT_GROUP)} - set(BUILT_IN_ENGINES)),
    ]
