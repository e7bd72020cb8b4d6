"""Nodes and partitions as scontrol prints them, as a graph and as a load."""

from __future__ import annotations

import pytest

from switchyard.errors import Unavailable
from switchyard.features.slurm.agent.nodes.cluster import (
    NAMES_MAX,
    find_closed_nodes,
    find_gres_type,
    find_untyped_nodes,
)
from switchyard.features.slurm.agent.nodes.nodes import (
    Gres,
    SlurmHardware,
    SlurmNode,
    count_jobs,
    graph_of,
    load_from_nodes,
    read_nodes,
    read_partitions,
)
from switchyard.match.free_graph import free_part
from switchyard.model.cluster.hardware import SiteNames
from switchyard.model.graph import Graph
from switchyard.model.graph.graph import FreeNodes
from switchyard.model.jobspec.devices import device_of
from tests.agent.slurm.scontrol_rows import row

GIB = 2**30


def test_a_node_with_everything() -> None:
    text = row(
        "n1",
        ActiveFeatures="fast,intel",
        Gres="gpu:a100:4(S:0-1),craynetwork:4",
        State="MIXED",
        CPUAlloc=3,
        AllocMem=2048,
        AllocTRES="cpu=3,mem=2G,gres/gpu=1,gres/gpu:a100=1",
        Partitions="main,short",
    )
    assert read_nodes(text) == [
        SlurmNode(
            name="n1",
            has=SlurmHardware(
                cores=8,
                sockets=2,
                memory_mb=16384,
                storage_mb=1024,
                gres=(Gres("craynetwork", "", 4), Gres("gpu", "a100", 4)),
            ),
            used=SlurmHardware(cores=3, memory_mb=2048, gres=(Gres("gpu", "a100", 1),)),
            features=("fast", "intel"),
            partitions=("main", "short"),
            states=frozenset({"MIXED"}),
        )
    ]


@pytest.mark.parametrize(
    ("gres", "gpus", "types"),
    [
        ("gpu:2", 2, ("",)),
        ("gpu", 1, ("",)),
        ("gpu:a100:4(S:0-1)", 4, ("a100",)),
        ("gpu:a100:2(S:0,2),gpu:v100:1", 3, ("a100", "v100")),
        ("gpu:tesla:2,nic:1", 2, ("tesla",)),
        ("gpu:a100_1g.5gb:7", 7, ("a100_1g.5gb",)),
        ("gpu:1g.5gb:7", 7, ("1g.5gb",)),
        ("gpu:3090:2", 2, ("3090",)),
        ("(null)", 0, ()),
        ("mps:100", 0, ()),
    ],
)
def test_gpus_by_count_and_type(gres: str, gpus: int, types: tuple[str, ...]) -> None:
    (node,) = read_nodes(row("n1", Gres=gres))
    assert (node.has.gpus, node.has.gpu_types) == (gpus, types)


@pytest.mark.parametrize(
    ("state", "is_open"),
    [
        ("IDLE", True),
        ("MIXED", True),
        ("ALLOCATED+COMPLETING", True),
        ("IDLE+PLANNED", True),
        ("IDLE+CLOUD", True),
        ("IDLE+DRAIN", False),
        ("MIXED+DRAIN", False),
        ("DOWN*", False),
        ("IDLE*+NOT_RESPONDING", False),
        ("IDLE+MAINTENANCE+RESERVED", False),
        ("IDLE+CLOUD+POWERED_DOWN", False),
        ("INVAL", False),
    ],
)
def test_which_nodes_take_jobs(state: str, is_open: bool) -> None:
    (node,) = read_nodes(row("n1", State=state))
    assert node.is_open is is_open


def test_equal_nodes_are_one_kind_and_those_to_come_are_none() -> None:
    text = "\n".join(
        [row("n1", ActiveFeatures="fast"), row("n2"), row("n3", State="DOWN"), row("n4", State="FUTURE"), "a banner"]
    )
    graph = graph_of(read_nodes(text), where="scontrol")
    assert (graph.nodes, graph.cores, graph.memory_bytes, graph.storage_bytes) == (3, 24, 48 * GIB, 3 * GIB)
    assert sorted(graph.host_names) == ["n1", "n2", "n3"]
    assert sorted(kind.count for kind in graph.kinds) == [1, 2]
    assert {"fast": True, "partition/main": True} in [kind.properties for kind in graph.kinds]
    assert graph.totals["socket"] == 6


