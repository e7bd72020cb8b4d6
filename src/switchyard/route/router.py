"""Decide where a job goes: narrow, match, select. Pure: the same inputs and seed give the same plan.

narrow   pool · label · pin · grant   who may
match    the graph                    who could
health   up · down · cordoned         who can now
select   weighted rendezvous          who does
"""

from __future__ import annotations

from dataclasses import dataclass

from switchyard.match.engine import Match, Misfit
from switchyard.model.cluster import POLLING_BACKEND, Health
from switchyard.model.graph import Graph
from switchyard.model.quote import Quote
from switchyard.model.verdict import Answer, Plan
from switchyard.route.narrow import RoutingBounds, refuse_zero_weights
from switchyard.route.roster import MemberIndexes, RosterCache
from switchyard.route.routing_request import RoutingRequest
from switchyard.route.select.weighted_draw import WeightedCandidates
from switchyard.route.verdicts import GroupVerdict, VerdictSet
from switchyard.route.world import Member, World

DEFAULT_ALGORITHM = "weighted"
ONLY_POLLS = frozenset({POLLING_BACKEND})
LAST_STEP = "last"
NO_GRAPH_REASON = "its agent has not told what it has"
POLLER_TAKES_NO_ARRAYS = GroupVerdict(Answer.NO, "backend", "it only polls, and is handed one job at a time: no arrays")
CLUSTER_INTERRUPTIBLE = GroupVerdict(Answer.NO, "interruptible", "its nodes may be taken away, and the job must not be")
STEPS = ("pool", "label", "pin", "grant", "interruptible", "backend", "match", "weight")


@dataclass(frozen=True, slots=True)
class Eligibility:
    """Everything but the draw: the same for all jobs with the same ask, so it can be kept."""

    outcome: str  # assign · hold · reject
    able: WeightedCandidates
    verdicts: VerdictSet
    reason: str
    # By whom those to draw from were chosen, if not all of the able are (apply_selection.py), and who was left, the
    # best first.
    algorithm: str = DEFAULT_ALGORITHM
    remaining: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()  # of a hold: the clusters whose quotes it waits for
    quoted: tuple[Quote, ...] = ()  # what the choice went by


def route_job(ask: RoutingRequest, world: World, *, seed: str) -> Plan:
    """Decide where a job goes."""
    return make_plan(evaluate(ask, world), seed=seed)


def evaluate(ask: RoutingRequest, world: World) -> Eligibility:
    """One verdict per cluster, and what follows from them all."""
    bound, judge, rosters = RoutingBounds.of(ask, world), _Evaluator(ask, world), world.rosters
    roster = rosters.of(bound)
    groups = rosters.without(roster.groups, judge.last) if judge.last else roster.groups
    judged = refuse_zero_weights(bound, [(group, judge.tell(group.like)) for group in groups])
    able = [(group, told) for group, told in judged if told.say is Answer.YES]
    drawn = [group for group, told in able if told.step != LAST_STEP] or [group for group, _ in able]
    told = [*((told, group.places) for group, told in judged), *roster.outside]
    outcome, reason = _conclude(told, bound.missing, rosters)
    return Eligibility(outcome, rosters.field(drawn), _verdict_set(told, rosters), reason)


def make_plan(ruling: Eligibility, *, seed: str, is_shown: bool = True) -> Plan:
    """Draw the winner for this job. `is_shown`: with the verdicts, of which there may be thousands."""
    chosen = ruling.able.names[ruling.able.draw(seed)] if ruling.outcome == "assign" else None
    return Plan(
        chosen=chosen,
        verdicts=list(ruling.verdicts) if is_shown else [],
        algorithm=ruling.algorithm,
        seed=seed,
        outcome=ruling.outcome,
        reason=ruling.reason,
        remaining=list(ruling.remaining),
    )


class _Evaluator:
    """Who could, of those who may. What a class of equal clusters is told is worked out once."""

    def __init__(self, ask: RoutingRequest, world: World) -> None:
        self.last = dict(ask.last)
        self._ask = ask
        self._index = world.index
        self._by_class: dict[str, GroupVerdict] = {}

    def tell(self, member: Member) -> GroupVerdict:
        """What can never be comes before what cannot be now: a misfit that is also down is a misfit."""
        ask = self._ask
        if member.is_interruptible and not ask.is_interruptible:
            return CLUSTER_INTERRUPTIBLE
        if ask.needs_backend and member.backends and member.backends.isdisjoint(ask.backends):
            return GroupVerdict(Answer.NO, "backend", f"has none of the backends {', '.join(ask.backends)}")
        if ask.is_array and member.backends == ONLY_POLLS:
            return POLLER_TAKES_NO_ARRAYS
        if member.graph is None:
            return GroupVerdict(Answer.WAIT, "health", f"{member.health.value}: {member.reason or NO_GRAPH_REASON}")
        fits = self._fits(member.graph)
        if fits.say is Answer.NO:
            return fits
        if member.health is not Health.UP:
            return GroupVerdict(Answer.WAIT, "health", f"{member.health.value}: {member.reason}".rstrip(": "))
        if why := self.last.get(member.id):
            return GroupVerdict(Answer.YES, LAST_STEP, f"fits, but comes last: {why}")
        return fits

    def _fits(self, graph: Graph) -> GroupVerdict:
        demand = self._ask.demand
        told = None if demand.is_by_name else self._by_class.get(graph.signature)
        if told is None:
            found = self._index.verdict(demand, graph, by=self._ask.engine)
            is_no = isinstance(found, Misfit)
            said = found.reason if isinstance(found, Misfit) else _fit_reason(found, demand.unit_word)
            told = self._by_class[graph.signature] = GroupVerdict(Answer.NO if is_no else Answer.YES, "match", said)
        return told


def _fit_reason(found: Match, word: str) -> str:
    if found.undecided:
        return f"may fit: {found.undecided}"
    if found.slots is None:
        return "fits"
    return f"fits; holds {found.slots} such {word}{'' if found.slots == 1 else 's'} at once"


def _verdict_set(told: list[tuple[GroupVerdict, MemberIndexes]], rosters: RosterCache) -> VerdictSet:
    found: dict[GroupVerdict, list[MemberIndexes]] = {}
    for each, places in told:
        found.setdefault(each, []).append(places)
    return VerdictSet.grouped({each: rosters.names(places) for each, places in found.items()})


def _conclude(told: list[tuple[GroupVerdict, MemberIndexes]], missing: str, rosters: RosterCache) -> tuple[str, str]:
    if any(each.say is Answer.YES for each, _ in told):
        return "assign", ""
    waiting = [each for each in told if each[0].say is Answer.WAIT]
    if waiting:
        return "hold", "waits for " + _summarize_reasons(waiting, rosters)
    if not told:
        return "reject", missing or "no cluster is registered that you may see"
    # Who came furthest says most about why nobody takes it.
    return (
        "reject",
        f"{missing or 'no cluster could ever run it'}: {_summarize_reasons(told, rosters, is_furthest=True)}",
    )


def _summarize_reasons(
    told: list[tuple[GroupVerdict, MemberIndexes]], rosters: RosterCache, *, is_furthest: bool = False, most: int = 5
) -> str:
    """The first few reasons, by the clusters' names; `explain` has them all."""
    first = sorted(
        (-STEPS.index(each.step) if is_furthest else 0, int(place), each.reason)
        for each, places in told
        for place in places[:most]
    )
    parts = [f"{rosters.name(place)}: {reason}" for _, place, reason in first[:most]]
    more = sum(len(places) for _, places in told) - most
    return "; ".join(parts) + (f"; and {more} more" if more > 0 else "")
