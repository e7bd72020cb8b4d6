"""Nodes and pods as the API sends them: what is read, and what a broken one does."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from switchyard.features.kubernetes.agent.nodes.node_objects import (
    KubernetesNode,
    NodeInfo,
    Taint,
    pod_limits,
    pod_requests,
    read_node,
    read_pod_use,
)
from tests.agent.kubernetes.node_builders import GIB, make_node, make_pod, node_object, pod_object


def test_a_node() -> None:
    taint = {"key": "dedicated", "value": "ml", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}
    node = make_node("n1", allocatable={"cpu": "1930m", "nvidia.com/gpu": "2"}, labels={"disk": "ssd"}, taints=[taint])
    assert node == KubernetesNode(
        name="n1",
        labels={"kubernetes.io/hostname": "n1", "disk": "ssd"},
        taints=(Taint("dedicated", "NoSchedule", "ml"),),
        allocatable={
            "cpu": 1930,
            "memory": 16 * GIB,
            "ephemeral-storage": 100 * GIB,
            "pods": 110,
            "nvidia.com/gpu": 2,
        },
        info=NodeInfo("amd64", "linux", "6.1.0-18-amd64", "containerd://1.6.20~ds1"),
    )
    assert read_node(msgspec.json.encode(node_object("n1", labels={"disk": "ssd"}))) == make_node(
        labels={"disk": "ssd"}
    )


@pytest.mark.parametrize(
    ("taint", "words"),
    [
        (Taint("dedicated", "NoSchedule", "ml"), "dedicated=ml:NoSchedule"),
        (Taint("gpu", "NoExecute"), "gpu:NoExecute"),
        (Taint("gpu", "NoExecute", ""), "gpu:NoExecute"),
    ],
)
def test_a_taint_in_words(taint: Taint, words: str) -> None:
    assert str(taint) == words


@pytest.mark.parametrize(
    ("ready", "is_ready", "reason"),
    [
        ("True", True, ""),
        ("False", False, "kubelet says so"),
        ("Unknown", False, "kubelet says so"),
        (None, False, "its kubelet has not reported yet"),
    ],
)
def test_whether_a_node_is_ready(ready: str | None, is_ready: bool, reason: str) -> None:
    node = make_node(ready=ready)
    assert (node.is_ready, node.not_ready_reason) == (is_ready, reason)


def test_cordoned_and_deleted_nodes() -> None:
    assert make_node(unschedulable=True).is_cordoned
    deleted = node_object()
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    node = read_node(deleted)
    assert node is not None
    assert node.is_cordoned


def test_a_node_that_has_just_registered() -> None:
    node = read_node({"metadata": {"name": "n1", "labels": None}, "spec": {"taints": None}, "status": {}})
    assert node is not None
    assert (node.allocatable, node.is_ready) == ({}, False)
    assert read_node({"metadata": {"name": "n1"}}) is not None


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"metadata": {}}',
        b'{"metadata": {"name": 5}}',
        b'{"metadata": {"name": "n1", "labels": ["a"]}}',
        b'{"metadata": {"name": "n1"}, "spec": {"taints": [{"value": "x"}]}}',
        b'{"metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": [1]}}}',
        b'{"metadata": {"name": "n1"}, "status": {"conditions": 4}}',
    ],
)
def test_a_broken_node_is_none(raw: bytes) -> None:
    assert read_node(raw) is None


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"nonsense",
        b'{"metadata": {}}',
        b'{"metadata": {"name": "p"}, "spec": {"containers": 4}}',
        b'{"metadata": {"name": "p"}, "spec": {"containers": [{"resources": {"requests": {"cpu": {}}}}]}}',
        b'{"metadata": {"name": "p"}, "status": {"phase": 7}}',
    ],
)
def test_a_broken_pod_takes_nothing(raw: bytes) -> None:
    assert read_pod_use(raw) is None


def test_a_pod() -> None:
    pod = make_pod({"cpu": "250m", "memory": "64Mi"})
    assert (pod.node, pod.requests, pod.is_batch) == ("n1", {"cpu": 250, "memory": 2**26}, True)
    assert make_pod(node=None).node == ""
    assert not make_pod(restartPolicy="Always").is_batch


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_an_ended_pod_takes_nothing(phase: str) -> None:
    assert read_pod_use(pod_object({"cpu": 1}, phase=phase)) is None


def container(cpu: str, **more: Any) -> dict[str, Any]:
    return {"name": f"c{cpu}", "resources": {"requests": {"cpu": cpu}}, **more}


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        ({"containers": [container("1"), container("2")]}, 3000),
        ({"containers": [container("1")], "initContainers": [container("3")]}, 3000),
        ({"containers": [container("4")], "initContainers": [container("3"), container("2")]}, 4000),
        ({"containers": [container("1")], "initContainers": [container("2", restartPolicy="Always")]}, 3000),
        (
            {
                "containers": [container("1")],
                "initContainers": [container("2", restartPolicy="Always"), container("5")],
            },
            7000,
        ),
        (
            {
                "containers": [container("1")],
                "initContainers": [container("5"), container("2", restartPolicy="Always")],
            },
            5000,
        ),
        ({"containers": [container("1")], "overhead": {"cpu": "100m"}}, 1100),
        ({"containers": [container("1")], "resources": {"requests": {"cpu": "6"}}}, 6000),
        ({"containers": [{"name": "c", "resources": {"limits": {"cpu": "2"}}}]}, 2000),
        ({"containers": [{"name": "c", "resources": {}}]}, 0),
        ({"containers": [{"name": "c"}]}, 0),
    ],
)
def test_requests_of_a_pod_as_the_scheduler_counts_them(spec: dict[str, Any], cpu: int) -> None:
    assert pod_requests(spec).get("cpu", 0) == cpu


def test_a_pod_that_is_being_made_smaller_keeps_what_it_was_granted() -> None:
    shrinking = pod_object({"cpu": "1"})
    shrinking["status"]["containerStatuses"] = [{"name": "main", "allocatedResources": {"cpu": "3"}}]
    pod = read_pod_use(shrinking)
    assert pod is not None
    assert pod.requests == {"cpu": 3000}


def test_limits_of_a_pod() -> None:
    limited = {"name": "a", "resources": {"limits": {"cpu": "2", "memory": "1Gi"}}}
    assert pod_limits({"containers": [limited, {**limited, "name": "b"}, {"name": "c"}]}) == {
        "cpu": 4000,
        "memory": 2 * GIB,
    }
