"""Resource sets of Flux (R, RFC 20) and the nodes of an instance. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from switchyard.errors import Unavailable
from switchyard.model.cluster.allocation import GivenResources, shown_types
from switchyard.model.cluster.hardware import SiteNames, is_known
from switchyard.model.cluster.hostlist import expand_hosts, parse_hosts
from switchyard.model.cluster.idset import IdSet
from switchyard.model.graph import Graph
from switchyard.model.graph.graph_compiler import compile_graph
from switchyard.model.job.job import Usage
from switchyard.model.rules.names import LABEL_KEY_PATTERN

_PROPERTY = re.compile(LABEL_KEY_PATTERN)


@dataclass(frozen=True, slots=True)
class RankResources:
    """What one rank has in a resource set."""

    cores: int = 0
    gpus: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FluxNode:
    """A node of the instance: what it has, and what jobs hold of it."""

    rank: int
    total: RankResources
    used: RankResources = RankResources()
    is_down: bool = False  # offline, drained or excluded: it takes no new job
    is_drained: bool = False
    properties: frozenset[str] = frozenset()
    host: str = ""

    @property
    def free(self) -> RankResources:
        if self.is_down:
            return RankResources()
        return RankResources(max(0, self.total.cores - self.used.cores), max(0, self.total.gpus - self.used.gpus))


def read_ranks(resource_set: Mapping[str, Any] | None) -> dict[int, RankResources]:
    """What each rank has in a resource set. An empty set may be missing or null."""
    ranks: dict[int, RankResources] = {}
    for entry in _execution(resource_set).get("R_lite") or []:
        children = entry.get("children") or {}
        has = RankResources(_count(children.get("core")), _count(children.get("gpu")))
        ranks.update(dict.fromkeys(_ids(entry["rank"]), has))
    return ranks


def read_allocation(ranks: object) -> GivenResources | None:
    """The cores and GPUs of a job, from R_lite of its resource set. None: it tells nothing."""
    try:
        had = read_ranks({"execution": {"R_lite": ranks}}).values()
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    if not had:
        return None
    cores, gpus = sum(rank.cores for rank in had), sum(rank.gpus for rank in had)
    return GivenResources(cores=cores, gpus=gpus)


def with_types(usage: Usage, nodes: Iterable[FluxNode], names: SiteNames) -> Usage:
    """The usage with the types of its GPUs, if each of its nodes has one property that names a type."""
    if usage.allocated is None or not usage.allocated.gpus or not usage.nodes:
        return usage
    try:
        hosts = set(expand_hosts(parse_hosts(usage.nodes)))
    except ValueError:
        return usage
    told = [[name for name in node.properties if is_known(names.common(name))] for node in nodes if node.host in hosts]
    if len(told) < len(hosts) or any(len(types) != 1 for types in told):
        return usage
    types = shown_types({names.common(types[0]) for types in told})
    return replace(usage, allocated=replace(usage.allocated, gpu_types=types))


def read_host_names(resource_set: Mapping[str, Any] | None) -> dict[int, str]:
    """The host name of each rank: R lists them in the order of the ranks."""
    names = [
        host for text in _execution(resource_set).get("nodelist") or [] for host in expand_hosts(parse_hosts(text))
    ]
    return dict(zip(sorted(read_ranks(resource_set)), names, strict=False))


def read_properties(resource_set: Mapping[str, Any] | None) -> dict[str, IdSet]:
    """The ranks of each property."""
    properties = _execution(resource_set).get("properties") or {}
    return {name: _ids(ranks) for name, ranks in properties.items()}


def read_expiration_s(resource_set: Mapping[str, Any] | None) -> float | None:
    """When the instance ends, in seconds since 1970; None: it has no end. An instance inside a job has one."""
    expiration = _execution(resource_set).get("expiration") or 0.0
    return float(expiration) if expiration > 0 else None


def with_queues(resource_set: Mapping[str, Any], queues: Mapping[str, Any]) -> dict[str, Any]:
    """The resource set with a property `queue/NAME` on every node that serves the queue.

    `queues`: the table of that name in Flux's configuration. A queue without `requires` is served by every node.
    """
    execution = _execution(resource_set)
    everything, properties = IdSet.of(read_ranks(resource_set)), dict(execution.get("properties") or {})
    by_name = read_properties(resource_set)
    for queue, settings in queues.items():
        members = set(everything)
        for required in (settings or {}).get("requires") or []:
            members &= set(by_name.get(required, IdSet()))
        name = f"queue/{queue}"
        if members and _PROPERTY.match(name):
            properties[name] = str(IdSet.of(members))
    return {**resource_set, "execution": {**execution, "properties": properties}}


def graph_of(resource_set: Mapping[str, Any] | None, *, where: str) -> Graph:
    """The graph: Fluxion's own where the resource set brings it, else what R says. Nodes that are down are included."""
    scheduling = (resource_set or {}).get("scheduling")
    if isinstance(scheduling, Mapping) and "graph" in scheduling:
        return compile_graph({"graph": scheduling["graph"]}, where=where)
    if not read_ranks(resource_set):
        raise Unavailable(f"{where}: the instance has no resources yet.", next_step="Look at `flux resource list`.")
    assert resource_set is not None
    return compile_graph({key: resource_set[key] for key in ("version", "execution")}, where=where)


def nodes_of(
    everything: Mapping[str, Any] | None,
    *,
    allocated: Mapping[str, Any] | None,
    down: Mapping[str, Any] | None,
    drained: Iterable[int] = (),
) -> list[FluxNode]:
    """All nodes, in the order of their ranks."""
    used, closed, without_new = read_ranks(allocated), read_ranks(down), frozenset(drained)
    properties, hosts = read_properties(everything), read_host_names(everything)
    return [
        FluxNode(
            rank=rank,
            total=total,
            used=used.get(rank, RankResources()),
            is_down=rank in closed,
            is_drained=rank in without_new,
            properties=frozenset(name for name, ranks in properties.items() if rank in ranks),
            host=hosts.get(rank, ""),
        )
        for rank, total in sorted(read_ranks(everything).items())
    ]


def read_drained(status: Mapping[str, Any]) -> frozenset[int]:
    """The drained ranks in the answer of the resource module."""
    return frozenset(rank for ranks in status.get("drain") or {} for rank in _ids(ranks))


def _execution(resource_set: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return (resource_set or {}).get("execution") or {}


def _ids(text: str) -> IdSet:
    return IdSet.parse(text.strip("[]")) if text.strip("[]") else IdSet()


def _count(text: str | None) -> int:
    return len(_ids(text)) if text else 0
