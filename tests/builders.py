"""Builders: values that default everything but what the test is about. Pure; knows the model and the router's world."""

from __future__ import annotations

from typing import Any

from switchyard.match.demand import Demand, PlainResources
from switchyard.match.plain_demand import demand_of_plain
from switchyard.model.cluster.cluster import Health
from switchyard.model.graph import Graph
from switchyard.model.graph.graph_compiler import compile_graph
from switchyard.model.job.bounds import Bounds
from switchyard.model.job.job import JobRequest, JobSpec, OnLost, Resources, State
from switchyard.model.job.lifecycle import FINAL_STATES, LifecycleState
from switchyard.model.rules.layout import Layout
from switchyard.route.member import Member
from switchyard.route.routing_request import RoutingRequest
from switchyard.route.world import World

GIB = 2**30


def a_life(
    state: State = State.PENDING,
    *,
    attempt: int | None = None,
    fence: int | None = None,
    is_leased: bool | None = None,
    cancel_requested: bool = False,
    on_lost: OnLost = OnLost.WAIT,
) -> LifecycleState:
    """A job's life; past PENDING it has one attempt, and past ASSIGNED an agent has leased it."""
    began = 0 if state in (State.PENDING, State.REJECTED) else 1
    return LifecycleState(
        state,
        attempt=began if attempt is None else attempt,
        fence=began if fence is None else fence,
        is_leased=(state in (State.SUBMITTED, State.RUNNING))
        if is_leased is None
        else is_leased and state not in FINAL_STATES,
        cancel_requested=cancel_requested,
        on_lost=on_lost,
    )


def a_spec(*command: str, **fields: Any) -> JobSpec:
    """A job's spec; `nodes`, `tasks`, `cores`, `gpus`, `memory` and the like go into its resources."""
    words = ("nodes", "tasks", "cores", "gpus", "memory", "ephemeral_storage", "limits", "time_limit")
    asked = {name: fields.pop(name) for name in words if name in fields}
    if asked:
        fields["resources"] = Resources(**asked)
    if "on_lost" in fields:
        fields["on_lost"] = OnLost(fields["on_lost"])
    return JobSpec(command=list(command) or ["true"], **fields)


def a_request(*command: str, **fields: Any) -> JobRequest:
    """A submit; the words of a request stay there, all others describe the spec."""
    known: tuple[str, ...] = ("name", "project", "domain", "priority", "labels", "cluster", "clusters")
    known += ("array", "together", "after", "hold", "expires_after", "spill")
    known += ("workflow", "launch_plan", "pool", "cluster_label", "tags", "quality_of_service", "select", "parameters")
    values = {name: fields.pop(name) for name in known if name in fields}
    return JobRequest(spec=a_spec(*command, **fields), **values)


def a_body(**fields: Any) -> dict[str, Any]:
    """A submit as plain JSON."""
    return {"spec": {"command": ["true"]}, **fields}


def a_group(count: int = 1, *, cores: int = 4, gpus: int = 0, memory_gib: int = 8, storage_gib: int = 0) -> Any:
    """Equal nodes, in the short form."""
    node = {"core": cores, "gpu": gpus, "memory": memory_gib * GIB, "storage": storage_gib * GIB}
    return {"nodes": count, "each": node}


def a_graph(*groups: Any, **fields: Any) -> Graph:
    return compile_graph(list(groups) or [a_group(**fields)], where="graph")


def a_demand(**fields: Any) -> Demand:
    """What a plain job needs: `tasks`, `nodes`, and per task `cores`, `gpus`, `memory_bytes`, `storage_bytes`."""
    return demand_of_plain(PlainResources(**fields))


def a_member(name: str, **fields: Any) -> Member:
    """A cluster that is up and can run a small job."""
    defaults: dict[str, Any] = {"id": f"id-{name}", "health": Health.UP, "graph": a_graph()}
    return Member(name=name, **(defaults | fields))


def a_world(*members: Member, **layout: Any) -> World:
    """`pools`, `labels`: name → cluster → weight."""
    return World.of(1, list(members), layout=Layout(**layout))


def an_ask(world: World, **fields: Any) -> RoutingRequest:
    """What a small job asks, by somebody who may submit everywhere."""
    defaults: dict[str, Any] = {"demand": a_demand(), "granted": frozenset(member.id for member in world.members)}
    bounds = {name: fields.pop(name) for name in Bounds.__struct_fields__ if name in fields and name != "engine"}
    if bounds.get("named") is not None:
        bounds["named"] = tuple(sorted(bounds["named"]))
    return RoutingRequest(**(defaults | fields), bounds=Bounds(**bounds))
