"""Attach subsystems to a compact graph, as an agent sends it. Pure.

The graph's host names are in the order in which a walk through its shapes visits the hosts, so each host is found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from switchyard.errors import Malformed
from switchyard.model.cluster.hostlist import compress_hosts
from switchyard.model.graph.graph import AttachedVertex, Graph
from switchyard.model.graph.hash_consing import ShapeTable
from switchyard.model.graph.subsystem import Attachments, read_subsystem

HOSTS_MAX = 1_000_000  # the walk visits every host


def attach_subsystems(graph: Graph, subsystems: Mapping[str, Any], *, where: str) -> Graph:
    """Return the graph with these subsystems. A subsystem of the same name is replaced."""
    if not subsystems:
        return graph
    if graph.host_count > HOSTS_MAX:
        raise Malformed(f"{where}: a subsystem names hosts among {graph.host_count:,}; the most is {HOSTS_MAX:,}.")
    names = frozenset(graph.host_names)
    attachments: Attachments = {}
    for name, content in sorted(subsystems.items()):
        place = f"{where}: subsystem {name[:80]}"
        by_host = read_subsystem(name, content, resolve=lambda host: host if host in names else None, where=place)
        for host, held in by_host.items():
            attachments.setdefault(host, []).extend(held)
    return _GraphRebuilder(graph, attachments, frozenset(subsystems), ShapeTable(where)).graph()


@dataclass(slots=True)
class _Subtree:
    """One subtree of the new graph that contains hosts."""

    number: int
    first: int  # number of its first host in the old graph
    parts: list[_Subtree] = field(default_factory=list)


class _GraphRebuilder:
    """Walks the old graph host by host and builds the shapes of the new one."""

    def __init__(self, graph: Graph, attachments: Attachments, replaced: frozenset[str], cons: ShapeTable) -> None:
        self._graph = graph
        self._attachments = attachments
        self._replaced = replaced
        self._cons = cons
        self._plain: dict[int, int] = {}
        self._host_shapes = {shape for shape, _ in graph.host_counts}
        self._hosts = [0] * len(graph.shapes)
        for index, shape in enumerate(graph.shapes):
            below = sum(self._hosts[child] * count for child, count in shape.children)
            self._hosts[index] = 1 if index in self._host_shapes else below

    def graph(self) -> Graph:
        root = self._part(self._graph.root, 0)
        finished = self._cons.finish(root.number)
        order = list(_in_order(root, finished.place))
        hosts = [self._graph.host_names[index] for index in order]
        ranks = [self._graph.rank_numbers[index] for index in order]
        is_counted = hosts == [f"node{number}" for number in range(len(hosts))]
        is_ranked = ranks == list(range(len(ranks)))
        return Graph(
            finished.shapes,
            "" if is_counted else compress_hosts(hosts),
            "" if is_ranked else compress_hosts(map(str, ranks)),
            self._graph.images,
            self._graph.site,
        )

    def _part(self, index: int, first: int) -> _Subtree:
        """Rebuild the subtree at this index. Recursion is bounded by the depth of graphs."""
        shape = self._graph.shapes[index]
        unchanged = [vertex for vertex in shape.attached if vertex.subsystem not in self._replaced]
        if index in self._host_shapes:
            held = self._attachments.get(self._graph.host_names[first], [])
            children = self._children_without_hosts(index)
            return _Subtree(self._shape(index, [*unchanged, *held], children), first)
        parts: list[_Subtree] = []
        counts: dict[int, int] = {}
        for child, count in shape.children:
            if not self._hosts[child]:
                number = self._without_hosts(child)
                counts[number] = counts.get(number, 0) + count
                continue
            for _ in range(count):
                part = self._part(child, first)
                first += self._hosts[child]
                parts.append(part)
                counts[part.number] = counts.get(part.number, 0) + 1
        start = parts[0].first if parts else first
        return _Subtree(self._shape(index, unchanged, counts), start, parts)

    def _without_hosts(self, index: int) -> int:
        if index not in self._plain:
            shape = self._graph.shapes[index]
            unchanged = [vertex for vertex in shape.attached if vertex.subsystem not in self._replaced]
            self._plain[index] = self._shape(index, unchanged, self._children_without_hosts(index))
        return self._plain[index]

    def _children_without_hosts(self, index: int) -> dict[int, int]:
        """Count the children by their new shapes. Children that differed only in a replaced subsystem are equal now."""
        counts: dict[int, int] = {}
        for child, count in self._graph.shapes[index].children:
            number = self._without_hosts(child)
            counts[number] = counts.get(number, 0) + count
        return counts

    def _shape(self, index: int, attached: list[AttachedVertex], children: dict[int, int]) -> int:
        shape = self._graph.shapes[index]
        return self._cons.shape(
            shape.type,
            size=shape.size,
            unit=shape.unit,
            properties=shape.properties,
            attached=attached,
            children=children,
        )


def _in_order(part: _Subtree, place: dict[int, int]) -> Iterator[int]:
    if not part.parts:
        yield part.first
    for child in sorted(part.parts, key=lambda child: (place[child.number], child.first)):
        yield from _in_order(child, place)
