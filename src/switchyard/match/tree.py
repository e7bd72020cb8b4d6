"""A graph as shared trees: equal subtrees of all clusters are one object, so one answer serves them all. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakValueDictionary

from switchyard.model.cluster.hardware import MEMORY_FIELD, OWN_SUBSYSTEM, TYPE_FIELD, types_of_vertex
from switchyard.model.graph import AttachedVertex, Graph, Shape
from switchyard.model.graph.graph import HOST_TYPES
from switchyard.model.graph.units import bytes_of


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Tree:
    """A vertex with its children: (subtree, how often)."""

    type: str
    size: int
    bytes: int | None  # its size in bytes; none: the type is not measured in bytes
    attached: tuple[AttachedVertex, ...]  # and, of a device, its own type and memory
    children: tuple[tuple[Tree, int], ...]
    is_host: bool  # tasks run on it, unless it lies inside another host
    has_host: bool  # it is a host, or has one below
    outside: frozenset[str]  # types in the subtree that are not inside a host; those of hosts themselves are
    totals: dict[tuple[str, str], int]  # of the subtree, by type and unit: B for bytes, else the graph's unit
    types: frozenset[str]  # in the subtree
    nested: frozenset[str]  # types with a vertex below a vertex of the same type

    def amount(self, unit: str) -> int:
        """Its size in bytes (unit B) or in the graph's unit."""
        return (self.bytes or 0) if unit == "B" else self.size


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Forest:
    """All subtrees of a graph, children first, with how often each occurs; the last is the root."""

    trees: tuple[Tree, ...]
    counts: tuple[int, ...]
    nodes: tuple[tuple[Tree, int], ...]  # the kinds of node; a cluster without nodes counts as one node
    hosts: tuple[tuple[Tree, int], ...]  # the kinds of host; a cluster without hosts counts as one host

    @property
    def root(self) -> Tree:
        return self.trees[-1]

    @property
    def types(self) -> frozenset[str]:
        return self.root.types

    @property
    def outside(self) -> frozenset[str]:
        """Types with a vertex outside of hosts. None in a cluster without hosts, which counts as one host."""
        return self.root.outside if self.root.has_host else frozenset()

    @property
    def nested(self) -> frozenset[str]:
        return self.root.nested

    def of_type(self, kind: str) -> list[tuple[Tree, int]]:
        return [(tree, count) for tree, count in zip(self.trees, self.counts, strict=True) if tree.type == kind]


# Weak: a subtree lives as long as a graph that has it.
_TREES: WeakValueDictionary[bytes, Tree] = WeakValueDictionary()
_FORESTS: WeakValueDictionary[str, Forest] = WeakValueDictionary()


def forest_of(graph: Graph) -> Forest:
    """Return the trees of a graph. Equal graphs share one object as long as it is referenced."""
    known = _FORESTS.get(graph.signature)
    if known is not None:
        return known
    trees: list[Tree] = []
    for shape, digest in zip(graph.shapes, graph.digests, strict=True):
        tree = _TREES.get(digest)
        if tree is None:
            tree = _TREES.setdefault(digest, _tree(shape, [(trees[child], count) for child, count in shape.children]))
        trees.append(tree)
    counts = graph.multiplicity
    nodes = [(tree, count) for tree, count in zip(trees, counts, strict=True) if tree.type == "node"]
    hosts = tuple((trees[index], count) for index, count in graph.host_counts)
    forest = Forest(tuple(trees), tuple(counts), tuple(nodes or [(trees[-1], 1)]), hosts)
    return _FORESTS.setdefault(graph.signature, forest)


def _tree(shape: Shape, children: list[tuple[Tree, int]]) -> Tree:
    in_bytes = bytes_of(shape.type, shape.size, shape.unit)
    totals: dict[tuple[str, str], int] = {(shape.type, ""): shape.size}
    if in_bytes is not None:
        totals[shape.type, "B"] = in_bytes
    for child, count in children:
        for key, amount in child.totals.items():
            totals[key] = totals.get(key, 0) + amount * count
    has_host_below = any(child.has_host for child, _ in children)
    is_host = shape.type == "node" or (shape.type in HOST_TYPES and not has_host_below)
    outside = frozenset[str]() if is_host else frozenset[str]().union(*(child.outside for child, _ in children))
    below = frozenset[str]().union(*(child.types for child, _ in children))
    nested = frozenset[str]().union(*(child.nested for child, _ in children))
    return Tree(
        shape.type,
        shape.size,
        in_bytes,
        (*shape.attached, *(() if is_host or has_host_below else _own_types(shape))),
        tuple(children),
        is_host,
        is_host or has_host_below,
        outside | {shape.type},
        totals,
        below | {shape.type},
        nested | {shape.type} if shape.type in below else nested,
    )


def _own_types(shape: Shape) -> list[AttachedVertex]:
    """What a vertex tells of itself, under the common names: requirements of type and memory ask this."""
    told = types_of_vertex(shape.properties) if shape.properties else ()
    return [
        AttachedVertex(OWN_SUBSYSTEM, {TYPE_FIELD: name} | ({MEMORY_FIELD: memory_mb} if memory_mb else {}))
        for name, memory_mb in told
    ]
