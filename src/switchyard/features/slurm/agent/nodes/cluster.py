"""The cluster's graph and load, asked regularly. The last answer is stored for a start while Slurm is down."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from switchyard.agent.backends import Setting
from switchyard.agent.backends.shared.avoided_nodes import avoided_nodes
from switchyard.agent.backends.shared.cluster_facts import ClusterFactsFile
from switchyard.agent.backends.shared.node_systems import NodeSystems, own_program
from switchyard.errors import PolicyRefused
from switchyard.features.slurm.agent.commands import command_lines
from switchyard.features.slurm.agent.commands.command_runner import CommandRunner
from switchyard.features.slurm.agent.commands.parse import read_config
from switchyard.features.slurm.agent.nodes.node_systems import ask_slurm_nodes
from switchyard.features.slurm.agent.nodes.nodes import (
    Partitions,
    SlurmNode,
    count_jobs,
    graph_of,
    load_from_nodes,
    read_nodes,
    read_partitions,
)
from switchyard.features.slurm.agent.slurm_site import slurm_of
from switchyard.model.cluster.allocation import shown_types
from switchyard.model.cluster.cluster import Load
from switchyard.model.cluster.hardware import GPU, SiteNames, types_of_vertex
from switchyard.model.cluster.hostlist import compress_hosts, expand_hosts, parse_hosts
from switchyard.model.cluster.poll import Lease
from switchyard.model.graph import Graph
from switchyard.model.job.job import JobSpec, Usage
from switchyard.model.jobspec.constraint import NodeTraits, read_constraint
from switchyard.model.jobspec.devices import Device, devices_of, typed_resources

MEMORY_SAMPLE_S = 30  # Slurm's default interval of memory samples
KILL_WAIT_S = 30  # Slurm's default of KillWait
ARRAY_SIZE_DEFAULT = 1001  # Slurm's default of MaxArraySize
BUSY_SHARE = 20  # at most a twentieth of the time goes into queries of the nodes


class CachedClusterInfo(Struct, frozen=True):
    """Facts that rarely change."""

    graph: Graph
    partitions: tuple[str, ...] = ()
    default: str = ""
    has_accounts: bool = False
    array_size_max: int = ARRAY_SIZE_DEFAULT
    sample_s: int = MEMORY_SAMPLE_S
    kill_wait_s: int = KILL_WAIT_S


class SlurmCluster:
    """`look` and `refresh` belong to one thread each; their results are read by any thread."""

    def __init__(self, setting: Setting, caller: CommandRunner) -> None:
        self._setting = setting
        self._caller = caller
        self._facts_file = ClusterFactsFile(setting.directory / "cluster.json", CachedClusterInfo)
        self._next_at = 0.0
        self._info = self._facts_file.ask_or_read(self._ask)
        self._systems = self._follow_systems() if slurm_of(setting.site).discover_nodes else None
        self.graph = self._described()
        self.load = Load(signature=self.graph.signature)
        self._nodes: list[SlurmNode] = []  # from the last query of free resources
        self._closed: dict[str, ClosedNodes] = {}  # by partition, of these nodes

    @property
    def partitions(self) -> Partitions:
        return Partitions(self._info.partitions, self._info.default)

    @property
    def has_accounts(self) -> bool:
        return self._info.has_accounts

    @property
    def array_size_max(self) -> int:
        return self._info.array_size_max

    @property
    def sample_s(self) -> int:
        return self._info.sample_s

    @property
    def kill_wait_s(self) -> int:
        """From SIGTERM to SIGKILL, where Slurm ends a job."""
        return self._info.kill_wait_s

    def excluded_for(self, spec: JobSpec, lease: Lease | None = None, partition: str = "") -> str:
        """The nodes that the job's constraint excludes, those whose GPUs have no type in Slurm, but another one in
        the graph, and those of the partition that the lease tells to avoid. Slurm is asked only if there may be any."""
        devices, is_told = typed_devices(spec), lease is not None and lease.avoid_nodes
        if not constraint_of(spec) and not devices and not is_told:
            return ""
        nodes = self._known_nodes()
        own = [node.name for node in nodes if (partition or self._info.default) in node.partitions]
        avoided = avoided_nodes(lease, own) if lease is not None else []
        other = set(avoided) | {name for device in devices for name in find_untyped_nodes(nodes, self.graph, device)}
        return find_excluded_nodes(spec, self.graph, {node.name for node in nodes}, other=other)

    def gres_types(self, spec: JobSpec) -> dict[Device, str]:
        """What Slurm calls the type of each device of the job; empty: its nodes have such devices without a type."""
        nodes = self._known_nodes() if (devices := typed_devices(spec)) else []
        return {device: find_gres_type(nodes, device, self._setting.site.names) for device in devices}

    def with_types(self, usage: Usage) -> Usage:
        """The usage with the common names of its GPUs' types. What Slurm does not tell of the job, its nodes may."""
        allocated = usage.allocated
        if allocated is None or not allocated.gpus:
            return usage
        types = set(allocated.gpu_types) or find_types_of_hosts(self._nodes, usage.nodes)
        common = shown_types({self._setting.site.names.common(type_) for type_ in types})
        return replace(usage, allocated=replace(allocated, gpu_types=common))

    def _known_nodes(self) -> list[SlurmNode]:
        return self._nodes or read_nodes(self._caller.ask(command_lines.show_nodes()))

    def closed_nodes(self, partition: str) -> ClosedNodes:
        """The closed nodes of a partition, by the last answer. `partition`: empty: the default one."""
        known, name = self._closed, partition or self._info.default
        if name not in known:
            known[name] = find_closed_nodes(self._nodes, name)
        return known[name]

    def look(self) -> bool:
        """Ask for the facts that rarely change. True: the graph changed."""
        before, self._info = self._info, self._ask()
        if self._info != before:
            self._facts_file.write(self._info)
        graph, self.graph = self.graph, self._described()
        return self.graph != graph

    def refresh(self) -> bool:
        """Ask what is free, if it is due. True: it changed."""
        begun = time.monotonic()
        if begun < self._next_at:
            return False
        self._next_at = begun + slurm_of(self._setting.site).state_s  # also after a failure
        nodes = self._nodes = read_nodes(self._caller.ask(command_lines.show_nodes()))
        self._closed = {}
        if self._systems is not None:
            self._systems.note_up({node.name for node in nodes if node.is_open})
        running, queued = count_jobs(self._caller.ask(command_lines.squeue_depth()))
        names = self._setting.site.names
        before, self.load = self.load, load_from_nodes(nodes, self.graph, running=running, queued=queued, names=names)
        took_s = time.monotonic() - begun
        self._next_at = time.monotonic() + max(slurm_of(self._setting.site).state_s, took_s * BUSY_SHARE)
        return before != self.load

    def close(self) -> None:
        if self._systems is not None:
            self._systems.close()

    def _follow_systems(self) -> NodeSystems:
        caller, program = self._caller, own_program(sys.argv)
        return NodeSystems(
            self._setting.directory / "systems.json",
            lambda nodes: ask_slurm_nodes(caller, nodes, program=program),
        )

    def _described(self) -> Graph:
        """The graph with the systems of the nodes, as far as they are known."""
        return self._info.graph if self._systems is None else self._systems.attached_to(self._info.graph)

    def _ask(self) -> CachedClusterInfo:
        config = read_config(self._caller.ask(command_lines.show_config()))
        partitions = read_partitions(self._caller.ask(command_lines.show_partitions()))
        own_graph = self._setting.graph
        size = config.get("MaxArraySize", "")
        return CachedClusterInfo(
            graph=own_graph
            or graph_of(
                read_nodes(self._caller.ask(command_lines.show_nodes())),
                where="scontrol show nodes",
                names=self._setting.site.names,
            ),
            partitions=partitions.names,
            default=partitions.default,
            has_accounts="slurmdbd" in config.get("AccountingStorageType", ""),
            array_size_max=int(size) if size.isdigit() else ARRAY_SIZE_DEFAULT,
            sample_s=_sample_s(config.get("JobAcctGatherFrequency", "")),
            kill_wait_s=_seconds(config.get("KillWait", "")),
        )


