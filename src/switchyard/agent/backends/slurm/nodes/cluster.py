"""The cluster's graph and load, asked regularly. The last answer is stored for a start while Slurm is down."""

from __future__ import annotations

import re
import sys
import time

from msgspec import Struct

from switchyard.agent.backends import Setting
from switchyard.agent.backends.shared.cluster_facts import ClusterFactsFile
from switchyard.agent.backends.shared.node_systems import NodeSystems, own_program
from switchyard.agent.backends.slurm.commands import command_lines
from switchyard.agent.backends.slurm.commands.command_runner import CommandRunner
from switchyard.agent.backends.slurm.commands.parse import read_config
from switchyard.agent.backends.slurm.nodes.closed_nodes import ClosedNodes, find_closed_nodes
from switchyard.agent.backends.slurm.nodes.excluded_nodes import constraint_of, find_excluded_nodes
from switchyard.agent.backends.slurm.nodes.node_systems import ask_slurm_nodes
from switchyard.agent.backends.slurm.nodes.nodes import (
    Partitions,
    SlurmNode,
    count_jobs,
    graph_of,
    load_from_nodes,
    read_nodes,
    read_partitions,
)
from switchyard.model.cluster.cluster import Load
from switchyard.model.graph import Graph
from switchyard.model.job.job import JobSpec

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
        self._systems = self._follow_systems() if setting.site.slurm.discover_nodes else None
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

    def excluded_for(self, spec: JobSpec) -> str:
        """The nodes that the job's constraint excludes; Slurm is asked only if it has one."""
        if not constraint_of(spec):
            return ""
        nodes = self._nodes or read_nodes(self._caller.ask(command_lines.show_nodes()))
        return find_excluded_nodes(spec, self.graph, {node.name for node in nodes})

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
        self._next_at = begun + self._setting.site.slurm.state_s  # also after a failure
        nodes = self._nodes = read_nodes(self._caller.ask(command_lines.show_nodes()))
        self._closed = {}
        if self._systems is not None:
            self._systems.note_up({node.name for node in nodes if node.is_open})
        running, queued = count_jobs(self._caller.ask(command_lines.squeue_depth()))
        before, self.load = self.load, load_from_nodes(nodes, self.graph, running=running, queued=queued)
        took_s = time.monotonic() - begun
        self._next_at = time.monotonic() + max(self._setting.site.slurm.state_s, took_s * BUSY_SHARE)
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
            or graph_of(read_nodes(self._caller.ask(command_lines.show_nodes())), where="scontrol show nodes"),
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
