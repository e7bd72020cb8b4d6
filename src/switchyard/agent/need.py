"""What a lease takes up on its cluster, in whole cores, gpus and bytes. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from switchyard.agent.backends import BackendQuote
from switchyard.model.cluster import FREE_NODES_MAX, Load
from switchyard.model.graph import Graph
from switchyard.model.graph.graph import FreeNodes
from switchyard.model.job import JobSpec
from switchyard.model.poll import Lease, Room
from switchyard.model.quantity import ceil_fraction, parse_amount, parse_bytes

UNLIMITED_LEFT_S_MIN = 60.0  # at least so long runs on what has no time limit
NOW_VALID_S = 10  # room that is free now may be taken by the next one
LIMITED_CONFIDENCE = 0.8  # most jobs end before their time limit
GUESS_CONFIDENCE = 0.3


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
    """Per task a part of a core counts as a whole one, as it does when clusters are matched."""
    ask, tasks = spec.resources.asked, spec.resources.tasks
    return ResourceNeed(
        cores=ceil_fraction(parse_amount(ask.cores)) * tasks,
        gpus=ask.gpus * tasks,
        memory_bytes=parse_bytes(ask.memory) * tasks,
    )


def total_need(needs: Iterable[ResourceNeed]) -> ResourceNeed:
    return sum(needs, ResourceNeed())


def room_of(load: Load, *, less: ResourceNeed) -> Room:
    """What is free now, less what is already promised."""
    return Room(
        cores=max(0, (load.free_cores or 0) - less.cores),
        gpus=max(0, (load.free_gpus or 0) - less.gpus),
        memory_bytes=max(0, (load.free_memory_bytes or 0) - less.memory_bytes),
    )


def load_of(graph: Graph, taken: ResourceNeed, *, running: int, queued: int) -> Load:
    """The load of a cluster that only we use."""
    return Load(
        free_cores=max(0, graph.cores - taken.cores),
        free_gpus=max(0, graph.gpus - taken.gpus),
        free_memory_bytes=max(0, graph.memory_bytes - taken.memory_bytes),
        running=running,
        queued=queued,
        free=_free_nodes(graph, taken),
        signature=graph.signature,
    )


def _free_nodes(graph: Graph, taken: ResourceNeed) -> list[FreeNodes] | None:
    """What is left on each node. Of several nodes nobody here knows which of them a process is on."""
    if (taken != ResourceNeed() and graph.nodes > 1) or len(graph.kinds) > FREE_NODES_MAX:
        return None
    return [
        FreeNodes(
            shape=kind.shape,
            count=kind.count,
            core=max(0, kind.cores - taken.cores),
            gpu=max(0, kind.gpus - taken.gpus),
            memory=max(0, kind.memory_bytes - taken.memory_bytes),
        )
        for kind in graph.kinds
    ]


@dataclass(frozen=True, slots=True)
class OccupiedResources:
    """What runs: what it takes up, and for how long still."""

    need: ResourceNeed
    left_s: float
    is_limited: bool = True  # else that is a guess


def estimate_occupied(need: ResourceNeed, *, ran_s: float, limit_s: float | None) -> OccupiedResources:
    """One without a limit is as likely as not to run on for as long as it has, and rarely ends at once."""
    if limit_s is not None:
        return OccupiedResources(need, max(0.0, limit_s - ran_s))
    return OccupiedResources(need, max(ran_s, UNLIMITED_LEFT_S_MIN), is_limited=False)


def quote_of(need: ResourceNeed, whole: Room, free: Room, busy: Iterable[OccupiedResources]) -> BackendQuote:
    """When there is room: as those that run end one after the other."""
    if not need.fits(whole):
        return BackendQuote(can=False, reason="it needs more than there is here")
    if need.fits(free):
        return BackendQuote(can=True, eta_s=0, reason="there is room now", valid_s=NOW_VALID_S)
    given, is_sure, count = ResourceNeed(), True, 0
    for each in sorted(busy, key=lambda one: one.left_s):
        given, is_sure, count = given + each.need, is_sure and each.is_limited, count + 1
        room = Room(free.cores + given.cores, free.gpus + given.gpus, free.memory_bytes + given.memory_bytes)
        if need.fits(room):
            said = f"when {count} of what runs {'has' if count == 1 else 'have'} ended"
            sure = LIMITED_CONFIDENCE if is_sure else GUESS_CONFIDENCE
            return BackendQuote(can=True, eta_s=math.ceil(each.left_s), reason=said, confidence=sure)
    return BackendQuote(can=True, reason="what is in the way is not known here")
