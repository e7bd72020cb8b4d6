"""A JGF with more than containment: the other subsystem is attached, and its own hierarchy is left out."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard.errors import Malformed
from switchyard.match.canonical_jobspec import demand_of_jobspec
from switchyard.match.engine import Match, engine
from switchyard.model.graph import AttachedVertex
from switchyard.model.graph.graph_compiler import compile_graph

VERTICES: dict[str, dict[str, Any]] = {
    "cluster": {"type": "cluster"},
    "rack": {"type": "rack"},
    "pdu": {"type": "pdu"},
    "n0": {"type": "node", "name": "n0"},
    "n1": {"type": "node", "name": "n1"},
    "c0": {"type": "core"},
    "c1": {"type": "core"},
    "panel": {"type": "powerpanel"},
    "p0": {"type": "power", "size": 10, "unit": "KW", "properties": {"phase": 3}},
    "p1": {"type": "power", "size": 10, "unit": "KW"},
    "p2": {"type": "power", "size": 90, "unit": "KW"},
}
CONTAINMENT = [("cluster", "rack"), ("rack", "pdu"), ("rack", "n0"), ("rack", "n1"), ("n0", "c0"), ("n1", "c1")]
POWER = [("panel", "pdu"), ("pdu", "n0"), ("pdu", "n1"), ("n0", "p0"), ("n1", "p1"), ("pdu", "p2"), ("panel", "p2")]


def form(power: list[tuple[str, str]], *, is_old: bool = False, name: str = "power") -> dict[str, Any]:
    def edge(source: str, target: str, subsystem: str) -> dict[str, Any]:
        metadata = {"name": {subsystem: "contains"}} if is_old else {"subsystem": subsystem}
        return {"source": source, "target": target, "metadata": metadata}

    edges = [edge(*ends, "containment") for ends in CONTAINMENT] + [edge(*ends, name) for ends in power]
    return {
        "graph": {"nodes": [{"id": key, "metadata": metadata} for key, metadata in VERTICES.items()], "edges": edges}
    }


@pytest.mark.parametrize("is_old", [False, True])
def test_power_is_attached_and_the_second_parent_is_no_trouble(is_old: bool) -> None:
    graph = compile_graph(form(POWER, is_old=is_old), where="graph")
    assert graph.totals == {"cluster": 1, "core": 2, "node": 2, "pdu": 1, "rack": 1}
    attached = {
        shape.type: shape.attached for shape in graph.shapes if shape.attached and "phase" not in str(shape.attached)
    }
    assert attached == {
        "node": [AttachedVertex("power", {"size": 10, "type": "power", "unit": "KW"})],
        "pdu": [AttachedVertex("power", {"size": 90, "type": "power", "unit": "KW"})],
    }


def test_a_job_asks_for_power_as_for_any_subsystem() -> None:
    graph = compile_graph(form(POWER), where="graph")
    for field, match, fits in (("size", "10", 2), ("phase", "3", 1), ("size", "11", 0)):
        needs = {"type": "node", "count": 1, "requires": [{"name": "power", "field": field, "match": match}]}
        assert engine().satisfy(demand_of_jobspec({"resources": [needs]}), graph).slots == fits
    inside = {"type": "node", "count": 1, "with": [{"type": "power", "count": 1}]}
    assert not isinstance(engine().satisfy(demand_of_jobspec({"resources": [inside]}), graph), Match), "no hierarchy"


def test_a_subsystem_of_the_same_name_replaces_the_graphs_own() -> None:
    graph = compile_graph(form(POWER), {"power": {"attach": {"n0": [{"type": "battery"}]}}}, where="graph")
    attached = [vertex.metadata["type"] for shape in graph.shapes for vertex in shape.attached]
    assert attached == ["battery"]


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (form([*POWER, ("rack", "nowhere")]), "there is no vertex 'nowhere'"),
        (form(POWER, name="a b"), "'a b' is not a name for a subsystem"),
        (form(POWER, name="cluster"), "'cluster' is not a name"),
        (form(POWER[:4]), "3 vertices without a parent"),
    ],
)
def test_what_is_no_graph_is_refused(made: dict[str, Any], says: str) -> None:
    with pytest.raises(Malformed) as caught:
        compile_graph(made, where="graph")
    assert says in caught.value.detail


def test_a_second_parent_is_refused_in_containment_and_taken_in_another_subsystem() -> None:
    made = form(POWER)
    made["graph"]["edges"].append({"source": "n1", "target": "c0"})
    with pytest.raises(Malformed, match="vertex 'c0' has a second parent, n1") as caught:
        compile_graph(made, where="graph")
    assert "metadata.subsystem" in caught.value.next_step
    made["graph"]["edges"][-1]["metadata"] = {"subsystem": "shared"}
    assert sorted(kind.cores for kind in compile_graph(made, where="graph").kinds) == [1, 1]


def test_a_graph_without_containment_is_refused() -> None:
    edges = [{"source": "a", "target": "b", "metadata": {"subsystem": "power"}}]
    nodes = [{"id": name, "metadata": {"type": "power"}} for name in "ab"]
    with pytest.raises(Malformed, match="no edge is of the subsystem containment"):
        compile_graph({"graph": {"nodes": nodes, "edges": edges}}, where="graph")


def test_vertices_attached_to_one_vertex_are_bounded() -> None:
    made = form([])
    made["graph"]["nodes"] += [{"id": f"x{n}", "metadata": {"type": "power", "size": n}} for n in range(1001)]
    power = [{"source": "n0", "target": f"x{n}", "metadata": {"subsystem": "power"}} for n in range(1001)]
    made["graph"]["nodes"] = [
        vertex for vertex in made["graph"]["nodes"] if vertex["id"] not in ("panel", "p0", "p1", "p2")
    ]
    made["graph"]["edges"] += power
    with pytest.raises(Malformed, match="over 1000 vertices attached to 'n0'"):
        compile_graph(made, where="graph")
