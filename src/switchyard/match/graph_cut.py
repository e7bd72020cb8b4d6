"""A graph cut down to some of its hosts, or to smaller nodes. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from switchyard.model.graph import Graph
from switchyard.model.graph.hash_consing import ShapeTable
from switchyard.model.jobspec.constraint import Constraint, NodeTraits


def allowed_part(graph: Graph, constraint: Constraint) -> Graph | None:
    """Return the graph with only the hosts that the constraint allows; none: it allows no host."""
    if not constraint.is_by_name:
        keeps = {shape: constraint.allows(NodeTraits(graph.shapes[shape].properties)) for shape, _ in graph.host_counts}
        return replace_vertices(
            graph,
            graph.is_host,
            lambda cutting, shape, _at, count: cutting.kept(shape, count if keeps[shape] else 0),
        )
    bits = _allowed_bits(graph, constraint)

    def by_position(cutting: GraphCut, shape: int, at: int, count: int) -> dict[int, int]:
        return cutting.kept(shape, ((bits >> at) & ((1 << count) - 1)).bit_count())

    return replace_vertices(graph, graph.is_host, by_position)


def _allowed_bits(graph: Graph, constraint: Constraint) -> int:
    """One bit per host, in canonical order."""
    names, ranks = graph.host_names, graph.rank_numbers
    bits = bytearray((len(names) + 7) // 8)
    for at, shape in enumerate(graph.host_shapes()):
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


# Returns what replaces `count` vertices of a shape; the first of them has the number `at` among all that are replaced.
VertexReplacer = Callable[[GraphCut, int, int, int], dict[int, int]]


def replace_vertices(graph: Graph, is_replaced: list[bool], replace: VertexReplacer) -> Graph | None:
    """Return the graph with these shapes replaced (hosts or nodes); the others stay. None: none of them is left."""
    cutting = GraphCut(graph, ShapeTable("graph"))
    sizes = [0] * len(graph.shapes)  # vertices to replace in each subtree
    for index, shape in enumerate(graph.shapes):
        below = sum(sizes[child] * count for child, count in shape.children)
        sizes[index] = 1 if is_replaced[index] else below
    if not sizes[-1] or is_replaced[-1]:  # a cluster without hosts is one itself
        whole = replace(cutting, graph.root, 0, 1)
        return Graph(cutting.cons.finish(next(iter(whole))).shapes) if whole else None
    root, left = _ReplacedBelow(cutting, is_replaced, sizes, replace).subtree(graph.root, 0)
    return Graph(cutting.cons.finish(root).shapes) if left else None


@dataclass(frozen=True, slots=True)
class _ReplacedBelow:
    cutting: GraphCut
    is_replaced: list[bool]
    sizes: list[int]
    replace: VertexReplacer

    def subtree(self, index: int, at: int) -> tuple[int, int]:
        """One subtree above what is replaced, from number `at` on: its new shape, and how many are left in it."""
        below: dict[int, int] = {}
        left = 0
        for child, count in self.cutting.graph.shapes[index].children:
            if self.is_replaced[child]:
                for made, times in self.replace(self.cutting, child, at, count).items():
                    add_count(below, made, times)
                    left += times
            elif self.sizes[child]:
                for copy in range(count):
                    made, vertices = self.subtree(child, at + copy * self.sizes[child])
                    add_count(below, made, 1)
                    left += vertices
            else:
                add_count(below, self.cutting.copy(child), count)
            at += self.sizes[child] * count
        return self.cutting.vertex(index, below), left


def add_count(counts: dict[int, int], number: int, count: int) -> None:
    counts[number] = counts.get(number, 0) + count
