"""Compile any form of a graph, with its subsystems, to the compact form. What the form cannot hold is refused. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from switchyard.errors import Malformed
from switchyard.model.graph import jgf, node_groups
from switchyard.model.graph.attach import attach_subsystems
from switchyard.model.graph.graph import Graph
from switchyard.model.graph.subsystem import Attachments, read_subsystem
from switchyard.model.wire.decode import load_yaml, refuse_duplicates

# Up to this size a JSON is also searched for keys that stand twice; of tens of megabytes that would take seconds.
SEARCHED_BYTES_MAX = 2**20
PEEK_BYTES = 1024  # bytes in which the first that is no space must stand


def compile_graph(
    main: bytes | Any, subsystems: Mapping[str, bytes | Any] | None = None, *, where: str = "graph"
) -> Graph:
    """JGF v2 or v1, Flux's R, our short form, or a compact graph, as one graph; with what its subsystems attach."""
    compact = _compact(main, where)
    if compact is not None:
        named_contents = (subsystems or {}).items()
        further = {name: _plain(content, f"{where}: subsystem {name[:80]}") for name, content in named_contents}
        return _as_read_again(lambda: attach_subsystems(compact, further, where=where), where)
    source = _source(main, where)
    attachments = _own_attachments(source, frozenset(subsystems or ()))
    for name, content in sorted((subsystems or {}).items()):
        place = f"{where}: subsystem {name[:80]}"
        by_vertex = read_subsystem(name, _plain(content, place), resolve=source.resolve, where=place)
        for vertex, held in by_vertex.items():
            attachments.setdefault(vertex, []).extend(held)
    if isinstance(source, node_groups.NodeGroups):
        return _as_read_again(lambda: node_groups.graph_of_groups(source, attachments), where)
    return _as_read_again(lambda: jgf.graph_of_vertices(source, attachments), where)


def _own_attachments(source: node_groups.NodeGroups | jgf.VertexTree, replaced: frozenset[str]) -> Attachments:
    """What the main graph attaches itself, without the subsystems that come on their own."""
    if isinstance(source, node_groups.NodeGroups):
        return {}
    return {
        vertex: kept
        for vertex, held in source.attached.items()
        if (kept := [attached for attached in held if attached.subsystem not in replaced])
    }


def _as_read_again(make: Callable[[], Graph], where: str) -> Graph:
    """Encode and decode the graph once. Only decoding checks the types' bounds; an invalid graph must not be stored."""
    try:
        return msgspec.json.decode(msgspec.json.encode(make()), type=Graph)
    except (ValueError, OverflowError) as exc:
        raise Malformed(f"{where}: {exc}.") from exc


def _compact(main: bytes | Any, where: str) -> Graph | None:
    """The graph, if it is compact already: `shapes` shows at the top."""
    if isinstance(main, Graph):
        return main
    if not isinstance(main, bytes | bytearray) or "shapes" not in (_top_level_keys(bytes(main)) or {}):
        return None
    try:
        return msgspec.json.decode(main, type=Graph)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise Malformed(f"{where}: {exc}.") from exc


def _source(main: bytes | Any, where: str) -> node_groups.NodeGroups | jgf.VertexTree:
    """Which form it is shows at the top: `graph`, `execution`, or neither."""
    if isinstance(main, bytes | bytearray):
        main = bytes(main)
        top = _top_level_keys(main)
        if top is not None and "graph" in top:
            return jgf.read_jgf(main, where=where)
        main = _plain(main, where)
    if isinstance(main, Mapping) and "graph" in main:
        return jgf.read_jgf(main, where=where)
    if isinstance(main, Mapping) and "execution" in main:
        scheduling = main.get("scheduling")
        if isinstance(scheduling, Mapping) and "graph" in scheduling:
            return jgf.read_jgf(scheduling, where=f"{where}: scheduling")  # Fluxion's own, and it says more
        return node_groups.read_flux_r(main, where=where)
    return node_groups.read_short_form(main, where=where)


def _top_level_keys(body: bytes) -> dict[str, msgspec.Raw] | None:
    """The keys at the top of a JSON object, without reading what they hold; none: it is no JSON object."""
    if body[:PEEK_BYTES].lstrip()[:1] != b"{":
        return None
    try:
        return msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _plain(content: bytes | Any, where: str) -> Any:
    """JSON or YAML as plain values."""
    if not isinstance(content, bytes | bytearray):
        return content
    content = bytes(content)
    if content[:PEEK_BYTES].lstrip()[:1] in (b"{", b"["):
        try:
            value = msgspec.json.decode(content)
        except RecursionError as exc:
            raise Malformed(f"{where}: nested too deeply.") from exc
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass  # a flow mapping of YAML begins like JSON
        else:
            if len(content) <= SEARCHED_BYTES_MAX:
                refuse_duplicates(content)
            return value
    return load_yaml(content, where=where)
