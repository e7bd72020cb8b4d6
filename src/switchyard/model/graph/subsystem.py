"""Subsystems: further graphs (io, software, licences, network, system) whose vertices are attached to the main one's.

As JGF, whose edges from a vertex of the main graph attach; or in a short form of ours, by host:

    attach:
      "n[0-3]": [{type: cpu, architecture: x86_64}, {type: driver, version: "535.104"}]

Only what is attached directly counts; the subsystem's own structure is checked and then left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from switchyard.errors import Malformed
from switchyard.model.cluster.hostlist import HostRange, parse_hosts
from switchyard.model.graph.fields import check_fields
from switchyard.model.graph.graph import ATTACHED_MAX, AttachedVertex, FieldValue
from switchyard.model.wire.decode import convert

RESERVED_NAMES = ("cluster", "containment")
SUBSYSTEM_NAME_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9_])?(?!\n)$"
SUBSYSTEM_NAME = re.compile(SUBSYSTEM_NAME_PATTERN)
# How a vertex is filed, not what it is: equal things on different nodes must stay equal.
BOOKKEEPING_FIELDS = frozenset({"paths", "id", "uniq_id", "rank", "exclusive", "basename", "status"})
ATTACHMENTS_MAX = 5_000_000  # of one subsystem, over all vertices of the main graph
NAMES_SHOWN = 5

Attachments = dict[str, list[AttachedVertex]]
VertexResolver = Callable[[str], str | None]  # a vertex of the main graph by its id or host name; none: there is none


class _Short(Struct, frozen=True, forbid_unknown_fields=True):
    attach: Annotated[dict[str, list[dict[str, Any]]], Meta(min_length=1, max_length=1_000_000)]


def read_subsystem(name: str, value: Any, *, resolve: VertexResolver, where: str) -> Attachments:
    """What the subsystem attaches to which vertex of the main graph."""
    if name in RESERVED_NAMES:
        raise Malformed(f"{where}: the name {name!r} is taken by the main graph.", next_step="Choose another name.")
    if not SUBSYSTEM_NAME.match(name):
        raise Malformed(f"{where}: {name[:80]!r} is not a name for a subsystem (letters, digits, . _ -; at most 64).")
    if isinstance(value, Mapping) and "attach" in value:
        return _read_short(name, value, resolve=resolve, where=where)
    if isinstance(value, Mapping) and "graph" in value:
        return _read_jgf(name, value["graph"], resolve=resolve, where=where)
    raise Malformed(f"{where}: expected a JGF with `graph:`, or `attach:` with hosts.")


def _read_short(name: str, value: Mapping[str, Any], *, resolve: VertexResolver, where: str) -> Attachments:
    attachments: Attachments = {}
    total = 0
    for hosts, vertices in convert(value, _Short, where=where).attach.items():
        place = f"{where}: attach.{hosts[:60]}"
        made = [_attached(name, vertex, f"{place}[{number}]") for number, vertex in enumerate(vertices)]
        try:
            runs = parse_hosts(hosts) if resolve(hosts) is None else [HostRange(hosts)]
        except ValueError as exc:
            raise Malformed(f"{place}: {exc}.") from exc
        total += sum(map(len, runs)) * len(made)
        for host in (name for run in runs for name in run):
            vertex_id = resolve(host)
            if vertex_id is None:
                raise _unknown_vertex(place, host)
            if total > ATTACHMENTS_MAX:
                raise Malformed(
                    f"{place}: over {ATTACHMENTS_MAX:,} vertices attached in all; attach fewer to each host."
                )
            held = attachments.setdefault(vertex_id, [])
            held += made
            if len(held) > ATTACHED_MAX:
                raise _too_many(host, where)
    return attachments


def _read_jgf(name: str, graph: Any, *, resolve: VertexResolver, where: str) -> Attachments:
    if not isinstance(graph, Mapping):
        raise Malformed(f"{where}: `graph` holds nodes and edges.")
    vertices = _vertices(name, graph.get("nodes"), where)
    if not vertices:
        raise Malformed(f"{where}: the subsystem has no vertices.", next_step="To remove one, use `subsystem rm`.")
    attachments: Attachments = {}
    inside: dict[str, list[str]] = {}
    reached: set[str] = set()
    for number, edge in enumerate(_list(graph.get("edges", []), f"{where}: edges")):
        place = f"{where}: edges[{number}]"
        source, target = _ends(edge, place)
        if source is None:
            continue
        if target not in vertices:
            raise Malformed(f"{place}: {source} → {target}: the subsystem has no vertex {target!r}.")
        reached.add(target)
        if source in vertices:
            inside.setdefault(source, []).append(target)
            continue
        vertex_id = resolve(source)
        if vertex_id is None:
            raise _unknown_vertex(place, source)
        held = attachments.setdefault(vertex_id, [])
        if vertices[target] not in held:
            held.append(vertices[target])
        if len(held) > ATTACHED_MAX:
            raise _too_many(source, where)
    _refuse_circles(inside, where)
    loose = [vertex for vertex in vertices if vertex not in reached and not _is_own_root(name, vertices[vertex])]
    if loose:
        shown = ", ".join(loose[:NAMES_SHOWN])
        raise Malformed(f"{where}: no edge reaches {shown}; a vertex that is attached to nothing is of no use.")
    return attachments


def _refuse_circles(inside: dict[str, list[str]], where: str) -> None:
    """What is left when every vertex that nothing of the subsystem contains is taken away, again and again."""
    above = Counter(target for targets in inside.values() for target in targets)
    free = [vertex for vertex in inside if not above[vertex]]
    while free:
        for target in inside.get(free.pop(), ()):
            above[target] -= 1
            if not above[target]:
                free.append(target)
    if stuck := sorted(vertex for vertex, count in above.items() if count):
        raise Malformed(f"{where}: {', '.join(stuck[:NAMES_SHOWN])} contain each other, or themselves, in a circle.")


def _vertices(name: str, nodes: Any, where: str) -> dict[str, AttachedVertex]:
    if isinstance(nodes, Mapping):
        pairs = [(str(vertex_id), vertex) for vertex_id, vertex in nodes.items()]
    else:
        pairs = []
        for number, vertex in enumerate(_list(nodes, f"{where}: nodes")):
            vertex_id = vertex.get("id") if isinstance(vertex, Mapping) else None
            if not isinstance(vertex_id, str | int) or isinstance(vertex_id, bool):
                raise Malformed(f"{where}: nodes[{number}]: a vertex has an `id`.")
            pairs.append((str(vertex_id), vertex))
    vertices: dict[str, AttachedVertex] = {}
    for vertex_id, vertex in pairs:
        place = f"{where}: vertex {vertex_id[:80]!r}"
        if vertex_id in vertices:
            raise Malformed(f"{place} is there twice.")
        metadata = vertex.get("metadata", {}) if isinstance(vertex, Mapping) else None
        if not isinstance(metadata, Mapping):
            raise Malformed(f"{place}: expected `metadata` with fields.")
        size = metadata.get("size", 1)
        if not isinstance(size, int | float) or isinstance(size, bool) or not size >= 0:
            raise Malformed(f"{place}: the size is {str(size)[:40]!r}; it is a number from 0 on.")
        vertices[vertex_id] = _attached(name, metadata, place)
    return vertices


def _attached(name: str, metadata: Mapping[str, Any], place: str) -> AttachedVertex:
    """The fields that say what it is; a list or a tree in one of them is refused, since nothing could match it."""
    fields: dict[str, FieldValue] = {}
    for key, value in metadata.items():
        if key in BOOKKEEPING_FIELDS or value is None:
            continue
        if not isinstance(key, str) or not isinstance(value, str | int | float | bool):
            raise Malformed(
                f"{place}: the field {str(key)[:80]!r} holds a {type(value).__name__}.",
                next_step="A field holds a text, a number, or true or false; make several vertices of a list.",
            )
        fields[key] = value
    kind = fields.get("type", "")
    if not isinstance(kind, str):
        raise Malformed(f"{place}: the type is {kind!r}; a type is a text.")
    label = fields.get("name")
    if isinstance(label, str) and label.rstrip("0123456789") in (kind, str(metadata.get("basename", kind))):
        del fields["name"]  # shm0, shm1, …: numbered, not named
    return AttachedVertex(name, dict(sorted(check_fields(fields, place).items())))


def _is_own_root(name: str, vertex: AttachedVertex) -> bool:
    return vertex.metadata.get("type") == name


def _ends(edge: Any, place: str) -> tuple[str | None, str]:
    """Source and target; none for an edge that says nothing of containment."""
    if not isinstance(edge, Mapping):
        raise Malformed(f"{place}: an edge has a source and a target.")
    if edge.get("relation", "contains") not in ("contains", None):
        return None, ""
    ends = [edge.get("source"), edge.get("target")]
    if not all(isinstance(end, str | int) and not isinstance(end, bool) for end in ends):
        raise Malformed(f"{place}: an edge has a source and a target.")
    return str(ends[0]), str(ends[1])


def _list(value: Any, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise Malformed(f"{place}: expected a list.")
    return value


def _unknown_vertex(place: str, vertex: str) -> Malformed:
    return Malformed(
        f"{place}: {vertex[:80]!r} is no vertex of the main graph.",
        next_step="Name vertices of a JGF by their id, and nodes by their host name; of what an agent said only hosts "
        "are known, so set its JGF with `yard cluster set-graph` to go by ids.",
    )


def _too_many(vertex: str, where: str) -> Malformed:
    return Malformed(f"{where}: over {ATTACHED_MAX} vertices attached to {vertex[:80]!r}.")
