"""Clusters told as groups of nodes: our own short form, and Flux's R version 1 (RFC 20). Pure.

    nodes: 400
    each: {socket: 2, core: 48, memory: 256GiB, gpu: 4, gpu_type: a100-80gb, devices: [fpga:u280:1]}
    properties: {partition: batch}
    hosts: "n[0-399]"

or a list of those. `core` counts all cores of a node; `socket` says over how many they are spread. R has ranks with
cores and gpus, and says nothing of memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from switchyard.errors import Malformed
from switchyard.model.cluster.hardware import GPU, is_known, read_hardware
from switchyard.model.cluster.hostlist import HostRange, compress_hosts, expand_hosts, format_hosts, parse_hosts
from switchyard.model.cluster.idset import IdSet
from switchyard.model.graph.fields import check_fields
from switchyard.model.graph.graph import NODES_MAX, AttachedVertex, FieldValue, Graph, TypeName
from switchyard.model.graph.hash_consing import ShapeTable
from switchyard.model.graph.subsystem import Attachments
from switchyard.model.job.job import COUNT_MAX, FIELDS_OF_KINDS, Amount, Count, DeviceText, GpuType
from switchyard.model.jobspec.devices import read_device
from switchyard.model.jobspec.quantity import parse_bytes
from switchyard.model.rules.names import LabelKey
from switchyard.model.wire.decode import convert

# Hosts are told apart only where there are subsystems; then each costs a line in memory.
NAMED_HOSTS_MAX = 1_000_000
DEFAULT_PREFIX = "node"


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """Devices of one kind and type on each node."""

    kind: str
    count: int
    properties: dict[str, FieldValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Equal nodes: their hosts, what lies below each (type → count), sized vertices, properties, sockets."""

    hosts: tuple[HostRange, ...]
    ranks: tuple[HostRange, ...]
    counts: dict[str, int]
    devices: tuple[DeviceGroup, ...] = ()
    bytes: dict[str, int] = field(default_factory=dict)
    sockets: int = 0
    properties: dict[str, FieldValue] = field(default_factory=dict)
    attached: tuple[AttachedVertex, ...] = ()
    inner_properties: dict[str, dict[str, FieldValue]] = field(default_factory=dict)  # of what lies below, by type

    @property
    def count(self) -> int:
        return sum(map(len, self.hosts))


@dataclass(frozen=True)
class NodeGroups:
    """A cluster as groups of nodes, each addressed by its host name."""

    where: str
    groups: list[NodeGroup]

    def resolve(self, name: str) -> str | None:
        return name if name in self._names else None

    @cached_property
    def _names(self) -> frozenset[str]:
        if (total := sum(group.count for group in self.groups)) > NAMED_HOSTS_MAX:
            raise Malformed(f"{self.where}: a subsystem names hosts among {total:,}; the most is {NAMED_HOSTS_MAX:,}.")
        return frozenset(name for group in self.groups for run in group.hosts for name in run)


def graph_of_groups(flat: NodeGroups, attachments: Attachments) -> Graph:
    groups = [part for group in flat.groups for part in (_split(group, attachments) if attachments else [group])]
    cons = ShapeTable(flat.where)
    numbers = [_node(cons, group) for group in groups]
    counts: dict[int, int] = {}
    for number, group in zip(numbers, groups, strict=True):
        counts[number] = counts.get(number, 0) + group.count
    if (total := sum(counts.values())) > NODES_MAX:
        raise Malformed(f"{flat.where}: {total:,} nodes; the most is {NODES_MAX:,}.")
    finished = cons.finish(cons.shape("cluster", children=counts))
    places = sorted(range(len(groups)), key=lambda index: finished.place[numbers[index]])
    hosts = format_hosts(run for index in places for run in groups[index].hosts)
    ranks = format_hosts(run for index in places for run in groups[index].ranks)
    is_counted = hosts in (f"{DEFAULT_PREFIX}0", f"{DEFAULT_PREFIX}[0-{total - 1}]")
    is_ranked = ranks not in ("0", f"[0-{total - 1}]")
    return Graph(finished.shapes, "" if is_counted else hosts, ranks if is_ranked else "")


