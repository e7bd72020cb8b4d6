"""Decide where a job goes: narrow, match, select. Pure: the same inputs and seed give the same plan.

narrow   grants · tokens · pin        who may
match    the graph                    who could
health   up · down · cordoned         who can now
select   weighted rendezvous          who does
"""

from __future__ import annotations

from dataclasses import dataclass

from switchyard.match.demand import Demand
from switchyard.match.engine import DEFAULT, Match, Misfit
from switchyard.model.cluster import Health
from switchyard.model.verdict import Plan, Say, Verdict
from switchyard.route.select.weighted import Field
from switchyard.route.world import Member, World

ALGORITHM = "weighted"


@dataclass(frozen=True, slots=True)
class Ask:
    """What a job asks of the router. `granted`: ids of the clusters its owner may submit to.

    `named`: the clusters the request was bounded to, by pin or by submit tokens; none: no bound. `hidden`: clusters
    the owner may not even see; they get no verdict.
    """

    demand: Demand
    granted: frozenset[str]
    hidden: frozenset[str] = frozenset()
    named: frozenset[str] | None = None
    last: tuple[tuple[str, str], ...] = ()  # clusters that come last for this job, each with the reason
    engine: str = DEFAULT  # who answers whether it fits
    # What policy or the request said; routing by the first three comes with pools, labels and queues.
    pool: str | None = None
    label: str | None = None
    tags: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()  # one of these is to run it, the first that a cluster has
    needs_backend: bool = False  # … and a cluster that has none of them is no place for it
    is_interruptible: bool = False


@dataclass(frozen=True, slots=True)
class Ruling:
    """Everything but the draw: the same for all jobs with the same ask, so it can be kept."""

    outcome: str  # assign · hold · reject
    able: Field
    verdicts: tuple[Verdict, ...]
    reason: str


def route(ask: Ask, world: World, *, seed: str) -> Plan:
    """Decide where a job goes."""
    return plan(rule(ask, world), seed=seed)


def rule(ask: Ask, world: World) -> Ruling:
    """One verdict per cluster, and what follows from them all."""
    verdicts = tuple(_judge(ask, member, world) for member in world.members if member.id not in ask.hidden)
    able = [world.by_name[verdict.cluster] for verdict in verdicts if verdict.say is Say.YES]
    last = dict(ask.last)
    able = [member for member in able if member.id not in last] or able
    outcome, reason = _conclude(verdicts)
    able_field = Field.of([member.name for member in able], [member.weight for member in able])
    return Ruling(outcome, able_field, verdicts, reason)


def plan(ruling: Ruling, *, seed: str) -> Plan:
    """Draw the winner for this job."""
    chosen = ruling.able.names[ruling.able.draw(seed)] if ruling.outcome == "assign" else None
    return Plan(
        chosen=chosen,
        verdicts=list(ruling.verdicts),
        algorithm=ALGORITHM,
        seed=seed,
        outcome=ruling.outcome,
        reason=ruling.reason,
    )


def _judge(ask: Ask, member: Member, world: World) -> Verdict:
    """What can never be comes before what cannot be now: a misfit that is also down is a misfit."""
    if ask.named is not None and member.id not in ask.named:
        return Verdict(member.name, Say.NO, "pin", "the request names other clusters")
    if member.id not in ask.granted:
        return Verdict(member.name, Say.NO, "grant", "you have no grant to submit here")
    if member.is_interruptible and not ask.is_interruptible:
        return Verdict(member.name, Say.NO, "interruptible", "its nodes may be taken away, and the job must not be")
    if ask.needs_backend and member.backends and member.backends.isdisjoint(ask.backends):
        return Verdict(member.name, Say.NO, "backend", f"has none of the backends {', '.join(ask.backends)}")
    if member.graph is None:
        return Verdict(member.name, Say.WAIT, "health", "down: its agent has not told what it has")
    found = world.index.verdict(ask.demand, member.graph, by=ask.engine)
    if isinstance(found, Misfit):
        return Verdict(member.name, Say.NO, "match", found.reason)
    if member.health is not Health.UP:
        return Verdict(member.name, Say.WAIT, "health", f"{member.health.value}: {member.reason}".rstrip(": "))
    if why := dict(ask.last).get(member.id):
        return Verdict(member.name, Say.YES, "last", f"fits, but comes last: {why}")
    return Verdict(member.name, Say.YES, "match", _how_often(found, ask.demand.unit_word))


def _how_often(found: Match, word: str) -> str:
    if found.undecided:
        return f"may fit: {found.undecided}"
    if found.slots is None:
        return "fits"
    return f"fits; holds {found.slots} such {word}{'' if found.slots == 1 else 's'} at once"


def _conclude(verdicts: tuple[Verdict, ...]) -> tuple[str, str]:
    if any(verdict.say is Say.YES for verdict in verdicts):
        return "assign", ""
    waiting = [verdict for verdict in verdicts if verdict.say is Say.WAIT]
    if waiting:
        return "hold", "waits for " + _gist(waiting)
    if not verdicts:
        return "reject", "no cluster is registered that you may see"
    return "reject", "no cluster could ever run it: " + _gist(list(verdicts))


def _gist(verdicts: list[Verdict], most: int = 5) -> str:
    """The first few reasons; `explain` has them all."""
    parts = [f"{verdict.cluster}: {verdict.reason}" for verdict in verdicts[:most]]
    more = len(verdicts) - most
    return "; ".join(parts) + (f"; and {more} more" if more > 0 else "")