def _sample_s(text: str) -> int:
    """The interval of memory samples in `30` or `task=30,energy=0`."""
    match = re.search(r"(?:^|task=)([0-9]+)", text)
    return int(match[1]) if match else MEMORY_SAMPLE_S


def _seconds(text: str) -> int:
    """`30 sec`, as `scontrol show config` shows KillWait."""
    match = re.match(r"[0-9]+", text)
    return int(match[0]) if match else KILL_WAIT_S


CHARS_MAX = 100_000  # of one word of a command: the kernel's bound is 128 KiB


def constraint_of(spec: JobSpec) -> Any:
    """`attributes.system.constraints` of the jobspec; None: every node will do."""
    attributes = (spec.demand or {}).get("attributes") or {}
    return (attributes.get("system") or {}).get("constraints")


def typed_devices(spec: JobSpec) -> list[Device]:
    """The devices of a task for which the job asks by type or by their memory."""
    return [device for device in devices_of(typed_resources(spec)) if device.type or device.memory_mb]


def find_gres_type(nodes: Iterable[SlurmNode], device: Device, names: SiteNames) -> str:
    """The type in Slurm's words that the job can use: one of which a node has enough, and of these the most common.

    Empty: none of them has a type.
    """
    alike = [gres for node in nodes for gres in node.has.gres if gres.kind == device.kind]
    counts: Counter[str] = Counter()
    enough: set[str] = set()
    for gres in alike:
        if gres.type and device.is_met_by(names.hardware(gres.type)):
            counts[gres.type] += gres.units
            enough |= {gres.type} if gres.units >= device.count else set()
    if counts:
        return max(sorted(counts), key=lambda type_: (type_ in enough, counts[type_]))
    return "" if any(not gres.type for gres in alike) else device.spelling


