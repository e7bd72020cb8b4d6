"""From verdicts to advice: the smallest change that would let a job run. Pure."""

from __future__ import annotations

from dataclasses import replace

from switchyard.match.demand import Demand
from switchyard.match.totals import Match, match
from switchyard.model.cluster import Health
from switchyard.model.quantity import show_bytes
from switchyard.route.route import Ask
from switchyard.route.world import Member, World

HINTS_MAX = 5


def hints(ask: Ask, world: World) -> list[str]:
    """What would let it run, the nearest first."""
    found: list[str] = []
    for member in world.members:
        if member.id in ask.hidden:
            continue
        if hint := _hint(ask, member):
            found.append(hint)
    return found[:HINTS_MAX]


def _hint(ask: Ask, member: Member) -> str | None:
    if member.graph is None:
        return f"start an agent on {member.name}"
    fits = isinstance(match(ask.demand, member.graph), Match)
    if fits and ask.named is not None and member.id not in ask.named:
        return f"{member.name} would take it: name it, or leave the clusters unnamed"
    if fits and member.id not in ask.granted:
        return f"a grant to submit to {member.name}"
    if fits and member.health is Health.CORDONED:
        return f"uncordon {member.name} (`yard cluster uncordon {member.name}`)"
    if fits and member.health is Health.DOWN:
        return f"bring the agent of {member.name} back"
    return None if fits else _smaller(ask.demand, member)


def _smaller(demand: Demand, member: Member) -> str | None:
    """Lower one thing alone until it fits, if that helps at all."""
    assert member.graph is not None
    groups = member.graph.groups
    options: list[tuple[str, Demand]] = [
        (f"cores {demand.cores} → {most}", replace(demand, cores=most))
        for most in [max(group.cores for group in groups)]
        if most < demand.cores
    ]
    options += [
        (f"gpus {demand.gpus} → {most}", replace(demand, gpus=most))
        for most in [max(group.gpus for group in groups)]
        if most < demand.gpus
    ]
    options += [
        (f"memory {show_bytes(demand.memory_bytes)} → {show_bytes(most)}", replace(demand, memory_bytes=most))
        for most in [max(group.memory_bytes for group in groups)]
        if most < demand.memory_bytes
    ]
    if demand.nodes is not None:
        options.append(("no fixed number of nodes", replace(demand, nodes=None)))
    for text, smaller in options:
        if isinstance(match(smaller, member.graph), Match):
            return f"{text} ({member.name})"
    one = match(replace(demand, tasks=1, nodes=None), member.graph)
    if isinstance(one, Match) and one.tasks < demand.tasks:
        return f"tasks {demand.tasks} → {one.tasks} ({member.name})"
    return None
