"""The graph and the free resources of a cluster, from `scontrol -o show nodes`. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from switchyard.errors import Unavailable
from switchyard.features.slurm.agent.commands.parse import read_ids, read_pairs
from switchyard.model.cluster.cluster import Load, NodeRest, load_of
from switchyard.model.cluster.hardware import COMMON_NAMES, GPU, SiteNames, is_known
from switchyard.model.graph import Graph
from switchyard.model.graph.graph_compiler import compile_graph
from switchyard.model.rules.names import LABEL_KEY_PATTERN

MB = 2**20
_KEY = re.compile(LABEL_KEY_PATTERN)
# `gpu`, `gpu:2`, `gpu:a100:4(S:0-1)`, `nic:4`: a type does not consist of digits alone, unless a count follows.
_GRES = re.compile(
    r"([A-Za-z][A-Za-z0-9_.-]*)(?::([A-Za-z0-9_.-]*[A-Za-z_.-][A-Za-z0-9_.-]*|[0-9]+(?=:)))?(?::([0-9]+))?"
)
# A node in one of these states takes no new job.
DOWN_STATES = frozenset({"DOWN", "FAIL", "FAILING", "NOT_RESPONDING", "INVAL", "INVALID_REG", "UNKNOWN"})
CLOSED_STATES = DOWN_STATES | {
    "DRAIN",
    "DRAINED",
    "DRAINING",
    "BLOCKED",
    "FUTURE",
    "MAINT",
    "MAINTENANCE",
    "POWERED_DOWN",
    "POWERING_DOWN",
    "POWER_DOWN",
    "REBOOT",
    "REBOOT_ISSUED",
    "REBOOT_REQUESTED",
    "RESERVED",
}


class Gres(NamedTuple):
    """Devices of one kind and type on a node, in the words of its site."""

    kind: str
    type: str
    units: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmHardware:
    """What a node has, or what its jobs use of it."""

    cores: int = 0
    sockets: int = 1
    memory_mb: int = 0
    storage_mb: int = 0
    gres: tuple[Gres, ...] = ()

    @property
    def gpus(self) -> int:
        return sum(gres.units for gres in self.gres if gres.kind == GPU)

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """The types of its GPUs; empty for those without."""
        return tuple(sorted({gres.type for gres in self.gres if gres.kind == GPU}))


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmNode:
    name: str
    has: SlurmHardware
    used: SlurmHardware = field(default_factory=SlurmHardware)
    features: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    states: frozenset[str] = frozenset()
    reason: str = ""  # why it is closed, without who said so and when

    @property
    def is_open(self) -> bool:
        return not self.states & CLOSED_STATES

    @property
    def properties(self) -> dict[str, str | bool]:
        """Features and partitions by name; a name that cannot be a property is left out."""
        named: dict[str, str | bool] = {feature: True for feature in self.features if _KEY.match(feature)}
        named |= {key: True for part in self.partitions if _KEY.match(key := f"partition/{part}")}
        types = self.has.gpu_types
        return named | ({"gpu_type": types[0]} if len(types) == 1 and types[0] else {})

    @property
    def told_gres(self) -> tuple[Gres, ...]:
        """What it has. A type that only a feature tells (`a100`) is that of all its GPUs."""
        told = next((feature for feature in self.features if is_known(feature)), "")
        return tuple(gres._replace(type=gres.type or told) if gres.kind == GPU else gres for gres in self.has.gres)


@dataclass(frozen=True, slots=True)
class Partitions:
    """The partitions of a cluster, and the default one."""

    names: tuple[str, ...] = ()
    default: str = ""


def read_nodes(text: str) -> list[SlurmNode]:
    """All nodes except FUTURE ones."""
    nodes = [_node(read_pairs(line)) for line in text.splitlines() if line.startswith("NodeName=")]
    return [node for node in nodes if "FUTURE" not in node.states]


def read_partitions(text: str) -> Partitions:
    rows = [read_pairs(line) for line in text.splitlines() if line.startswith("PartitionName=")]
    return Partitions(
        tuple(row["PartitionName"] for row in rows),
        next((row["PartitionName"] for row in rows if row.get("Default") == "YES"), ""),
    )


def graph_of(nodes: Iterable[SlurmNode], *, where: str, names: SiteNames = COMMON_NAMES) -> Graph:
    """The graph, with equal nodes as one group. It includes nodes that are down: a job may wait for them."""
    groups: dict[tuple[Any, ...], list[SlurmNode]] = {}
    for node in nodes:
        if node.has.cores:
            groups.setdefault(_group_key(node), []).append(node)
    if not groups:
        raise Unavailable(f"{where} says of no node what it has.", next_step="Look at `scontrol show nodes`.")
    return compile_graph([_group(members, names) for members in groups.values()], where=where)


def load_from_nodes(
    nodes: Iterable[SlurmNode], graph: Graph, *, running: int, queued: int, names: SiteNames = COMMON_NAMES
) -> Load:
    """Free resources of nodes that take jobs, and how many nodes take none."""
    nodes = list(nodes)
    kinds = {kind.shape: kind for kind in graph.kinds}
    shapes = dict(zip(graph.host_names, graph.host_shapes(), strict=True))
    by_amounts = {_shape_key(kind): kind.shape for kind in graph.kinds}  # an operator's graph may have other names
    free: Counter[NodeRest] = Counter()
    for node in nodes:
        key = (node.has.cores, node.has.gpus, node.has.memory_mb * MB, _frozen(node.properties))
        kind = kinds.get(shapes.get(node.name, -1))
        shape = kind.shape if kind is not None and _shape_key(kind) == key else by_amounts.get(key)
        free[shape, *_free_resources(node, names)] += 1
    return load_of(
        free,
        signature=graph.signature,
        running=running,
        queued=queued,
        values={
            "nodes_free": sum(1 for node in nodes if node.is_open and not node.used.cores),
            "nodes_down": sum(1 for node in nodes if node.states & DOWN_STATES),
            "nodes_closed": sum(1 for node in nodes if not node.is_open and not node.states & DOWN_STATES),
        },
    )


def count_jobs(text: str) -> tuple[int, int]:
    """Running and queued jobs of all users, counted by task, from `state|id` lines."""
    running = queued = 0
    for line in text.splitlines():
        state, _, number = line.partition("|")
        many = len(read_ids(number.rstrip("|"))) or 1
        running, queued = (running + many, queued) if state.strip() == "RUNNING" else (running, queued + many)
    return running, queued


def _node(row: Mapping[str, str]) -> SlurmNode:
    cores = _read_int(row.get("CPUEfctv", "")) or _read_int(row.get("CPUTot", ""))
    return SlurmNode(
        name=row["NodeName"],
        has=SlurmHardware(
            cores=cores,
            sockets=_read_int(row.get("Sockets", "")) or 1,
            memory_mb=_read_int(row.get("RealMemory", "")),
            storage_mb=_read_int(row.get("TmpDisk", "")),
            gres=_read_gres(row.get("Gres", "")),
        ),
        used=SlurmHardware(
            cores=min(cores, _read_int(row.get("CPUAlloc", ""))),
            memory_mb=_read_int(row.get("AllocMem", "")),
            gres=_used_gres(row.get("AllocTRES", "")),
        ),
        features=_read_names(row.get("ActiveFeatures", "")),
        partitions=_read_names(row.get("Partitions", "")),
        states=frozenset(re.sub(r"[^A-Z_+]", "", row.get("State", "UNKNOWN").upper()).split("+")),
        reason=re.sub(r"\s*\[[^\[\]]*\]\Z", "", row.get("Reason", "")),
    )


def _read_gres(text: str) -> tuple[Gres, ...]:
    """`gpu:2`, `gpu:a100:4(S:0-1),gpu:v100:1,craynetwork:4`."""
    counts: Counter[tuple[str, str]] = Counter()
    for part in re.split(r",(?![^(]*\))", text):
        if match := _GRES.fullmatch(re.sub(r"\([^)]*\)", "", part.strip())):
            counts[match[1], match[2] or ""] += int(match[3] or 1)
    return tuple(Gres(kind, type_, count) for (kind, type_), count in sorted(counts.items()))


def _used_gres(text: str) -> tuple[Gres, ...]:
    """`cpu=1,mem=64M,gres/gpu=1,gres/gpu:a100=1`: the entry without a type is the sum, where there is one."""
    entries = [part.removeprefix("gres/").partition("=") for part in text.split(",") if part.startswith("gres/")]
    parts = [(*name.partition(":")[::2], _read_int(count)) for name, _, count in entries]
    summed = {kind: count for kind, type_, count in parts if not type_}
    used = [Gres(kind, type_, count) for kind, type_, count in parts if type_]
    for kind, total in summed.items():
        if left := total - sum(gres.units for gres in used if gres.kind == kind):
            used.append(Gres(kind, "", left))
    return tuple(sorted(used))


def _free_resources(node: SlurmNode, names: SiteNames) -> tuple[int, int, int, tuple[tuple[str, int], ...]]:
    if not node.is_open:
        return 0, 0, 0, ()
    return (
        node.has.cores - node.used.cores,
        max(0, node.has.gpus - node.used.gpus),
        max(0, node.has.memory_mb - node.used.memory_mb) * MB,
        _free_by_type(node, names),
    )


def _free_by_type(node: SlurmNode, names: SiteNames) -> tuple[tuple[str, int], ...]:
    """The free GPUs of a node with several types. A GPU in use whose type Slurm does not tell may be of any."""
    if len(node.has.gpu_types) < 2:
        return ()
    used = {(gres.kind, gres.type): gres.units for gres in node.used.gres}
    untold = used.get((GPU, ""), 0)
    free: Counter[str] = Counter()
    for gres in node.has.gres:
        if gres.kind == GPU and gres.type:
            free[names.hardware(gres.type).name] += max(0, gres.units - used.get((GPU, gres.type), 0) - untold)
    return tuple(sorted(free.items()))


def _group_key(node: SlurmNode) -> tuple[Any, ...]:
    sizes = (node.has.cores, node.has.sockets, node.has.memory_mb, node.has.storage_mb, node.told_gres)
    return (*sizes, _frozen(node.properties))


def _shape_key(kind: Any) -> tuple[Any, ...]:
    return (kind.cores, kind.gpus, kind.memory_bytes, _frozen(kind.properties))


def _frozen(properties: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(properties.items()))


def _group(members: list[SlurmNode], names: SiteNames) -> dict[str, Any]:
    first = members[0]
    return {
        "nodes": len(members),
        "each": {
            "socket": min(first.has.sockets, first.has.cores, 1024),
            "core": first.has.cores,
            "devices": [_device_text(gres, names) for gres in first.told_gres if gres.units],
            "memory": first.has.memory_mb * MB,
            "storage": first.has.storage_mb * MB,
        },
        "properties": first.properties,
        "hosts": ",".join(node.name for node in members),
    }


def _device_text(gres: Gres, names: SiteNames) -> str:
    named = re.sub(r"[^A-Za-z0-9_.-]", "-", names.common(gres.type))[:64]
    return f"{gres.kind}{f':{named}' if named else ''}:{gres.units}"


def _read_names(text: str) -> tuple[str, ...]:
    return () if text in ("", "(null)") else tuple(sorted({name for name in text.split(",") if name}))


def _read_int(text: str) -> int:
    match = re.match(r"[0-9]+", text)
    return int(match[0]) if match else 0
