"""What is free on nodes, with the pods of others, cordoned nodes and nodes that are not ready."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from switchyard.features.kubernetes.agent.nodes.load import load_of_nodes
from switchyard.features.kubernetes.agent.nodes.node_objects import KubernetesNode, PodUse
from switchyard.features.kubernetes.agent.nodes.nodes import graph_of_nodes
from switchyard.model.cluster.cluster import FREE_NODES_MAX, Load
from switchyard.model.graph.graph import FreeNodes
from tests.agent.kubernetes.node_builders import GIB, make_node, make_pod


def load_of(*nodes: KubernetesNode, pods: list[PodUse] | None = None) -> Load:
    load = load_of_nodes(nodes, pods or [], graph_of_nodes(nodes, where="nodes"))
    return msgspec.json.decode(msgspec.json.encode(load), type=Load)  # with the bounds of the protocol


def free(load: Load) -> tuple[int | None, int | None, int | None]:
    return load.free_cores, load.free_gpus, load.free_memory_bytes


def test_an_empty_node() -> None:
    load = load_of(make_node(allocatable={"nvidia.com/gpu": "2"}))
    assert free(load) == (8, 2, 16 * GIB)
    assert load.free is not None
    assert [(entry.count, entry.core, entry.gpu, entry.memory) for entry in load.free] == [(1, 8, 2, 16 * GIB)]
    assert load.values == {"nodes_down": 0, "nodes_closed": 0, "nodes_free": 1}


def test_requests_of_all_pods_are_subtracted() -> None:
    pods = [
        make_pod({"cpu": "1500m", "memory": "1Gi", "nvidia.com/gpu": 1}),
        make_pod({"cpu": "600m"}, restartPolicy="Always"),
        make_pod({"cpu": "4"}, node="elsewhere"),
        make_pod({"cpu": "4"}, node=None),
        make_pod(),
    ]
    load = load_of(make_node(allocatable={"nvidia.com/gpu": "2"}), pods=pods)
    assert free(load) == (5, 1, 15 * GIB)
    assert (load.running, load.queued) == (3, 1)
    assert load.values["nodes_free"] == 0


@pytest.mark.parametrize(
    ("node", "counts"),
    [
        ({"unschedulable": True}, {"nodes_down": 0, "nodes_closed": 1}),
        ({"ready": "False"}, {"nodes_down": 1, "nodes_closed": 0}),
        ({"ready": "Unknown"}, {"nodes_down": 1, "nodes_closed": 0}),
        ({"ready": None}, {"nodes_down": 1, "nodes_closed": 0}),
        (
            {"taints": [{"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}]},
            {"nodes_down": 0, "nodes_closed": 1},
        ),
        (
            {"taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]},
            {"nodes_down": 0, "nodes_closed": 1},
        ),
        (
            {"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "value": "17", "effect": "NoSchedule"}]},
            {"nodes_down": 0, "nodes_closed": 1},
        ),
    ],
)
def test_nothing_is_free_on_a_closed_node(node: dict[str, Any], counts: dict[str, int]) -> None:
    load = load_of(make_node("open"), make_node("shut", **node))
    assert free(load) == (8, 0, 16 * GIB)
    assert load.values == counts | {"nodes_free": 1}


def test_a_node_without_room_for_one_more_pod_has_nothing_free() -> None:
    assert free(load_of(make_node(allocatable={"pods": "2"}), pods=[make_pod(), make_pod()])) == (0, 0, 0)
    assert free(load_of(make_node(allocatable={"pods": "3"}), pods=[make_pod(), make_pod()])) == (8, 0, 16 * GIB)


def test_a_node_that_became_smaller_than_its_pods_ask_for() -> None:
    assert free(load_of(make_node(allocatable={"cpu": "1"}), pods=[make_pod({"cpu": "4"})])) == (0, 0, 16 * GIB)


def test_free_resources_by_shape() -> None:
    nodes = [make_node(f"n{number}", labels={"disk": ("ssd", "hdd")[number % 2]}) for number in range(4)]
    graph = graph_of_nodes(nodes, where="nodes")
    load = load_of_nodes(nodes, [make_pod({"cpu": "3"}, node="n1")], graph)
    assert load.free is not None
    assert load.signature == graph.signature
    by_disk = {kind.shape: kind.properties["disk"] for kind in graph.kinds}
    assert sorted((by_disk[entry.shape], entry.count, entry.core) for entry in load.free) == [
        ("hdd", 1, 5),
        ("hdd", 1, 8),
        ("ssd", 2, 8),
    ]


def test_a_node_that_the_graph_does_not_know_yet() -> None:
    old, new = make_node("old"), make_node("new", allocatable={"cpu": "4"})
    load = load_of_nodes([old, new], [], graph_of_nodes([old], where="nodes"))
    assert (load.free_cores, load.free) == (12, None)


def test_more_kinds_of_free_nodes_than_a_poll_holds() -> None:
    count = FREE_NODES_MAX + 1
    nodes = [make_node(f"n{number}", allocatable={"memory": f"{number + 1}Mi"}) for number in range(count)]
    load = load_of_nodes(nodes, [], graph_of_nodes(nodes, where="nodes"))
    assert load.free is None
    assert load.free_cores == 8 * count


def test_without_the_right_to_list_pods_nobody_knows_what_is_free() -> None:
    node = make_node()
    load = load_of_nodes([node], None, graph_of_nodes([node], where="nodes"))
    assert (load.free_cores, load.free_gpus, load.free) == (None, None, None)
    assert load.values["nodes_down"] == 0


def test_nodes_with_a_taint_that_no_job_tolerates_are_counted() -> None:
    node = make_node()
    load = load_of_nodes([node], [], graph_of_nodes([node], where="nodes"), left_out=[make_node("control")])
    assert load.values["nodes_tainted"] == 1
    assert load.free == [FreeNodes(graph_of_nodes([node], where="nodes").kinds[0].shape, 1, 8, 0, 16 * GIB)]


def test_huge_numbers_stay_within_the_protocol() -> None:
    huge = {"cpu": "9" * 30, "memory": "10E", "nvidia.com/gpu": str(2**63 - 1)}
    load = load_of(*(make_node(f"n{number}", allocatable=huge) for number in range(50)))
    assert load.free_cores is not None
    assert load.free_cores > 8
