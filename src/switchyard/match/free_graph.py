"""The free part of a cluster as a graph, so that the same engines answer whether a job fits now. Pure.

An agent reports how many nodes of each kind have how much free, but not which nodes. They are taken to be the first of
their kind, with their first cores and gpus free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from switchyard.match.graph_cut import GraphCut, add_count, replace_vertices
from switchyard.model.cluster.hardware import GPU, types_of_vertex
from switchyard.model.graph import Graph, Shape
from switchyard.model.graph.graph import FreeNodes, vertex_amount

AmountKind = tuple[str, str]  # a type of vertex, and of a GPU its type of hardware; empty: any
RemainingAmounts = dict[AmountKind, int]  # memory in bytes


def free_part(graph: Graph, free: Sequence[FreeNodes]) -> Graph | None:
    """Return the graph with only its free resources; none: nothing is free. Nodes that are not reported are full."""
    by_kinds: dict[frozenset[AmountKind], _FreeShapes] = {}
    queues: dict[int, list[tuple[list[int], RemainingAmounts]]] = {}
    for entry in free:
        gpus = {(GPU, name): count for name, count in entry.types.items()} or {(GPU, ""): entry.gpu}
        left = {("core", ""): entry.core, **gpus, ("memory", ""): entry.memory}
        queues.setdefault(entry.shape, []).append(([entry.count], left))

    def replace(cutting: GraphCut, shape: int, _at: int, count: int) -> dict[int, int]:
        free_shapes: dict[int, int] = {}
        queue = queues.get(shape, [])
        while count and queue:
            nodes, left = queue[0]
            taken = min(count, nodes[0])
            if any(left.values()):
                kinds = frozenset(left)
                shrinking = by_kinds.setdefault(kinds, _FreeShapes(cutting, kinds))
                add_count(free_shapes, shrinking.shrink(shape, dict(left)), taken)
            count -= taken
            nodes[0] -= taken
            if not nodes[0]:
                queue.pop(0)
        return free_shapes

    return replace_vertices(graph, [shape.type == "node" for shape in graph.shapes], replace)


@dataclass(slots=True)
class _FreeShapes:
    """Shapes of the free part. GPUs are told apart by type if `kinds` has types."""

    cutting: GraphCut
    kinds: frozenset[AmountKind]
    within: dict[int, RemainingAmounts] = field(default_factory=dict)

    def shrink(self, index: int, left: RemainingAmounts) -> int:
        """Return the shape of the subtree's free part. `left` is consumed from the first vertex on."""
        shape = self.cutting.graph.shapes[index]
        below: dict[int, int] = {}
        for child, count in shape.children:
            inside = self._inside(child)
            used = [kind for kind in left if kind in inside]
            whole = min([count, *(left[kind] // inside[kind] for kind in used if inside[kind])])
            if whole:
                add_count(below, self.cutting.copy(child), whole)
                for kind in used:
                    left[kind] -= whole * inside[kind]
            for _ in range(count - whole if used else 0):
                if not any(left[kind] for kind in used):
                    break
                add_count(below, self.shrink(child, left), 1)
        kind = self._kind(shape)
        if kind not in left:
            return self.cutting.vertex(index, below)
        taken = min(left[kind], vertex_amount(shape))
        left[kind] -= taken
        return self.cutting.vertex(index, below, size=taken * shape.size // max(1, vertex_amount(shape)))

    def _kind(self, shape: Shape) -> AmountKind:
        names = (name for name, _ in types_of_vertex(shape.properties)) if shape.type == GPU else ()
        return next(((GPU, name) for name in names if (GPU, name) in self.kinds), (shape.type, ""))

    def _inside(self, index: int) -> RemainingAmounts:
        """The amounts in a subtree, itself included."""
        if index not in self.within:
            shape = self.cutting.graph.shapes[index]
            inside = {self._kind(shape): vertex_amount(shape)}
            for child, count in shape.children:
                for kind, amount in self._inside(child).items():
                    inside[kind] = inside.get(kind, 0) + amount * count
            self.within[index] = inside
        return self.within[index]
