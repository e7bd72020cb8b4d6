"""Decide where a job goes. Pure: the same inputs and seed give the same plan.

bounds   pool · label · pin · grant   clusters that the job may use
checks   image · site · match …       … that could run it when empty
         health                       … that can take it now: these are eligible; those in trouble come last
select   weighted rendezvous          the cluster that gets it

The checks are in checks.py, by name, in their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from switchyard.match.demand import Demand
from switchyard.model.cluster.quote import Quote
from switchyard.model.cluster.verdict import Answer, Outcome, Plan
from switchyard.model.job.spill import opened_pools, parse_rule
from switchyard.route.checks import LAST_STEP, STEPS, make_bounds, make_checks, refusal_of, verdict_of
from switchyard.route.roster import MemberIndexes, RosterCache
from switchyard.route.routing_request import RoutingRequest
from switchyard.route.select.weighted_draw import WeightedCandidates
from switchyard.route.verdicts import GroupVerdict, VerdictSet
from switchyard.route.weights import missing_bound, refuse_zero_weights, weight_in
from switchyard.route.world import World

DEFAULT_ALGORITHM = "weighted"
REASONS_SHOWN_MAX = 5

GroupVerdicts = list[tuple[GroupVerdict, MemberIndexes]]


@dataclass(frozen=True, slots=True)
class ChosenSets:
    """Of a job with alternatives: the number of the set, from 1, for each cluster that could take the job now.

    `fitting`: the numbers of all sets that fit there now, in order. `demands`: of each set.
    """

    by_cluster: Mapping[str, int]
    fitting: Mapping[str, tuple[int, ...]]
    demands: tuple[Demand, ...]

    def number(self, cluster: str) -> int:
        """A cluster that is not eligible any more, and keeps the job for now, keeps it with the first set."""
        return self.by_cluster.get(cluster, 1)

    def demand(self, cluster: str) -> Demand:
        return self.demands[self.number(cluster) - 1]


@dataclass(frozen=True, slots=True)
class Eligibility:
    """The decision except the draw. It is the same for all jobs with the same request, so callers cache it."""

    outcome: Outcome
    eligible: WeightedCandidates
    verdicts: VerdictSet
    reason: str
    # A selection algorithm narrows the candidates further (apply_selection.py) and ranks them, the best first.
    algorithm: str = DEFAULT_ALGORITHM
    remaining: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()  # of a hold: the clusters whose quotes the job waits for
    quoted: tuple[Quote, ...] = ()  # quotes that the selection used
    sets: ChosenSets | None = None  # of a job with alternatives (alternatives.py)


def route_job(ask: RoutingRequest, world: World, *, seed: str) -> Plan:
    """Decide where a job goes."""
    return make_plan(evaluate(ask, world), seed=seed)


def evaluate(ask: RoutingRequest, world: World) -> Eligibility:
    """Give one verdict per cluster, and the outcome that follows from all of them."""
    rosters = world.rosters
    bounds = ask.cluster_bounds
    roster = rosters.of(
        bounds,
        partial(refusal_of, make_bounds(bounds, world)),
        weight_in(bounds, world),
        is_by_name=ask.demand.is_by_name,
    )
    alone = {cluster_id for cluster_id, _ in (*ask.last, *ask.refused)}
    groups = rosters.split_out(roster.groups, alone) if alone else roster.groups
    checks = make_checks(ask, world)
    evaluated = refuse_zero_weights(ask, [(group, verdict_of(checks, group.example)) for group in groups])
    eligible = [(group, verdict) for group, verdict in evaluated if verdict.say is Answer.YES]
    candidates = [group for group, verdict in eligible if verdict.step != LAST_STEP] or [group for group, _ in eligible]
    verdicts = [*((verdict, group.indexes) for group, verdict in evaluated), *roster.outside]
    outcome, reason = _conclude(verdicts, ask, world)
    return Eligibility(outcome, rosters.candidates(candidates), _verdict_set(verdicts, rosters), reason)


def evaluate_with_spill(ask: RoutingRequest, world: World) -> Eligibility:
    """As `evaluate`. A job that only a pool of a later spill rule can run is held, not rejected."""
    eligibility, spill = evaluate(ask, world), ask.bounds.spill
    if eligibility.outcome is not Outcome.REJECT:
        return eligibility
    for rule in sorted(map(parse_rule, spill), key=lambda rule: rule.after_s):
        if rule.pool in (None, *ask.spilled):
            continue
        later = evaluate(replace(ask, spilled=opened_pools(spill, rule.after_s)), world)
        if later.outcome is not Outcome.REJECT:
            reason = f"waits: after {rule.after} it may run in pool {rule.pool}; {eligibility.reason}"
            return replace(eligibility, outcome=Outcome.HOLD, reason=reason)
    return eligibility


def make_plan(eligibility: Eligibility, *, seed: str, is_shown: bool = True) -> Plan:
    """Draw the cluster for one job. `is_shown`: with all verdicts, of which there may be thousands."""
    eligible = eligibility.eligible
    cluster = eligible.names[eligible.draw(seed)] if eligibility.outcome is Outcome.ASSIGN else None
    return Plan(
        chosen=cluster,
        verdicts=list(eligibility.verdicts) if is_shown else [],
        algorithm=eligibility.algorithm,
        seed=seed,
        outcome=eligibility.outcome,
        reason=eligibility.reason,
        remaining=list(eligibility.remaining),
    )


def _verdict_set(verdicts: GroupVerdicts, rosters: RosterCache) -> VerdictSet:
    groups: dict[GroupVerdict, list[MemberIndexes]] = {}
    for verdict, indexes in verdicts:
        groups.setdefault(verdict, []).append(indexes)
    return VerdictSet.grouped({verdict: rosters.names(arrays) for verdict, arrays in groups.items()})


def _conclude(verdicts: GroupVerdicts, ask: RoutingRequest, world: World) -> tuple[Outcome, str]:
    """Return the outcome and its reason."""
    if any(verdict.say is Answer.YES for verdict, _ in verdicts):
        return Outcome.ASSIGN, ""
    waiting = [(verdict, indexes) for verdict, indexes in verdicts if verdict.say is Answer.WAIT]
    if waiting:
        return Outcome.HOLD, "waits for " + _summarize_reasons(waiting, world.rosters)
    missing = missing_bound(ask, world)
    if not verdicts:
        return Outcome.REJECT, missing or "no cluster is registered that you may see"
    # The cluster that passed the most steps comes first: its reason is the most useful.
    reasons = _summarize_reasons(verdicts, world.rosters, is_furthest=True)
    return Outcome.REJECT, f"{missing or 'no cluster could ever run it'}: {reasons}"


def _summarize_reasons(verdicts: GroupVerdicts, rosters: RosterCache, *, is_furthest: bool = False) -> str:
    """Show the first few reasons, in the order of the clusters' names; `explain` shows all."""
    reasons = sorted(
        (-STEPS.index(verdict.step) if is_furthest else 0, int(index), verdict.reason)
        for verdict, indexes in verdicts
        for index in indexes[:REASONS_SHOWN_MAX]
    )
    shown = [f"{rosters.name(index)}: {reason}" for _, index, reason in reasons[:REASONS_SHOWN_MAX]]
    more = sum(len(indexes) for _, indexes in verdicts) - REASONS_SHOWN_MAX
    return "; ".join(shown) + (f"; and {more} more" if more > 0 else "")
