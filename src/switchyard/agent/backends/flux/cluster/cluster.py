"""The instance's graph and load, asked regularly. The last graph is stored for a start while the instance is down."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from switchyard.agent.backends import Setting
from switchyard.agent.backends.flux.broker.connection import BrokerConnection
from switchyard.agent.backends.flux.cluster.load import load_from_nodes
from switchyard.agent.backends.flux.cluster.node_systems import ask_flux_nodes
from switchyard.agent.backends.flux.cluster.resource_sets import (
    FluxNode,
    graph_of,
    nodes_of,
    read_drained,
    read_expiration_s,
    with_queues,
)
from switchyard.agent.backends.flux.cluster.waiting_reasons import disabled_reason, waiting_reasons
from switchyard.agent.backends.shared.cluster_facts import ClusterFactsFile
from switchyard.agent.backends.shared.node_systems import NodeSystems, own_program
from switchyard.errors import Unavailable
from switchyard.model.cluster.cluster import Load
from switchyard.model.graph import Graph

WHERE = "the resources of the Flux instance"


class FluxClusterInfo(Struct, frozen=True):
    """Facts that rarely change."""

    graph: Graph
    queues: tuple[str, ...] = ()
    default_queue: str = ""
    expires_s: float | None = None  # when the instance ends, in seconds since 1970


class FluxCluster:
    """`look` and `refresh` belong to one thread each; their results are read by any thread."""

    def __init__(self, setting: Setting, connection: BrokerConnection) -> None:
        self._setting = setting
        self._connection = connection
        self._facts_file = ClusterFactsFile(setting.directory / "cluster.json", FluxClusterInfo)
        self._next_at = 0.0
        self.nodes: list[FluxNode] = []  # from the last query
        self._waiting_reasons: dict[str, str] = {}  # queue → why its jobs wait, from the last query
        self._info = self._facts_file.ask_or_read(self._ask_info)
        self._systems = _node_systems(setting) if setting.site.flux.discover_nodes else None
        self.graph = self._described()
        self.load = Load(signature=self.graph.signature)

    @property
    def default_queue(self) -> str:
        return self._info.default_queue

    @property
    def expires_s(self) -> float | None:
        """When the instance ends, in seconds since 1970; None: it has no end."""
        return self._info.expires_s

    def look(self) -> bool:
        """Ask for the facts that rarely change. True: the graph changed."""
        before, self._info = self._info, self._ask_info()
        if self._info != before:
            self._facts_file.write(self._info)
        graph, self.graph = self.graph, self._described()
        return self.graph != graph

    def refresh(self) -> bool:
        """Ask what is free, if it is due. True: it changed."""
        now = time.monotonic()
        if now < self._next_at:
            return False
        self._next_at = now + self._setting.site.flux.state_s  # also after a failure
        before, self.load = self.load, self._load_of(self._ask())
        return before != self.load

    @property
    def has_waiting_reasons(self) -> bool:
        return bool(self._waiting_reasons)

    def waiting_reason(self, queue: str) -> str:
        """Why jobs wait in the queue; empty: it may be full. `queue`: empty for the default."""
        return self._waiting_reasons.get(queue or self.default_queue, "")

    def ask_disabled_reason(self, queue: str) -> str:
        """Ask why the queue takes no jobs; empty: it takes them. `queue`: empty for the default."""
        return disabled_reason(queue or self.default_queue, _table(self._ask()["queues"]))

    def close(self) -> None:
        if self._systems is not None:
            self._systems.close()

    def _described(self) -> Graph:
        """The graph with the systems of the nodes, as far as they are known."""
        return self._info.graph if self._systems is None else self._systems.attached_to(self._info.graph)

    def _ask(self) -> dict[str, Any]:
        answer: dict[str, Any] = self._connection.call("cluster")
        for part in ("resources", "stats"):
            if problem := (answer[part] or {}).get("error"):
                raise Unavailable(f"Flux does not tell its {part}: {problem}", next_step="Is a scheduler loaded?")
        return answer

    def _ask_info(self) -> FluxClusterInfo:
        answer = self._ask()
        config = _table(answer["config"])
        queues = _table(config.get("queues"))
        resources = self._resources(answer)
        defaults = _table(_table(_table(config.get("policy")).get("jobspec")).get("defaults")).get("system")
        return FluxClusterInfo(
            graph=self._setting.graph or graph_of(resources, where=WHERE),
            queues=tuple(queues),
            default_queue=str(_table(defaults).get("queue", "")),
            expires_s=read_expiration_s(_table(answer["status"]).get("R") or resources),
        )

    def _load_of(self, answer: Mapping[str, Any]) -> Load:
        resources = answer["resources"]
        self.nodes = nodes_of(
            self._resources(answer),
            allocated=resources.get("allocated"),
            down=resources.get("down"),
            drained=read_drained(_table(answer["status"])),
        )
        self._waiting_reasons = waiting_reasons(_table(answer["queues"]), self.nodes)
        if self._systems is not None:
            self._systems.note_up({node.host for node in self.nodes if not node.is_down and node.host})
        return load_from_nodes(self.nodes, self.graph, stats=answer["stats"], queues=_table(answer["queues"]))

    def _resources(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """All resources, with a property for each queue that a node serves."""
        everything = answer["resources"].get("all") or {}
        scheduling = _table(_table(answer["status"]).get("R")).get("scheduling")
        resources = with_queues(everything, _table(_table(answer["config"]).get("queues")))
        return {**resources, "scheduling": scheduling} if scheduling else resources


def _node_systems(setting: Setting) -> NodeSystems:
    program, site, environment = own_program(sys.argv), setting.site.flux, setting.environment
    return NodeSystems(
        setting.directory / "systems.json",
        lambda nodes: ask_flux_nodes(site, environment, nodes, program=program),
    )


def _table(value: object) -> Mapping[str, Any]:
    """A table of an answer; what is missing, or is an error, is an empty one."""
    return value if isinstance(value, Mapping) and "errno" not in value else {}
