"""Match engines by name: two built-in ones, and installed ones by the entry point `switchyard.engines`. Pure.

An engine is a class without arguments that implements the protocol in outcome.py.
"""

from __future__ import annotations

from functools import lru_cache

from switchyard.match.outcome import Engine, Match, Misfit
from switchyard.match.shapes import ShapesEngine
from switchyard.match.walk import WalkEngine
from switchyard.plugins import PluginGroup

__all__ = ["Engine", "Match", "Misfit", "engine"]  # all that an engine of others needs

DEFAULT_ENGINE = "shapes"
BUILT_IN_ENGINES = ("shapes", "walk")
ENGINES = PluginGroup("switchyard.engines", "match engine", BUILT_IN_ENGINES)


def engine(name: str = DEFAULT_ENGINE) -> Engine:
    """Return the engine of that name; there is one instance of each."""
    return _engine(name)


@lru_cache(maxsize=64)
def _engine(name: str) -> Engine:
    if name == "shapes":
        return ShapesEngine()
    if name == "walk":
        return WalkEngine()
    made: Engine = ENGINES.make(name)
    return made
