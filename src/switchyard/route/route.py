"""Decide where a job goes: narrow, match, select. Pure: the same inputs and seed give the same plan.

narrow   pool · label · pin · grant   who may
match    the graph                    who could
health   up · down · cordoned         who can now
select   weighted rendezvous          who does
"""

from __future__ import annotations

from dataclasses import dataclass

from switchyard.match.engine import Match, Misfit
from switchyard.model.cluster import POLLS, Health
from switchyard.model.verdict import Plan, Say, Verdict
from switchyard.route.ask import Ask
from switchyard.route.narrow import Bound, without_zeros
from switchyard.route.select.weighted import Field
from switchyard.route.world import Member, World

ALGORITHM = "weighted"
ONLY_POLLS = frozenset({POLLS})
UNTOLD = "its agent has not told what it has"
STEPS = ("pool", "label", "pin", "grant", "interruptible", "backend", "match", "weight")


@dataclass(frozen=True, slots=True)
class Ruling:
    """Everything but the draw: the same for all jobs with the same ask, so it can be kept."""

    outcome: str  # assign · hold · reject
    able: Field
    verdicts: tuple[Verdict, ...]
    reason: str
    # By whom those to draw from were chosen, if not all of the able are (choose.py), and who was left, the best first.
    algorithm: str = ALGORITHM
    remaining: tuple[str, ...] = ()


def route(ask: Ask, world: World, *, seed: str) -> Plan:
    """Decide where a job goes."""
    return plan(rule(ask, world), seed=seed)


def rule(ask: Ask, world: World) -> Ruling:
    """One verdict per cluster, and what follows from them all."""
    bound = Bound.of(ask, world)
    seen = [member for member in world.members if member.id not in ask.hidden]
    judged = without_zeros(bound, [(member, _judge(bound, member, world)) for member in seen])
    able = [member for member, verdict in judged if verdict.say is Say.YES]
    last = dict(ask.last)
    able = [member for member in able if member.id not in last] or able
    verdicts = tuple(verdict for _, verdict in judged)
    outcome, reason = _conclude(verdicts, bound.missing)
    field = Field.of([member.name for member in able], [bound.weight(member) for member in able])
    return Ruling(outcome, field, verdicts, reason)


def plan(ruling: Ruling, *, seed: str) -> Plan:
    """Draw the winner for this job."""
    chosen = ruling.able.names[ruling.able.draw(seed)] if ruling.outcome == "assign" else None
    return Plan(
        chosen=chosen,
        verdicts=list(ruling.verdicts),
        algorithm=ruling.algorithm,
        seed=seed,
        outcome=ruling.outcome,
        reason=ruling.reason,
        remaining=list(ruling.remaining),
    )


def _judge(bound: Bound, member: Member, world: World) -> Verdict:
    """What can never be comes before what cannot be now: a misfit that is also down is a misfit."""
    ask = bound.ask
    if (refused := bound.refuse(member)) is not None:
        return refused
    if member.is_interruptible and not ask.is_interruptible:
        return Verdict(member.name, Say.NO, "interruptible", "its nodes may be taken away, and the job must not be")
    if ask.needs_backend and member.backends and member.backends.isdisjoint(ask.backends):
        return Verdict(member.name, Say.NO, "backend", f"has none of the backends {', '.join(ask.backends)}")
    if ask.is_array and member.backends == ONLY_POLLS:
        return Verdict(member.name, Say.NO, "backend", "it only polls, and is handed one job at a time: no arrays")
    if member.graph is None:
        return Verdict(member.name, Say.WAIT, "health", f"{member.health.value}: {member.reason or UNTOLD}")
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


def _conclude(verdicts: tuple[Verdict, ...], missing: str) -> tuple[str, str]:
    if any(verdict.say is Say.YES for verdict in verdicts):
        return "assign", ""
    waiting = [verdict for verdict in verdicts if verdict.say is Say.WAIT]
    if waiting:
        return "hold", "waits for " + _gist(waiting)
    if not verdicts:
        return "reject", missing or "no cluster is registered that you may see"
    # Who came furthest says most about why nobody takes it.
    listed = _gist(sorted(verdicts, key=lambda verdict: STEPS.index(verdict.step), reverse=True))
    return "reject", f"{missing or 'no cluster could ever run it'}: {listed}"


def _gist(verdicts: list[Verdict], most: int = 5) -> str:
    """The first few reasons; `explain` has them all."""
    parts = [f"{verdict.cluster}: {verdict.reason}" for verdict in verdicts[:most]]
    more = len(verdicts) - most
    return "; ".join(parts) + (f"; and {more} more" if more > 0 else "")
