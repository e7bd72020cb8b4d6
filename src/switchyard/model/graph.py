"""What a cluster has: groups of equal nodes. The full resource graph will enter here."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from switchyard.errors import Malformed
from switchyard.model.decode import convert
from switchyard.model.job import COUNT_MAX, Amount, Count
from switchyard.model.names import LabelKey, LabelValue
from switchyard.model.quantity import ceil, parse_amount, parse_bytes

Bytes = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class NodeGroup(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`count` nodes, each with this much."""

    count: Count = 1
    cores: Annotated[int, Meta(ge=1, le=COUNT_MAX)] = 1
    gpus: Annotated[int, Meta(ge=0, le=COUNT_MAX)] = 0
    memory_bytes: Bytes = 0
    storage_bytes: Bytes = 0
    properties: Annotated[dict[LabelKey, LabelValue], Meta(max_length=256)] = {}


class Graph(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """All nodes of a cluster, as groups of equal ones."""

    groups: Annotated[list[NodeGroup], Meta(min_length=1, max_length=10_000)]

    @property
    def nodes(self) -> int:
        return sum(group.count for group in self.groups)

    @property
    def cores(self) -> int:
        return sum(group.count * group.cores for group in self.groups)

    @property
    def gpus(self) -> int:
        return sum(group.count * group.gpus for group in self.groups)

    @property
    def memory_bytes(self) -> int:
        return sum(group.count * group.memory_bytes for group in self.groups)


class _Each(Struct, frozen=True, forbid_unknown_fields=True):
    socket: Count = 1
    core: Count = 1
    gpu: Annotated[int, Meta(ge=0, le=COUNT_MAX)] = 0
    memory: Amount = 0
    storage: Amount = 0


class _Group(Struct, frozen=True, forbid_unknown_fields=True):
    nodes: Count = 1
    each: _Each = _Each()
    properties: dict[LabelKey, LabelValue] = {}


def graph_from_plain(value: Any, *, where: str) -> Graph:
    """Read the short form: `nodes: 4, each: {core: 8, memory: 16GiB, gpu: 1}`, or a list of those."""
    if not isinstance(value, dict | list):
        raise Malformed(f"{where}: expected `nodes:` and `each:`, or a list of such groups.")
    groups = (
        convert(value, list[_Group], where=where) if isinstance(value, list) else [convert(value, _Group, where=where)]
    )
    if not groups:
        raise Malformed(f"{where}: no node groups.")
    try:
        return Graph(groups=[_group(group) for group in groups])
    except ValueError as exc:
        raise Malformed(f"{where}: {exc}") from exc


def _group(group: _Group) -> NodeGroup:
    each = group.each
    return NodeGroup(
        count=group.nodes,
        cores=ceil(
            parse_amount(each.core)
        ),  # `core` counts all cores of a node; `socket` only says how they are grouped
        gpus=each.gpu,
        memory_bytes=parse_bytes(each.memory),
        storage_bytes=parse_bytes(each.storage),
        properties=group.properties,
    )
