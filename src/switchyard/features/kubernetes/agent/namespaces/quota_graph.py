"""A graph and a load made of a namespace's quotas, for an agent that may not list nodes. Pure.

Nobody knows how the quota is spread over nodes, so it counts as one node: a job that fits it may still find no node.
"""

from __future__ import annotations

from collections.abc import Sequence

from switchyard.errors import Unavailable
from switchyard.features.kubernetes.agent.namespaces.quotas import NamespaceQuota, quota_amounts
from switchyard.features.kubernetes.agent.namespaces.resource_amounts import (
    CPU,
    MEMORY,
    MILLI,
    NODE_AMOUNT_MAX,
    STORAGE,
)
from switchyard.model.cluster.cluster import Load
from switchyard.model.graph import Graph
from switchyard.model.graph.graph_compiler import compile_graph
from switchyard.model.job.job import COUNT_MAX


def graph_of_quotas(quotas: Sequence[NamespaceQuota], *, gpu_resource: str) -> Graph:
    amounts = quota_amounts(quotas, is_left=False)
    if amounts.get(CPU, 0) < MILLI:
        raise Unavailable(
            f"The quotas of the namespace {quotas[0].namespace} do not bound cpu, so nobody knows what jobs may use.",
            next_step="Allow the agent to list nodes, or give it the graph with `--graph FILE`.",
        )
    each = {
        "core": min(amounts[CPU] // MILLI, COUNT_MAX),
        "gpu": min(amounts.get(gpu_resource, 0), COUNT_MAX),
        "memory": min(amounts.get(MEMORY, 0), NODE_AMOUNT_MAX),
        "storage": min(amounts.get(STORAGE, 0), NODE_AMOUNT_MAX),
    }
    namespace = quotas[0].namespace
    group = {"nodes": 1, "each": each, "properties": {"source": "quota"}, "hosts": namespace}
    return compile_graph(group, where=f"quotas of the namespace {namespace}")


def load_of_quotas(quotas: Sequence[NamespaceQuota], graph: Graph, *, gpu_resource: str) -> Load:
    """What is left of the quotas. Without quotas nobody knows what is free."""
    left = quota_amounts(quotas, is_left=True)
    return Load(
        free_cores=min(left[CPU] // MILLI, COUNT_MAX) if CPU in left else None,
        free_gpus=min(left[gpu_resource], COUNT_MAX) if gpu_resource in left else None,
        free_memory_bytes=left.get(MEMORY),
        signature=graph.signature,
    )
