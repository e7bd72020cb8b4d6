"""`soonest` and `cheapest`: whoever quotes best. Pure.

Equals are drawn by weight. So is everybody when no quote says what is asked for: a job never waits for ever because
nobody answered. Whoever says no is out. The numbers stay out of the notes: verdicts are stored once for many jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from switchyard.route.operators import ExpressionValue
from switchyard.route.select.selector import Candidate, CandidateQuote, SelectionResult, refuse_options


class SoonestSelector:
    """Where the job begins first, to the second."""

    reads_state: ClassVar[bool] = False
    reads_quotes: ClassVar[bool] = True

    def __init__(self, options: Mapping[str, Any]) -> None:
        refuse_options("soonest", options)

    def select(self, contenders: Sequence[Candidate], parameters: Mapping[str, ExpressionValue]) -> SelectionResult:  # noqa: ARG002
        return _select_lowest(contenders, rounded_start_s, "soonest by its quote")


class CheapestSelector:
    """Where the job costs least, to four digits."""

    reads_state: ClassVar[bool] = False
    reads_quotes: ClassVar[bool] = True

    def __init__(self, options: Mapping[str, Any]) -> None:
        refuse_options("cheapest", options)

    def select(self, contenders: Sequence[Candidate], parameters: Mapping[str, ExpressionValue]) -> SelectionResult:  # noqa: ARG002
        return _select_lowest(contenders, rounded_cost, "cheapest by its quote")


def rounded_start_s(quote: CandidateQuote) -> float | None:
    """Lower is better; none: the quote does not say."""
    return None if not quote.can or quote.starts_s is None else float(round(quote.starts_s))


def rounded_cost(quote: CandidateQuote) -> float | None:
    return None if not quote.can or quote.cost is None else float(f"{quote.cost:.4g}")


def _select_lowest(
    contenders: Sequence[Candidate], measure: Callable[[CandidateQuote], float | None], said: str
) -> SelectionResult:
    left = [each for each in contenders if each.quote is None or each.quote.can]
    out = {each.name: f"says no: {each.quote.reason}" for each in contenders if each.quote and not each.quote.can}
    told = [(value, each.name) for each in left if each.quote and (value := measure(each.quote)) is not None]
    if not told:
        names = tuple(each.name for each in left)
        return SelectionResult(names, names, notes=dict.fromkeys(names, "no quote to go by: drawn by weight"), out=out)
    told.sort(key=lambda pair: pair[0])  # equals keep their order
    names = tuple(name for _, name in told)
    among = tuple(name for value, name in told if value == told[0][0])
    ordered = (*names, *(each.name for each in left if each.name not in names))
    return SelectionResult(ordered, among, notes=dict.fromkeys(among, said), out=out)
