"""Slots that hold nodes, racks or storage beside nodes; and slots on hosts that are no nodes."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard.match.engine import Match, engine
from switchyard.model.graph import Graph
from switchyard.model.graph.graph_compiler import compile_graph
from tests.match import brute
from tests.match.builders import Row, demand, need, slot, tree_of


def rabbits() -> Graph:
    """Two chassis with two nodes of two cores, two ssd of 8 and a storage node of two cores each; a node apart."""
    vertices: dict[str, Row] = {"top": ("cluster", None, {})}
    rank = 0
    for chassis in ("c0", "c1"):
        vertices[chassis] = ("chassis", "top", {"properties": {"rabbit": f"{chassis}r"}})
        for number in range(2):
            vertices[f"{chassis}s{number}"] = ("ssd", chassis, {"size": 8, "unit": "GiB"})
        for kind, name in (("node", f"{chassis}n0"), ("node", f"{chassis}n1"), ("storage_node", f"{chassis}r")):
            properties = {"rabbit": ""} if kind == "storage_node" else {"thin": ""}
            vertices[name] = (kind, chassis, {"name": name, "rank": rank, "properties": properties})
            rank += 1
            for core in range(2):
                vertices[f"{name}c{core}"] = ("core", name, {})
    vertices["login"] = ("node", "top", {"name": "login", "rank": rank, "properties": {"thin": ""}})
    vertices["login-core"] = ("core", "login", {})
    return tree_of(vertices)


RABBITS = rabbits()

CASES = [
    # needs, whether they fit, how many slots there are
    ((slot(2, need("node", 2)),), True, 2),
    ((slot(3, need("node", 2)),), False, 2),
    ((slot(1, need("node", 5)),), True, 1),
    ((slot(1, need("node", 6)),), False, 0),
    ((slot(2, need("chassis")),), True, 2),
    ((slot(1, need("chassis", 3)),), False, 0),
    ((slot(1, need("cluster")),), True, 1),
    ((need("storage_node", 2, slot(1, need("core", 2))),), True, 2),
    ((need("storage_node", 1, slot(2, need("core", 2))),), False, 2),
    ((slot(1, need("storage_node", 2, need("core", 2))),), True, 1),
    ((slot(2, need("node", 1, need("core")), need("ssd", 16)),), True, 2),
    ((slot(3, need("node", 1, need("core")), need("ssd", 11)),), False, 2),
    ((slot(1, need("ssd", 32)),), True, 1),
    ((slot(1, need("ssd", 33)),), False, 0),
    ((need("chassis", 1, slot(2, need("node"), need("ssd", 8))),), True, 4),
    ((need("chassis", 1, slot(1, need("node", 3))),), False, 0),
    ((need("chassis", 1, slot(1, need("ssd", 16)), need("node", 2)),), True, 2),
    ((need("chassis", 1, need("node", 1, slot(1, need("core"))), need("ssd"), need("storage_node", 1, need("core"))),),
     True, 8),
    # Cores lie in one host each: never in two nodes, nor in a node and a storage node.
    ((slot(1, need("core", 3)),), False, 0),
    ((slot(6, need("core", 2)),), True, 6),
    ((slot(13, need("core")),), True, 13),
    ((slot(14, need("core")),), False, 13),
    # A slot lies in one host, or outside of hosts: storage of the chassis is not in a node.
    ((slot(1, need("core"), need("ssd")),), False, 0),
    # A slot in a slot is what it holds.
    ((slot(1, slot(2, need("node")), need("ssd", 32)),), True, 1),
    ((slot(1, need("node", 1, slot(1, need("core"))), need("ssd")),), True, 5),
    # Several needs at the same time: what a host gives to a need outside of slots is not taken for a slot.
    ((slot(2, need("node", 2)), need("node", 1)), True, None),
    ((slot(2, need("node", 2)), need("node", 2)), False, None),
    ((slot(1, need("ssd", 30)), need("ssd", 2)), True, None),
    ((slot(1, need("ssd", 30)), need("ssd", 3)), False, None),
    ((slot(1, need("core", 2)), need("core", 11)), True, None),
    ((slot(1, need("core", 2)), need("core", 12)), False, None),
]  # fmt: skip


@pytest.mark.parametrize("name", ["shapes", "walk"])
@pytest.mark.parametrize(("needs", "fits", "slots"), CASES)
def test_a_slot_may_lie_outside_of_nodes(needs: Any, fits: bool, slots: int | None, name: str) -> None:
    found = engine(name).satisfy(demand(*needs), RABBITS)
    assert isinstance(found, Match) is fits, found
    assert isinstance(found, Match) or found.reason
    assert found.slots == slots


@pytest.mark.parametrize("needs", [needs for needs, _, _ in CASES])
def test_the_quick_answer_is_the_same(needs: Any) -> None:
    found = engine("shapes")
    asked = demand(*needs)
    assert found.fits(asked, RABBITS) is isinstance(found.satisfy(asked, RABBITS), Match)  # type: ignore[attr-defined]


def test_cores_beside_nodes_are_never_mixed_with_cores_in_nodes() -> None:
    vertices: dict[str, Row] = {
        "top": ("cluster", None, {}), "n": ("node", "top", {}),
        "a": ("core", "n", {}), "b": ("core", "n", {}), "c": ("core", "top", {}), "d": ("core", "top", {}),
    }  # fmt: skip
    graph = tree_of(vertices)
    for needs, fits in (
        ((slot(2, need("core", 2)),), True),
        ((slot(1, need("core", 3)),), False),
        ((slot(4, need("core")),), True),
        ((slot(1, need("core", 2)), need("core", 2)), True),
        ((slot(1, need("core", 2)), slot(1, need("core", 2))), True),
        ((slot(1, need("core", 2)), need("core", 3)), False),
        ((slot(3, need("core")), need("core", 1)), True),
    ):
        asked = demand(*needs)
        assert brute.fits(asked, graph) is fits
        for name in ("shapes", "walk"):
            assert isinstance(engine(name).satisfy(asked, graph), Match) is fits, needs


CONSTRAINTS = [
    # needs, constraint, whether they fit
    ((need("node", 1, slot(1, need("core"))),), {"hostlist": ["c0r"]}, False),
    ((slot(1, need("core")),), {"hostlist": ["c0r"]}, True),
    ((slot(1, need("core")),), {"and": [{"hostlist": ["c0r"]}, {"properties": ["thin"]}]}, False),
    ((slot(1, need("core")),), {"and": [{"hostlist": ["c0r"]}, {"properties": ["rabbit"]}]}, True),
    ((slot(2, need("core")),), {"properties": ["rabbit"]}, True),
    ((slot(4, need("core")),), {"properties": ["rabbit"]}, True),
    ((slot(5, need("core")),), {"properties": ["rabbit"]}, False),
    ((need("node", 5),), {"properties": ["thin"]}, True),
    ((need("node", 2),), {"ranks": ["0-1"]}, True),
    ((need("node", 2),), {"ranks": [0, 1]}, True),
    ((need("node", 3),), {"ranks": ["0-2"]}, False),
    ((slot(6, need("core")),), {"ranks": ["0-2"]}, True),
    ((slot(7, need("core")),), {"ranks": ["0-2"]}, False),
    ((slot(1, need("node"), need("ssd", 32)),), {"hostlist": ["login"]}, True),
    ((slot(1, need("node", 2), need("ssd", 32)),), {"hostlist": ["login"]}, False),
    ((slot(1, need("core")),), {"hostlist": ["nowhere"]}, False),
]


@pytest.mark.parametrize("name", ["shapes", "walk"])
@pytest.mark.parametrize(("needs", "constraint", "fits"), CONSTRAINTS)
def test_a_constraint_sees_every_host(needs: Any, constraint: Any, fits: bool, name: str) -> None:
    found = engine(name).satisfy(demand(*needs, constraints=constraint), RABBITS)
    assert isinstance(found, Match) is fits, found
    assert isinstance(found, Match) or found.reason


def test_hosts_that_are_no_nodes_have_names_but_are_not_counted_as_nodes() -> None:
    assert (RABBITS.nodes, RABBITS.host_count) == (5, 7)
    by_name = dict(zip(RABBITS.host_names, RABBITS.rank_numbers, strict=True))
    assert by_name == {"c0n0": 0, "c0n1": 1, "c0r": 2, "c1n0": 3, "c1n1": 4, "c1r": 5, "login": 6}
    types = {
        name: RABBITS.shapes[shape].type for name, shape in zip(RABBITS.host_names, RABBITS.host_shapes(), strict=True)
    }
    assert {name for name, kind in types.items() if kind == "storage_node"} == {"c0r", "c1r"}


def test_a_subsystem_is_attached_to_a_storage_node_by_its_name() -> None:
    graph = compile_graph(RABBITS, {"io": {"attach": {"c1r": [{"type": "nvme"}]}}}, where="graph")
    by_name = dict(zip(graph.host_names, graph.host_shapes(), strict=True))
    assert [name for name, shape in by_name.items() if graph.shapes[shape].attached] == ["c1r"]
    asked = {**need("storage_node", 1), "requires": [{"name": "io", "field": "type", "match": "nvme"}]}
    assert isinstance(engine().satisfy(demand(asked), graph), Match)
    assert not isinstance(engine().satisfy(demand({**asked, "count": 2}), graph), Match)


@pytest.mark.parametrize(
    ("vertices", "hosts"),
    [
        ({"t": ("cluster", None), "s": ("storage_node", "t"), "n": ("node", "s")}, ["n"]),
        ({"t": ("cluster", None), "n": ("node", "t"), "s": ("storage_node", "n")}, ["n"]),
        ({"t": ("cluster", None), "s": ("storage_node", "t"), "r": ("storage_node", "s")}, ["r"]),
        ({"t": ("storage_node", None), "c": ("core", "t")}, ["t"]),
        ({"t": ("cluster", None), "c": ("core", "t")}, ["node0"]),
    ],
)
def test_a_host_contains_no_host(vertices: dict[str, tuple[str, str | None]], hosts: list[str]) -> None:
    graph = tree_of({name: (kind, parent, {"name": name}) for name, (kind, parent) in vertices.items()})
    assert graph.host_names == hosts
    assert graph.host_count == len(graph.host_shapes()) == len(hosts)
