"""The resource graph: equal subtrees are one shape, so ten thousand equal nodes are one entry and a count.

It is the form on the wire and in the database. Shapes stand children first, the last is the root; what it was made from
is not kept here. Names of hosts and ranks stand beside the shapes and are no part of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from switchyard.model.cluster.hostlist import expand_hosts, parse_hosts
from switchyard.model.graph.units import bytes_of
from switchyard.model.job.image_rules import ImageOffers
from switchyard.model.job.job import COUNT_MAX
from switchyard.model.job.site_needs import SiteOffer
from switchyard.model.jobspec.quantity import Int64

SHAPES_MAX = 100_000  # a cluster of 100,000 nodes that all differ; real ones have some dozens
GRAPH_DEPTH_MAX = 64
CHILDREN_MAX = 100_000
NODES_MAX = 10_000_000
VERTICES_MAX = 10**15  # what the shapes stand for; ten million nodes of a hundred million cores each
ATTACHED_MAX = 1000
HOST_TYPES = frozenset({"node", "storage_node"})  # tasks run on vertices of these types; each has a name and a rank
COUNTED_TYPES = frozenset({"node", "core", "gpu", "socket", "rack"})  # whose sizes are counts, never bytes

TypeName = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[^\u0000-\u0020\u007f]+(?!\n)$")]
FieldValue = str | Int64 | float | bool
Fields = Annotated[dict[Annotated[str, Meta(min_length=1, max_length=256)], FieldValue], Meta(max_length=256)]
Size = Annotated[int, Meta(ge=0, le=2**63 - 1)]
ChildCount = Annotated[int, Meta(ge=1, le=COUNT_MAX)]


class AttachedVertex(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A vertex of a subsystem (io, software, licences, network, system) that is attached to a vertex of the graph."""

    subsystem: TypeName
    metadata: Fields = {}


