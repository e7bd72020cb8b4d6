"""Resource needs of leases in whole cores, GPUs and bytes, and the loads, quotes and costs made from them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from switchyard.agent.backends import BackendQuote
from switchyard.agent.site.site import Rates, Site
from switchyard.model.cluster.cluster import FREE_NODES_MAX, Load
from switchyard.model.cluster.poll import Lease, Room
from switchyard.model.graph import Graph
from switchyard.model.graph.graph import FreeNodes
from switchyard.model.job.job import JobSpec
from switchyard.model.jobspec.quantity import ceil_fraction, parse_amount, parse_bytes, parse_duration_s

UNLIMITED_LEFT_S_MIN = 60.0  # assumed for a running job without a time limit
NOW_VALID_S = 10  # free resources may be taken by the next job
NO_TYPES: Mapping[str, int] = {}
LIMITED_CONFIDENCE = 0.8  # most jobs end before their time limit
GUESS_CONFIDENCE = 0.3
HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class ResourceNeed:
    cores: int = 0
    gpus: int = 0
    memory_bytes: int = 0

    def __add__(self, other: ResourceNeed) -> ResourceNeed:
        return ResourceNeed(self.cores + other.cores, self.gpus + other.gpus, self.memory_bytes + other.memory_bytes)

    def fits(self, room: Room) -> bool:
        return self.cores <= room.cores and self.gpus <= room.gpus and self.memory_bytes <= room.memory_bytes


def spec_of(lease: Lease) -> JobSpec:
    assert isinstance(lease.spec, JobSpec), "an agent's leases are decoded with their spec"
    return lease.spec


def need_of(spec: JobSpec) -> ResourceNeed:
    """A part of a core counts as a whole core per task, as in matching."""
    ask, tasks = spec.resources.asked, spec.resources.tasks
    return ResourceNeed(
        cores=ceil_fraction(parse_amount(ask.cores)) * tasks,
        gpus=ask.gpus * tasks,
        memory_bytes=parse_bytes(ask.memory) * tasks,
    )


def memory_limit_bytes(spec: JobSpec) -> int:
    """The memory that all tasks of a job may use on this machine; 0: no limit."""
    ask = spec.resources
    return parse_bytes(ask.asked.memory if ask.limits.memory is None else ask.limits.memory) * ask.tasks


def total_need(needs: Iterable[ResourceNeed]) -> ResourceNeed:
    return sum(needs, ResourceNeed())


def room_of(load: Load, *, less: ResourceNeed) -> Room:
    """Free resources less those already promised."""
    return Room(
        cores=max(0, (load.free_cores or 0) - less.cores),
        gpus=max(0, (load.free_gpus or 0) - less.gpus),
        memory_bytes=max(0, (load.free_memory_bytes or 0) - less.memory_bytes),
    )


def load_of(
    graph: Graph, occupied: ResourceNeed, *, running: int, queued: int, free_types: Mapping[str, int] = NO_TYPES
) -> Load:
    """The load of a cluster that nobody else uses. `free_types`: its free GPUs by type, if it has several."""
    return Load(
        free_cores=max(0, graph.cores - occupied.cores),
        free_gpus=max(0, graph.gpus - occupied.gpus),
        free_memory_bytes=max(0, graph.memory_bytes - occupied.memory_bytes),
        running=running,
        queued=queued,
        free=_free_nodes(graph, occupied, free_types),
        signature=graph.signature,
    )


def _free_nodes(graph: Graph, occupied: ResourceNeed, free_types: Mapping[str, int]) -> list[FreeNodes] | None:
    """Free resources by node. None for several nodes: it is not known which node a process is on."""
    if (occupied != ResourceNeed() and graph.nodes > 1) or len(graph.kinds) > FREE_NODES_MAX:
        return None
    return [
        FreeNodes(
            shape=kind.shape,
            count=kind.count,
            core=max(0, kind.cores - occupied.cores),
            gpu=max(0, kind.gpus - occupied.gpus),
            memory=max(0, kind.memory_bytes - occupied.memory_bytes),
            types=dict(free_types) if graph.nodes == 1 else {},
        )
        for kind in graph.kinds
    ]


@dataclass(frozen=True, slots=True)
class OccupiedResources:
    """What a running job occupies, and for how much longer."""

    need: ResourceNeed
    left_s: float
    is_limited: bool = True  # False: the time is a guess


def estimate_occupied(need: ResourceNeed, *, ran_s: float, limit_s: float | None) -> OccupiedResources:
    """Estimate how long a running job stays. Without a time limit: as long as it has run, at least 60 s."""
    if limit_s is not None:
        return OccupiedResources(need, max(0.0, limit_s - ran_s))
    return OccupiedResources(need, max(ran_s, UNLIMITED_LEFT_S_MIN), is_limited=False)


def quote_of(need: ResourceNeed, total: Room, free: Room, busy: Iterable[OccupiedResources]) -> BackendQuote:
    """Estimate when the job fits, as running jobs end one after the other."""
    if not need.fits(total):
        return BackendQuote(can=False, reason="it needs more than there is here")
    if need.fits(free):
        return BackendQuote(can=True, eta_s=0, reason="there is room now", valid_s=NOW_VALID_S)
    released, is_sure, count = ResourceNeed(), True, 0
    for job in sorted(busy, key=lambda job: job.left_s):
        released, is_sure, count = released + job.need, is_sure and job.is_limited, count + 1
        room = Room(free.cores + released.cores, free.gpus + released.gpus, free.memory_bytes + released.memory_bytes)
        if need.fits(room):
            reason = f"when {count} of what runs {'has' if count == 1 else 'have'} ended"
            sure = LIMITED_CONFIDENCE if is_sure else GUESS_CONFIDENCE
            return BackendQuote(can=True, eta_s=math.ceil(job.left_s), reason=reason, confidence=sure)
    return BackendQuote(can=True, reason="what is in the way is not known here")


def cost_of(spec: JobSpec, site: Site, *, queue: str) -> float | None:
    """The cost for the time limit, or for an hour without one. `queue`: the cluster's name for the job's queue."""
    rates = site.rates.get(queue) or site.rates.get("*")
    if rates is None:
        return None
    limit = spec.resources.time_limit
    hours = (parse_duration_s(limit) if limit is not None else HOUR_S) / HOUR_S
    return round(_hourly(spec, rates) * hours, 6)


def _hourly(spec: JobSpec, rates: Rates) -> float:
    need = need_of(spec)
    return (spec.resources.nodes or 1) * rates.node + need.cores * rates.core + need.gpus * rates.gpu
