"""The resources of a canonical jobspec (RFC 14), as far as version 1 (RFC 25) can say them. Pure.

Version 1 has one shape: `node → slot → core, gpu`, with or without the node. What it cannot say is refused here and
never handed to Flux: one job whose slot has no cores stops the scheduling of a whole instance. A count that is a range
or a set becomes its least member, since only that was matched and compared with limits. The router asks first, so that
such a job goes to clusters that are not Flux; the agent of a Flux cluster asks again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from switchyard.errors import Malformed, PolicyRefused
from switchyard.model.jobspec.counts import is_no_gpu, least_count
from switchyard.model.jobspec.tasks import check_task_counts, task_total

Vertex = Mapping[str, Any]
SLOT_LABEL = "task"
ONCE_PER_SLOT = {"per_slot": 1}


def version_1_resources(demand: Mapping[str, Any]) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The resources, and how often the command runs in them. Raises PolicyRefused for what version 1 cannot say."""
    try:
        check_task_counts(demand)
        top = _with_slot(_only(_without_clusters(demand["resources"]), "resources"))
        resources = [_of_node(top) if top["type"] == "node" else _of_slot(top)]
        total = task_total(demand)
    except Malformed as exc:
        raise _refusal(exc.detail.rstrip(".")) from exc
    return resources, ONCE_PER_SLOT if total is None else {"total": total}


def version_1_refusal(demand: Mapping[str, Any] | None) -> str:
    """Why Flux cannot run a job with this demand; empty: it can, or the demand is no list of resources."""
    if demand is None or not isinstance(demand.get("resources"), list) or not demand["resources"]:
        return ""
    try:
        version_1_resources(demand)
    except PolicyRefused as exc:
        return exc.detail
    return ""


def _of_node(node: Vertex) -> dict[str, Any]:
    """`node → slot → core, gpu`."""
    slot = _only(node.get("with") or (), "with of a node")
    if slot["type"] != "slot":
        raise _refusal(f"{slot['type'][:40]} lies between node and slot")
    made = {"type": "node", "count": _count(node), "with": [_slot(slot, _count(slot), slot.get("with") or ())]}
    # RFC 25 has `exclusive` at the node, and its schema at the slot.
    return {**made, "exclusive": True} if node.get("exclusive") or slot.get("exclusive") else made


def _of_slot(slot: Vertex) -> dict[str, Any]:
    """`slot → core, gpu`. A slot that is a whole node becomes a node with one slot."""
    held = slot.get("with") or ()
    if not any(vertex["type"] == "node" for vertex in held):
        made = _slot(slot, _count(slot), held)
        return {**made, "exclusive": True} if slot.get("exclusive") else made
    node = _only(held, "with of a slot that holds a node")
    if _count(node) > 1:
        raise _refusal(f"a slot of {_count(node)} nodes is one task on several nodes; write one slot for each node")
    inside = _slot(slot, 1, node.get("with") or ())
    whole: dict[str, Any] = {"type": "node", "count": _count(slot), "with": [inside]}
    # What a slot holds is exclusive, unless it says otherwise.
    return {**whole, "exclusive": True} if node.get("exclusive", slot.get("exclusive", True)) else whole


def _slot(slot: Vertex, count: int, held: Sequence[Vertex]) -> dict[str, Any]:
    """A slot with one count of cores and one of GPUs. Flux needs a core in each slot, so there is at least one."""
    amounts = {"core": 0, "gpu": 0}
    for vertex in held:
        kind = "gpu" if vertex["type"].startswith("gpu:") else vertex["type"]  # its type is a constraint on nodes
        if kind not in amounts:
            raise _refusal(f"a slot holds cores and GPUs, not {kind[:40]}")
        if vertex.get("with"):
            raise _refusal(f"a {kind} holds nothing")
        amounts[kind] += 0 if is_no_gpu(vertex) else _count(vertex)
    amounts["core"] = max(1, amounts["core"])
    within = [{"type": kind, "count": amount} for kind, amount in amounts.items() if amount]
    return {"type": "slot", "count": count, "with": within, "label": slot.get("label") or SLOT_LABEL}


def _with_slot(top: Vertex) -> Vertex:
    """The resource, with a slot if it has none: in each node, or around all of it."""
    if any(vertex["type"] == "slot" for vertex in _vertices((top,))):
        if top["type"] not in ("node", "slot"):
            raise _refusal(f"it has no word for {top['type'][:40]}")
        return top
    if top["type"] == "node":
        return {**top, "with": [{"type": "slot", "with": top.get("with") or ()}]}
    return {"type": "slot", "with": [top]}


def _without_clusters(resources: Sequence[Vertex]) -> Sequence[Vertex]:
    """What lies inside of the one cluster: every instance is one."""
    while len(resources) == 1 and resources[0]["type"] == "cluster" and _count(resources[0]) == 1:
        resources = resources[0].get("with") or ()
    return resources


def _vertices(resources: Sequence[Vertex]) -> Iterator[Vertex]:
    for vertex in resources:
        yield vertex
        yield from _vertices(vertex.get("with") or ())


def _only(vertices: Sequence[Vertex], place: str) -> Vertex:
    if len(vertices) != 1:
        raise _refusal(f"{place} has {len(vertices)} entries, where there is one")
    return vertices[0]


def _count(vertex: Vertex) -> int:
    return least_count(vertex.get("count", 1), place=f"count of {vertex['type'][:40]}")


def _refusal(why: str) -> PolicyRefused:
    shapes = "Flux's version 1 has only the shapes `node → slot → core, gpu` and `slot → core, gpu`"
    return PolicyRefused(f"Flux cannot run this jobspec: {why}; {shapes}.")
