"""A graph cut down to some of its nodes, or to smaller ones. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from switchyard.model.constraint import Constraint, NodeTraits
from switchyard.model.graph import Graph
from switchyard.model.graph.hash_consing import ShapeTable


def allowed_part(graph: Graph, constraint: Constraint) -> Graph | None:
    """Return the graph with only the nodes that the constraint allows; none: it allows no node."""
    if not constraint.is_by_name:
        keeps = {kind.shape: constraint.allows(NodeTraits(kind.properties)) for kind in graph.kinds}
        return replace_nodes(
            graph, lambda cutting, shape, _at, count: cutting.kept(shape, count if keeps[shape] else 0)
        )
    bits = _allowed_bits(graph, constraint)

    def by_position(cutting: GraphCut, shape: int, at: int, count: int) -> dict[int, int]:
        return cutting.kept(shape, ((bits >> at) & ((1 << count) - 1)).bit_count())

    return replace_nodes(graph, by_position)


def _allowed_bits(graph: Graph, constraint: Constraint) -> int:
    """One bit per node, in canonical order."""
    names, ranks = graph.host_names, graph.rank_numbers
    bits = bytearray((len(names) + 7) // 8)
    for at, shape in enumerate(graph.node_shapes()):
        if constraint.allows(NodeTraits(graph.shapes[shape].properties, names[at], ranks[at])):
            bits[at >> 3] |= 1 << (at & 7)
    return int.from_bytes(bits, "little")


@dataclass
class GraphCut:
    """The old graph, and the new one while it is built."""

    graph: Graph
    cons: ShapeTable
    _copies: dict[int, int] = field(default_factory=dict)

    def kept(self, shape: int, count: int) -> dict[int, int]:
        """Copy an old subtree unchanged."""
        return {self.copy(shape): count} if count else {}

    def copy(self, shape: int) -> int:
        if shape not in self._copies:
            below: dict[int, int] = {}
            for child, count in self.graph.shapes[shape].children:
                add_count(below, self.copy(child), count)
            self._copies[shape] = self.vertex(shape, below)
        return self._copies[shape]

    def vertex(self, shape: int, below: dict[int, int], *, size: int | None = None) -> int:
        """Copy an old vertex with other children or another size."""
        old = self.graph.shapes[shape]
        return self.cons.shape(
            old.type,
            size=old.size if size is None else size,
            unit=old.unit,
            properties=old.properties,
            attached=old.attached,
            children=below,
        )


# Returns what replaces `count` nodes of a shape; the first of them is node number `at` of the cluster.
NodeReplacer = Callable[[GraphCut, int, int, int], dict[int, int]]


def replace_nodes(graph: Graph, replace: NodeReplacer) -> Graph | None:
    """Return the graph with replaced nodes; vertices outside of nodes stay. None: no node is left."""
    cutting = GraphCut(graph, ShapeTable("graph"))
    sizes = [0] * len(graph.shapes)  # nodes in each subtree
    for index, shape in enumerate(graph.shapes):
        below = sum(sizes[child] * count for child, count in shape.children)
        sizes[index] = 1 if shape.type == "node" else below
    if not sizes[-1]:  # a cluster without nodes is one itself
        whole = replace(cutting, graph.root, 0, 1)
        return Graph(cutting.cons.finish(next(iter(whole))).shapes) if whole else None
    root, left = _replace_below(cutting, sizes, graph.root, 0, replace)
    return Graph(cutting.cons.finish(root).shapes) if left else None


def _replace_below(cutting: GraphCut, sizes: list[int], index: int, at: int, replace: NodeReplacer) -> tuple[int, int]:
    """One subtree above the nodes, from node number `at` on: its new shape, and how many nodes are left in it."""
    below: dict[int, int] = {}
    left = 0
    for child, count in cutting.graph.shapes[index].children:
        if cutting.graph.shapes[child].type == "node":
            for made, times in replace(cutting, child, at, count).items():
                add_count(below, made, times)
                left += times
        elif sizes[child]:
            for copy in range(count):
                made, nodes = _replace_below(cutting, sizes, child, at + copy * sizes[child], replace)
                add_count(below, made, 1)
                left += nodes
        else:
            add_count(below, cutting.copy(child), count)
        at += sizes[child] * count
    return cutting.vertex(index, below), left


def add_count(counts: dict[int, int], number: int, count: int) -> None:
    counts[number] = counts.get(number, 0) + count
