"""From who is able to who is drawn from: a selection algorithm applied to a ruling. Pure.

It comes after the ruling and before the draw. A ruling is kept per shape for as long as the world stands; what an
algorithm says may hang on the clusters' state, which changes with every poll, so it is never kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from switchyard.model.verdict import Answer, Verdict
from switchyard.route.operators import ExpressionValue
from switchyard.route.router import Eligibility
from switchyard.route.select.selector import Candidate, CandidateQuote, SelectionFailure, SelectionResult, Selector
from switchyard.route.select.weighted_draw import WeightedCandidates
from switchyard.route.verdicts import GroupVerdict, VerdictSet
from switchyard.route.world import World

ClusterStates = Mapping[str, Mapping[str, ExpressionValue]]  # cluster's name → what is known of it now
NO_QUOTES: Mapping[str, CandidateQuote] = MappingProxyType({})
REASONS_SHOWN_MAX = 5
NO_CANDIDATE_LEFT = "waits: no clusters passed selection"  # how the reason begins


def candidates_of(
    ruling: Eligibility,
    world: World,
    states: ClusterStates,
    order: Sequence[str] = (),
    quotes: Mapping[str, CandidateQuote] = NO_QUOTES,
) -> list[Candidate]:
    """The able clusters of a ruling, in its order, or those that `order` names first."""
    found = []
    place = {name: number for number, name in enumerate(order)}
    weighted = zip(ruling.able.names, ruling.able.weights, strict=True)
    for name, weight in sorted(weighted, key=lambda pair: place.get(pair[0], len(place))):
        member = world.by_name.get(name)  # gone, if the world is a newer one
        graph = member.graph if member else None
        cores = graph.totals.get("core", 0) if graph else 0
        found.append(Candidate(name, weight, cores, states.get(name, {}), quotes.get(name)))
    return found


def apply_selection(
    ruling: Eligibility,
    algorithm: str,
    selector: Selector,
    *,
    world: World,
    states: ClusterStates,
    parameters: Mapping[str, ExpressionValue],
    order: Sequence[str] = (),
    quotes: Mapping[str, CandidateQuote] = NO_QUOTES,
) -> Eligibility | SelectionFailure:
    """The ruling with only those the algorithm leaves in the race. Nobody: the job waits, with each one's reason."""
    if ruling.outcome != "assign":
        return replace(ruling, algorithm=algorithm)
    selected = selector.select(candidates_of(ruling, world, states, order, quotes), parameters)
    if isinstance(selected, SelectionFailure):
        return selected
    weights = dict(zip(ruling.able.names, ruling.able.weights, strict=True))
    among = WeightedCandidates.of(
        selected.among, [1.0 if selected.is_even else weights[name] for name in selected.among]
    )
    verdicts = VerdictSet.of((each.cluster, _verdict_after(each, selected)) for each in ruling.verdicts)
    left = replace(ruling, able=among, verdicts=verdicts, algorithm=algorithm, remaining=selected.remaining)
    return left if selected.among else replace(left, outcome="hold", reason=_hold_reason(algorithm, selected))


def _verdict_after(verdict: Verdict, selected: SelectionResult) -> GroupVerdict:
    if (why := selected.out.get(verdict.cluster)) is not None:
        return GroupVerdict(Answer.WAIT, "select", why)
    if (why := selected.notes.get(verdict.cluster)) is not None:
        return GroupVerdict(Answer.YES, "select", f"{verdict.reason}; {why}")
    return GroupVerdict(verdict.say, verdict.step, verdict.reason)


def _hold_reason(algorithm: str, selected: SelectionResult) -> str:
    shown = [f"{name}: {why}" for name, why in list(selected.out.items())[:REASONS_SHOWN_MAX]]
    more = len(selected.out) - len(shown)
    listed = "; ".join(shown) + (f"; and {more} more" if more > 0 else "")
    return f"{NO_CANDIDATE_LEFT} ({algorithm}): {listed}"
