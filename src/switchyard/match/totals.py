"""Match a demand against groups of equal nodes, exactly: a task never spans nodes."""

from __future__ import annotations

from dataclasses import dataclass

from switchyard.match.demand import Demand
from switchyard.model.graph import Graph, NodeGroup
from switchyard.model.quantity import show_bytes


@dataclass(frozen=True, slots=True)
class Match:
    """It fits; `tasks` is how many such tasks the whole cluster could hold at once."""

    tasks: int


@dataclass(frozen=True, slots=True)
class Misfit:
    """It never fits, and by how much."""

    reason: str


def match(demand: Demand, graph: Graph) -> Match | Misfit:
    """Whether the whole cluster, empty, could run this."""
    holds = [(_tasks_per_node(demand, group), group) for group in graph.groups]
    if not any(per_node for per_node, _ in holds):
        return Misfit(_why_no_node(demand, graph))
    capacity = sum(per_node * group.count for per_node, group in holds)
    if demand.nodes is None:
        if capacity >= demand.tasks:
            return Match(capacity)
        return Misfit(f"asks {demand.tasks} tasks, holds {capacity} of them at once on {graph.nodes} nodes")
    return _match_nodes(demand, holds, capacity)


def _match_nodes(demand: Demand, holds: list[tuple[int, NodeGroup]], capacity: int) -> Match | Misfit:
    """Tasks are spread evenly over exactly `nodes`: `share` on each, one more on the first few."""
    assert demand.nodes is not None
    share, extra = divmod(demand.tasks, demand.nodes)
    full = sum(group.count for per_node, group in holds if per_node >= share + 1)
    enough = sum(group.count for per_node, group in holds if per_node >= share)
    if enough >= demand.nodes and full >= extra:
        return Match(capacity)
    most = share + (1 if extra else 0)
    have = full if extra else enough
    return Misfit(f"asks {demand.nodes} nodes with {most} tasks each, has {have} nodes that hold so many")


def _tasks_per_node(demand: Demand, group: NodeGroup) -> int:
    pairs = (
        (demand.cores, group.cores),
        (demand.gpus, group.gpus),
        (demand.memory_bytes, group.memory_bytes),
        (demand.storage_bytes, group.storage_bytes),
    )
    return min(has // asks for asks, has in pairs if asks)


def _why_no_node(demand: Demand, graph: Graph) -> str:
    """No node holds even one task: name what is short, on the node that has most of it."""
    lacks = []
    for word, asks, most in (
        ("cores", demand.cores, max(group.cores for group in graph.groups)),
        ("gpus", demand.gpus, max(group.gpus for group in graph.groups)),
    ):
        if asks > most:
            lacks.append(f"asks {asks} {word} per task, largest node has {most}")
    for word, asks, most in (
        ("memory", demand.memory_bytes, max(group.memory_bytes for group in graph.groups)),
        ("ephemeral storage", demand.storage_bytes, max(group.storage_bytes for group in graph.groups)),
    ):
        if asks > most:
            lacks.append(f"asks {show_bytes(asks)} {word} per task, largest node has {show_bytes(most)}")
    return "; ".join(lacks) or "no single node has all that one task asks for"
