"""One decision from those about each alternative of a job. Pure.

A cluster takes the job with the first set of resources, in the job's order, that fits there. Among clusters, either the
preferred set decides (`is_preferring`), or all clusters are candidates and the selection chooses among them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from switchyard.match.demand import Demand
from switchyard.model.cluster.verdict import Answer, Outcome
from switchyard.route.checks import LAST_STEP, STEPS
from switchyard.route.router import ChosenSets, Eligibility
from switchyard.route.select.weighted_draw import WeightedCandidates
from switchyard.route.verdicts import GroupVerdict, VerdictSet

REASONS_SHOWN_MAX = 3  # alternatives in the reason of a job that no cluster takes; its verdicts show all
NEVER = "no cluster could ever run it: "  # as the router begins its reason
WAITS = "waits for "


@dataclass(frozen=True, slots=True)
class Alternative:
    """One set: what it needs, what to call it, and the decision as if it were the only one."""

    demand: Demand
    name: str
    eligibility: Eligibility


def combine_alternatives(alternatives: Sequence[Alternative], *, is_preferring: bool) -> Eligibility:
    """`is_preferring`: only clusters that take the most preferred set that any cluster takes are candidates."""
    fitting = _fitting(alternatives, is_last=False)
    first = {cluster: numbers[0] for cluster, numbers in fitting.items()}
    fitting = _fitting(alternatives, is_last=True) | fitting
    numbers = {cluster: numbers[0] for cluster, numbers in fitting.items()}
    candidates = first or numbers
    preferred = min(candidates.values(), default=1)
    if is_preferring:
        candidates = {cluster: number for cluster, number in candidates.items() if number == preferred}
    outcome, reason = _conclude(alternatives)
    base = next(each.eligibility for each in alternatives if each.eligibility.outcome is outcome)
    return replace(
        base,
        eligible=_candidates(alternatives, candidates),
        verdicts=_verdicts(alternatives, numbers, preferred if is_preferring else len(alternatives)),
        reason=reason,
        sets=ChosenSets(numbers, fitting, tuple(each.demand for each in alternatives)),
    )


def _fitting(alternatives: Sequence[Alternative], *, is_last: bool) -> dict[str, tuple[int, ...]]:
    """Return the sets that each cluster takes, in order. `is_last`: those for which it comes after other clusters."""
    fitting: dict[str, tuple[int, ...]] = {}
    for number, each in enumerate(alternatives, 1):
        for verdict, names in each.eligibility.verdicts.groups:
            if verdict.say is Answer.YES and (verdict.step == LAST_STEP) is is_last:
                for name in names:
                    fitting[name] = (*fitting.get(name, ()), number)
    return fitting


def _candidates(alternatives: Sequence[Alternative], numbers: Mapping[str, int]) -> WeightedCandidates:
    weights: dict[str, float] = {}
    for each in alternatives:
        eligible = each.eligibility.eligible
        weights |= zip(eligible.names, eligible.weights, strict=True)
    names = sorted(name for name in numbers if name in weights)
    return WeightedCandidates.of(names, [weights[name] for name in names])


def _conclude(alternatives: Sequence[Alternative]) -> tuple[Outcome, str]:
    outcomes = [each.eligibility.outcome for each in alternatives]
    if Outcome.ASSIGN in outcomes:
        return Outcome.ASSIGN, ""
    outcome, begin = (Outcome.HOLD, WAITS) if Outcome.HOLD in outcomes else (Outcome.REJECT, NEVER)
    told = [each for each in alternatives if each.eligibility.outcome is outcome]
    reasons = [each.eligibility.reason for each in told]
    if len(set(reasons)) == 1:  # a bound that is the same for all sets
        return outcome, reasons[0]
    shown = [f"{each.name}: {each.eligibility.reason.removeprefix(begin)}" for each in told[:REASONS_SHOWN_MAX]]
    more = len(told) - REASONS_SHOWN_MAX
    return outcome, begin + "; or ".join(shown) + (f"; or {more} more alternatives" if more > 0 else "")


def _verdicts(alternatives: Sequence[Alternative], numbers: Mapping[str, int], preferred: int) -> VerdictSet:
    """Return one verdict per cluster, which tells the answer to each set."""
    answers: dict[str, list[GroupVerdict]] = {}
    for each in alternatives:
        for verdict, names in each.eligibility.verdicts.groups:
            for name in names:
                answers.setdefault(name, []).append(verdict)
    set_names = [each.name for each in alternatives]
    known: dict[tuple[GroupVerdict, ...], GroupVerdict] = {}
    verdicts = []
    for name in sorted(answers):
        key = tuple(answers[name])
        if key not in known:
            known[key] = _merged(key, set_names, numbers.get(name), preferred)
        verdicts.append((name, known[key]))
    return VerdictSet.of(verdicts)


def _merged(
    answers: Sequence[GroupVerdict], set_names: Sequence[str], number: int | None, preferred: int
) -> GroupVerdict:
    say = _strongest(answers)
    first = next(verdict for verdict in answers if verdict.say is say)
    if number is not None:
        first = answers[number - 1]
    elif say is Answer.NO:  # the set that came furthest
        first = max(answers, key=lambda verdict: STEPS.index(verdict.step))
    if len(set(answers)) == 1 and say is not Answer.YES:
        return first
    # Sets with the same answer share it.
    by_reason: dict[str, list[str]] = {}
    for set_name, verdict in zip(set_names, answers, strict=True):
        by_reason.setdefault(verdict.reason, []).append(set_name)
    reason = "; or ".join(f"{' or '.join(names)}: {reason}" for reason, names in by_reason.items())
    if number is not None and number > preferred and first.step != LAST_STEP:
        return GroupVerdict(say, LAST_STEP, f"{reason}; comes last: {set_names[preferred - 1]} fits elsewhere")
    return GroupVerdict(say, first.step, reason)


def _strongest(answers: Sequence[GroupVerdict]) -> Answer:
    says = {verdict.say for verdict in answers}
    return next(say for say in (Answer.YES, Answer.WAIT, Answer.NO) if say in says)
