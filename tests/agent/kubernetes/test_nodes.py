"""The graph of nodes: resources, labels, topology, taints, and nodes that make no sense."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard.errors import Unavailable
from switchyard.features.kubernetes.agent.nodes.node_objects import KubernetesNode, NodeInfo, read_node
from switchyard.features.kubernetes.agent.nodes.nodes import (
    NodeRules,
    graph_of_nodes,
    node_properties,
    system_of,
    usable_nodes,
)
from switchyard.match.shapes import ShapesEngine
from switchyard.model.graph import Graph
from tests.agent.kubernetes.node_builders import GIB, make_node, node_object

ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"


def graph_of(*nodes: KubernetesNode) -> Graph:
    return graph_of_nodes(nodes, where="nodes")


def test_resources_of_a_node() -> None:
    graph = graph_of(
        make_node(
            "n1",
            allocatable={
                "cpu": "7930m",
                "memory": "16393244Ki",
                "ephemeral-storage": "94992122264",
                "nvidia.com/gpu": "2",
                "example.com/fpga": "3",
                "hugepages-2Mi": "4Mi",
                "hugepages-1Gi": "0",
                "attachable-volumes-aws-ebs": "25",
            },
        )
    )
    assert graph.totals == {
        "cluster": 1,
        "core": 7,
        "example.com/fpga": 3,
        "gpu": 2,
        "hugepages-2Mi": 4 * 2**20,
        "memory": 16393244 * 1024,
        "node": 1,
        "storage": 94992122264,
    }
    assert graph.host_names == ["n1"]


def test_gpus_have_the_type_and_the_memory_that_labels_tell() -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559"}
    graph = graph_of(
        make_node("n1", labels=labels, allocatable={"cpu": "8", "nvidia.com/gpu": "2"}),
        make_node("n2", allocatable={"cpu": "8", "nvidia.com/gpu": "1"}),
    )
    told = [shape.properties for shape in graph.shapes if shape.type == "gpu"]
    assert sorted(told, key=len) == [{}, {"memory": 81559 * 2**20, "type": "NVIDIA-H100-80GB-HBM3"}]


def test_equal_nodes_are_one_shape() -> None:
    graph = graph_of(*(make_node(f"n{number}") for number in range(40)))
    assert (graph.nodes, len(graph.kinds), graph.hosts) == (40, 1, "n[0-39]")
    assert graph.kinds[0].cores == 8


def test_the_order_in_which_nodes_are_listed_does_not_matter() -> None:
    nodes = [
        make_node(f"n{number}", labels={ZONE: f"z{number % 3}", "disk": ("ssd", "hdd")[number % 2]})
        for number in range(12)
    ]
    assert graph_of(*nodes) == graph_of(*reversed(nodes))


def test_hosts_stand_at_their_own_shapes() -> None:
    nodes = [
        make_node(f"n{number}", allocatable={"cpu": str(number + 1)}, labels={ZONE: f"z{number % 2}", REGION: "r1"})
        for number in range(9)
    ]
    graph = graph_of(*nodes, make_node("outside", allocatable={"cpu": "99"}))
    cores = {
        host: graph.within[shape]["core"] for host, shape in zip(graph.host_names, graph.host_shapes(), strict=True)
    }
    assert cores == {f"n{number}": number + 1 for number in range(9)} | {"outside": 99}


def test_regions_zones_and_racks_are_topology() -> None:
    place = {REGION: "eu", ZONE: "eu-1a", "topology.kubernetes.io/rack": "r7"}
    graph = graph_of(make_node("a", labels=place), make_node("b", labels={REGION: "eu", ZONE: "eu-1b"}), make_node("c"))
    assert [
        (shape.type, shape.properties.get("name")) for shape in graph.shapes if shape.type in ("region", "zone", "rack")
    ]
    assert {kind: graph.totals[kind] for kind in ("region", "zone", "rack", "node")} == {
        "region": 1,
        "zone": 2,
        "rack": 1,
        "node": 3,
    }
    zone = next(shape for shape in graph.shapes if shape.type == "zone" and shape.properties == {"name": "eu-1a"})
    assert [graph.shapes[child].type for child, _ in zone.children] == ["rack"]


def test_old_labels_of_zones_count_too() -> None:
    graph = graph_of(make_node("a", labels={"failure-domain.beta.kubernetes.io/zone": "z1"}))
    assert graph.totals["zone"] == 1


def test_labels_are_properties() -> None:
    labels = {
        "disk": "ssd",
        "node-role.kubernetes.io/worker": "",
        "feature.node.kubernetes.io/cpu-cpuid.AVX2": "true",
        "beta.kubernetes.io/arch": "amd64",
        "kubernetes.io/arch": "amd64",
        "l" * 100 + "/" + "x" * 63: "too long for a name of ours",
        "-bad": "x",
        "": "x",
    }
    assert node_properties(make_node(labels=labels)) == {
        "disk": "ssd",
        "node-role.kubernetes.io/worker": True,
        "feature.node.kubernetes.io/cpu-cpuid.AVX2": "true",
        "kubernetes.io/arch": "amd64",
        "arch": "x86_64",
        "os": "linux",
    }


def test_a_node_with_a_thousand_labels() -> None:
    graph = graph_of(make_node(labels={f"label{number}": "x" * 63 for number in range(1000)}))
    assert len(graph.kinds[0].properties) == 252


def test_a_label_with_the_id_of_each_node_is_no_property() -> None:
    many = [make_node(f"n{number}", labels={"cloud/id": f"i-{number}", "disk": "ssd"}) for number in range(20)]
    assert graph_of(*many).kinds[0].properties == {"arch": "x86_64", "disk": "ssd", "os": "linux"}
    few = graph_of(*many[:3])
    assert len(few.kinds) == 3


@pytest.mark.parametrize(
    ("info", "facts"),
    [
        (
            NodeInfo("arm64", "linux", "6.1.0-18-arm64", "containerd://1.6.20~ds1"),
            {
                "architecture": "aarch64",
                "os": "linux",
                "kernel": "6.1.0",
                "kernel-release": "6.1.0-18-arm64",
                "container-runtime": "containerd",
                "container-runtime-version": "1.6.20",
            },
        ),
        (NodeInfo("amd64", "windows", "", "docker"), {"architecture": "x86_64", "os": "windows"}),
        (NodeInfo(), {}),
    ],
)
def test_the_system_of_a_node(info: NodeInfo, facts: dict[str, str]) -> None:
    assert system_of(info) == facts


def test_the_system_is_a_subsystem_of_the_node() -> None:
    (vertex,) = graph_of(make_node()).kinds[0].attached
    assert (vertex.subsystem, vertex.metadata["architecture"]) == ("system", "x86_64")


TAINT = {"key": "dedicated", "value": "ml", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("taint", "tolerations", "is_usable"),
    [
        (TAINT, [], False),
        (TAINT, [{"key": "dedicated", "operator": "Equal", "value": "ml"}], True),
        (TAINT, [{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}], True),
        (TAINT, [{"key": "dedicated", "value": "ml", "effect": "NoExecute"}], False),
        (TAINT, [{"key": "dedicated", "value": "web"}], False),
        (TAINT, [{"key": "dedicated", "operator": "Exists"}], True),
        (TAINT, [{"operator": "Exists"}], True),
        (TAINT, [{"key": "other", "operator": "Exists"}], False),
        (TAINT, [{"key": "dedicated", "operator": "Gt", "value": "ml"}], False),
        ({**TAINT, "effect": "PreferNoSchedule"}, [], True),
        ({"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}, [], True),
        ({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}, [], True),
        ({"key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true", "effect": "NoSchedule"}, [], True),
        ({"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}, [], False),
    ],
)
def test_nodes_with_taints(taint: dict[str, str], tolerations: list[dict[str, str]], is_usable: bool) -> None:
    node = make_node(taints=[taint])
    assert usable_nodes([node], NodeRules(tuple(tolerations))) == ([node] if is_usable else [])


def test_nodes_that_are_down_stay_in_the_graph() -> None:
    assert graph_of(make_node("a", ready="Unknown"), make_node("b", unschedulable=True)).nodes == 2


GARBAGE: list[dict[str, Any]] = [
    {"cpu": "9" * 50, "memory": "10E", "pods": "many"},
    {"cpu": "-4", "memory": "x", "ephemeral-storage": ""},
    {"cpu": "0", "memory": "0"},
    {"nvidia.com/gpu": str(2**63 - 1), "example.com/fpga": str(2**63 - 1)},
    {"a b/c": "1", "x" * 80 + "/y": "1", "node": "3", "cluster": "2", "gpu": "5"},
]


@pytest.mark.parametrize("allocatable", GARBAGE)
def test_one_broken_node_does_not_fail_the_others(allocatable: dict[str, Any]) -> None:
    graph = graph_of(make_node("good"), make_node("bad", allocatable=allocatable))
    cores = {
        host: graph.within[shape].get("core", 0)
        for host, shape in zip(graph.host_names, graph.host_shapes(), strict=True)
    }
    assert cores["good"] == 8
    assert graph.totals["node"] == 2
    assert graph.memory_bytes < 2**63


def test_nodes_with_names_that_are_none_are_left_out() -> None:
    bad = [read_node(node_object(name)) for name in ("", "a b", "n[1-3]", "a,b", "x" * 300, "ü")]
    nodes = [node for node in bad if node is not None]
    assert usable_nodes([*nodes, make_node("good")], NodeRules()) == [make_node("good")]


def test_no_node_that_says_what_it_has() -> None:
    with pytest.raises(Unavailable, match="no node says what it has"):
        graph_of()
    registered = read_node({"metadata": {"name": "n1"}})
    assert registered is not None
    with pytest.raises(Unavailable):
        graph_of(registered)


def test_the_server_matches_such_a_graph() -> None:
    from switchyard.match.demand import Demand, Need, NeedKind
    from switchyard.match.outcome import Match

    graph = graph_of(
        *(make_node(f"a{number}", allocatable={"example.com/fpga": "2"}, labels={ZONE: "z1"}) for number in range(2)),
        make_node("b", labels={ZONE: "z2"}),
    )

    def fits(*needs: Need) -> bool:
        return isinstance(ShapesEngine().satisfy(Demand(needs), graph), Match)

    def task(*holds: Need, count: int = 1) -> Need:
        return Need("task", count, kind=NeedKind.SLOT, holds=holds)

    assert fits(task(Need("core", 8), Need("example.com/fpga", 2), count=2))
    assert not fits(task(Need("example.com/fpga", 3)))
    assert fits(Need("zone", 1, holds=(Need("node", 2, holds=(task(Need("core", 8)),)),)))
    assert not fits(Need("zone", 1, holds=(Need("node", 3, holds=(task(Need("core", 1)),)),)))
    assert fits(task(Need("memory", 16 * GIB, "B"), count=3))


def test_nodes_that_the_selectors_of_a_site_leave_out() -> None:
    spot, fixed, other = (make_node(name, labels={"pool": name}) for name in ("spot", "fixed", "other"))
    rules = NodeRules(selectors=({"pool": "spot"}, {"pool": "fixed"}))
    assert usable_nodes([spot, fixed, other], rules) == [spot, fixed]
