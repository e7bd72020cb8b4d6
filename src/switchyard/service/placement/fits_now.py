"""Decide whether a job fits into the free resources of a cluster."""

from __future__ import annotations

from switchyard.match.demand import Demand
from switchyard.match.engine import Misfit, engine
from switchyard.match.free_graph import free_part
from switchyard.model.cluster.cluster import Health
from switchyard.route.member import Member
from switchyard.service.core.context import Context


def fits_now(context: Context, member: Member, demand: Demand, *, by: str) -> tuple[bool | None, str]:
    """Return whether the job fits into the free resources that the agent last reported, and a reason.

    None: the agent does not report free resources by node. A cluster that is not up never fits.
    """
    if member.health is not Health.UP:
        return False, f"{member.health.value}: {member.reason}".rstrip(": ")
    load, graph = context.snapshots.load_of(member.id), member.graph
    if load is None or load.free is None or graph is None or load.signature != graph.signature:
        return None, "its agent does not say what is free on which node"
    free = free_part(graph, load.free)
    if free is None:
        return False, "nothing is free"
    match = engine(by).satisfy(demand, free)
    return (False, match.reason) if isinstance(match, Misfit) else (True, match.undecided)
