"""Random small clusters and demands of every form, made so that many fit only just."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from switchyard.match.canonical_jobspec import demand_of_jobspec
from switchyard.match.demand import Demand, Need, PlainResources
from switchyard.match.nextgen_jobspec import demand_of_nextgen
from switchyard.match.plain_demand import demand_of_plain
from switchyard.match.requirement import Requirement, requirements_of
from switchyard.model.graph import AttachedVertex, Graph
from switchyard.model.graph.hash_consing import ShapeTable
from switchyard.model.jobspec.devices import read_device
from tests.match.brute import SPELLINGS

GPUS = ["gpu", "gpu", "gpu:a100", "gpu:h100", "gpu:nvidia_a100_80gb"]
ATTACHED = [
    AttachedVertex("io", {"type": "shm"}),
    AttachedVertex("io", {"type": "nvme", "fast": True}),
    AttachedVertex("system", {"driver": "535.1", "cuda": 12}),
]
REQUIRES = [
    {"name": "io", "field": "type", "match": "shm"},
    {"name": "io", "field": "fast", "match": "true"},
    {"name": "system", "field": "driver", "min": "500", "max": "535"},
]


@st.composite
def graphs(draw: st.DrawFn, *, most: int = 3) -> Graph:
    """cluster > racks? > nodes > sockets? > cores, gpus, memory; sizes, units, attached vertices, nested groups.

    Beside the nodes: storage, cores, and storage nodes with cores.
    """
    cons = ShapeTable("graph")
    few = st.integers(0, most)

    def attached() -> list[AttachedVertex]:
        return draw(st.lists(st.sampled_from(ATTACHED), max_size=2, unique_by=repr)) if draw(st.booleans()) else []

    def put(below: dict[int, int], number: int, count: int) -> None:
        if count:
            below[number] = below.get(number, 0) + count

    def leaves(below: dict[int, int]) -> None:
        put(below, cons.shape("core", size=draw(st.integers(1, 2)), attached=attached()), draw(few))
        for _ in range(draw(st.integers(0, 2))):
            spelling = draw(st.sampled_from(["", *SPELLINGS]))
            put(below, cons.shape("gpu", properties={"type": spelling} if spelling else {}, attached=attached()), 1)

    def node() -> int:
        below: dict[int, int] = {}
        if draw(st.booleans()):
            for _ in range(draw(st.integers(1, 2))):
                inside: dict[int, int] = {}
                leaves(inside)
                put(below, cons.shape("socket", attached=attached(), children=inside), draw(st.integers(1, 2)))
        leaves(below)
        if draw(st.booleans()):
            put(below, cons.shape("memory", size=draw(st.integers(0, most)), unit=draw(st.sampled_from(["B", ""]))), 1)
        return cons.shape(
            "node", properties=draw(st.sampled_from([{}, {"fast": True}])), attached=attached(), children=below
        )

    def nodes() -> dict[int, int]:
        below: dict[int, int] = {}
        for _ in range(draw(st.integers(1, 2))):
            put(below, node(), draw(st.integers(1, 2)))
        return below

    def beside(below: dict[int, int]) -> dict[int, int]:
        """Add vertices that are no nodes and contain none."""
        kinds = draw(st.sampled_from([(), (), (), ("ssd",), ("storage_node",), ("ssd", "storage_node"), ("core",)]))
        for kind in kinds:
            inside: dict[int, int] = {}
            if kind == "storage_node":
                put(inside, cons.shape("core"), draw(st.integers(0, 2)))
                put(inside, cons.shape("ssd"), draw(st.integers(0, 1)))
            put(below, cons.shape(kind, size=draw(st.integers(1, 2)), attached=attached(), children=inside), 1)
        return below

    top: dict[int, int] = {}
    for _ in range(draw(st.integers(0, 2))):
        rack = cons.shape("rack", attached=attached(), children=beside(nodes()))
        if draw(st.integers(0, 5)) == 0:
            rack = cons.shape("rack", children={rack: 1, **nodes()})  # a rack in a rack
        put(top, rack, draw(st.integers(1, 2)))
    if not top or draw(st.booleans()):
        for number, count in (nodes() if draw(st.integers(0, 5)) else {cons.shape("core"): 3}).items():
            put(top, number, count)
    beside(top)
    return Graph(cons.finish(cons.shape("cluster", children=top)).shapes)


def _resource(draw: st.DrawFn, types: list[str], depth: int, *, most: int) -> dict[str, Any]:
    kind = draw(st.sampled_from(types))
    made: dict[str, Any] = {"type": kind, "count": draw(st.integers(1, most))}
    inner = {
        "rack": ["node", "slot", "core", "gpu", "ssd", "storage_node"],
        "node": ["socket", "slot", "core", "gpu", "memory"],
        "slot": ["core", "gpu", "memory", "socket", "node", "rack", "ssd", "storage_node", "slot"],
        "storage_node": ["core", "slot", "ssd"],
        "socket": ["core", "gpu", "slot"],
    }.get(kind)
    if inner and depth < 3:
        made["with"] = [_resource(draw, inner, depth + 1, most=most) for _ in range(draw(st.integers(1, 2)))]
    if kind == "gpu":
        made["type"] = draw(st.sampled_from(GPUS))
    if kind == "memory" and draw(st.booleans()):
        made["unit"] = "B"
    if draw(st.integers(0, 4)) == 0 and (kind != "slot" or depth == 0):
        made["requires"] = [draw(st.sampled_from(REQUIRES))]
    return made


@st.composite
def canonical(draw: st.DrawFn, *, most: int = 2) -> Demand:
    types = ["rack", "node", "slot", "slot", "socket", "core", "gpu", "ssd", "storage_node"]
    made = [_resource(draw, types, 0, most=most) for _ in range(draw(st.integers(1, 2)))]
    return demand_of_jobspec({"resources": made})


@st.composite
def nextgen(draw: st.DrawFn, *, most: int = 2) -> Demand:
    groups = {}
    for name in ("a", "b")[: draw(st.integers(1, 2))]:
        group = _resource(draw, ["rack", "node", "socket", "core", "task", "slot", "ssd"], 0, most=most)
        if group["type"] == "task":
            group["with"] = [_resource(draw, ["core", "gpu", "node", "ssd"], 1, most=most)]
        if draw(st.booleans()):
            group["replicas"] = group.pop("count")
        if draw(st.integers(0, 4)) == 0:
            group["schedule"] = True
        groups[name] = group
    return demand_of_nextgen({"resources": groups})


@st.composite
def plain(draw: st.DrawFn, *, most: int = 4) -> Demand:
    tasks = draw(st.integers(1, most))
    asked = PlainResources(
        tasks=tasks,
        nodes=draw(st.none() | st.integers(1, tasks)),
        cores=draw(st.integers(1, 3)),
        gpus=draw(st.integers(0, 1)),
        memory_bytes=draw(st.integers(0, 2)),
    )
    requires = (Requirement("io", "type", match="shm"),) if draw(st.integers(0, 3)) == 0 else ()
    typed, further = (read_device(draw(st.sampled_from(GPUS))) for _ in range(2))
    devices = (Need("gpu", 1, requires=requirements_of(further)),) if further.type and draw(st.booleans()) else ()
    return demand_of_plain(replace(asked, gpu_requires=requirements_of(typed), devices=devices), requires)


def demands(*, most: int = 2) -> st.SearchStrategy[Demand]:
    return st.one_of(canonical(most=most), nextgen(most=most), plain(most=2 * most))
