"""The engine `fluxion`: what it asks, and that a real Fluxion never says yes where `shapes` says no."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from switchyard.features.flux.fluxion.engine import PROGRAM, FluxionEngine, NotExpressible, question_of
from switchyard.match.canonical_jobspec import demand_of_jobspec
from switchyard.match.demand import Demand, PlainResources
from switchyard.match.engine import Match, engine
from switchyard.match.plain_demand import demand_of_plain, demand_of_resources
from switchyard.model.graph import Graph
from switchyard.model.graph.graph_compiler import compile_graph
from switchyard.model.job.job import Resources
from tests.match.strategies import canonical, graphs, plain

SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
GRAPH = compile_graph({"nodes": 2, "each": {"core": 4, "gpu": 1, "memory": "16GiB"}}, where="test")
GIB = 2**30
CASES: list[tuple[dict[str, Any], bool]] = [
    ({"tasks": 2, "cores": 4}, True),
    ({"tasks": 3, "cores": 3}, False),  # 8 cores in all, but 3 of a node are left
    ({"tasks": 2, "cores": 1, "gpus": 1, "memory_bytes": 16 * GIB}, True),
    ({"tasks": 2, "cores": 1, "memory_bytes": 17 * GIB}, False),
    ({"tasks": 4, "cores": 1, "gpus": 1}, False),
    ({"tasks": 2, "nodes": 2, "cores": 4}, True),
    ({"tasks": 3, "nodes": 3, "cores": 1}, False),
]
# The nodes of docs/how-to/describe-a-cluster.md, fewer of them. Cores are in sockets; memory and GPUs are
# beside them.
SOCKETS = compile_graph(
    [
        {"nodes": 3, "each": {"socket": 2, "core": 48, "memory": "256GiB"}, "hosts": "n[0-2]"},
        {"nodes": 1, "each": {"socket": 2, "core": 48, "memory": "512GiB", "gpu": 4}, "hosts": "g0"},
    ],
    where="test",
)
SOCKET_CASES: list[tuple[dict[str, Any], bool]] = [
    ({"tasks": 1, "cores": 1}, True),
    ({"tasks": 4, "cores": 40}, True),  # more cores than a socket has
    ({"tasks": 5, "cores": 40}, False),
    ({"tasks": 1, "cores": 49}, False),
    ({"tasks": 1, "cores": 1, "memory_bytes": 300 * GIB}, True),
    ({"tasks": 2, "cores": 1, "memory_bytes": 300 * GIB}, False),
    ({"tasks": 2, "cores": 8, "gpus": 2, "memory_bytes": 100 * GIB}, True),
    ({"tasks": 4, "nodes": 4, "cores": 48, "memory_bytes": 256 * GIB}, True),
    ({"tasks": 2, "nodes": 2, "gpus": 1, "cores": 1}, False),
]
SLOTS_OF_24 = {"type": "slot", "count": 1, "with": [{"type": "core", "count": 24}]}
SLOTS_OF_25 = {"type": "slot", "count": 1, "with": [{"type": "core", "count": 25}]}
SOCKET_JOBSPECS: list[tuple[list[dict[str, Any]], bool]] = [
    ([{"type": "slot", "count": 8, "with": [{"type": "socket", "count": 1}]}], True),
    ([{"type": "slot", "count": 9, "with": [{"type": "socket", "count": 1}]}], False),
    ([{"type": "socket", "count": 2, "with": [SLOTS_OF_24]}], True),
    ([{"type": "socket", "count": 1, "with": [SLOTS_OF_25]}], False),
    ([{"type": "node", "count": 4, "with": [{**SLOTS_OF_24, "count": 2}]}], True),
]
needs_fluxion = pytest.mark.skipif(shutil.which(PROGRAM) is None, reason=f"{PROGRAM} of flux-sched is not in the PATH")


def test_a_question_is_a_graph_of_all_vertices_and_a_jobspec() -> None:
    asked = question_of(demand_of_plain(PlainResources(tasks=2, cores=3, memory_bytes=4 * GIB), ()), GRAPH)
    vertices = [vertex["metadata"] for vertex in asked.jgf["graph"]["nodes"]]
    assert [vertex["type"] for vertex in vertices].count("core") == 8
    assert len({vertex["paths"]["containment"] for vertex in vertices}) == len(vertices)
    assert len(asked.jgf["graph"]["edges"]) == len(vertices) - 1
    memory = [vertex["size"] for vertex in vertices if vertex["type"] == "memory"]
    assert memory == [1] * 8, "each node has four units of 4 GiB, which several slots can share"
    (jobspec,) = asked.jobspecs
    (slot,) = jobspec["resources"]
    assert (slot["type"], slot["count"]) == ("slot", 2)
    assert {need["type"]: need["count"] for need in slot["with"]} == {"core": 3, "memory": 1}


@pytest.mark.parametrize(
    ("resources", "why"),
    [
        ([{"type": "core", "count": 1}], "no slot"),
        ([{"type": "slot", "count": 1, "with": [{"type": "core", "count": 1}]}] * 2, "counted as one"),
        ([{"type": "slot", "count": 1, "with": [{"type": kind, "count": 1}]} for kind in ("core", "gpu")], "several"),
    ],
)
def test_what_fluxion_has_no_word_for_is_not_asked(resources: list[dict[str, Any]], why: str) -> None:
    demand = demand_of_jobspec({"resources": resources})
    if why == "counted as one":
        assert question_of(demand, GRAPH).jobspecs[0]["resources"][0]["count"] == 2
        return
    with pytest.raises(NotExpressible, match=why):
        question_of(demand, GRAPH)


def test_levels_that_the_demand_does_not_name_are_left_out() -> None:
    cores = question_of(demand_of_plain(PlainResources(cores=1), ()), SOCKETS).jgf["graph"]
    assert {vertex["metadata"]["type"] for vertex in cores["nodes"]} == {"cluster", "node", "core"}
    assert len(cores["edges"]) == len(cores["nodes"]) - 1
    sockets = question_of(demand_of_jobspec({"resources": SOCKET_JOBSPECS[2][0]}), SOCKETS).jgf["graph"]
    assert {vertex["metadata"]["type"] for vertex in sockets["nodes"]} == {"cluster", "node", "socket", "core"}


@pytest.mark.flux
@needs_fluxion
@pytest.mark.parametrize(
    ("graph", "resources", "fits"), [(GRAPH, *case) for case in CASES] + [(SOCKETS, *case) for case in SOCKET_CASES]
)
def test_fluxion_and_shapes_agree(graph: Graph, resources: dict[str, Any], fits: bool) -> None:
    _assert_agreement(demand_of_plain(PlainResources(**resources), ()), graph, fits=fits)


@pytest.mark.flux
@needs_fluxion
@pytest.mark.parametrize(("resources", "fits"), SOCKET_JOBSPECS)
def test_fluxion_and_shapes_agree_about_jobspecs(resources: list[dict[str, Any]], fits: bool) -> None:
    _assert_agreement(demand_of_jobspec({"resources": resources}), SOCKETS, fits=fits)


def _assert_agreement(demand: Demand, graph: Graph, *, fits: bool) -> None:
    for found in (FluxionEngine().satisfy(demand, graph), engine("shapes").satisfy(demand, graph)):
        assert isinstance(found, Match) == fits, found
        assert not getattr(found, "undecided", ""), found


@pytest.mark.flux
@needs_fluxion
@settings(max_examples=150, deadline=None, suppress_health_check=SLOW)
@given(st.one_of(canonical(most=2), plain(most=4)), graphs(most=3))
def test_what_fits_for_fluxion_fits_for_shapes(demand: Demand, graph: Graph) -> None:
    """The other way round, Fluxion is stricter: docs/explanation/matching.md says where."""
    asked = FluxionEngine().satisfy(demand, graph)
    assume(isinstance(asked, Match) and not asked.undecided)
    assert isinstance(engine("shapes").satisfy(demand, graph), Match)


def test_fluxion_is_asked_about_the_devices_of_one_type_alone() -> None:
    each = {"core": 4, "devices": ["gpu:a100:2", "gpu:NVIDIA-H100-PCIe:1"]}
    graph = compile_graph({"nodes": 2, "each": each}, where="test")
    asked = question_of(demand_of_resources(Resources(gpus=1, gpu_type="h100")), graph)
    kinds = [vertex["metadata"]["type"] for vertex in asked.jgf["graph"]["nodes"]]
    assert kinds.count("gpu") == 2
    assert {"type": "gpu", "count": 1} in asked.jobspecs[0]["resources"][0]["with"]
    with pytest.raises(NotExpressible, match="several types"):
        question_of(demand_of_resources(Resources(gpus=1, gpu_type="h100", devices=("gpu:a100:1",))), graph)
