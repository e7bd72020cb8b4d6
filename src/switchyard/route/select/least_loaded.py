"""`least-loaded`: where the largest share of the cores is free, then where the least waits. Pure.

What a cluster says of itself is as old as its last poll: jobs that were sent there since are not in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from switchyard.route.operators import ExpressionValue
from switchyard.route.select.selector import Candidate, SelectionResult, refuse_options

UNKNOWN_LOAD = (2.0, 0.0)  # after every share, which is at most 1, however it is turned


class LeastLoadedSelector:
    """Equals are drawn by weight. Clusters that did not say how they are come last."""

    reads_state: ClassVar[bool] = True

    def __init__(self, options: Mapping[str, Any]) -> None:
        refuse_options("least-loaded", options)

    def select(self, contenders: Sequence[Candidate], parameters: Mapping[str, ExpressionValue]) -> SelectionResult:  # noqa: ARG002
        ordered = sorted(contenders, key=_load)
        best = [each for each in ordered if _load(each) == _load(ordered[0])]
        return SelectionResult(
            tuple(each.name for each in ordered),
            tuple(each.name for each in best),
            notes={each.name: f"least loaded: {_show_load(each)}" for each in best},
        )


def _load(contender: Candidate) -> tuple[float, float]:
    """Lower is better: the share in use, then what waits for each core."""
    free, queued = contender.state.get("free_cores"), contender.state.get("queued")
    if not isinstance(free, float) or contender.cores <= 0:
        return UNKNOWN_LOAD
    waiting = queued if isinstance(queued, float) else 0.0
    return 1 - min(1.0, max(0.0, free / contender.cores)), waiting / contender.cores


def _show_load(contender: Candidate) -> str:
    if _load(contender) == UNKNOWN_LOAD:
        return "nobody said how loaded they are"
    free, queued = contender.state["free_cores"], contender.state.get("queued") or 0
    return f"{free:g} of {contender.cores} cores free, {queued:g} queued"
