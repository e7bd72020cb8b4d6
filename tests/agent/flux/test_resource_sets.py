"""Graph, load and quotes of a Flux instance, from captured resource sets."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard.errors import Unavailable
from switchyard.features.flux.agent.cluster.cluster import load_from_nodes
from switchyard.features.flux.agent.cluster.quotes import estimate_start, size_refusal
from switchyard.features.flux.agent.cluster.resource_sets import (
    RankResources,
    graph_of,
    nodes_of,
    read_allocation,
    read_drained,
    read_expiration_s,
    read_host_names,
    read_ranks,
    with_queues,
    with_types,
)
from switchyard.model.cluster.allocation import GivenResources
from switchyard.model.cluster.hardware import COMMON_NAMES
from switchyard.model.graph.attach import attach_subsystems
from switchyard.model.job.job import JobSpec, Resources, Usage
from switchyard.route.moving import FreeCapacity
from tests.agent.flux.captures import R_OF_JOB, R

QUEUES = {"batch": {"requires": ["batch"]}, "debug": {}}
NOW_S = 1794706500.0


def r_with(properties: dict[str, str]) -> dict[str, Any]:
    return {**R, "execution": {**R["execution"], "properties": properties}}


def test_graph_of_a_captured_resource_set() -> None:
    graph = graph_of(R, where="R")
    assert (graph.nodes, graph.cores, graph.gpus, graph.memory_bytes) == (3, 24, 6, 0)
    assert list(graph.host_names) == ["f1n0", "f1n1", "f1n2"]


def test_queues_are_properties_of_the_nodes_that_serve_them() -> None:
    graph = graph_of(with_queues(r_with({"batch": "0-1"}), QUEUES), where="R")
    kinds = {frozenset(kind.properties): kind.count for kind in graph.kinds}
    assert kinds == {frozenset({"batch", "queue/batch", "queue/debug"}): 2, frozenset({"queue/debug"}): 1}


def test_no_resources_yet_is_a_moment_not_an_empty_cluster() -> None:
    for nothing in (None, {}, {"version": 1, "execution": {"R_lite": []}}):
        with pytest.raises(Unavailable):
            graph_of(nothing, where="R")


def test_free_resources_by_node_and_nodes_that_take_none() -> None:
    nodes = nodes_of(R, allocated=R_OF_JOB, down=None)
    assert [node.free for node in nodes] == [RankResources(8, 2), RankResources(8, 2), RankResources(4, 2)]
    stats = {"job_states": {"depend": 1, "priority": 0, "sched": 4, "run": 1, "cleanup": 1, "inactive": 9}}
    load = load_from_nodes(nodes, graph_of(R, where="R"), stats=stats, queues={"": {"enable": True, "start": False}})
    assert (load.free_cores, load.free_gpus, load.running, load.queued) == (20, 6, 2, 5)
    assert (load.values["nodes_free"], load.values["queues_stopped"], load.values["queues_disabled"]) == (2, 1, 0)
    assert load.free is not None
    assert {(free.count, free.core) for free in load.free} == {(2, 8), (1, 4)}


def test_drained_and_down_nodes_are_not_free() -> None:
    down = {"version": 1, "execution": {"R_lite": [{"rank": "0-1", "children": {"core": "0-7"}}]}}
    status = {"drain": {"1": {"timestamp": 1.0, "reason": "disk"}}, "offline": "0"}
    nodes = nodes_of(R, allocated=None, down=down, drained=read_drained(status))
    load = load_from_nodes(nodes, graph_of(R, where="R"), stats={}, queues={})
    assert (load.free_cores, load.free_gpus) == (8, 2)
    assert (load.values["nodes_down"], load.values["nodes_closed"]) == (1, 1)


def test_memory_that_nobody_counts_is_unknown_and_not_full() -> None:
    load = load_from_nodes(nodes_of(R, allocated=None, down=None), graph_of(R, where="R"), stats={}, queues={})
    assert load.free_memory_bytes is None
    assert FreeCapacity.of(load) == FreeCapacity(load.free_cores or 0, load.free_gpus or 0, None)


def test_memory_of_an_operators_graph_is_free_as_its_cores_are() -> None:
    from tests.agent.builders import a_graph

    load = load_from_nodes(nodes_of(R, allocated=R_OF_JOB, down=None), a_graph(cores=24), stats={}, queues={})
    assert load.free_memory_bytes == 2**33 * 20 // 24
    assert load.free is None, "the graph has other nodes than the instance"


@pytest.mark.parametrize(
    ("resources", "fits"),
    [
        (Resources(cores=8), True),
        (Resources(cores=9), False),
        (Resources(tasks=3, nodes=3, cores=8, gpus=2), True),
        (Resources(tasks=4, nodes=4), False),
        (Resources(tasks=24), True),
        (Resources(tasks=25), False),
        (Resources(gpus=3), False),
    ],
)
def test_whether_a_job_could_ever_run(resources: Resources, *, fits: bool) -> None:
    refusal = size_refusal(JobSpec(command=["true"], resources=resources), nodes_of(R, allocated=None, down=None))
    assert (refusal == "") is fits


def test_when_there_is_room() -> None:
    busy = {**R, "execution": {**R["execution"]}}
    nodes = nodes_of(R, allocated=busy, down=None)
    asks = JobSpec(command=["true"], resources=Resources(tasks=10))
    running = [
        {"ncores": 8, "t_run": NOW_S - 10, "expiration": NOW_S + 50},
        {"ncores": 8, "t_run": NOW_S - 10, "expiration": NOW_S + 90},
    ]
    assert estimate_start(asks, nodes, running, now_s=NOW_S).eta_s == 90
    assert estimate_start(asks, nodes_of(R, allocated=None, down=None), running, now_s=NOW_S).eta_s == 0
    unlimited = [{"ncores": 24, "t_run": NOW_S - 200, "expiration": 9223372036.0}]
    guess = estimate_start(asks, nodes, unlimited, now_s=NOW_S)
    assert (guess.eta_s, guess.confidence) == (200, 0.3)


def test_the_end_of_an_instance() -> None:
    assert read_expiration_s(R) is None
    assert read_expiration_s(R_OF_JOB) == 9223372036
    assert read_expiration_s(None) is None


def test_ranks_of_an_empty_set() -> None:
    assert read_ranks(None) == {}


def test_host_names_of_ranks() -> None:
    assert read_host_names(R) == {0: "f1n0", 1: "f1n1", 2: "f1n2"}
    assert read_host_names(R_OF_JOB) == {2: "f1n2"}
    assert read_host_names(None) == {}


def test_nodes_with_different_systems_have_their_own_free_resources() -> None:
    systems = {"attach": {"f1n1": [{"type": "system", "kernel": "6.12.0"}]}}
    graph = attach_subsystems(graph_of(R, where="R"), {"system": systems}, where="test")
    busy = {"version": 1, "execution": {"R_lite": [{"rank": "1", "children": {"core": "0-7"}}], "nodelist": ["f1n1"]}}
    load = load_from_nodes(nodes_of(R, allocated=busy, down=None), graph, stats={}, queues={})
    kernels = {kind.shape: [vertex.metadata["kernel"] for vertex in kind.attached] for kind in graph.kinds}
    assert load.free is not None
    assert {tuple(kernels[free.shape]): (free.count, free.core) for free in load.free if free.core} == {(): (2, 8)}


def test_what_a_job_had_is_read_from_its_resource_set() -> None:
    assert read_allocation(R_OF_JOB["execution"]["R_lite"]) == GivenResources(cores=4, gpus=0)
    assert read_allocation(R["execution"]["R_lite"]) == GivenResources(cores=24, gpus=6)
    unreadable: list[Any] = [None, [], "x", [{"children": {}}], [{"rank": "x"}]]
    assert [read_allocation(ranks) for ranks in unreadable] == [None] * 5


@pytest.mark.parametrize(
    ("properties", "hosts", "types"),
    [
        ({"a100": "0-1", "v100": "2", "batch": "0-2"}, "f1n[0-1]", ("a100",)),
        ({"a100": "0-1", "v100": "2"}, "f1n[1-2]", ("a100", "v100")),
        ({"a100": "0"}, "f1n[0-1]", ()),  # of one node nobody tells it
        ({"a100": "0", "v100": "0"}, "f1n0", ()),
        ({"a100": "0"}, "f1n[0", ()),
    ],
)
def test_the_types_of_its_gpus_are_properties_of_its_nodes(
    properties: dict[str, str], hosts: str, types: tuple[str, ...]
) -> None:
    nodes = nodes_of(r_with(properties), allocated=None, down=None)
    usage = with_types(Usage(nodes=hosts, allocated=GivenResources(gpus=2)), nodes, COMMON_NAMES)
    assert usage.allocated == GivenResources(gpus=2, gpu_types=types)
