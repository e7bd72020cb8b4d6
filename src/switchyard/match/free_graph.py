"""The free part of a cluster as a graph, so that the same engines answer whether a job fits now. Pure.

An agent reports how many nodes of each kind have how much free, but not which nodes. They are taken to be the first of
their kind, with their first cores and gpus free.
"""

from __future__ import annotations

from collections.abc import Sequence

from switchyard.match.graph_cut import GraphCut, add_count, replace_vertices
from switchyard.model.graph import Graph
from switchyard.model.graph.graph import FreeNodes, vertex_amount

RemainingAmounts = dict[str, int]  # type → free amount, memory in bytes


def free_part(graph: Graph, free: Sequence[FreeNodes]) -> Graph | None:
    """Return the graph with only its free resources; none: nothing is free. Nodes that are not reported are full."""
    queues: dict[int, list[list[int]]] = {}
    for entry in free:
        queues.setdefault(entry.shape, []).append([entry.count, entry.core, entry.gpu, entry.memory])

    def replace(cutting: GraphCut, shape: int, _at: int, count: int) -> dict[int, int]:
        free_shapes: dict[int, int] = {}
        queue = queues.get(shape, [])
        while count and queue:
            taken = min(count, queue[0][0])
            left = dict(zip(("core", "gpu", "memory"), queue[0][1:], strict=True))
            if any(left.values()):
                add_count(free_shapes, _shrink(cutting, shape, left), taken)
            count -= taken
            queue[0][0] -= taken
            if not queue[0][0]:
                queue.pop(0)
        return free_shapes

    return replace_vertices(graph, [shape.type == "node" for shape in graph.shapes], replace)


def _shrink(cutting: GraphCut, index: int, left: RemainingAmounts) -> int:
    """Return the shape of the subtree's free part. `left` is consumed from the first vertex on."""
    graph = cutting.graph
    below: dict[int, int] = {}
    for child, count in graph.shapes[index].children:
        inside = graph.within[child]
        used = [kind for kind in left if kind in inside]
        whole = min([count, *(left[kind] // inside[kind] for kind in used if inside[kind])])
        if whole:
            add_count(below, cutting.copy(child), whole)
            for kind in used:
                left[kind] -= whole * inside[kind]
        for _ in range(count - whole if used else 0):
            if not any(left[kind] for kind in used):
                break
            add_count(below, _shrink(cutting, child, left), 1)
    shape = graph.shapes[index]
    if shape.type not in left:
        return cutting.vertex(index, below)
    taken = min(left[shape.type], vertex_amount(shape))
    left[shape.type] -= taken
    return cutting.vertex(index, below, size=taken * shape.size // max(1, vertex_amount(shape)))
