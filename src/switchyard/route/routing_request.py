"""A job's request to the router: what it needs, and all bounds on where it may run."""

from __future__ import annotations

from dataclasses import dataclass

from switchyard.match.demand import Demand
from switchyard.match.engine import DEFAULT_ENGINE
from switchyard.model.job.site_needs import SiteAsk


@dataclass(frozen=True, slots=True)
class RoutingRequest:
    """What a job needs, and its bounds. Clusters are named by id.

    `granted`: clusters that the owner may submit to. `hidden`: clusters without a verdict: the owner may not see them.
    `named`: clusters that a pin or submit tokens allow; none: all. `settled`: the one that the submitter was promised.
    `begun_on`: the one that has begun an array that stays together.
    """

    demand: Demand
    granted: frozenset[str]
    hidden: frozenset[str] = frozenset()
    named: frozenset[str] | None = None
    settled: str | None = None
    begun_on: str | None = None
    last: tuple[tuple[str, str], ...] = ()  # clusters to avoid while there is another, each with the reason
    refused: tuple[tuple[str, str], ...] = ()  # clusters that refused the job before its start, each with the reason
    engine: str = DEFAULT_ENGINE  # answers whether the job fits
    pool: str | None = None
    spilled: tuple[str, ...] = ()  # pools that are open to the job besides its own
    label: str | None = None
    backends: tuple[str, ...] = ()  # in order of preference
    needs_backend: bool = False  # refuse clusters that have none of these backends
    is_interruptible: bool = False
    is_array: bool = False
    image: str = ""  # that the job names; empty: none
    has_files: bool = False  # files travel with it
    site: SiteAsk | None = None  # what it needs of a site file
    has_pod: bool = False  # it brings parts of a pod
    flux_refusal: str = ""  # why no Flux cluster can run its jobspec; empty: one may
    time_limit_s: int | None = None  # how long it may run; read only if a cluster ends at a set time