def test_features_that_cannot_be_names_are_left_out() -> None:
    (node,) = read_nodes(row("n1", ActiveFeatures="ok,b@d,c=d"))
    assert node.properties == {"ok": True, "partition/main": True}


def test_no_nodes_is_no_cluster() -> None:
    with pytest.raises(Unavailable, match="of no node"):
        graph_of(read_nodes("slurm_load_node: nothing"), where="scontrol")


def test_the_load_counts_only_nodes_that_take_jobs() -> None:
    text = "\n".join(
        [
            row("n1", CPUAlloc=3, AllocMem=4096, State="MIXED"),
            row("n2"),
            row("n3", State="DOWN"),
            row("n4", State="IDLE+DRAIN"),
        ]
    )
    nodes = read_nodes(text)
    graph = graph_of(nodes, where="scontrol")
    load = load_from_nodes(nodes, graph, running=2, queued=5)
    assert (load.free_cores, load.free_memory_bytes, load.running, load.queued) == (13, 28 * GIB, 2, 5)
    assert load.values == {"nodes_free": 1, "nodes_down": 1, "nodes_closed": 1}
    (kind,) = graph.kinds
    assert load.signature == graph.signature
    assert load.free == [
        FreeNodes(kind.shape, 1, 5, 0, 12 * GIB),
        FreeNodes(kind.shape, 1, 8, 0, 16 * GIB),
        FreeNodes(kind.shape, 2, 0, 0, 0),
    ]


def test_nodes_that_changed_since_the_graph_was_made_have_no_shape() -> None:
    graph = graph_of(read_nodes(row("n1")), where="scontrol")
    load = load_from_nodes(read_nodes(row("n1", CPUEfctv=4)), graph, running=0, queued=0)
    assert (load.free, load.free_cores) == (None, 4)


def test_partitions_are_the_queues() -> None:
    text = "PartitionName=main Default=YES State=UP\nPartitionName=old Default=NO State=DOWN TRES=cpu=1\n"
    found = read_partitions(text)
    assert (found.names, found.default) == (("main", "old"), "main")


def test_how_long_the_queue_is() -> None:
    assert count_jobs("RUNNING|1|\nPENDING|7_[0-9%2]|\nPENDING|8|\n") == (1, 11)


def test_closed_nodes_and_how_to_open_them() -> None:
    nodes = read_nodes(
        "\n".join(
            [
                row("n1", State="IDLE+DRAIN", Reason="Duplicate jobid [root@2026-11-18T13:58:08]"),
                row("n2", State="DOWN*", Reason="Not responding [slurm@2026-11-18T13:58:08]"),
                row("n3"),
                row("n4", State="IDLE+DRAIN", Partitions="gpu"),
                row("n5", State="IDLE+POWERED_DOWN", Partitions="spare"),
            ]
        )
    )
    main = find_closed_nodes(nodes, "main")
    assert main.advice("ReqNodeNotAvail, UnavailableNodes:n[1-2]") == (
        "Slurm keeps 2 of 3 nodes closed: n1 (Duplicate jobid), n2 (Not responding). An operator sees why with "
        "`sinfo -R`, and opens them with `scontrol update NodeName=n1,n2 State=RESUME`"
    )
    assert "2 of 3" in main.advice("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher ...")
    assert main.advice("Resources") == main.advice("Priority") == "", "others are open, and busy"
    assert "1 of 1 nodes closed: n4 (drain+idle)." in find_closed_nodes(nodes, "gpu").advice("Priority")
    assert find_closed_nodes(nodes, "spare").advice("ReqNodeNotAvail") == "", "it wakes by itself"
    assert find_closed_nodes(nodes, "").advice("NodeDown").startswith("Slurm keeps 3 of 5 nodes closed")


def test_not_every_closed_node_is_named() -> None:
    nodes = read_nodes("\n".join(row(f"n{number}", State="DOWN", Reason="x" * 900) for number in range(1000)))
    text = find_closed_nodes(nodes, "main").advice("")
    assert f" and {1000 - NAMES_MAX} more. " in text
    assert len(text) < 700


