"""The systems of nodes are asked when nodes begin to take jobs, and kept for the next start."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from switchyard.agent.backends.shared.node_systems import NodeSystems
from switchyard.errors import Unavailable
from switchyard.model.graph import Graph
from switchyard.model.graph.graph_compiler import compile_graph
from tests.processes import PATIENCE_S, until

GRAPH = compile_graph(
    {
        "version": 1,
        "execution": {
            "R_lite": [{"rank": "0-1", "children": {"core": "0-3"}}],
            "nodelist": ["n[0-1]"],
            "starttime": 0,
            "expiration": 0,
        },
    }
)


class Nodes:
    """Nodes that answer with their kernel; `silent` ones do not."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.kernels = {"n0": "6.1.0", "n1": "6.1.0"}
        self.silent: set[str] = set()

    def ask(self, nodes: Sequence[str]) -> tuple[dict[str, list[Any]], dict[str, str]]:
        self.asked.append(tuple(nodes))
        if self.silent >= set(nodes):
            raise Unavailable("nobody answers")
        found = {node: [{"type": "system", "kernel": self.kernels[node]}] for node in nodes if node not in self.silent}
        return found, {node: "busy" for node in nodes if node in self.silent}


def kernels(graph: Graph) -> set[str]:
    return {str(vertex.metadata["kernel"]) for shape in graph.kinds for vertex in shape.attached}


def until_kernels(systems: NodeSystems, wanted: set[str]) -> None:
    until(lambda: kernels(systems.attached_to(GRAPH)) == wanted, PATIENCE_S, f"the kernels are {wanted}")


def test_a_node_is_asked_when_it_begins_to_take_jobs(tmp_path: Path) -> None:
    nodes = Nodes()
    with closing(NodeSystems(tmp_path / "systems", nodes.ask)) as systems:
        assert systems.attached_to(GRAPH) == GRAPH
        systems.note_up(["n0", "n1"])
        until_kernels(systems, {"6.1.0"})
        nodes.kernels["n1"] = "6.12.0"
        systems.note_up(["n0", "n1"])
        systems.note_up(["n0"])
        systems.note_up(["n0", "n1"])
        until_kernels(systems, {"6.1.0", "6.12.0"})
        assert nodes.asked == [("n0", "n1"), ("n1",)]
    with closing(NodeSystems(tmp_path / "systems", nodes.ask)) as again:
        assert kernels(again.attached_to(GRAPH)) == {"6.1.0", "6.12.0"}, "known before any node was asked"


def test_silent_nodes_are_asked_again_and_keep_what_is_known(tmp_path: Path) -> None:
    nodes = Nodes()
    nodes.silent = {"n0", "n1"}
    with closing(NodeSystems(tmp_path / "systems", nodes.ask, retry_s=0.01)) as systems:
        systems.note_up(["n0", "n1", "beside-the-graph"])
        until(lambda: len(nodes.asked) > 1, PATIENCE_S, "they were asked again")
        nodes.kernels["beside-the-graph"] = "1"
        nodes.silent = {"n1"}
        until_kernels(systems, {"6.1.0"})
        nodes.silent = set()
        until(lambda: len(systems.attached_to(GRAPH).kinds) == 1, PATIENCE_S, "both nodes are known")


def test_a_file_that_cannot_be_read_is_asked_for_anew(tmp_path: Path) -> None:
    (tmp_path / "systems").write_text("[")
    nodes = Nodes()
    with closing(NodeSystems(tmp_path / "systems", nodes.ask)) as systems:
        systems.note_up(["n0", "n1"])
        until_kernels(systems, {"6.1.0"})
