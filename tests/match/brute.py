"""Placing by trying every place, unit by unit: what matching means, in the plainest words. Only for tiny clusters."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from switchyard.match.demand import Demand, Need, NeedKind
from switchyard.match.requirement import Requirement
from switchyard.model.graph import AttachedVertex, Graph
from switchyard.model.graph.units import bytes_of


@dataclass
class Vertex:
    type: str
    size: int
    bytes: int
    attached: list[AttachedVertex]
    hardware: str  # the type that it tells of itself, as its site spells it
    parent: Vertex | None
    children: list[Vertex] = field(default_factory=list)
    taken: int = 0  # of its size; bytes are not mixed with counts in one example
    users: list[Need] = field(default_factory=list)

    def all_below(self) -> list[Vertex]:
        return [found for child in self.children for found in (child, *child.all_below())]


@dataclass(frozen=True)
class Item:
    """One unit to place, somewhere below `scope` (or on it, if `may_be_scope`); not in a host, if `is_outside`."""

    need: Need
    scope: Vertex
    may_be_scope: bool
    is_outside: bool = False


def expand(graph: Graph) -> Vertex:
    def grow(index: int, parent: Vertex | None) -> Vertex:
        shape = graph.shapes[index]
        in_bytes = bytes_of(shape.type, shape.size, shape.unit) or 0
        hardware = str(shape.properties.get("type", ""))
        vertex = Vertex(shape.type, shape.size, in_bytes, shape.attached, hardware, parent)
        vertex.children = [grow(child, vertex) for child, count in shape.children for _ in range(count)]
        return vertex

    return grow(graph.root, None)


def fits(demand: Demand, graph: Graph) -> bool:
    """Whether all needs can be placed; the constraint is not looked at."""
    if demand.nodes is not None:
        return _fits_on(demand, graph, demand.nodes)
    types = {shape.type for shape in graph.shapes}
    needs = [_as_slot(need, types) for need in demand.needs]
    if demand.is_together:
        return _place_all(needs, graph)
    return all(_place_all([need], graph) for need in needs)


def _as_slot(need: Need, types: set[str]) -> Need:
    is_slot = need.is_slot_if_absent and need.type not in types
    return replace(need, kind=NeedKind.SLOT, is_distinct=False) if is_slot else need


def _place_all(needs: list[Need], graph: Graph) -> bool:
    root = expand(graph)
    return _place([Item(need, root, True) for need in needs for _ in range(need.count)])


def _place(items: list[Item]) -> bool:
    if not items:
        return True
    item, rest = items[0], items[1:]
    need = item.need
    if need.kind is NeedKind.SLOT:
        return any(_place([*inside, *rest]) for inside in _slot_contents(item))
    for vertex in [item.scope, *item.scope.all_below()] if item.may_be_scope else item.scope.all_below():
        if item.is_outside and vertex.parent is not None and host_of(vertex.parent) is not None:
            continue
        room = vertex.bytes if need.unit == "B" else vertex.size
        if vertex.type != need.type or vertex.taken >= room or not _meets(vertex, need):
            continue
        if need.is_distinct and need in vertex.users:
            continue
        vertex.taken += 1
        vertex.users.append(need)
        is_placed = _place([*_inside(need, vertex, may_be_scope=False), *rest])
        vertex.taken -= 1
        vertex.users.pop()
        if is_placed:
            return True
    return False


def _inside(need: Need, vertex: Vertex, *, may_be_scope: bool) -> list[Item]:
    return [Item(held, vertex, may_be_scope) for held in need.holds for _ in range(held.count)]


def _slot_contents(item: Item) -> list[list[Item]]:
    """All that a slot may hold, by where it lies: in a host, or outside of hosts, below what holds the slot."""
    need, scope = item.need, item.scope
    choices: list[list[Item]] = []
    if host_of(scope) is not None:
        if _meets(scope, need):
            choices.append(_inside(need, scope, may_be_scope=item.may_be_scope))
        return choices
    if not item.is_outside:
        hosts = [vertex for vertex in scope.all_below() if is_host(vertex) and host_of(vertex) is vertex]
        choices += [_inside(need, host, may_be_scope=True) for host in hosts if _meets(host, need)]
    if _meets(scope, need):
        held = _inside(need, scope, may_be_scope=item.may_be_scope)
        choices.append([replace(inner, is_outside=True) for inner in held])
    return choices


def is_host(vertex: Vertex) -> bool:
    if vertex.type == "storage_node":
        return not any(below.type in ("node", "storage_node") for below in vertex.all_below())
    return vertex.type == "node"


def host_of(vertex: Vertex) -> Vertex | None:
    """The outermost host that the vertex is or lies in. A cluster without hosts is one."""
    line = [vertex]
    while line[-1].parent is not None:
        line.append(line[-1].parent)
    root = line[-1]
    if not any(map(is_host, [root, *root.all_below()])):
        return root
    return next(filter(is_host, reversed(line)), None)


def _meets(vertex: Vertex, need: Need) -> bool:
    return all(
        _is_hardware(vertex, requirement)
        if requirement.subsystem == "containment"
        else requirement.is_met(vertex.attached)
        for requirement in need.requires
    )


# The types in these examples: a spelling, its common name and its memory.
SPELLINGS = {"a100": ("a100", 40), "NVIDIA-A100-SXM4-80GB": ("a100", 80), "h100": ("h100", 80)}


def _is_hardware(vertex: Vertex, requirement: Requirement) -> bool:
    name, memory_gb = SPELLINGS.get(vertex.hardware, ("", 0))
    return name == requirement.match if requirement.field == "type" else memory_gb * 1000 >= int(requirement.min or 0)


def _fits_on(demand: Demand, graph: Graph, nodes: int) -> bool:
    """Some choice of that many nodes, with at least one task each."""
    root = expand(graph)
    every = [vertex for vertex in [root, *root.all_below()] if vertex.type == "node"] or [root]
    task = demand.needs[0]

    def holds(vertex: Vertex, tasks: int) -> bool:
        return _meets(vertex, task) and _place(
            [item for _ in range(tasks) for item in _inside(task, vertex, may_be_scope=True)]
        )

    def spread(left: list[Vertex], chosen: int, tasks: int) -> bool:
        if chosen == nodes:
            return tasks == 0
        if not left:
            return False
        some = any(holds(left[0], here) and spread(left[1:], chosen + 1, tasks - here) for here in range(1, tasks + 1))
        return some or spread(left[1:], chosen, tasks)

    return spread(every, 0, task.count)