def find_types_of_hosts(nodes: Iterable[SlurmNode], hosts: str) -> set[str]:
    """The types of the GPUs on these hosts. Empty if they are not known, or if one host has several."""
    try:
        names = set(expand_hosts(parse_hosts(hosts)))
    except ValueError:
        return set()
    told = [{gres.type for gres in node.told_gres if gres.kind == GPU} for node in nodes if node.name in names]
    is_known = len(told) == len(names) and all(len(types) == 1 and "" not in types for types in told)
    return set().union(*told) if is_known else set()


def find_untyped_nodes(nodes: Iterable[SlurmNode], graph: Graph, device: Device) -> set[str]:
    """Nodes whose devices have no type in Slurm, unless the graph says that all of them are of the job's type."""
    untyped = {node.name for node in nodes if any(gres[:2] == (device.kind, "") for gres in node.has.gres)}
    shapes = zip(graph.host_names, graph.host_shapes(), strict=True) if untyped else ()
    return untyped - {host for host, shape in shapes if host in untyped and _has_only(graph, shape, device)}


def _has_only(graph: Graph, index: int, device: Device) -> bool:
    shape = graph.shapes[index]
    if shape.type == device.kind and not any(map(device.is_met_by, types_of_vertex(shape.properties))):
        return False
    return all(_has_only(graph, child, device) for child, _ in shape.children)


def find_excluded_nodes(
    spec: JobSpec, graph: Graph, names: Collection[str], *, other: Collection[str] = frozenset()
) -> str:
    """The excluded nodes as a host list of Slurm, by the graph that the server matched. `names`: the nodes that Slurm
    has; a graph written by a person may have others. `other`: nodes that are excluded anyway."""
    constraint = read_constraint(constraint_of(spec), where="attributes.system.constraints")
    ruled_out = set(other)
    if constraint is not None:
        nodes = zip(graph.host_names, graph.rank_numbers, graph.host_shapes(), strict=True)
        seen = (NodeTraits(graph.shapes[shape].properties, host, rank) for host, rank, shape in nodes)
        ruled_out |= {node.host for node in seen if node.host in names and not constraint.allows(node)}
    if not ruled_out:
        return ""
    hosts = compress_hosts(sorted(ruled_out, key=lambda name: (len(name), name)))
    if len(hosts) > CHARS_MAX:
        reason = f"Its constraint ({constraint})" if constraint is not None else "The type of its devices"
        raise PolicyRefused(f"{reason} rules out more nodes than Slurm can be told by name.")
    return hosts


# Which nodes Slurm keeps closed, why, and how an operator opens them: for the reason of a job that waits. Pure.
#
# A controller that was killed gives its last numbers again. It drains each node that still knows such a number
# ("Duplicate jobid"), and a drained node never comes back by itself: jobs would wait for ever, and not know why.

# A node in one of these states stays closed until somebody does something. The others pass by themselves.
STUCK_STATES = frozenset({"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "INVAL", "INVALID_REG"})
# Slurm's words for a job that waits for closed nodes.
NODE_REASON = re.compile(r"ReqNodeNotAvail|DOWN, DRAINED|NodeDown")
NAMES_MAX = 5
WORDS_MAX = 80  # of what Slurm says about one node


@dataclass(frozen=True, slots=True)
class ClosedNodes:
    """`text`: which nodes of a partition are closed, and what to do; empty: none. `is_all`: no node takes jobs."""

    text: str = ""
    is_all: bool = False

    def advice(self, reason: str) -> str:
        """What to tell a job that waits for this reason of Slurm's; empty: nothing more."""
        return self.text if self.is_all or NODE_REASON.search(reason) else ""


def find_closed_nodes(nodes: Sequence[SlurmNode], partition: str) -> ClosedNodes:
    """`partition`: of the job; empty: all nodes count."""
    own = [node for node in nodes if not partition or partition in node.partitions]
    closed = [node for node in own if node.states & STUCK_STATES]
    if not closed:
        return ClosedNodes()
    shown = ", ".join(f"{node.name} ({_words(node)})" for node in closed[:NAMES_MAX])
    names = ",".join(node.name for node in closed[:NAMES_MAX])
    more = f" and {len(closed) - NAMES_MAX} more" if len(closed) > NAMES_MAX else ""
    text = (
        f"Slurm keeps {len(closed)} of {len(own)} nodes closed: {shown}{more}. "
        f"An operator sees why with `sinfo -R`, and opens them with `scontrol update NodeName={names} State=RESUME`"
    )
    return ClosedNodes(text, is_all=not any(node.is_open for node in own))


def _words(node: SlurmNode) -> str:
    """The reason that Slurm or an operator gave; else the state."""
    return (node.reason or "+".join(sorted(node.states)).lower())[:WORDS_MAX]
