"""Apply a selection algorithm to the eligible clusters, before the draw. Pure.

An eligibility is cached per shape of job as long as the world stays the same. The result of an algorithm may depend on
the clusters' state, which changes with every poll, so it is never cached here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from switchyard.model.cluster.verdict import Answer, Outcome, Verdict
from switchyard.route.operators import ExpressionValue
from switchyard.route.router import Eligibility
from switchyard.route.select.selector import Candidate, CandidateQuote, SelectionFailure, SelectionResult, Selector
from switchyard.route.select.weighted_draw import WeightedCandidates
from switchyard.route.verdicts import GroupVerdict, VerdictSet
from switchyard.route.world import World

ClusterStates = Mapping[str, Mapping[str, ExpressionValue]]  # cluster's name → its state values
NO_QUOTES: Mapping[str, CandidateQuote] = MappingProxyType({})
REASONS_SHOWN_MAX = 5
NO_CANDIDATE_LEFT = "waits: no clusters passed selection"  # the beginning of the reason


def candidates_of(
    eligibility: Eligibility,
    world: World,
    states: ClusterStates,
    order: Sequence[str] = (),
    quotes: Mapping[str, CandidateQuote] = NO_QUOTES,
) -> list[Candidate]:
    """Return the eligible clusters, those in `order` first and the others in the eligibility's order."""
    candidates = []
    rank = {name: number for number, name in enumerate(order)}
    weighted = zip(eligibility.eligible.names, eligibility.eligible.weights, strict=True)
    for name, weight in sorted(weighted, key=lambda pair: rank.get(pair[0], len(rank))):
        member = world.by_name.get(name)  # none, if the world is newer than the eligibility
        graph = member.graph if member else None
        cores = graph.totals.get("core", 0) if graph else 0
        candidates.append(Candidate(name, weight, cores, state=states.get(name, {}), quote=quotes.get(name)))
    return candidates


def apply_selection(
    eligibility: Eligibility,
    algorithm: str,
    selector: Selector,
    *,
    world: World,
    states: ClusterStates,
    parameters: Mapping[str, ExpressionValue],
    order: Sequence[str] = (),
    quotes: Mapping[str, CandidateQuote] = NO_QUOTES,
) -> Eligibility | SelectionFailure:
    """Return the eligibility with the candidates that the algorithm leaves. If it leaves none, the job is held."""
    if eligibility.outcome is not Outcome.ASSIGN:
        return replace(eligibility, algorithm=algorithm)
    selected = selector.select(candidates_of(eligibility, world, states, order=order, quotes=quotes), parameters)
    if isinstance(selected, SelectionFailure):
        return selected
    weights = dict(zip(eligibility.eligible.names, eligibility.eligible.weights, strict=True))
    candidates = WeightedCandidates.of(
        selected.among, [1.0 if selected.is_even else weights[name] for name in selected.among]
    )
    verdicts = VerdictSet.of((verdict.cluster, _verdict_after(verdict, selected)) for verdict in eligibility.verdicts)
    narrowed = replace(
        eligibility, eligible=candidates, verdicts=verdicts, algorithm=algorithm, remaining=selected.remaining
    )
    return (
        narrowed
        if selected.among
        else replace(narrowed, outcome=Outcome.HOLD, reason=_hold_reason(algorithm, selected))
    )


def _verdict_after(verdict: Verdict, selected: SelectionResult) -> GroupVerdict:
    if (reason := selected.out.get(verdict.cluster)) is not None:
        return GroupVerdict(Answer.WAIT, "select", reason)
    if (reason := selected.notes.get(verdict.cluster)) is not None:
        return GroupVerdict(Answer.YES, "select", f"{verdict.reason}; {reason}")
    return GroupVerdict(verdict.say, verdict.step, verdict.reason)


def _hold_reason(algorithm: str, selected: SelectionResult) -> str:
    shown = [f"{name}: {reason}" for name, reason in list(selected.out.items())[:REASONS_SHOWN_MAX]]
    more = len(selected.out) - len(shown)
    listed = "; ".join(shown) + (f"; and {more} more" if more > 0 else "")
    return f"{NO_CANDIDATE_LEFT} ({algorithm}): {listed}"
