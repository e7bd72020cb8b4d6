"""`soonest` and `cheapest`: the cluster with the best quote. Pure.

Ties are drawn by weight. If no quote has the number that is compared, all candidates are drawn by weight: a job never
waits for ever because no cluster answered. A cluster that says no is excluded. The notes contain no numbers, since
verdicts are stored once for many jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from switchyard.route.operators import ExpressionValue
from switchyard.route.select.selector import Candidate, CandidateQuote, SelectionResult, refuse_options


class SoonestSelector:
    """Where the job starts first, to the second."""

    reads_state: ClassVar[bool] = False
    reads_quotes: ClassVar[bool] = True

    def __init__(self, options: Mapping[str, Any]) -> None:
        refuse_options("soonest", options)

    def select(self, candidates: Sequence[Candidate], parameters: Mapping[str, ExpressionValue]) -> SelectionResult:  # noqa: ARG002
        return _select_lowest(candidates, rounded_start_s, "soonest by its quote")


class CheapestSelector:
    """Where the job costs least, to four digits."""

    reads_state: ClassVar[bool] = False
    reads_quotes: ClassVar[bool] = True

    def __init__(self, options: Mapping[str, Any]) -> None:
        refuse_options("cheapest", options)

    def select(self, candidates: Sequence[Candidate], parameters: Mapping[str, ExpressionValue]) -> SelectionResult:  # noqa: ARG002
        return _select_lowest(candidates, rounded_cost, "cheapest by its quote")


def rounded_start_s(quote: CandidateQuote) -> float | None:
    """Lower is better; none: the quote has no start."""
    return None if not quote.can or quote.starts_s is None else float(round(quote.starts_s))


def rounded_cost(quote: CandidateQuote) -> float | None:
    return None if not quote.can or quote.cost is None else float(f"{quote.cost:.4g}")


def _select_lowest(
    candidates: Sequence[Candidate], measure: Callable[[CandidateQuote], float | None], note: str
) -> SelectionResult:
    willing = [candidate for candidate in candidates if candidate.quote is None or candidate.quote.can]
    out = {
        candidate.name: f"says no: {candidate.quote.reason}"
        for candidate in candidates
        if candidate.quote and not candidate.quote.can
    }
    ranked = [
        (value, candidate.name)
        for candidate in willing
        if candidate.quote and (value := measure(candidate.quote)) is not None
    ]
    if not ranked:
        names = tuple(candidate.name for candidate in willing)
        return SelectionResult(names, names, notes=dict.fromkeys(names, "no quote to go by: drawn by weight"), out=out)
    ranked.sort(key=lambda pair: pair[0])  # equals keep their order
    names = tuple(name for _, name in ranked)
    among = tuple(name for value, name in ranked if value == ranked[0][0])
    ordered = (*names, *(candidate.name for candidate in willing if candidate.name not in names))
    return SelectionResult(ordered, among, notes=dict.fromkeys(among, note), out=out)
