"""What a selection algorithm is: candidates and a job's parameters in, the clusters to draw from out. Pure.

A selector is a class made from a job's options. Wrong options raise `Malformed`. A selector never decides whether a job
may run somewhere: every candidate is eligible. registry.py finds selectors by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from switchyard.errors import Malformed
from switchyard.route.operators import ExpressionValue

WEIGHTED = "weighted"


@dataclass(frozen=True, slots=True)
class CandidateQuote:
    """A cluster's quote for the job. `starts_s`: the estimated seconds until the job starts there."""

    can: bool
    starts_s: float | None = None
    cost: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One eligible cluster. `state`: its state values; numbers are floats."""

    name: str
    weight: float = 1.0
    cores: int = 0  # in total
    state: Mapping[str, ExpressionValue] = field(default_factory=dict)
    quote: CandidateQuote | None = None  # none: the cluster was not asked, or did not answer


@dataclass(frozen=True, slots=True)
class SelectionResult:
    """`remaining`: the candidates that the algorithm leaves, the best first; none: the job is held.

    `among`: those of them that the job's id draws from, by weight, or evenly with `is_even`.
    `notes`: why clusters are in `among`. `out`: which step excluded the others.
    """

    remaining: tuple[str, ...]
    among: tuple[str, ...]
    is_even: bool = False
    notes: Mapping[str, str] = field(default_factory=dict)
    out: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SelectionFailure:
    """The algorithm cannot be applied; the reason names the step and the cluster."""

    reason: str


class Selector(Protocol):
    """An algorithm with `reads_quotes = True` gets the candidates' quotes; for others, no cluster is asked."""

    reads_state: ClassVar[bool]  # false: candidates have no state

    def __init__(self, options: Mapping[str, Any]) -> None: ...

    def select(
        self, candidates: Sequence[Candidate], parameters: Mapping[str, ExpressionValue]
    ) -> SelectionResult | SelectionFailure:
        """Select. `parameters`: the job's. Must be deterministic: the draw comes after it."""


def reads_quotes(algorithm: Selector) -> bool:
    return bool(getattr(algorithm, "reads_quotes", False))


def check_default(algorithm: Selector) -> None:
    """Let an algorithm refuse options that it tolerates of one job, but not of the operator: `check_default()`."""
    if check := getattr(algorithm, "check_default", None):
        check()


def refuse_options(name: str, options: Mapping[str, Any], known: Sequence[str] = ()) -> None:
    for option in options:
        if option not in known:
            knows = f"it knows {', '.join(known)}" if known else "it takes none"
            raise Malformed(f"{name} has no option {option[:80]!r}: {knows}.")


class WeightedSelector:
    """All candidates are drawn by weight. The router does this itself, faster; this class is for other callers."""

    reads_state: ClassVar[bool] = False

    def __init__(self, options: Mapping[str, Any]) -> None:
        refuse_options(WEIGHTED, options)

    def select(self, candidates: Sequence[Candidate], parameters: Mapping[str, ExpressionValue]) -> SelectionResult:  # noqa: ARG002
        names = tuple(candidate.name for candidate in candidates)
        return SelectionResult(names, names)


class RandomSelector:
    """All candidates are drawn with equal chances, by the job's id."""

    reads_state: ClassVar[bool] = False

    def __init__(self, options: Mapping[str, Any]) -> None:
        refuse_options("random", options)

    def select(self, candidates: Sequence[Candidate], parameters: Mapping[str, ExpressionValue]) -> SelectionResult:  # noqa: ARG002
        names = tuple(candidate.name for candidate in candidates)
        return SelectionResult(names, names, is_even=True)
