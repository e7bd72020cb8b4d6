"""The engine `fluxion`: what it asks, and that a real Fluxion never says yes where `shapes` says no."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from switchyard.fluxion.engine import PROGRAM, FluxionEngine
from switchyard.fluxion.questions import NotExpressible, question_of
from switchyard.match.canonical_jobspec import demand_of_jobspec
from switchyard.match.demand import Demand, PlainResources
from switchyard.match.engine import Match, engine
from switchyard.match.plain_demand import demand_of_plain
from switchyard.model.graph import Graph
from switchyard.model.graph.graph_compiler import compile_graph
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
needs_fluxion = pytest.mark.skipif(shutil.which(PROGRAM) is None, reason=f"{PROGRAM} of flux-sched is not in the PATH")


def test_a_question_is_a_graph_of_all_vertices_and_a_jobspec() -> None:
    asked = question_of(demand_of_plain(PlainResources(tasks=2, cores=3, memory_bytes=4 * GIB), ()), GRAPH)
    vertices = [vertex["metadata"] for vertex in asked.jgf["graph"]["nodes"]]
    assert [vertex["type"] for vertex in vertices].count("core") == 8
    assert len({vertex["paths"]["containment"] for vertex in vertices}) == len(vertices)
    assert len(asked.jgf["graph"]["edges"]) == len(vertices) - 1
    assert {vertex["size"] for vertex in vertices if vertex["type"] == "memory"} == {4}, "in units of 4 GiB"
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


@pytest.mark.flux
@needs_fluxion
@pytest.mark.parametrize(("resources", "fits"), CASES)
def test_fluxion_and_shapes_agree(resources: dict[str, Any], fits: bool) -> None:
    demand = demand_of_plain(PlainResources(**resources), ())
    for found in (FluxionEngine().satisfy(demand, GRAPH), engine("shapes").satisfy(demand, GRAPH)):
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
