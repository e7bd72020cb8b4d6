"""What the cluster has and how busy it is, asked now and then; the last answer is kept for a start without one."""

from __future__ import annotations

import contextlib
import logging
import re
import time
from pathlib import Path

import msgspec
from msgspec import Struct

from switchyard.agent.backends import Setting
from switchyard.agent.backends.slurm import command_lines
from switchyard.agent.backends.slurm.command_runner import CommandRunner
from switchyard.agent.backends.slurm.excluded_nodes import constraint_of, find_excluded_nodes
from switchyard.agent.backends.slurm.nodes import (
    Partitions,
    SlurmNode,
    count_jobs,
    graph_of,
    load_from_nodes,
    read_nodes,
    read_partitions,
)
from switchyard.agent.backends.slurm.parse import read_config
from switchyard.agent.log import line
from switchyard.errors import YardError
from switchyard.model.cluster import Load
from switchyard.model.graph import Graph
from switchyard.model.job import JobSpec

MEMORY_SAMPLE_S = 30  # Slurm's own default of how often it looks what memory a job uses
ARRAY_SIZE_DEFAULT = 1001  # Slurm's own default of MaxArraySize
BUSY_SHARE = 20  # of its time at most a twentieth goes into looking at the nodes

log = logging.getLogger(__name__)


class CachedClusterInfo(Struct, frozen=True):
    """What changes seldom."""

    graph: Graph
    partitions: tuple[str, ...] = ()
    default: str = ""
    has_accounts: bool = False
    array_size_max: int = ARRAY_SIZE_DEFAULT
    sample_s: int = MEMORY_SAMPLE_S


class SlurmCluster:
    """`look` and `refresh` belong to one thread each; what they found is read by any."""

    def __init__(self, setting: Setting, caller: CommandRunner) -> None:
        self._setting = setting
        self._caller = caller
        self._path = setting.directory / "cluster.json"
        self._next_at = 0.0
        try:
            self._kept = self._ask()
        except YardError as exc:
            kept = _read(self._path)
            if kept is None:
                raise
            log.warning(line("cluster-silent", error=exc.detail))
            self._kept = kept
        self._keep()
        self.load = Load(signature=self._kept.graph.signature)
        self._nodes: list[SlurmNode] = []  # as they were when it was last asked what is free

    @property
    def graph(self) -> Graph:
        return self._kept.graph

    @property
    def partitions(self) -> Partitions:
        return Partitions(self._kept.partitions, self._kept.default)

    @property
    def has_accounts(self) -> bool:
        return self._kept.has_accounts

    @property
    def array_size_max(self) -> int:
        return self._kept.array_size_max

    @property
    def sample_s(self) -> int:
        return self._kept.sample_s

    def excluded_for(self, spec: JobSpec) -> str:
        """The nodes that the job's own constraint rules out; asked for only if it has one."""
        if not constraint_of(spec):
            return ""
        nodes = self._nodes or read_nodes(self._caller.ask(command_lines.show_nodes()))
        return find_excluded_nodes(spec, self.graph, {node.name for node in nodes})

    def look(self) -> bool:
        """Ask for all that changes seldom; true: the graph is another."""
        before, self._kept = self._kept, self._ask()
        if self._kept != before:
            self._keep()
        return self._kept.graph != before.graph

    def refresh(self) -> bool:
        """Ask what is free, if it is time to; true: it was another."""
        begun = time.monotonic()
        if begun < self._next_at:
            return False
        self._next_at = begun + self._setting.site.slurm.state_s  # also after a failure
        nodes = self._nodes = read_nodes(self._caller.ask(command_lines.show_nodes()))
        running, queued = count_jobs(self._caller.ask(command_lines.squeue_depth()))
        before, self.load = self.load, load_from_nodes(nodes, self.graph, running=running, queued=queued)
        took_s = time.monotonic() - begun
        self._next_at = time.monotonic() + max(self._setting.site.slurm.state_s, took_s * BUSY_SHARE)
        return before != self.load

    def _ask(self) -> CachedClusterInfo:
        config = read_config(self._caller.ask(command_lines.show_config()))
        partitions = read_partitions(self._caller.ask(command_lines.show_partitions()))
        given = self._setting.graph
        size = config.get("MaxArraySize", "")
        return CachedClusterInfo(
            graph=given
            or graph_of(read_nodes(self._caller.ask(command_lines.show_nodes())), where="scontrol show nodes"),
            partitions=partitions.names,
            default=partitions.default,
            has_accounts="slurmdbd" in config.get("AccountingStorageType", ""),
            array_size_max=int(size) if size.isdigit() else ARRAY_SIZE_DEFAULT,
            sample_s=_sample_s(config.get("JobAcctGatherFrequency", "")),
        )

    def _keep(self) -> None:
        with contextlib.suppress(OSError):  # a full disk: then the next start needs an answer
            new = self._path.with_suffix(".new")
            new.write_bytes(msgspec.json.encode(self._kept))
            new.rename(self._path)


def _sample_s(text: str) -> int:
    """`30`, `task=30,energy=0`."""
    found = re.search(r"(?:^|task=)([0-9]+)", text)
    return int(found[1]) if found else MEMORY_SAMPLE_S


def _read(path: Path) -> CachedClusterInfo | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=CachedClusterInfo)
    except (OSError, msgspec.DecodeError):
        return None