class Shape(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One kind of subtree: the vertex at its top, and how many of which shapes lie directly below."""

    type: TypeName
    size: Size = 1
    unit: Annotated[str, Meta(max_length=16)] = ""
    properties: Fields = {}
    attached: Annotated[list[AttachedVertex], Meta(max_length=ATTACHED_MAX)] = []
    children: Annotated[list[tuple[int, ChildCount]], Meta(max_length=CHILDREN_MAX)] = []


@dataclass(frozen=True, slots=True)
class NodeKind:
    """Equal nodes: how many, and what each has in all."""

    shape: int
    count: int
    cores: int
    gpus: int
    memory_bytes: int
    storage_bytes: int
    properties: dict[str, FieldValue]
    attached: list[AttachedVertex]


class FreeNodes(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`count` nodes of a shape of the graph that have this much left each; memory in bytes.

    `types`: the free GPUs by type, of nodes with several types: `{"a100": 1, "h100": 0}`.
    """

    shape: Annotated[int, Meta(ge=0, lt=SHAPES_MAX)]
    count: ChildCount = 1
    core: Size = 0
    gpu: Size = 0
    memory: Size = 0
    types: Annotated[dict[str, Size], Meta(max_length=64)] = {}


class Graph(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, dict=True):
    """All of a cluster. `hosts` and `ranks` name the hosts in canonical order; none: node0, node1, … and 0, 1, …

    Hosts are the nodes, and vertices of the type storage_node beside them. A cluster without hosts counts as one.

    `images` has the rules for images of jobs, in order; none: not known, so nothing is refused by them. `site` has the
    places for data and the secrets that its site file offers; none: not known, so jobs that need them are refused.

    `is_by_operator`: an operator has set it, whatever the agent finds on its cluster.
    """

    shapes: Annotated[list[Shape], Meta(min_length=1, max_length=SHAPES_MAX)]
    hosts: Annotated[str, Meta(max_length=2**26)] = ""
    ranks: Annotated[str, Meta(max_length=2**26)] = ""
    images: ImageOffers = None
    site: SiteOffer | None = None
    is_by_operator: bool = False

    def __post_init__(self) -> None:
        _check(self)

    @property
    def root(self) -> int:
        return len(self.shapes) - 1

    @cached_property
    def multiplicity(self) -> list[int]:
        """How often each shape occurs in the whole cluster."""
        counts = [0] * len(self.shapes)
        counts[-1] = 1
        for index in range(len(self.shapes) - 1, -1, -1):
            for child, count in self.shapes[index].children:
                counts[child] += counts[index] * count
        return counts

    @cached_property
    def within(self) -> list[dict[str, int]]:
        """Per shape, the total of each type in its subtree, itself included; memory and storage in bytes."""
        totals: list[dict[str, int]] = []
        for shape in self.shapes:
            inside = {shape.type: vertex_amount(shape)}
            for child, count in shape.children:
                for kind, size in totals[child].items():
                    inside[kind] = inside.get(kind, 0) + size * count
            totals.append(inside)
        return totals

    @cached_property
    def totals(self) -> dict[str, int]:
        """The total of each type in the cluster, sizes honoured; memory and storage in bytes."""
        return dict(sorted(self.within[-1].items()))

    @cached_property
    def vertices(self) -> int:
        """How many vertices the graph stands for."""
        return sum(self.multiplicity)

    @cached_property
    def nodes(self) -> int:
        """How many nodes; a cluster without any counts as one."""
        return sum(kind.count for kind in self.kinds)

    @property
    def cores(self) -> int:
        return self.totals.get("core", 0)

    @property
    def gpus(self) -> int:
        return self.totals.get("gpu", 0)

    @property
    def memory_bytes(self) -> int:
        return self.totals.get("memory", 0)

    @property
    def storage_bytes(self) -> int:
        return self.totals.get("storage", 0)

    @cached_property
    def kinds(self) -> list[NodeKind]:
        """The kinds of node; of a cluster without node vertices, the whole of it as one."""
        numbers = [index for index, shape in enumerate(self.shapes) if shape.type == "node"] or [self.root]
        return [self._kind(index) for index in numbers]

    def _kind(self, index: int) -> NodeKind:
        shape, inside = self.shapes[index], self.within[index]
        return NodeKind(
            shape=index,
            count=self.multiplicity[index],
            cores=inside.get("core", 0),
            gpus=inside.get("gpu", 0),
            memory_bytes=inside.get("memory", 0),
            storage_bytes=inside.get("storage", 0),
            properties=shape.properties,
            attached=shape.attached,
        )

    @cached_property
    def digests(self) -> list[bytes]:
        """What each subtree is, without names, ids and ranks: equal digests are equal subtrees, in any graph."""
        digests: list[bytes] = []
        for shape in self.shapes:
            digests.append(digest_of(shape, [(digests[child], count) for child, count in shape.children]))
        return digests

    @cached_property
    def signature(self) -> str:
        """Clusters of one signature answer every question alike, unless it names hosts, ranks or an image."""
        return self.digests[-1].hex()

    @cached_property
    def is_host(self) -> list[bool]:
        """Per shape, whether the vertex at its top is a host, unless it lies inside another host."""
        return find_hosts(self.shapes)

    @cached_property
    def host_counts(self) -> list[tuple[int, int]]:
        """The shapes of hosts, each with how many there are. Of a cluster without hosts, the root."""
        outside = [0] * len(self.shapes)  # how often a shape occurs outside of hosts
        outside[-1] = 1
        for index in range(len(self.shapes) - 1, -1, -1):
            if outside[index] and not self.is_host[index]:
                for child, count in self.shapes[index].children:
                    outside[child] += outside[index] * count
        counts = [(index, count) for index, count in enumerate(outside) if count and self.is_host[index]]
        return counts or [(self.root, 1)]

    @property
    def host_count(self) -> int:
        return sum(count for _, count in self.host_counts)

    @cached_property
    def host_names(self) -> list[str]:
        """The hosts by name, in canonical order."""
        if not self.hosts:
            return [f"node{number}" for number in range(self.host_count)]
        return expand_hosts(parse_hosts(self.hosts))

    def host_shapes(self) -> list[int]:
        """The shape of each host, in canonical order."""
        lists: list[list[int]] = []
        for index, shape in enumerate(self.shapes):
            if self.is_host[index]:
                lists.append([index])
            else:
                lists.append([number for child, count in shape.children for number in lists[child] * count])
        return lists[-1] or [self.root]

    @cached_property
    def rank_numbers(self) -> list[int]:
        """The hosts by rank, in canonical order."""
        if not self.ranks:
            return list(range(self.host_count))
        return [int(name) for name in expand_hosts(parse_hosts(self.ranks))]


def find_hosts(shapes: list[Shape]) -> list[bool]:
    """Return which shapes are hosts. A storage_node that contains a host is only a container."""
    is_host: list[bool] = []
    has_host: list[bool] = []
    for shape in shapes:
        is_container = any(has_host[child] for child, _ in shape.children)
        is_host.append(shape.type == "node" or (shape.type in HOST_TYPES and not is_container))
        has_host.append(is_container or is_host[-1])
    return is_host


def vertex_amount(shape: Shape) -> int:
    """The size of a vertex in what it is counted in: bytes for memory and storage, else its own."""
    in_bytes = bytes_of(shape.type, shape.size, shape.unit)
    return shape.size if in_bytes is None else in_bytes


def digest_of(shape: Shape, children: list[tuple[bytes, int]]) -> bytes:
    body = (
        shape.type,
        shape.size,
        shape.unit,
        sorted(shape.properties.items()),
        sorted(msgspec.json.encode(attached, order="deterministic") for attached in shape.attached),
        sorted(children),
    )
    return blake2b(msgspec.msgpack.encode(body), digest_size=16).digest()


def _check(graph: Graph) -> None:
    """What the types cannot say: children first, all of it one tree, no node inside a node, bounded."""
    shapes = graph.shapes
    used = [False] * len(shapes)
    depth, has_node = [1] * len(shapes), [False] * len(shapes)
    for index, shape in enumerate(shapes):
        for child, _ in shape.children:
            if not 0 <= child < index:
                raise ValueError(f"shapes[{index}] has the child {child}, which does not stand before it")
            used[child] = True
            depth[index] = max(depth[index], depth[child] + 1)
            has_node[index] |= has_node[child]
        if depth[index] > GRAPH_DEPTH_MAX:
            raise ValueError(f"shapes[{index}] is nested deeper than {GRAPH_DEPTH_MAX}")
        if shape.type == "node":
            if has_node[index]:
                raise ValueError(f"shapes[{index}] is a node with a node inside")
            has_node[index] = True
        if shape.type in COUNTED_TYPES and shape.size > COUNT_MAX:
            raise ValueError(f"shapes[{index}] has the size {shape.size}; the most of a {shape.type} is {COUNT_MAX}")
    if not all(used[:-1]):
        raise ValueError(f"shapes[{used.index(False)}] belongs to nothing; only the last is the root")
    if graph.vertices > VERTICES_MAX:
        raise ValueError(f"it stands for {graph.vertices} vertices; the most is {VERTICES_MAX}")
    if graph.nodes > NODES_MAX:
        raise ValueError(f"{graph.nodes} nodes; the most is {NODES_MAX}")
    for noun, text in (("hosts", graph.hosts), ("ranks", graph.ranks)):
        if text and (named := sum(map(len, parse_hosts(text)))) != graph.host_count:
            raise ValueError(f"{noun} names {named} hosts, the shapes have {graph.host_count}")
