"""What Kubernetes gave to an attempt, from its pods and the labels of their nodes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from switchyard.features.kubernetes.agent.jobs.allocations import usage_of_pods
from switchyard.features.kubernetes.agent.kubernetes_site import KubernetesSite
from switchyard.features.kubernetes.agent.namespaces.objects import PodObject
from switchyard.model.cluster.allocation import GivenResources
from switchyard.model.cluster.hardware import SiteNames
from switchyard.model.job.job import Usage
from tests.agent.kubernetes.node_builders import make_node

NODES = {
    "n1": make_node("n1", labels={"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}),
    "n2": make_node("n2", labels={"nvidia.com/gpu.product": "Tesla-V100-PCIE-16GB"}),
    "n3": make_node("n3"),
}
GIB = 2**30


def a_pod(
    node: str, resources: dict[str, Any], *, index: int | None = None, at: str = "00", name: str = "main"
) -> PodObject:
    body = {
        "metadata": {
            "creationTimestamp": f"2026-05-04T12:00:{at}Z",
            "labels": {} if index is None else {"batch.kubernetes.io/job-completion-index": str(index)},
        },
        "spec": {
            "nodeName": node,
            "containers": [
                {"name": name, "resources": resources},
                {"name": "sidecar", "resources": {"requests": {"cpu": "8"}}},
            ],
        },
    }
    return msgspec.json.decode(msgspec.json.encode(body), type=PodObject)


def of(*pods: PodObject, site: KubernetesSite | None = None, names: dict[str, str] | None = None) -> Usage | None:
    return usage_of_pods(pods, NODES.get, site=site or KubernetesSite(), names=SiteNames(names or {}))


TWO_GPUS = {"requests": {"cpu": "2", "memory": "4Gi"}, "limits": {"nvidia.com/gpu": "2"}}
A100 = ("NVIDIA-A100-SXM4-80GB",)


@pytest.mark.parametrize(
    ("pods", "nodes", "given"),
    [
        ([a_pod("n1", TWO_GPUS)], "n1", GivenResources(cores=2, memory_bytes=4 * GIB, gpus=2, gpu_types=A100)),
        ([a_pod("n1", {"requests": {"cpu": "500m"}})], "n1", GivenResources(cores=0.5, gpus=0)),
        ([a_pod("n3", TWO_GPUS)], "n3", GivenResources(cores=2, memory_bytes=4 * GIB, gpus=2)),  # nobody tells its type
        ([a_pod("gone", TWO_GPUS)], "gone", GivenResources(cores=2, memory_bytes=4 * GIB, gpus=2)),
        (
            [a_pod("n1", {"limits": {"cpu": "3", "memory": "1Gi"}})],
            "n1",
            GivenResources(cores=3, memory_bytes=GIB, gpus=0),
        ),
        ([a_pod("n1", {})], "n1", GivenResources(gpus=0)),
        ([a_pod("n1", {"requests": {"cpu": "x"}, "limits": {"nvidia.com/gpu": "y"}})], "n1", GivenResources(gpus=0)),
        ([a_pod("n1", TWO_GPUS, name="other")], "n1", GivenResources()),  # the command's container is not there
    ],
)
def test_one_pod(pods: list[PodObject], nodes: str, given: GivenResources) -> None:
    assert of(*pods) == Usage(nodes=nodes, allocated=given)


def test_the_pods_of_a_gang_count_together_and_a_replaced_one_does_not() -> None:
    gang = [
        a_pod("n2", TWO_GPUS, index=0, at="01"),
        a_pod("n1", TWO_GPUS, index=0, at="05"),
        a_pod("n2", TWO_GPUS, index=1),
        a_pod("", TWO_GPUS, index=2),
    ]
    found = of(*gang, names={"Tesla-V100-PCIE-16GB": "v100"})
    given = GivenResources(cores=4, memory_bytes=8 * GIB, gpus=4, gpu_types=(*A100, "v100"))
    assert found == Usage(nodes="n1,n2", allocated=given)
    assert of(a_pod("", TWO_GPUS)) is None


def test_a_resource_that_has_a_type_tells_it() -> None:
    site = KubernetesSite(devices={"gpu:a100-mig-1g.5gb": "nvidia.com/mig-1g.5gb"})
    found = of(a_pod("n1", {"limits": {"nvidia.com/mig-1g.5gb": "1"}}), site=site)
    assert found == Usage(nodes="n1", allocated=GivenResources(gpus=1, gpu_types=("a100-mig-1g.5gb",)))
