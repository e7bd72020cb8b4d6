"""The load of an instance: free resources by node, the number of jobs, and the state of its queues. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from switchyard.agent.backends.flux.cluster.resource_sets import FluxNode
from switchyard.model.cluster.cluster import Load, NodeRest, load_of
from switchyard.model.graph import Graph

WAITING_STATES = ("depend", "priority", "sched")
RUNNING_STATES = ("run", "cleanup")


def load_from_nodes(
    nodes: Sequence[FluxNode], graph: Graph, *, stats: Mapping[str, Any], queues: Mapping[str, Any]
) -> Load:
    """Free resources of nodes that take jobs, and how many nodes take none."""
    # An operator's graph may have other names: then the shape is found by what the node has.
    shapes = {(kind.cores, kind.gpus, frozenset(kind.properties)): kind.shape for kind in graph.kinds}
    by_host = dict(zip(graph.host_names, graph.host_shapes(), strict=True))
    free: Counter[NodeRest] = Counter()
    for node in nodes:
        shape = by_host.get(node.host, shapes.get((node.total.cores, node.total.gpus, node.properties)))
        free[shape, node.free.cores, node.free.gpus, 0] += 1
    states = stats.get("job_states") or {}
    load = load_of(
        free,
        signature=graph.signature,
        running=_sum(states, RUNNING_STATES),
        queued=_sum(states, WAITING_STATES),
        values={
            "nodes_free": sum(1 for node in nodes if not node.is_down and not node.used.cores),
            "nodes_down": sum(1 for node in nodes if node.is_down and not node.is_drained),
            "nodes_closed": sum(1 for node in nodes if node.is_drained),
            "queues_stopped": sum(1 for queue in queues.values() if queue.get("start") is False),
            "queues_disabled": sum(1 for queue in queues.values() if queue.get("enable") is False),
        },
    )
    return replace(load, free_memory_bytes=_free_memory_bytes(graph, load))


def _free_memory_bytes(graph: Graph, load: Load) -> int | None:
    """Flux does not count memory. If the operator's graph has some, its free part is taken to be that of the cores.

    None: nobody knows; 0 would say that no memory is free.
    """
    if not graph.memory_bytes or not graph.cores:
        return None
    return graph.memory_bytes * (load.free_cores or 0) // graph.cores


def _sum(states: Mapping[str, int], names: Iterable[str]) -> int:
    return sum(states.get(name, 0) for name in names)
