"""Questions that Fluxion answers otherwise, as docs/explanation/matching.md lists them: our answers, and why."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard.match.engine import Match, engine
from switchyard.model.graph import Graph
from switchyard.model.graph.graph_compiler import compile_graph
from tests.match.builders import Row, demand, need, slot, tree_of

# Two nodes of two sockets with 18 cores, a GPU and four memory vertices of size 2 each.
SOCKETS: dict[str, Row] = {"top": ("cluster", None, {}), "rack": ("rack", "top", {})}
for _node in ("n0", "n1"):
    SOCKETS[_node] = ("node", "rack", {"name": _node})
    for _socket in (f"{_node}s0", f"{_node}s1"):
        SOCKETS[_socket] = ("socket", _node, {})
        SOCKETS |= {f"{_socket}c{number}": ("core", _socket, {}) for number in range(18)}
        SOCKETS |= {f"{_socket}m{number}": ("memory", _socket, {"size": 2}) for number in range(4)}
        SOCKETS[f"{_socket}g"] = ("gpu", _socket, {})
# Two nodes in a rack and two beside it, of one socket with three cores each.
HALF_RACKED: dict[str, Row] = {"top": ("cluster", None, {}), "rack": ("rack", "top", {})}
for _number, _parent in enumerate(("rack", "rack", "top", "top")):
    HALF_RACKED[f"n{_number}"] = ("node", _parent, {"name": f"n{_number}"})
    HALF_RACKED[f"s{_number}"] = ("socket", f"n{_number}", {})
    HALF_RACKED |= {f"s{_number}c{core}": ("core", f"s{_number}", {}) for core in range(3)}
POOL: dict[str, Row] = {
    "top": ("cluster", None, {}),
    "n0": ("node", "top", {"name": "n0"}),
    "c0": ("core", "n0", {}),
    "c1": ("core", "n0", {}),
    "m0": ("memory", "n0", {"size": 8}),
}
SMALL, BIG = slot(1, need("core", 8), need("gpu")), slot(1, need("core", 36))
FOUR_NODES = [slot(2, need("node", 1, need("socket", 2, need("core", 5))))] * 2


def by_socket(*slots: dict[str, Any]) -> dict[str, Any]:
    return need("rack", 1, need("node", 1, need("socket", 1, *slots)))


CASES: list[tuple[str, dict[str, Row], list[dict[str, Any]], bool]] = [
    # Alternatives: Fluxion's traverser `flexible` takes one of the slots, and says yes.
    ("a slot fits a socket", SOCKETS, [by_socket(SMALL)], True),
    ("the slot beside it fits no socket", SOCKETS, [by_socket(SMALL, BIG)], False),
    (
        "three kinds of slots need 42 cores, 6 GPUs",
        SOCKETS,
        [slot(2, need("core", 12)), slot(2, need("core", 5), need("gpu")), slot(2, need("core", 4), need("gpu", 2))],
        False,
    ),
    ("two pairs of nodes on two nodes", SOCKETS, FOUR_NODES, False),
    ("one pair of nodes on two nodes", SOCKETS, FOUR_NODES[:1], True),
    # `flexible` takes no slot beside another need, and says no.
    ("a socket and a slot", SOCKETS, [need("socket", 1, need("core", 8)), slot(1, need("core", 12))], True),
    # Fluxion says no: it collects the nodes of slots below one vertex, and takes whole vertices for a slot.
    (
        "slots of nodes in a rack and outside",
        HALF_RACKED,
        [slot(2, need("node", 2, need("socket", 1, need("core", 3))))],
        True,
    ),
    ("two slots share a pool", POOL, [slot(2, need("core"), need("memory", 4))], True),
    ("two slots and a pool that is too small", POOL, [slot(2, need("core"), need("memory", 5))], False),
]


@pytest.mark.parametrize("name", ["shapes", "walk"])
@pytest.mark.parametrize(("vertices", "needs", "fits"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_our_answer_is_by_the_rules_of_matching(
    vertices: dict[str, Row], needs: list[dict[str, Any]], fits: bool, name: str
) -> None:
    assert isinstance(engine(name).satisfy(demand(*needs), tree_of(vertices)), Match) == fits


def powered(path: str) -> Graph:
    """A node with two cores and two units of power, which hang at it by the edges of this subsystem."""
    kinds = {"top": "cluster", "n0": "node", "c0": "core", "c1": "core", "p0": "power", "p1": "power"}
    vertices = [{"id": name, "metadata": {"type": kind}} for name, kind in kinds.items()]
    inside = [("top", "n0"), ("n0", "c0"), ("n0", "c1")]
    edges = [
        {"source": source, "target": target, "metadata": {"name": {"containment": ""}}} for source, target in inside
    ]
    edges += [{"source": "n0", "target": name, "metadata": {"name": {path: ""}}} for name in ("p0", "p1")]
    return compile_graph({"graph": {"nodes": vertices, "edges": edges}}, where="graph")


@pytest.mark.parametrize("name", ["shapes", "walk"])
@pytest.mark.parametrize(("path", "fits"), [("containment", True), ("power", False)])
def test_power_counts_where_it_is_contained(path: str, fits: bool, name: str) -> None:
    """As Fluxion on its default subsystem; along power (`-S PA`) Fluxion says yes to both."""
    asked = demand(need("node", 1, need("power", 2), slot(1, need("core", 2))))
    assert isinstance(engine(name).satisfy(asked, powered(path)), Match) == fits
