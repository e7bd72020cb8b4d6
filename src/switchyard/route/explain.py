"""From verdicts to advice: the smallest change that would let a job run. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from switchyard.match.demand import Demand
from switchyard.match.totals import Match, match
from switchyard.model.cluster import Health
from switchyard.model.quantity import show_bytes
from switchyard.route.route import Ask
from switchyard.route.world import Member, World

HINTS_MAX = 5


def hints(ask: Ask, world: World) -> list[str]:
    """What would let it run, the smallest change first."""
    found = [hint for member in world.members if member.id not in ask.hidden and (hint := _hint(ask, member))]
    return [hint.text for hint in sorted(found, key=lambda hint: hint.change)[:HINTS_MAX]]


@dataclass(frozen=True, slots=True)
class Hint:
    """`change`: 0 for something outside the request, else the part of the request that would have to go."""

    change: float
    text: str


def _hint(ask: Ask, member: Member) -> Hint | None:
    if member.graph is None:
        return Hint(0, f"start an agent on {member.name}")
    if not isinstance(match(ask.demand, member.graph), Match):
        return _smaller(ask.demand, member)
    if ask.named is not None and member.id not in ask.named:
        return Hint(0, f"{member.name} would take it: name it, or leave the clusters unnamed")
    if member.id not in ask.granted:
        return Hint(0, f"a grant to submit to {member.name}")
    if member.health is Health.CORDONED:
        return Hint(0, f"uncordon {member.name} (`yard cluster uncordon {member.name}`)")
    if member.health is Health.PAUSED:
        return Hint(0, f"resume an agent of {member.name} (`yard agent resume AGENT`)")
    if member.health is Health.DOWN:
        return Hint(0, f"bring the agent of {member.name} back")
    return None


def _smaller(demand: Demand, member: Member) -> Hint | None:
    """Lower one thing alone until it fits, if that helps at all."""
    assert member.graph is not None
    groups = member.graph.groups
    options: list[tuple[int, int, str, Demand]] = []
    for asks, most, text, smaller in (
        _cores(demand, max(group.cores for group in groups)),
        _gpus(demand, max(group.gpus for group in groups)),
        _memory(demand, max(group.memory_bytes for group in groups)),
    ):
        if most < asks:
            options.append((asks, most, text, smaller))
    if demand.nodes is not None:
        options.append((1, 1, "no fixed number of nodes", replace(demand, nodes=None)))
    for asks, most, text, smaller in options:
        if isinstance(match(smaller, member.graph), Match):
            return Hint(1 - most / asks, f"{text} ({member.name})")
    one = match(replace(demand, tasks=1, nodes=None), member.graph)
    if isinstance(one, Match) and one.tasks < demand.tasks:
        return Hint(1 - one.tasks / demand.tasks, f"tasks {demand.tasks} → {one.tasks} ({member.name})")
    return None


def _cores(demand: Demand, most: int) -> tuple[int, int, str, Demand]:
    return demand.cores, most, f"cores {demand.cores} → {most}", replace(demand, cores=max(most, 1))


def _gpus(demand: Demand, most: int) -> tuple[int, int, str, Demand]:
    return demand.gpus, most, f"gpus {demand.gpus} → {most}", replace(demand, gpus=most)


def _memory(demand: Demand, most: int) -> tuple[int, int, str, Demand]:
    text = f"memory {show_bytes(demand.memory_bytes)} → {show_bytes(most)}"
    return demand.memory_bytes, most, text, replace(demand, memory_bytes=most)
