"""The algorithms that choose among able clusters, by name: ours, others by entry point `switchyard.selectors`. Pure.

A selector is a class made from a job's options, which it refuses with `Malformed` if they are wrong. What a job may not
do is never decided here: whoever stands before a selector may, could and can run the job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import entry_points
from typing import Any, ClassVar, Protocol

import msgspec

from switchyard.decoder_warmup import warm_loaded_types
from switchyard.errors import Malformed, UnknownName
from switchyard.route.operators import ExpressionValue

ENTRY_POINT_GROUP = "switchyard.selectors"
WEIGHTED = "weighted"
BUILT_IN_SELECTORS = (WEIGHTED, "random", "least-loaded", "constraint", "soonest", "cheapest")


@dataclass(frozen=True, slots=True)
class CandidateQuote:
    """What a cluster answered about the job. `starts_s`: in how many seconds the job is reckoned to begin there."""

    can: bool
    starts_s: float | None = None
    cost: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One cluster that could take the job now. `state`: what is known of it; numbers are floats."""

    name: str
    weight: float = 1.0
    cores: int = 0  # all it has
    state: Mapping[str, ExpressionValue] = field(default_factory=dict)
    quote: CandidateQuote | None = None  # none: it was not asked, or did not answer


@dataclass(frozen=True, slots=True)
class SelectionResult:
    """Who is left in the race, the best first, and among whom the job's id draws: by weight, or with `is_even` alike.

    `notes`: of those, why they are; `out`: of the others, which step put them out. Nobody left: the job waits.
    """

    remaining: tuple[str, ...]
    among: tuple[str, ...]
    is_even: bool = False
    notes: Mapping[str, str] = field(default_factory=dict)
    out: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SelectionFailure:
    """The algorithm cannot be followed, with the step and the cluster where that was found."""

    reason: str


class Selector(Protocol):
    """One that has `reads_quotes` set to true is handed the contenders' quotes, too; the others ask nobody."""

    reads_state: ClassVar[bool]  # else it is handed none

    def __init__(self, options: Mapping[str, Any]) -> None: ...

    def select(
        self, contenders: Sequence[Candidate], parameters: Mapping[str, ExpressionValue]
    ) -> SelectionResult | SelectionFailure:
        """Choose. `parameters` are the job's. The same inputs give the same answer; the draw comes after."""


@lru_cache(maxsize=64)  # the largest that are taken are some megabytes each
def selector(name: str, options: str = "{}") -> Selector:
    """The algorithm of that name with these options (JSON). Reading them may be slow, so what was read is kept."""
    return _selector_class(name)(msgspec.json.decode(options, type=dict[str, Any]))


def _selector_class(name: str) -> type[Selector]:
    if name == WEIGHTED:
        return WeightedSelector
    if name == "random":
        return RandomSelector
    if name == "least-loaded":
        from switchyard.route.select.least_loaded import LeastLoadedSelector

        return LeastLoadedSelector
    if name == "constraint":
        from switchyard.route.select.constraint import ConstraintSelector

        return ConstraintSelector
    if name in ("soonest", "cheapest"):
        from switchyard.route.select.quote_selectors import CheapestSelector, SoonestSelector

        return SoonestSelector if name == "soonest" else CheapestSelector
    for found in entry_points(group=ENTRY_POINT_GROUP):
        if found.name == name:
            loaded: type[Selector] = found.load()
            warm_loaded_types()  # threads run already
            return loaded
    raise UnknownName(
        f"There is no selection algorithm {name[:80]!r}.", next_step=f"Installed are {', '.join(selector_names())}."
    )


def selector_names() -> list[str]:
    """Ours first, then what is installed."""
    return [
        *BUILT_IN_SELECTORS,
        *sorted({found.name for found in entry_points(group=ENTRY_POINT_GROUP)} - set(BUILT_IN_SELECTORS)),
    ]


def reads_quotes(algorithm: Selector) -> bool:
    return bool(getattr(algorithm, "reads_quotes", False))


def refuse_options(name: str, options: Mapping[str, Any], known: Sequence[str] = ()) -> None:
    for option in options:
        if option not in known:
            said = f"it knows {', '.join(known)}" if known else "it takes none"
            raise Malformed(f"{name} has no option {option[:80]!r}: {said}.")


class WeightedSelector:
    """Everybody is drawn by weight. The router does this by itself, faster; here it stands for third parties."""

    reads_state: ClassVar[bool] = False

    def __init__(self, options: Mapping[str, Any]) -> None:
        refuse_options(WEIGHTED, options)

    def select(self, contenders: Sequence[Candidate], parameters: Mapping[str, ExpressionValue]) -> SelectionResult:  # noqa: ARG002
        names = tuple(each.name for each in contenders)
        return SelectionResult(names, names)


class RandomSelector:
    """Everybody is drawn alike, by the job's id."""

    reads_state: ClassVar[bool] = False

    def __init__(self, options: Mapping[str, Any]) -> None:
        refuse_options("random", options)

    def select(self, contenders: Sequence[Candidate], parameters: Mapping[str, ExpressionValue]) -> SelectionResult:  # noqa: ARG002
        names = tuple(each.name for each in contenders)
        return SelectionResult(names, names, is_even=True)
