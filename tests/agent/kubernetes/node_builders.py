"""Nodes, pods and quotas as the API sends them, for tests."""

from __future__ import annotations

from typing import Any

from switchyard.features.kubernetes.agent.nodes.node_objects import KubernetesNode, PodUse, read_node, read_pod_use

GIB = 2**30
INFO = {
    "architecture": "amd64",
    "operatingSystem": "linux",
    "kernelVersion": "6.1.0-18-amd64",
    "containerRuntimeVersion": "containerd://1.6.20~ds1",
}


def node_object(
    name: str = "n1",
    *,
    allocatable: dict[str, Any] | None = None,
    labels: dict[str, str] | None = None,
    taints: list[dict[str, Any]] | None = None,
    ready: str | None = "True",
    **spec: Any,
) -> dict[str, Any]:
    conditions = [{"type": "MemoryPressure", "status": "False"}]
    if ready is not None:
        conditions.append({"type": "Ready", "status": ready, "reason": "KubeletReady", "message": "kubelet says so"})
    has = {"cpu": "8", "memory": "16Gi", "ephemeral-storage": "100Gi", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": "u-1", "labels": {"kubernetes.io/hostname": name} | (labels or {})},
        "spec": {"podCIDR": "10.0.0.0/24", "taints": taints or [], **spec},
        "status": {"allocatable": has | (allocatable or {}), "conditions": conditions, "nodeInfo": INFO},
    }


def make_node(name: str = "n1", **more: Any) -> KubernetesNode:
    node = read_node(node_object(name, **more))
    assert node is not None
    return node


def pod_object(
    requests: dict[str, Any] | None = None, *, node: str | None = "n1", phase: str = "Running", **spec: Any
) -> dict[str, Any]:
    containers = [{"name": "main", "image": "x", "resources": {"requests": requests or {}}}]
    return {
        "metadata": {"name": "p1", "namespace": "team", "managedFields": [{"manager": "kubectl"}]},
        "spec": {"containers": containers, "restartPolicy": "Never", **({"nodeName": node} if node else {}), **spec},
        "status": {"phase": phase},
    }


def make_pod(requests: dict[str, Any] | None = None, **more: Any) -> PodUse:
    pod = read_pod_use(pod_object(requests, **more))
    assert pod is not None
    return pod
