"""From verdicts to advice: the smallest change that would let a job run. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from switchyard.match.demand import Demand, Plain
from switchyard.match.engine import Match, Misfit, engine
from switchyard.match.plain import demand_from
from switchyard.model.cluster import Health
from switchyard.model.graph import Graph
from switchyard.model.quantity import show_bytes
from switchyard.route.ask import Ask
from switchyard.route.world import Member, World

HINTS_MAX = 5


def hints(ask: Ask, world: World) -> list[str]:
    """What would let it run, the smallest change first."""
    found: list[Hint] = []
    smaller: dict[str, Hint | None] = {}  # equal clusters would need the same change
    for member in world.members:
        if member.id in ask.hidden:
            continue
        if member.graph is None or isinstance(world.index.verdict(ask.demand, member.graph, by=ask.engine), Match):
            hint = _outside(ask, member, world)
        else:
            if member.graph.signature not in smaller:
                smaller[member.graph.signature] = _smaller(ask.demand, member.graph, by=ask.engine)
            hint = smaller[member.graph.signature]
            hint = hint and Hint(hint.change, f"{hint.text} ({member.name})")
        if hint:
            found.append(hint)
    return [hint.text for hint in sorted(found, key=lambda hint: hint.change)[:HINTS_MAX]]


@dataclass(frozen=True, slots=True)
class Hint:
    """`change`: 0 for something outside the request, else the part of the request that would have to go."""

    change: float
    text: str


def _outside(ask: Ask, member: Member, world: World) -> Hint | None:
    """It would fit, or nobody knows: what else stands in the way."""
    for word, name, sets in (("pool", ask.pool, world.pools), ("label", ask.label, world.labels)):
        if name is not None and member.name not in sets.get(name, {}):
            others = [other for other in sorted(sets) if member.name in sets[other]]
            return Hint(0, f"{word} {others[0]} ({member.name})" if others else f"{member.name} in {word} {name}")
    if member.graph is None:
        return Hint(0, f"start an agent on {member.name}")
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


def _smaller(demand: Demand, graph: Graph, *, by: str) -> Hint | None:
    """Lower one thing alone until it fits, if that helps at all."""
    if demand.plain is not None:
        return _smaller_plain(demand, demand.plain, graph, by=by)
    found = engine(by).satisfy(demand, graph)
    if isinstance(found, Misfit) and found.best and found.needs:
        return Hint(1 - found.best / found.needs, f"{found.level} {found.needs} → {found.best}")
    return None


def _smaller_plain(demand: Demand, plain: Plain, graph: Graph, *, by: str) -> Hint | None:
    requires = demand.needs[0].requires
    cores = max(kind.cores for kind in graph.kinds)
    gpus = max(kind.gpus for kind in graph.kinds)
    memory = max(kind.memory_bytes for kind in graph.kinds)
    options: list[tuple[int, int, str, Plain]] = [
        (plain.cores, cores, f"cores {plain.cores} → {cores}", replace(plain, cores=max(cores, 1))),
        (plain.gpus, gpus, f"gpus {plain.gpus} → {gpus}", replace(plain, gpus=gpus)),
        (
            plain.memory_bytes,
            memory,
            f"memory {show_bytes(plain.memory_bytes)} → {show_bytes(memory)}",
            replace(plain, memory_bytes=memory),
        ),
    ]
    options = [option for option in options if option[1] < option[0]]
    if plain.nodes is not None:
        options.append((1, 1, "no fixed number of nodes", replace(plain, nodes=None)))
    for asks, most, text, smaller in options:
        if isinstance(engine(by).satisfy(demand_from(smaller, requires), graph), Match):
            return Hint(1 - most / asks, text)
    one = engine(by).satisfy(demand_from(replace(plain, tasks=1, nodes=None), requires), graph)
    if isinstance(one, Match) and one.slots is not None and one.slots < plain.tasks:
        return Hint(1 - one.slots / plain.tasks, f"tasks {plain.tasks} → {one.slots}")
    return None
