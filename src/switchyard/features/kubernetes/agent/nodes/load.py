"""What is free on the nodes of a cluster, and how many jobs run and wait there. Pure.

Free is what a node has less the requests of all pods on it, whoever they belong to. Nothing is free on a node that is
cordoned, not ready, or closed by a taint of Kubernetes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from switchyard.features.kubernetes.agent.namespaces.resource_amounts import (
    CPU,
    MEMORY,
    MILLI,
    PODS,
    Amounts,
    remaining_amounts,
)
from switchyard.features.kubernetes.agent.nodes.node_objects import KubernetesNode, PodUse
from switchyard.features.kubernetes.agent.nodes.nodes import GPU_RESOURCES, gpus_of
from switchyard.features.kubernetes.agent.pods.taints import closed_reason
from switchyard.model.cluster.cluster import Load, NodeRest, load_of
from switchyard.model.graph import Graph
from switchyard.model.job.job import COUNT_MAX


def used_by_node(pods: Iterable[PodUse]) -> dict[str, Amounts]:
    """By node, the requests of all pods there; each pod counts as one of the resource `pods`."""
    used: dict[str, Amounts] = {}
    for pod in pods:
        if pod.node:
            amounts = used.setdefault(pod.node, {})
            amounts[PODS] = amounts.get(PODS, 0) + 1
            for name, amount in pod.requests.items():
                amounts[name] = amounts.get(name, 0) + amount
    return used


def count_batch_pods(pods: Iterable[PodUse]) -> tuple[int, int]:
    """Pods that run to an end, such as those of Jobs: how many are on a node, and how many wait for one."""
    counts = Counter(bool(pod.node) for pod in pods if pod.is_batch)
    return counts[True], counts[False]


def load_of_nodes(
    nodes: Sequence[KubernetesNode],
    pods: Sequence[PodUse] | None,
    graph: Graph,
    *,
    left_out: Sequence[KubernetesNode] = (),
    gpu_resources: Sequence[str] = GPU_RESOURCES,
) -> Load:
    """`pods`: of all namespaces; None: they may not be listed, so nobody knows what is free.

    `left_out`: nodes with taints that no job tolerates, which are not in the graph.
    """
    counts = _node_counts(nodes) | ({"nodes_tainted": len(left_out)} if left_out else {})
    if pods is None:
        return Load(signature=graph.signature, values=counts)
    used = used_by_node(pods)
    shapes = dict(zip(graph.host_names, graph.host_shapes(), strict=True))
    free: Counter[NodeRest] = Counter()
    for node in nodes:
        left = _left(node, used.get(node.name, {}), gpu_resources)
        free[shapes.get(node.name), *left, ()] += 1
    running, queued = count_batch_pods(pods)
    return load_of(
        free,
        signature=graph.signature,
        running=running,
        queued=queued,
        values=counts | {"nodes_free": sum(1 for node in nodes if _is_empty(node, pods_of=used))},
    )


def _left(node: KubernetesNode, used: Mapping[str, int], gpu_resources: Sequence[str]) -> tuple[int, int, int]:
    """Whole free cores, GPUs and bytes of memory. A node that takes no further pod has nothing free."""
    left = remaining_amounts(node.allocatable, used)
    if closed_reason(node) or left.get(PODS, 1) == 0:
        return 0, 0, 0
    return min(left.get(CPU, 0) // MILLI, COUNT_MAX), min(gpus_of(left, gpu_resources), COUNT_MAX), left.get(MEMORY, 0)


def _is_empty(node: KubernetesNode, *, pods_of: Mapping[str, Amounts]) -> bool:
    """Whether the node is open and no pod there asks for CPU. Most pods of the system ask for some."""
    return not closed_reason(node) and not pods_of.get(node.name, {}).get(CPU)


def _node_counts(nodes: Iterable[KubernetesNode]) -> dict[str, bool | int | float | str]:
    down = closed = 0
    for node in nodes:
        down += not node.is_ready
        closed += node.is_ready and bool(closed_reason(node))
    return {"nodes_down": down, "nodes_closed": closed}
