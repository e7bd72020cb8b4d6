"""Selection algorithms by name: the built-in ones, and installed ones by the entry point `switchyard.selectors`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from switchyard.plugins import PluginGroup
from switchyard.route.select.least_loaded import LeastLoadedSelector
from switchyard.route.select.quote_selectors import CheapestSelector, SoonestSelector
from switchyard.route.select.selector import WEIGHTED, RandomSelector, Selector, WeightedSelector

BUILT_IN_SELECTORS: dict[str, type[Selector]] = {
    WEIGHTED: WeightedSelector,
    "random": RandomSelector,
    "least-loaded": LeastLoadedSelector,
    "soonest": SoonestSelector,
    "cheapest": CheapestSelector,
}
SELECTORS = PluginGroup("switchyard.selectors", "selection algorithm", tuple(BUILT_IN_SELECTORS))


@lru_cache(maxsize=64)  # the largest options that are accepted take some megabytes each
def selector(name: str, options: str = "{}") -> Selector:
    """Return the algorithm of that name with these options (JSON). Cached: parsing the options may be slow."""
    return _selector_class(name)(msgspec.json.decode(options, type=dict[str, Any]))


def _selector_class(name: str) -> type[Selector]:
    if name in BUILT_IN_SELECTORS:
        return BUILT_IN_SELECTORS[name]
    loaded: type[Selector] = SELECTORS.load(name)
    return loaded