def types_of(graph: Graph) -> dict[str, int]:
    counts = zip(graph.shapes, graph.multiplicity, strict=True)
    return {str(shape.properties.get("type", "")): count for shape, count in counts if shape.type == "gpu"}


def test_gpus_have_the_type_of_their_gres_or_of_a_feature_or_none() -> None:
    text = "\n".join(
        [
            row("n1", Gres="gpu:nvidia_h100_80gb_hbm3:4"),
            row("n2", Gres="gpu:2", ActiveFeatures="fast,A100"),
            row("n3", Gres="gpu:1,fpga:u280:1"),
            row("n4", Gres="gpu:bigcard:3"),
        ]
    )
    graph = graph_of(read_nodes(text), where="scontrol", names=SiteNames({"bigcard": "b200"}))
    assert types_of(graph) == {"nvidia_h100_80gb_hbm3": 4, "A100": 2, "": 1, "b200": 3}
    assert graph.totals["fpga"] == 1


@pytest.mark.parametrize(
    ("used", "free"),
    [
        ("", {"a100": 2, "h100": 1}),
        ("gres/gpu=1,gres/gpu:a100=1", {"a100": 1, "h100": 1}),
        ("gres/gpu=1", {"a100": 1, "h100": 0}),  # Slurm does not tell which one
    ],
)
def test_the_free_gpus_of_a_node_with_several_types_are_told_by_type(used: str, free: dict[str, int]) -> None:
    nodes = read_nodes(row("n1", Gres="gpu:a100:2,gpu:h100:1", AllocTRES=used))
    graph = graph_of(nodes, where="scontrol")
    load = load_from_nodes(nodes, graph, running=0, queued=0)
    assert load.free is not None
    assert [entry.types for entry in load.free] == [free]
    left = free_part(graph, load.free)
    assert left is not None
    assert types_of(left) == {name: count for name, count in free.items() if count}


def test_nodes_that_differ_only_in_the_type_of_their_gpus_keep_their_own_shapes() -> None:
    nodes = read_nodes("\n".join([row("n1", Gres="gpu:a100:1,gpu:h100:1"), row("n2", Gres="gpu:v100:1,gpu:t4:1")]))
    graph = graph_of(nodes, where="scontrol")
    load = load_from_nodes(nodes, graph, running=0, queued=0)
    assert load.free is not None
    assert {entry.shape for entry in load.free} == {kind.shape for kind in graph.kinds}


@pytest.mark.parametrize(
    ("gres", "asked", "word"),
    [
        (["gpu:nvidia_a100_80gb_pcie:4", "gpu:a100:1"], "a100", "nvidia_a100_80gb_pcie"),  # the one that most have
        (["gpu:a100:8", "gpu:nvidia_a100_80gb_pcie:4"], "a100-80gb", "nvidia_a100_80gb_pcie"),
        (["gpu:bigcard:4", "gpu:a100:4"], "b200", "bigcard"),
        (["gpu:4"], "h100", ""),
        (["gpu:a100_1g.5gb:7"], "a100-mig-1g.5gb", "a100_1g.5gb"),
        (["gpu:a100:4"], "h100", "h100"),  # Slurm refuses it
    ],
)
def test_slurm_is_told_a_type_in_its_own_words(gres: list[str], asked: str, word: str) -> None:
    nodes = read_nodes("\n".join(row(f"n{number}", Gres=text) for number, text in enumerate(gres)))
    assert find_gres_type(nodes, device_of("gpu", asked, 1), SiteNames({"bigcard": "b200"})) == word


def test_nodes_without_types_are_excluded_unless_the_graph_tells_the_type() -> None:
    nodes = read_nodes(
        "\n".join(
            [row("n1", Gres="gpu:2", ActiveFeatures="a100"), row("n2", Gres="gpu:2"), row("n3", Gres="gpu:h100:2")]
        )
    )
    graph = graph_of(nodes, where="scontrol")
    assert find_untyped_nodes(nodes, graph, device_of("gpu", "a100", 1)) == {"n2"}
    assert find_untyped_nodes(nodes, graph, device_of("gpu", "h100", 1)) == {"n1", "n2"}
