"""The edges of a compiled workflow, and whether every node can run: no cycle, and a way from the start."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flyteidl.core import compiler_pb2

from switchyard.features.flyte.workflow.compile.mistakes import Mistakes
from switchyard.features.flyte.workflow.values.limits import EDGES_MAX

START, END = "start-node", "end-node"


class TooManyEdges(Exception):
    """The nodes of a workflow wait for too many others."""


@dataclass
class EdgeRoom:
    """Counts the edges of a workflow with its sub-workflows, before they are stored."""

    left: int = EDGES_MAX

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise TooManyEdges


@dataclass
class Connections:
    """`upstream` has nodes inside branches and the failure node too, `downstream` only nodes at the top.

    `waits_in_branch`: what the nodes inside a branch wait for, by the branch at the top.
    """

    room: EdgeRoom = field(default_factory=EdgeRoom)
    upstream: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    downstream: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    waits_in_branch: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def add(self, node: str, upstream: Collection[str]) -> None:
        self.room.take(len(upstream))
        for other in upstream:
            self.upstream[node].add(other)
            self.downstream[other].add(node)

    def add_upstream(self, node: str, upstream: Collection[str]) -> None:
        self.room.take(len(upstream))
        for other in upstream:
            self.upstream[node].add(other)

    def close_ends(self, nodes: Iterable[str]) -> None:
        """Give every node at the top a way from the start and to the end, so that everything runs."""
        for node in nodes:
            if not self.upstream.get(node):
                self.add(node, [START])
            if not self.downstream.get(node):
                self.add(END, [node])

    def as_message(self) -> Any:
        return compiler_pb2.ConnectionSet(upstream=_lists(self.upstream), downstream=_lists(self.downstream))

    def check(self, nodes: Iterable[str], mistakes: Mistakes, where: str) -> None:
        """Report nodes that can never run."""
        reached = self._reached()
        unreachable = sorted(set(nodes) - reached)
        if unreachable:
            mistakes.add(
                "UnreachableNodes", where, f"The Workflow contains unreachable nodes [{','.join(unreachable)}]."
            )
        cycle = self._cycle(reached)
        if cycle:
            mistakes.add("CycleDetected", where, f"A cycle has been detected while traversing [{'>'.join(cycle)}].")

    def _reached(self) -> set[str]:
        reached, waiting = {START}, deque([START])
        while waiting:
            for node in self.downstream.get(waiting.popleft(), ()):
                if node not in reached:
                    reached.add(node)
                    waiting.append(node)
        return reached

    def _cycle(self, nodes: set[str]) -> list[str]:
        """One cycle among these nodes. A branch waits for what its nodes wait for."""
        waits = {
            node: (self.upstream.get(node, set()) | self.waits_in_branch.get(node, set())) & nodes for node in nodes
        }
        followers: dict[str, list[str]] = defaultdict(list)
        for node, others in waits.items():
            for other in others:
                followers[other].append(node)
        left = {node: len(others) for node, others in waits.items()}
        ready = deque(node for node, count in left.items() if not count)
        while ready:
            node = ready.popleft()
            del left[node]
            for follower in followers[node]:
                left[follower] -= 1
                if not left[follower]:
                    ready.append(follower)
        return _walk_back(min(left), waits, left) if left else []


def _walk_back(node: str, waits: Mapping[str, set[str]], left: Mapping[str, int]) -> list[str]:
    """Walk from a node that never becomes ready to one that it waits for, until a node comes twice."""
    path = [node]
    seen = {node: 0}
    while True:
        node = min(waits[node] & left.keys())
        path.append(node)
        if node in seen:
            return path[seen[node] :][::-1]
        seen[node] = len(path) - 1


def _lists(edges: Mapping[str, set[str]]) -> dict[str, Any]:
    return {node: compiler_pb2.ConnectionSet.IdList(ids=sorted(others)) for node, others in edges.items() if others}
