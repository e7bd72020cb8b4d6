"""The instance's graph and load, asked regularly. The last graph is stored for a start while the instance is down."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from switchyard.agent.backends import Setting
from switchyard.agent.backends.shared.cluster_facts import ClusterFactsFile
from switchyard.agent.backends.shared.node_systems import NodeSystems, own_program
from switchyard.errors import Unavailable
from switchyard.features.flux.agent.broker.connection import BrokerConnection
from switchyard.features.flux.agent.cluster.node_systems import ask_flux_nodes
from switchyard.features.flux.agent.cluster.resource_sets import (
    FluxNode,
    graph_of,
    nodes_of,
    read_drained,
    read_expiration_s,
    with_queues,
)
from switchyard.features.flux.agent.flux_site import flux_of
from switchyard.model.cluster.cluster import Load, NodeRest, load_of
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
        self._systems = _node_systems(setting) if flux_of(setting.site).discover_nodes else None
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
        self._next_at = now + flux_of(self._setting.site).state_s  # also after a failure
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
    program, site, environment = own_program(sys.argv), flux_of(setting.site), setting.environment
    return NodeSystems(
        setting.directory / "systems.json",
        lambda nodes: ask_flux_nodes(site, environment, nodes, program=program),
    )


def _table(value: object) -> Mapping[str, Any]:
    """A table of an answer; what is missing, or is an error, is an empty one."""
    return value if isinstance(value, Mapping) and "errno" not in value else {}


Queues = Mapping[str, Mapping[str, Any]]  # name → Flux's answer about the queue; "": the only queue, without a name


def waiting_reasons(queues: Queues, nodes: Sequence[FluxNode]) -> dict[str, str]:
    """The reason for each queue that has one."""
    rows = (queues or {"": {}}).items()
    reasons = {name: _stop_reason(name, state) or _node_reason(name, nodes) for name, state in rows}
    return {name: f"waits at the cluster: {reason}" for name, reason in reasons.items() if reason}


def disabled_reason(name: str, queues: Queues) -> str:
    """Why a queue takes no jobs now; empty: it takes them, or is not known."""
    state = (queues or {"": {}}).get(name, {})
    if state.get("enable") is not False:
        return ""
    return f"{_show(name)} takes no jobs{_suffix(state.get('disable_reason'))}"


def _stop_reason(name: str, state: Mapping[str, Any]) -> str:
    return "" if state.get("start") is not False else f"{_show(name)} is stopped{_suffix(state.get('stop_reason'))}"


def _node_reason(name: str, nodes: Sequence[FluxNode]) -> str:
    members = [node for node in nodes if not name or f"queue/{name}" in node.properties]
    drained = sum(1 for node in members if node.is_drained)
    down = sum(1 for node in members if node.is_down and not node.is_drained)
    if not drained and not down:
        return ""
    counts = [f"{count} {word}" for count, word in ((drained, "drained"), (down, "down")) if count]
    return f"{drained + down} of {len(members)} nodes of {_show(name)} take no jobs ({', '.join(counts)})"


def _show(name: str) -> str:
    return f"the queue {name}" if name else "the queue"


def _suffix(reason: object) -> str:
    return f": {reason}" if reason else ""


WAITING_STATES = ("depend", "priority", "sched")
RUNNING_STATES = ("run", "cleanup")


def load_from_nodes(
    nodes: Sequence[FluxNode], graph: Graph, *, stats: Mapping[str, Any], queues: Mapping[str, Any]
) -> Load:
    """Free resources of nodes that take jobs, and how many nodes take none."""
    # An operator's graph may have other names: then the shape is found by what the node has.
    shapes = {(kind.cores, kind.gpus, frozenset(kind.properties)): kind.shape for kind in graph.kinds}
    by_host = dict(zip(graph.host_names, graph.host_shapes(), strict=True))
    free: Counter[NodeRest] = Counter()
    for node in nodes:
        shape = by_host.get(node.host, shapes.get((node.total.cores, node.total.gpus, node.properties)))
        free[shape, node.free.cores, node.free.gpus, 0, ()] += 1
    states = stats.get("job_states") or {}
    load = load_of(
        free,
        signature=graph.signature,
        running=_sum(states, RUNNING_STATES),
        queued=_sum(states, WAITING_STATES),
        values={
            "nodes_free": sum(1 for node in nodes if not node.is_down and not node.used.cores),
            "nodes_down": sum(1 for node in nodes if node.is_down and not node.is_drained),
            "nodes_closed": sum(1 for node in nodes if node.is_drained),
            "queues_stopped": sum(1 for queue in queues.values() if queue.get("start") is False),
            "queues_disabled": sum(1 for queue in queues.values() if queue.get("enable") is False),
        },
    )
    return replace(load, free_memory_bytes=_free_memory_bytes(graph, load))


def _free_memory_bytes(graph: Graph, load: Load) -> int | None:
    """Flux does not count memory. If the operator's graph has some, its free part is taken to be that of the cores.

    None: nobody knows; 0 would say that no memory is free.
    """
    if not graph.memory_bytes or not graph.cores:
        return None
    return graph.memory_bytes * (load.free_cores or 0) // graph.cores


def _sum(states: Mapping[str, int], names: Iterable[str]) -> int:
    return sum(states.get(name, 0) for name in names)
