"""JSON Graph Format: version 2 with a map of nodes (Rainbow), version 1 with a list (Fluxion, RFC 40). Pure.

Tens of megabytes are common, so the decoder reads only the fields that count, and the rest works on flat lists. When
the decoder meets a wrong type, a second, slow reading finds the vertex to name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from switchyard.errors import Malformed
from switchyard.model.cluster.hostlist import compress_hosts
from switchyard.model.graph.fields import check_fields, read_properties
from switchyard.model.graph.graph import (
    ATTACHED_MAX,
    COUNTED_TYPES,
    GRAPH_DEPTH_MAX,
    HOST_TYPES,
    NODES_MAX,
    AttachedVertex,
    Graph,
)
from switchyard.model.graph.hash_consing import ShapeTable
from switchyard.model.graph.subsystem import ATTACHMENTS_MAX, RESERVED_NAMES, SUBSYSTEM_NAME, Attachments
from switchyard.model.job.job import COUNT_MAX

VERTICES_MAX = 5_000_000
SIZE_MAX = 2**63 - 1


class _Metadata(Struct, frozen=True, gc=False):
    type: str = "resource"
    size: int | float = 1
    unit: str | None = ""
    name: Any = None
    basename: Any = None
    id: Any = None
    rank: Any = None
    properties: Any = None

    @property
    def host_name(self) -> str | None:
        """Its name. Fluxion leaves it out where it is the base name, or the type, with the id."""
        if isinstance(self.name, str):
            return self.name
        if not isinstance(self.id, int):
            return None
        return f"{self.basename if isinstance(self.basename, str) else self.type}{self.id}"


class _Vertex(Struct, frozen=True, gc=False):
    id: str | int | None = None
    metadata: _Metadata = _Metadata()


class _EdgeMetadata(Struct, frozen=True, gc=False):
    subsystem: Any = None
    name: Any = None  # an older way to say it: {containment: contains}


class _Edge(Struct, frozen=True, gc=False):
    source: str | int
    target: str | int
    relation: str | None = "contains"
    metadata: _EdgeMetadata | None = None


class _Inner(Struct, frozen=True):
    nodes: dict[str, _Vertex] | list[_Vertex]
    edges: list[_Edge] = []


class _Outer(Struct, frozen=True):
    graph: _Inner


@dataclass(frozen=True)
class VertexTree:
    """A containment tree as flat lists: what each vertex is, its parent, and an order in which parents come first.

    `attached`: vertices that only another subsystem has, such as power, by the vertex of the tree that has them.
    """

    where: str
    ids: list[str]
    metadata: list[_Metadata]
    order: list[int]
    children: dict[int, list[int]]
    number: dict[str, int]
    by_host: dict[str, int]
    attached: Attachments

    def resolve(self, name: str) -> str | None:
        """A vertex by its id, else a host by its name."""
        if name in self.number:
            return name
        return self.ids[self.by_host[name]] if name in self.by_host else None


def read_jgf(value: bytes | Mapping[str, Any], *, where: str) -> VertexTree:
    """The main graph: a tree with one root."""
    inner = _decoded(value, where).graph
    if isinstance(inner.nodes, dict):
        ids, vertices = list(inner.nodes), list(inner.nodes.values())
    else:
        vertices = inner.nodes
        ids = [_id_of(vertex, index, where) for index, vertex in enumerate(vertices)]
    if not ids:
        raise Malformed(f"{where}: the graph has no vertices.")
    if len(ids) > VERTICES_MAX:
        raise Malformed(f"{where}: {len(ids):,} vertices; the most is {VERTICES_MAX:,}.")
    number = {vertex_id: index for index, vertex_id in enumerate(ids)}
    if len(number) != len(ids):
        twice = next(vertex_id for vertex_id, times in Counter(ids).items() if times > 1)
        raise Malformed(f"{where}: vertex {twice[:80]!r} is there twice.")
    metadata = [vertex.metadata for vertex in vertices]
    parents, further = _parents(inner.edges, number, where)
    attached, loose = attach_further(further, parents, metadata, ids, where=where) if further else ({}, set())
    children: dict[int, list[int]] = {}
    for child, parent in sorted(parents.items()):
        children.setdefault(parent, []).append(child)
    order = _order(_root(ids, parents, loose, where), children, ids, where)
    if len(order) + len(loose) < len(ids):
        lost = next(iter(set(range(len(ids))) - set(order) - loose))
        raise Malformed(f"{where}: {_cycle(ids, parents, lost)} go in a circle, apart from the root.")
    by_host = {
        name: index
        for index, entry in enumerate(metadata)
        if entry.type in HOST_TYPES and index not in loose and (name := entry.host_name) is not None
    }
    for index in loose:
        del number[ids[index]]
    return VertexTree(where, ids, metadata, order, children, number, by_host, attached)


def _decoded(value: bytes | Mapping[str, Any], where: str) -> _Outer:
    try:
        if isinstance(value, bytes):
            return msgspec.json.decode(value, type=_Outer)
        return msgspec.convert(value, _Outer)
    except RecursionError as exc:
        raise Malformed(f"{where}: nested too deeply.") from exc
    except UnicodeDecodeError as exc:
        raise Malformed(f"{where}: not valid UTF-8.") from exc
    except msgspec.ValidationError as exc:
        raise Malformed(f"{where}: {_place_of_fault(value) or _words(exc)}.") from exc
    except msgspec.DecodeError as exc:
        raise Malformed(f"{where}: not valid JSON: {exc}.") from exc


def _place_of_fault(value: Any) -> str:
    """The first vertex or edge that is not what it should be, in words; empty: it is something else."""
    if isinstance(value, bytes):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # there is a second fault, further down
            return ""
    graph = value.get("graph") if isinstance(value, Mapping) else None
    if not isinstance(graph, Mapping):
        return "`graph` holds nodes and edges"
    nodes = graph.get("nodes")
    pairs = nodes.items() if isinstance(nodes, Mapping) else enumerate(nodes) if isinstance(nodes, list) else ()
    for key, vertex in pairs:
        try:
            msgspec.convert(vertex, _Vertex)
        except msgspec.ValidationError as exc:
            return f"vertex {str(key)[:80]!r}: {_words(exc)}"
    edges = graph.get("edges", [])
    for index, edge in enumerate(edges if isinstance(edges, list) else []):
        try:
            msgspec.convert(edge, _Edge)
        except msgspec.ValidationError as exc:
            return f"edges[{index}]: {_words(exc)}"
    return ""


def _words(exc: Exception) -> str:
    return str(exc).replace(" - at `$.", ", at `")


def _id_of(vertex: _Vertex, index: int, where: str) -> str:
    if vertex.id is None:
        raise Malformed(f"{where}: nodes[{index}]: a vertex has an `id`.")
    return str(vertex.id)


def _parents(edges: list[_Edge], number: dict[str, int], where: str) -> tuple[dict[int, int], list[FurtherEdge]]:
    """Child → parent, from the edges of containment; and the edges of other subsystems. Both ends must exist."""
    parents: dict[int, int] = {}
    further: list[FurtherEdge] = []
    for index, edge in enumerate(edges):
        if edge.relation not in ("contains", None):
            continue
        source, target = edge.source, edge.target
        parent = number.get(source if isinstance(source, str) else str(source))
        child = number.get(target if isinstance(target, str) else str(target))
        if parent is None or child is None:
            lost = source if parent is None else target
            raise Malformed(f"{where}: edges[{index}]: {source} → {target}: there is no vertex {str(lost)[:80]!r}.")
        if edge.metadata is not None and (subsystem := _subsystem_of(edge.metadata)) != "containment":
            further.append((str(subsystem), parent, child))
            continue
        if parent == child:
            raise Malformed(f"{where}: edges[{index}]: vertex {str(source)[:80]!r} is its own parent.")
        if parents.setdefault(child, parent) != parent:
            raise Malformed(
                f"{where}: edges[{index}]: vertex {str(target)[:80]!r} has a second parent, {source}.",
                next_step="Containment is a tree. Give the other edge a subsystem of its own: metadata.subsystem.",
            )
    return parents, further


def _subsystem_of(metadata: _EdgeMetadata) -> Any:
    if metadata.subsystem is None and isinstance(metadata.name, Mapping) and metadata.name:
        return "containment" if "containment" in metadata.name else next(iter(metadata.name))
    return "containment" if metadata.subsystem is None else metadata.subsystem


def _root(ids: list[str], parents: dict[int, int], loose: set[int], where: str) -> int:
    roots = [index for index in range(len(ids)) if index not in parents and index not in loose]
    if not roots:
        raise Malformed(f"{where}: every vertex has a parent: {_cycle(ids, parents, 0)} go in a circle.")
    if len(roots) > 1:
        shown = ", ".join(repr(ids[index][:80]) for index in roots[:5])
        raise Malformed(f"{where}: {len(roots)} vertices without a parent, {shown}: a graph has one root.")
    return roots[0]


def _order(root: int, children: dict[int, list[int]], ids: list[str], where: str) -> list[int]:
    """All below the root, parents first."""
    order, level, depth = [root], [root], 1
    while level:
        level = [child for vertex in level if vertex in children for child in children[vertex]]
        order += level
        depth += 1
        if depth > GRAPH_DEPTH_MAX and level:
            raise Malformed(f"{where}: vertex {ids[level[0]][:80]!r} is nested deeper than {GRAPH_DEPTH_MAX}.")
    return order


def _cycle(ids: list[str], parents: dict[int, int], start: int) -> str:
    seen: list[int] = []
    at = start
    while at not in seen and len(seen) < 1000:
        seen.append(at)
        at = parents[at]
    ring = seen[seen.index(at) :] if at in seen else seen
    return " → ".join(repr(ids[index][:40]) for index in [*reversed(ring[:6]), ring[-1]])


def graph_of_vertices(vertices: VertexTree, attachments: Attachments) -> Graph:
    """Equal subtrees become one shape, from the leaves up."""
    cons = ShapeTable(vertices.where)
    shape_of = [0] * len(vertices.ids)
    has_node = bytearray(len(vertices.ids))
    has_host = bytearray(len(vertices.ids))
    is_host = bytearray(len(vertices.ids))
    leaves: dict[tuple[str, float, str | None], int] = {}
    attached = {vertices.number[key]: held for key, held in attachments.items()}
    nodes = 0
    for index in reversed(vertices.order):
        entry = vertices.metadata[index]
        below = vertices.children.get(index)
        if below is None and entry.properties is None and index not in attached and entry.type not in HOST_TYPES:
            key = (entry.type, entry.size, entry.unit)
            number = leaves.get(key)
            if number is None:
                number = leaves[key] = _shape(cons, vertices, index, {}, ())
            shape_of[index] = number
            continue
        if below is not None and any(has_node[child] for child in below):
            has_node[index] = 1
        is_container = below is not None and any(has_host[child] for child in below)
        is_host[index] = entry.type == "node" or (entry.type in HOST_TYPES and not is_container)
        has_host[index] = is_container or is_host[index]
        if entry.type == "node":
            nodes += 1
            if has_node[index]:
                raise Malformed(f"{vertices.where}: vertex {vertices.ids[index][:80]!r} is a node with a node inside.")
            has_node[index] = 1
        counts = Counter([shape_of[child] for child in below]) if below else {}
        shape_of[index] = _shape(cons, vertices, index, counts, attached.get(index, ()))
    if nodes > NODES_MAX:
        raise Malformed(f"{vertices.where}: {nodes:,} nodes; the most is {NODES_MAX:,}.")
    finished = cons.finish(shape_of[vertices.order[0]])
    ordered = list(_hosts_in_order(vertices, shape_of, finished.place, is_host, has_host))
    return Graph(finished.shapes, *_names(vertices, ordered))


def _shape(
    cons: ShapeTable,
    vertices: VertexTree,
    index: int,
    counts: Mapping[int, int],
    attached: list[AttachedVertex] | tuple[()],
) -> int:
    entry = vertices.metadata[index]
    place = f"{vertices.where}: vertex {vertices.ids[index][:80]!r}"
    size = int(entry.size) if isfinite(entry.size) else -1
    if size != entry.size or not 0 <= size <= SIZE_MAX:
        raise Malformed(f"{place}: the size is {entry.size}; it is a whole number from 0 to 2^63 - 1.")
    if entry.type in COUNTED_TYPES and size > COUNT_MAX:
        raise Malformed(f"{place}: the size is {size}; the most of a {entry.type} is {COUNT_MAX:,}.")
    if not entry.type or len(entry.type) > 64 or not entry.type.isprintable() or " " in entry.type:
        raise Malformed(f"{place}: {entry.type[:80]!r} is not a type.")
    unit = entry.unit or ""
    if len(unit) > 16:
        raise Malformed(f"{place}: {unit[:80]!r} is not a unit.")
    properties = read_properties(entry.properties, place)
    return cons.shape(entry.type, size=size, unit=unit, properties=properties, attached=attached, children=counts)


def _hosts_in_order(
    vertices: VertexTree, shape_of: list[int], place: dict[int, int], is_host: bytearray, has_host: bytearray
) -> Iterator[int]:
    """The hosts as the canonical order of shapes has them; equal ones as the source had them."""
    stack = [vertices.order[0]]
    while stack:
        index = stack.pop()
        if is_host[index]:
            yield index
        elif has_host[index]:
            below = [child for child in vertices.children[index] if has_host[child]]
            stack += sorted(below, key=lambda child: (place[shape_of[child]], child), reverse=True)


def _names(vertices: VertexTree, ordered: list[int]) -> tuple[str, str]:
    """Names and ranks of the hosts; empty where they are just counted."""
    entries = [vertices.metadata[index] for index in ordered]
    names = [
        name if (name := entry.host_name) and name.isprintable() else vertices.ids[index]
        for entry, index in zip(entries, ordered, strict=True)
    ]
    names = ["".join("_" if char in "[], " else char for char in name) for name in names]
    ranks = [entry.rank if isinstance(entry.rank, int) and entry.rank >= 0 else None for entry in entries]
    hosts = "" if names == [f"node{index}" for index in range(len(names))] else compress_hosts(names)
    if any(rank is None for rank in ranks) or ranks == list(range(len(ranks))):
        return hosts, ""
    return hosts, compress_hosts(str(rank) for rank in ranks)


# Further subsystems in the same JGF as the containment tree, such as the power of Fluxion's graphs. Pure.
#
# A vertex that only another subsystem has is attached to the vertex of the tree that has an edge to it. Edges of other
# subsystems between vertices of the tree are a second hierarchy; nothing is matched along it, so they are left out.

FurtherEdge = tuple[str, int, int]  # subsystem, parent, child


class VertexMetadata(Protocol):
    """The fields of a vertex that are read here."""

    @property
    def type(self) -> str: ...
    @property
    def size(self) -> int | float: ...
    @property
    def unit(self) -> str | None: ...
    @property
    def properties(self) -> Any: ...


def attach_further(
    edges: list[FurtherEdge],
    parents: Mapping[int, int],
    metadata: Sequence[VertexMetadata],
    ids: Sequence[str],
    *,
    where: str,
) -> tuple[Attachments, set[int]]:
    """Return what is attached to which vertex of the tree, and the vertices that are not in the tree."""
    tree = {*parents, *parents.values()}
    loose = {end for _, *ends in edges for end in ends if end not in tree}
    if len(loose) == len(ids):
        raise Malformed(f"{where}: no edge is of the subsystem containment.")
    attachments: Attachments = {}
    seen: set[tuple[int, bytes]] = set()  # equal vertices count once, as in a subsystem that comes on its own
    for subsystem, parent, child in edges:
        if subsystem in RESERVED_NAMES or not SUBSYSTEM_NAME.match(subsystem):
            raise Malformed(f"{where}: {subsystem[:80]!r} is not a name for a subsystem (letters, digits, . _ -).")
        if parent in loose or child not in loose:
            continue
        vertex = _attached(subsystem, metadata[child], f"{where}: vertex {ids[child][:80]!r}")
        key = (parent, msgspec.json.encode(vertex))
        if key in seen:
            continue
        seen.add(key)
        held = attachments.setdefault(ids[parent], [])
        held.append(vertex)
        if len(held) > ATTACHED_MAX:
            raise Malformed(f"{where}: over {ATTACHED_MAX} vertices attached to {ids[parent][:80]!r}.")
        if len(seen) > ATTACHMENTS_MAX:
            raise Malformed(f"{where}: over {ATTACHMENTS_MAX:,} vertices attached in all.")
    return attachments, loose


def _attached(subsystem: str, metadata: VertexMetadata, place: str) -> AttachedVertex:
    fields: dict[str, Any] = {
        **read_properties(metadata.properties, place),
        "type": metadata.type,
        "size": metadata.size,
    }
    if metadata.unit:
        fields["unit"] = metadata.unit
    return AttachedVertex(subsystem, dict(sorted(check_fields(fields, place).items())))