def _split(group: NodeGroup, attachments: Attachments) -> Iterable[NodeGroup]:
    """Nodes that a subsystem attaches different things to are no longer equal."""
    names = expand_hosts(group.hosts)
    if not any(name in attachments for name in names):
        return [group]
    ranks = expand_hosts(group.ranks)
    parts: dict[bytes, list[int]] = {}
    for index, name in enumerate(names):
        mark = msgspec.json.encode(attachments.get(name, []))
        parts.setdefault(mark, []).append(index)
    return [
        replace(
            group,
            hosts=tuple(parse_hosts(compress_hosts(names[index] for index in indexes))),
            ranks=tuple(parse_hosts(compress_hosts(ranks[index] for index in indexes))),
            attached=tuple(attachments.get(names[indexes[0]], [])),
        )
        for indexes in parts.values()
    ]


def _node(cons: ShapeTable, group: NodeGroup) -> int:
    below: dict[int, int] = {}
    for kind, count in group.counts.items():
        if not count:
            continue
        leaf = cons.shape(kind, properties=group.inner_properties.get(kind))
        if kind == "core" and group.sockets:
            share, more = divmod(count, group.sockets)
            for cores, sockets in ((share + 1, more), (share, group.sockets - more)):
                if sockets:
                    socket = cons.shape("socket", children={leaf: cores} if cores else {})
                    below[socket] = below.get(socket, 0) + sockets
        else:
            below[leaf] = below.get(leaf, 0) + count
    for device in group.devices:
        leaf = cons.shape(device.kind, properties=device.properties)
        below[leaf] = below.get(leaf, 0) + device.count
    for kind, size in group.bytes.items():
        if size:
            below[cons.shape(kind, size=size, unit="B")] = 1
    return cons.shape("node", properties=group.properties, attached=group.attached, children=below)


class _Each(Struct, frozen=True, forbid_unknown_fields=True):
    socket: Annotated[int, Meta(ge=0, le=1024)] = 0
    core: Count = 1
    gpu: Annotated[int, Meta(ge=0, le=COUNT_MAX)] = 0
    gpu_type: GpuType = ""
    gpu_memory: Amount | None = None  # of each
    devices: Annotated[list[DeviceText], Meta(max_length=256)] = []  # others, and GPUs of further types: `gpu:h100:2`
    memory: Amount = 0
    storage: Amount = 0

    def __post_init__(self) -> None:
        if (self.gpu_type or self.gpu_memory is not None) and not self.gpu:
            raise ValueError("gpu_type and gpu_memory say which GPUs; say how many, as in `gpu: 4`")
        for text in self.devices:
            if text.partition(":")[0] in FIELDS_OF_KINDS:
                raise ValueError(f"{text[:80]} is no device: it has a field of its own")


PropertyValue = Annotated[str, Meta(max_length=512, pattern=r"^[^\u0000-\u001f]*$")] | int | float | bool


class _Group(Struct, frozen=True, forbid_unknown_fields=True):
    nodes: Count | None = None
    each: _Each = _Each()
    properties: dict[LabelKey, PropertyValue] = {}
    hosts: str | None = None


def read_short_form(value: Any, *, where: str) -> NodeGroups:
    """The short form, checked: a group, or a list of them."""
    if not isinstance(value, dict | list):
        raise Malformed(f"{where}: expected `nodes:` and `each:`, or a list of such groups.")
    groups = (
        convert(value, list[_Group], where=where) if isinstance(value, list) else [convert(value, _Group, where=where)]
    )
    if not groups or value == {}:
        raise Malformed(f"{where}: no node groups.", next_step="Say `nodes:` and `each:`.")
    node_groups: list[NodeGroup] = []
    numbered = ranked = 0
    for index, group in enumerate(groups):
        place = f"{where}: [{index}]" if len(groups) > 1 else where
        try:
            hosts = tuple(parse_hosts(group.hosts)) if group.hosts is not None else None
            size = {"memory": parse_bytes(group.each.memory), "storage": parse_bytes(group.each.storage)}
        except ValueError as exc:
            raise Malformed(f"{place}: {exc}") from exc
        named = sum(map(len, hosts)) if hosts else 0
        count = group.nodes or named or 1
        if hosts is not None and named != count:
            raise Malformed(f"{place}.hosts: {named} hosts for {count} nodes.")
        if hosts is None:
            hosts = (HostRange(DEFAULT_PREFIX, "", numbered, numbered + count - 1),)
            numbered += count
        ranks = (HostRange("", "", ranked, ranked + count - 1),)
        ranked += count
        counts = {"core": group.each.core, "gpu": group.each.gpu}
        properties = check_fields(group.properties, f"{place}.properties")
        inner = {GPU: told} if (told := _gpu_properties(group)) else {}
        devices = tuple(
            DeviceGroup(device.kind, device.count, {"type": device.spelling} if device.spelling else {})
            for device in map(read_device, group.each.devices)
        )
        node_groups.append(
            NodeGroup(hosts, ranks, counts, devices, size, group.each.socket, properties, inner_properties=inner)
        )
    return NodeGroups(where, node_groups)


