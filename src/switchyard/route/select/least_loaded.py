"""`least-loaded`: the cluster with the largest share of free cores, then with the shortest queue per core. Pure.

A cluster's load is as old as its last poll: it does not include jobs that were assigned since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from switchyard.route.operators import ExpressionValue
from switchyard.route.select.selector import Candidate, SelectionResult, refuse_options

UNKNOWN_LOAD = (2.0, 0.0)  # sorts after every known load, whose share is at most 1


class LeastLoadedSelector:
    """Ties are drawn by weight. Clusters whose load is unknown come last."""

    reads_state: ClassVar[bool] = True

    def __init__(self, options: Mapping[str, Any]) -> None:
        refuse_options("least-loaded", options)

    def select(self, candidates: Sequence[Candidate], parameters: Mapping[str, ExpressionValue]) -> SelectionResult:  # noqa: ARG002
        ordered = sorted(candidates, key=_load)
        best = [candidate for candidate in ordered if _load(candidate) == _load(ordered[0])]
        return SelectionResult(
            tuple(candidate.name for candidate in ordered),
            tuple(candidate.name for candidate in best),
            notes={candidate.name: f"least loaded: {_show_load(candidate)}" for candidate in best},
        )


def _load(candidate: Candidate) -> tuple[float, float]:
    """Lower is better: the share of cores in use, then queued jobs per core."""
    free, queued = candidate.state.get("free_cores"), candidate.state.get("queued")
    if not isinstance(free, float) or candidate.cores <= 0:
        return UNKNOWN_LOAD
    waiting = queued if isinstance(queued, float) else 0.0
    return 1 - min(1.0, max(0.0, free / candidate.cores)), waiting / candidate.cores


def _show_load(candidate: Candidate) -> str:
    if _load(candidate) == UNKNOWN_LOAD:
        return "nobody said how loaded they are"
    free, queued = candidate.state["free_cores"], candidate.state.get("queued") or 0
    return f"{free:g} of {candidate.cores} cores free, {queued:g} queued"
