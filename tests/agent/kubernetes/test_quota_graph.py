"""A graph and a load of quotas, for an agent that may not list nodes."""

from __future__ import annotations

import pytest

from switchyard.errors import Unavailable
from switchyard.features.kubernetes.agent.namespaces.quotas import (
    NamespaceQuota,
    graph_of_quotas,
    load_of_quotas,
    read_quota,
)

GPU = "nvidia.com/gpu"


def quota(hard: dict[str, str], used: dict[str, str] | None = None) -> NamespaceQuota:
    body = {"metadata": {"name": "q", "namespace": "team"}, "spec": {"hard": hard}, "status": {"used": used or {}}}
    read = read_quota(body)
    assert read is not None
    return read


def test_the_tightest_quota_of_each_resource_counts() -> None:
    quotas = [
        quota({"requests.cpu": "10500m", "requests.memory": "8Gi", "limits.cpu": "2"}, {"requests.cpu": "3"}),
        quota({"cpu": "20", "memory": "4Gi", f"requests.{GPU}": "3", "pods": "9"}, {"memory": "1Gi"}),
    ]
    graph = graph_of_quotas(quotas, gpu_resource=GPU)
    assert (graph.nodes, graph.cores, graph.gpus, graph.memory_bytes) == (1, 10, 3, 4 * 2**30)
    assert graph.host_names == ["team"]
    load = load_of_quotas(quotas, graph, gpu_resource=GPU)
    assert (load.free_cores, load.free_gpus, load.free_memory_bytes) == (7, 3, 3 * 2**30)


@pytest.mark.parametrize("hard", [{"pods": "5"}, {"limits.cpu": "4"}, {"requests.cpu": "500m"}, {}])
def test_a_quota_that_does_not_say_what_jobs_may_use(hard: dict[str, str]) -> None:
    with pytest.raises(Unavailable, match="do not bound cpu"):
        graph_of_quotas([quota(hard)], gpu_resource=GPU)


def test_without_quotas_nobody_knows_what_is_free() -> None:
    graph = graph_of_quotas([quota({"cpu": "4"})], gpu_resource=GPU)
    load = load_of_quotas([], graph, gpu_resource=GPU)
    assert (load.free_cores, load.free_gpus, load.free_memory_bytes) == (None, None, None)


def test_a_quota_that_is_used_up_or_exceeded() -> None:
    quotas = [quota({"cpu": "4"}, {"cpu": "9"})]
    load = load_of_quotas(quotas, graph_of_quotas(quotas, gpu_resource=GPU), gpu_resource=GPU)
    assert load.free_cores == 0