def _gpu_properties(group: _Group) -> dict[str, FieldValue]:
    """The type of all GPUs of a node; older files give it as the node's property `gpu_type`."""
    type_, memory = group.each.gpu_type or group.properties.get("gpu_type"), group.each.gpu_memory
    named: dict[str, FieldValue] = {"type": type_} if type_ and isinstance(type_, str) else {}
    return named | ({"memory": parse_bytes(memory)} if memory else {})


class _Entry(Struct, frozen=True):
    rank: str
    children: dict[TypeName, str]


class _Execution(Struct, frozen=True):
    R_lite: Annotated[list[_Entry], Meta(min_length=1, max_length=1_000_000)]
    nodelist: list[str] = []
    properties: dict[str, str] = {}


def read_flux_r(value: Mapping[str, Any], *, where: str) -> NodeGroups:
    """Flux's R, version 1."""
    if value.get("version") != 1:
        raise Malformed(f"{where}: this is R version {str(value.get('version'))[:40]!r}; known is 1.")
    execution = convert(value.get("execution"), _Execution, where=f"{where}: execution")
    entries = [
        (_ids(entry.rank, f"{where}: R_lite[{index}].rank"), _children(entry, index, where))
        for index, entry in enumerate(execution.R_lite)
    ]
    ranks = sorted(rank for groups, _ in entries for rank in groups)
    if len(set(ranks)) != len(ranks):
        raise Malformed(f"{where}: R_lite names a rank twice.")
    hosts = _hosts(execution.nodelist, len(ranks), where)
    host_of = dict(zip(ranks, hosts, strict=True))
    properties = {
        name.lstrip("+"): set(_ids(text, f"{where}: properties.{name[:40]}"))
        for name, text in execution.properties.items()
    }
    groups: list[NodeGroup] = []
    for members, counts in entries:
        kinds: dict[tuple[str, ...], list[int]] = {}
        for rank in members:
            kinds.setdefault(tuple(sorted(name for name, has in properties.items() if rank in has)), []).append(rank)
        for names, of_kind in kinds.items():
            groups.append(
                NodeGroup(
                    tuple(parse_hosts(compress_hosts(host_of[rank] for rank in of_kind))),
                    tuple(parse_hosts(compress_hosts(map(str, of_kind)))),
                    counts,
                    properties=dict.fromkeys(names, True),
                    inner_properties=_inner_properties(names),
                )
            )
    return NodeGroups(where, groups)


def _inner_properties(names: tuple[str, ...]) -> dict[str, dict[str, FieldValue]]:
    """`mi50@gpu` is a property of the node by its whole name, and `mi50` one of its gpus (RFC 20).

    A property of a node that is the name of a known GPU, such as `h100`, tells the type of its gpus, too.
    """
    properties: dict[str, dict[str, FieldValue]] = {}
    known = {read_hardware(name.removesuffix("@gpu")).name for name in names if is_known(name.removesuffix("@gpu"))}
    for name in names:
        if len(known) > 1 and is_known(name.removesuffix("@gpu")):
            continue  # R does not say which of its gpus have which type
        bare, at, kind = name.rpartition("@")
        if at and bare and kind:
            properties.setdefault(kind, {})[bare] = True
        elif is_known(name):
            properties.setdefault(GPU, {})[name] = True
    return properties


def _children(entry: _Entry, index: int, where: str) -> dict[str, int]:
    return {
        kind: len(_ids(text, f"{where}: R_lite[{index}].children.{kind[:40]}")) for kind, text in entry.children.items()
    }


def _hosts(nodelist: list[str], count: int, where: str) -> list[str]:
    if not nodelist:
        return [f"{DEFAULT_PREFIX}{number}" for number in range(count)]
    try:
        hosts = [name for text in nodelist for name in expand_hosts(parse_hosts(text))]
    except ValueError as exc:
        raise Malformed(f"{where}: nodelist: {exc}.") from exc
    if len(hosts) != count:
        raise Malformed(f"{where}: nodelist has {len(hosts)} hosts for {count} ranks.")
    return hosts


def _ids(text: str, place: str) -> IdSet:
    try:
        return IdSet.parse(text.strip("[]"))
    except ValueError as exc:
        raise Malformed(f"{place}: {exc}.") from exc
