"""A job's request to the router: what it needs, its bounds, and what its owner may use. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec

from switchyard.match.demand import Demand
from switchyard.match.engine import DEFAULT_ENGINE
from switchyard.model.job.bounds import NO_BOUNDS, Bounds


class ClusterBounds(NamedTuple):
    """What a request says of clusters by their names and ids. Requests that say the same share a roster (`roster.py`).

    So a bound of the router and a weight get this value, and not the request: else one job would get the roster of
    another. A field with few values is better than one with many, since each value makes another roster.
    """

    pool: str | None
    spilled: tuple[str, ...]
    label: str | None
    named: tuple[str, ...] | None
    settled: str | None
    begun_on: str | None
    granted: frozenset[str]
    hidden: frozenset[str]


@dataclass(frozen=True, slots=True)
class RoutingRequest:
    """What a job needs, and its bounds. Clusters are named by id.

    `granted`: clusters that the owner may submit to. `hidden`: clusters without a verdict: the owner may not see them.
    """

    demand: Demand
    granted: frozenset[str]
    bounds: Bounds = NO_BOUNDS
    hidden: frozenset[str] = frozenset()
    spilled: tuple[str, ...] = ()  # pools that are open to the job besides its own
    last: tuple[tuple[str, str], ...] = ()  # clusters to avoid while there is another, each with the reason
    refused: tuple[tuple[str, str], ...] = ()  # clusters that refused the job before its start, each with the reason
    engine: str = DEFAULT_ENGINE  # answers whether the job fits
    time_limit_s: int | None = None  # how long it may run; read only if a cluster ends at a set time

    @property
    def cluster_bounds(self) -> ClusterBounds:
        bounds = self.bounds
        return ClusterBounds(
            bounds.pool,
            self.spilled,
            bounds.label,
            bounds.named,
            bounds.settled,
            bounds.begun_on,
            self.granted,
            self.hidden,
        )

    def bounded(self, **changes: Any) -> RoutingRequest:
        """Return the request with other bounds."""
        return replace(self, bounds=msgspec.structs.replace(self.bounds, **changes))
