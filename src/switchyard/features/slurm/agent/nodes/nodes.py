"""The graph and the free resources of a cluster, from `scontrol -o show nodes`. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from switchyard.errors import Unavailable
from switchyard.features.slurm.agent.commands.parse import read_ids, read_pairs
from switchyard.model.cluster.cluster import Load, NodeRest, load_of
from switchyard.model.graph import Graph
from switchyard.model.graph.graph_compiler import compile_graph
from switchyard.model.rules.names import LABEL_KEY_PATTERN

MB = 2**20
_KEY = re.compile(LABEL_KEY_PATTERN)
_GPU = re.compile(r"gpu(?::([A-Za-z][^:,(]*))?(?::([0-9]+))?(?:\([^)]*\))?\Z")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmHardware:
    """What a node has, or what its jobs use of it."""

    cores: int = 0
    sockets: int = 1
    memory_mb: int = 0
    storage_mb: int = 0
    gpus: int = 0
    gpu_type: str = ""


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
        return named | ({"gpu_type": self.has.gpu_type} if self.has.gpu_type else {})


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


def graph_of(nodes: Iterable[SlurmNode], *, where: str) -> Graph:
    """The graph, with equal nodes as one group. It includes nodes that are down: a job may wait for them."""
    groups: dict[tuple[Any, ...], list[SlurmNode]] = {}
    for node in nodes:
        if node.has.cores:
            groups.setdefault(_group_key(node), []).append(node)
    if not groups:
        raise Unavailable(f"{where} says of no node what it has.", next_step="Look at `scontrol show nodes`.")
    return compile_graph([_group(members) for members in groups.values()], where=where)


def load_from_nodes(nodes: Iterable[SlurmNode], graph: Graph, *, running: int, queued: int) -> Load:
    """Free resources of nodes that take jobs, and how many nodes take none."""
    nodes = list(nodes)
    shapes = {_shape_key(kind): kind.shape for kind in graph.kinds}
    free: Counter[NodeRest] = Counter()
    for node in nodes:
        shape = shapes.get((node.has.cores, node.has.gpus, node.has.memory_mb * MB, _frozen(node.properties)))
        free[shape, *(_free_resources(node) if node.is_open else (0, 0, 0))] += 1
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
    gpus, gpu_type = _gpus(row.get("Gres", ""))
    cores = _read_int(row.get("CPUEfctv", "")) or _read_int(row.get("CPUTot", ""))
    return SlurmNode(
        name=row["NodeName"],
        has=SlurmHardware(
            cores=cores,
            sockets=_read_int(row.get("Sockets", "")) or 1,
            memory_mb=_read_int(row.get("RealMemory", "")),
            storage_mb=_read_int(row.get("TmpDisk", "")),
            gpus=gpus,
            gpu_type=gpu_type,
        ),
        used=SlurmHardware(
            cores=min(cores, _read_int(row.get("CPUAlloc", ""))),
            memory_mb=_read_int(row.get("AllocMem", "")),
            gpus=_used_gpus(row.get("AllocTRES", "")),
        ),
        features=_read_names(row.get("ActiveFeatures", "")),
        partitions=_read_names(row.get("Partitions", "")),
        states=frozenset(re.sub(r"[^A-Z_+]", "", row.get("State", "UNKNOWN").upper()).split("+")),
        reason=re.sub(r"\s*\[[^\[\]]*\]\Z", "", row.get("Reason", "")),
    )


def _gpus(text: str) -> tuple[int, str]:
    """`gpu:2`, `gpu:a100:4(S:0-1),gpu:v100:1,craynetwork:4`: the number, and the type if there is only one."""
    matches = [match for part in re.split(r",(?![^(]*\))", text) if (match := _GPU.match(part.strip()))]
    types = {match[1] or "" for match in matches}
    return sum(int(match[2] or 1) for match in matches), types.pop() if len(types) == 1 else ""


def _used_gpus(text: str) -> int:
    """`cpu=1,mem=64M,gres/gpu=1,gres/gpu:a100=1`: the sum is the entry without a type."""
    pairs = dict(part.partition("=")[::2] for part in text.split(","))
    if "gres/gpu" in pairs:
        return _read_int(pairs["gres/gpu"])
    return sum(_read_int(value) for key, value in pairs.items() if key.startswith("gres/gpu:"))


def _free_resources(node: SlurmNode) -> tuple[int, int, int]:
    return (
        node.has.cores - node.used.cores,
        max(0, node.has.gpus - node.used.gpus),
        max(0, node.has.memory_mb - node.used.memory_mb) * MB,
    )


def _group_key(node: SlurmNode) -> tuple[Any, ...]:
    sizes = (node.has.cores, node.has.sockets, node.has.memory_mb, node.has.storage_mb, node.has.gpus)
    return (*sizes, _frozen(node.properties))


def _shape_key(kind: Any) -> tuple[Any, ...]:
    return (kind.cores, kind.gpus, kind.memory_bytes, _frozen(kind.properties))


def _frozen(properties: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(properties.items()))


def _group(members: list[SlurmNode]) -> dict[str, Any]:
    first = members[0]
    return {
        "nodes": len(members),
        "each": {
            "socket": min(first.has.sockets, first.has.cores, 1024),
            "core": first.has.cores,
            "gpu": first.has.gpus,
            "memory": first.has.memory_mb * MB,
            "storage": first.has.storage_mb * MB,
        },
        "properties": first.properties,
        "hosts": ",".join(node.name for node in members),
    }


def _read_names(text: str) -> tuple[str, ...]:
    return () if text in ("", "(null)") else tuple(sorted({name for name in text.split(",") if name}))


def _read_int(text: str) -> int:
    match = re.match(r"[0-9]+", text)
    return int(match[0]) if match else 0
