"""What a job asks of the router: what it needs, and everything that bounds where it may go."""

from __future__ import annotations

from dataclasses import dataclass

from switchyard.match.demand import Demand
from switchyard.match.engine import DEFAULT_ENGINE


@dataclass(frozen=True, slots=True)
class RoutingRequest:
    """What a job asks of the router. `granted`: ids of the clusters its owner may submit to.

    `named`: the clusters the request was bounded to, by pin or by submit tokens; none: no bound. `hidden`: clusters
    the owner may not even see; they get no verdict. `settled`: the one cluster that its submitter was told.
    """

    demand: Demand
    granted: frozenset[str]
    hidden: frozenset[str] = frozenset()
    named: frozenset[str] | None = None
    settled: str | None = None
    last: tuple[tuple[str, str], ...] = ()  # clusters that come last for this job, each with the reason
    engine: str = DEFAULT_ENGINE  # who answers whether it fits
    pool: str | None = None  # bounds
    spilled: tuple[str, ...] = ()  # pools that widen that bound by now
    label: str | None = None  # narrows
    tags: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()  # one of these is to run it, the first that a cluster has
    needs_backend: bool = False  # … and a cluster that has none of them is no place for it
    is_interruptible: bool = False
    is_array: bool = False
