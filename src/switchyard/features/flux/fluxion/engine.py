"""Asks Fluxion's program `resource-query` whether a job fits: one process for each question.

It is for comparing answers: it starts a program for each question, and gives no number of slots. Graphs and demands are
written as Fluxion reads them: JGF and a canonical jobspec. The engine does not decide what Fluxion has no word for.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from math import gcd
from pathlib import Path
from typing import Any

from switchyard.errors import Internal
from switchyard.match.demand import Demand, Need, NeedKind, walk_needs
from switchyard.match.engine import Match, Misfit
from switchyard.match.requirement import Requirement
from switchyard.match.tree import forest_of
from switchyard.model.graph import Graph
from switchyard.model.graph.graph import Shape
from switchyard.model.graph.units import bytes_of

PROGRAM = "resource-query"
ANSWER_S = 60.0  # of one question; a graph of 200,000 vertices takes some seconds
YES, NO = "RESOURCES=ALLOCATED", "No matching resources found"
VERTICES_MAX = 200_000  # Fluxion reads such a graph in some seconds
PARTS_MAX = 256  # vertices that stand for one amount of memory; a larger number of units stays one vertex
COUNT_MAX = 2**31 - 1  # Fluxion's counts are integers of 32 bits
HOST_LEVELS = frozenset({"node"})  # stay in every graph: a slot lies in one host
SLOT_LABEL = "task"
BYTES = "B"
VERSION = 9999


class FluxionEngine:
    """Needs `resource-query` of flux-sched in the PATH."""

    def __init__(self) -> None:
        program = shutil.which(PROGRAM)
        if program is None:
            raise Internal(
                f"The match engine fluxion needs the program {PROGRAM} in the PATH of the server.",
                next_step="Install flux-sched with its utilities, or choose another engine.",
            )
        self._program = program

    def satisfy(self, demand: Demand, graph: Graph) -> Match | Misfit:
        try:
            question = question_of(demand, graph)
        except NotExpressible as exc:
            return Match(undecided=f"Fluxion cannot be asked: {exc}")
        if not question.jobspecs:
            return Match()
        for jobspec in question.jobspecs:  # each in a process of its own: an allocation takes room from the next
            output = self._allocate(question.jgf, jobspec)
            if NO in output:
                return Misfit("fluxion", "Fluxion finds no matching resources")
            if YES not in output:
                return Match(undecided="Fluxion gave no answer")
        return Match()

    def _allocate(self, jgf: dict[str, Any], jobspec: dict[str, Any]) -> str:
        """What Fluxion prints when it allocates the jobspec in the empty graph. Its check of satisfiability alone says
        yes to types that it does not know.
        """
        with tempfile.TemporaryDirectory(prefix="switchyard-fluxion-") as name:
            folder = Path(name)
            (folder / "graph.json").write_text(json.dumps(jgf), encoding="utf-8")
            (folder / "job.json").write_text(json.dumps(jobspec), encoding="utf-8")
            words = [self._program, "-L", "graph.json", "-f", "jgf", "-S", "CA", "-P", "low"]
            try:
                done = subprocess.run(
                    words,
                    cwd=folder,
                    input="match allocate job.json\nquit\n",
                    capture_output=True,
                    text=True,
                    timeout=ANSWER_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return ""
        return done.stdout


class NotExpressible(Exception):
    """Fluxion has no word for this part of a demand or a graph."""


@dataclass(frozen=True, slots=True)
class Question:
    """A graph and the jobspecs to ask about it: all must be satisfiable. No jobspec: the demand fits everywhere."""

    jgf: dict[str, Any]
    jobspecs: list[dict[str, Any]]


def question_of(demand: Demand, graph: Graph) -> Question:
    """Needs that must fit together are one jobspec; otherwise each need is one."""
    if demand.constraint is not None:
        raise NotExpressible("it has a constraint on hosts")
    unit_bytes = _unit_bytes(demand, graph)
    groups = [demand.needs] if demand.is_together else [(need,) for need in demand.needs]
    jobspecs = [_jobspec(_resources(needs, demand.nodes, unit_bytes)) for needs in groups if needs]
    levels = HOST_LEVELS | {need.type for need, _ in walk_needs(demand.needs)}
    return Question(_jgf(graph, unit_bytes, levels, _of_other_types(demand, graph)), jobspecs)


def _of_other_types(demand: Demand, graph: Graph) -> frozenset[int]:
    """Shapes that the graph for Fluxion leaves out: devices that are not of the type for which the demand asks."""
    asked: dict[str, set[tuple[Requirement, ...]]] = {}
    for need, _ in walk_needs(demand.needs):
        asked.setdefault(need.type, set()).add(need.hardware)
    if any(len(types) > 1 for types in asked.values()):
        raise NotExpressible("it asks for devices of several types")
    trees = forest_of(graph).trees
    only = {kind: requires for kind, types in asked.items() for requires in types if requires}
    return frozenset(
        index
        for index, tree in enumerate(trees)
        if not all(requirement.is_met(tree.attached) for requirement in only.get(tree.type, ()))
    )


def _unit_bytes(demand: Demand, graph: Graph) -> dict[str, int]:
    """For each type that the demand counts in bytes, the largest unit in which all its sizes are whole numbers."""
    needs = [need for need, _ in walk_needs(demand.needs)]
    types = {need.type for need in needs if need.unit == BYTES}
    if any(need.type in types and need.unit != BYTES for need in needs):
        raise NotExpressible("it counts one type in bytes and in other units")
    return {
        kind: gcd(
            *(need.count for need in needs if need.type == kind),
            *(_size_bytes(shape) for shape in graph.shapes if shape.type == kind),
        )
        for kind in types
    }


def _size_bytes(shape: Shape) -> int:
    size_bytes = bytes_of(shape.type, shape.size, shape.unit)
    if size_bytes is None:
        raise NotExpressible(f"the graph does not count {shape.type} in bytes")
    return size_bytes


def _jgf(graph: Graph, unit_bytes: Mapping[str, int], levels: Set[str], left_out: Set[int]) -> dict[str, Any]:
    """The graph with a vertex for each that the shapes stand for, as far as its type is in `levels`.

    Fluxion skips no level between two levels of a jobspec: the cores of a slot must be direct children of one vertex,
    and `node → slot → core` matches no node whose cores are in sockets. So the graph has only the levels that the
    demand names. The children of a vertex that is left out are children of the vertex above it.
    """
    if graph.vertices > VERTICES_MAX:
        raise NotExpressible(f"the graph has over {VERTICES_MAX} vertices")
    vertices: list[dict[str, Any]] = []
    edges: list[dict[str, Any]] = []
    numbers: dict[str, int] = {}  # of each type so far: ids of one type differ

    def add(index: int, parent: str | None, path: str, rank: int) -> None:
        shape = graph.shapes[index]
        if parent is not None and (shape.type not in levels or index in left_out):
            add_children(shape, parent, path, rank)
            return
        size = _size_bytes(shape) // unit_bytes[shape.type] if shape.type in unit_bytes else shape.size
        # A slot takes whole vertices. So an amount is several vertices of one unit each, for several slots to share it.
        parts = size if shape.type in unit_bytes and not shape.children and size <= PARTS_MAX else 1
        for _ in range(parts):
            number = numbers[shape.type] = numbers.get(shape.type, -1) + 1
            rank = number if shape.type == "node" else rank
            name, own = f"{shape.type}{number}", str(len(vertices))
            metadata = {
                **{"type": shape.type, "basename": shape.type, "name": name, "id": number, "uniq_id": len(vertices)},
                **{"rank": rank, "exclusive": False, "unit": "", "size": size // parts},
                "paths": {"containment": f"{path}/{name}"},
            }
            vertices.append({"id": own, "metadata": metadata})
            if parent is not None:
                edges.append({"source": parent, "target": own, "metadata": {"subsystem": "containment"}})
            add_children(shape, own, f"{path}/{name}", rank)

    def add_children(shape: Shape, parent: str, path: str, rank: int) -> None:
        for child, count in shape.children:
            for _ in range(count):
                add(child, parent, path, rank)

    add(graph.root, None, "", -1)
    return {"graph": {"nodes": vertices, "edges": edges}}


def _jobspec(resources: list[dict[str, Any]]) -> dict[str, Any]:
    slots = sum(vertex["type"] == "slot" for vertex in _walk(resources))
    if slots > 1:
        raise NotExpressible("it has several slots, which are alternatives to Fluxion")
    if not slots:
        raise NotExpressible("it has no slot")
    return {
        "version": VERSION,
        "resources": resources,
        "tasks": [{"command": ["true"], "slot": SLOT_LABEL, "count": {"per_slot": 1}}],
        "attributes": {"system": {"duration": 0}},
    }


def _resources(needs: tuple[Need, ...], nodes: int | None, unit_bytes: Mapping[str, int]) -> list[dict[str, Any]]:
    written = [_vertex(need, unit_bytes) for need in needs]
    if nodes is None:
        return written
    if len(needs) != 1 or needs[0].count != nodes:
        raise NotExpressible("its tasks may be spread unevenly over its nodes")
    return [{"type": "node", "count": nodes, "with": [{**written[0], "count": 1}]}]


def _vertex(need: Need, unit_bytes: Mapping[str, int]) -> dict[str, Any]:
    if need.kind is NeedKind.PLACE or need.is_slot_if_absent or need.is_distinct or need.hardware != need.requires:
        raise NotExpressible("it has a requirement, or a form of Rainbow's")
    count = need.count // unit_bytes[need.type] if need.unit == BYTES else need.count
    if count > COUNT_MAX:
        raise NotExpressible(f"it asks for over {COUNT_MAX} {need.type}")
    written: dict[str, Any] = {"type": need.type, "count": count}
    if need.kind is NeedKind.SLOT:
        written |= {"type": "slot", "label": SLOT_LABEL}
    if need.holds:
        written["with"] = [_vertex(inner, unit_bytes) for inner in need.holds]
    elif need.kind is NeedKind.SLOT:
        raise NotExpressible("it has an empty slot")
    return written


def _walk(resources: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for vertex in resources:
        yield vertex
        yield from _walk(vertex.get("with", []))
