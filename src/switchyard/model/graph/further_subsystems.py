"""Further subsystems in the same JGF as the containment tree, such as the power of Fluxion's graphs. Pure.

A vertex that only another subsystem has is attached to the vertex of the tree that has an edge to it. Edges of other
subsystems between vertices of the tree are a second hierarchy; nothing is matched along it, so they are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from switchyard.errors import Malformed
from switchyard.model.graph.fields import check_fields, read_properties
from switchyard.model.graph.graph import ATTACHED_MAX, AttachedVertex
from switchyard.model.graph.subsystem import ATTACHMENTS_MAX, RESERVED_NAMES, SUBSYSTEM_NAME, Attachments

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
