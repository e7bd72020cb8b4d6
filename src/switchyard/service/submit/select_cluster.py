"""Choose among the able clusters of a ruling by a job's algorithm, with what is known of the clusters now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from switchyard.errors import BadRequest
from switchyard.model.job import JobSpec
from switchyard.model.quote import Quote, QuoteOutcome
from switchyard.model.selection import Scalar
from switchyard.route.apply_selection import apply_selection
from switchyard.route.operators import ExpressionValue
from switchyard.route.router import Eligibility
from switchyard.route.select.selector import SelectionFailure, reads_quotes
from switchyard.service.cluster.cluster_state import selection_values, to_selection_value
from switchyard.service.context import Context
from switchyard.service.quote.quotes import QuoteWindow, gather_quotes, quotes_for_selection, shape_of
from switchyard.service.submit.bounds import Bounds
from switchyard.service.submit.new_job import CachedEligibility, cache_eligibility

SELECTIONS_CACHE_MAX = 256
SELECTIONS_CACHE_US = 1_000_000  # what is known of clusters grows old in steps of this
QUOTED_CACHE_US = 50_000  # likewise, what they quoted


class SelectionCache:
    """Remembers what it chose while nothing changes: a bulk request asks the same thousands of times."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._kept: dict[tuple[object, ...], CachedEligibility] = {}
        self._kept_of: tuple[int, ...] = ()
        self._quoted: dict[tuple[object, ...], CachedEligibility] = {}
        self._quoted_of = 0

    def among(
        self, kept: CachedEligibility, key: tuple[object, ...], bounds: Bounds, spec: JobSpec
    ) -> CachedEligibility:
        """The ruling with only those in it that the job's algorithm leaves. `key`: what the ruling is kept by."""
        context = self._context
        if bounds.settled is not None or context.selections.is_drawn(bounds.select):
            return kept
        if reads_quotes(context.selections.choose(bounds.select)[1]):
            return self._among_quoted(kept, (key, shape_of(spec)[0]), bounds, spec)
        snapshots = context.snapshots
        versions = *snapshots.versions, snapshots.fleet.version
        state_of = *versions, snapshots.loads_number, context.now_us() // SELECTIONS_CACHE_US
        if self._kept_of != state_of or len(self._kept) > SELECTIONS_CACHE_MAX:
            self._kept, self._kept_of = {}, state_of
        held = self._kept  # another thread may begin a new one meanwhile
        found = held.get(key)
        if found is None:
            found = held[key] = cache_eligibility(_refuse_failed(select_clusters(context, kept.ruling, bounds, spec)))
        return found

    def _among_quoted(
        self, kept: CachedEligibility, key: tuple[object, ...], bounds: Bounds, spec: JobSpec
    ) -> CachedEligibility:
        """Quotes come at any moment, and each job that is placed makes the next one wait: kept for hardly any time."""
        moment = self._context.now_us() // QUOTED_CACHE_US
        if self._quoted_of != moment:
            self._quoted, self._quoted_of = {}, moment
        held = self._quoted
        found = held.get(key)
        if found is None:
            found = held[key] = cache_eligibility(
                _refuse_failed(select_clusters(self._context, kept.ruling, bounds, spec))
            )
        return found


def _refuse_failed(ruling: Eligibility | SelectionFailure) -> Eligibility:
    if isinstance(ruling, SelectionFailure):
        raise BadRequest(f"The selection cannot be followed: {ruling.reason}.")
    return ruling


def select_clusters(
    context: Context, ruling: Eligibility, bounds: Bounds, spec: JobSpec, round_: QuoteWindow | None = None
) -> Eligibility | SelectionFailure:
    """The same without memory. `round_`: the clusters were asked for quotes, and the time to answer is over."""
    selections, snapshots = context.selections, context.snapshots
    if bounds.settled is not None or selections.is_drawn(bounds.select):
        return ruling
    name, algorithm = selections.choose(bounds.select)
    states = {}
    if algorithm.reads_state and ruling.outcome == "assign":
        states = selection_values(snapshots, ruling.able.names, selections, now_us=context.now_us())
    quotes: Mapping[str, Quote] = {}
    silent: tuple[str, ...] = ()
    if reads_quotes(algorithm) and ruling.outcome == "assign" and len(ruling.able.names) > 1:
        gathered = gather_quotes(context, ruling, spec, round_)
        if gathered.missing and round_ is None:
            return _hold_for_quotes(ruling, name, gathered.missing)
        quotes = gathered.quotes
        silent = () if round_ is None or not round_.was_asked else gathered.missing
    chosen = apply_selection(
        ruling,
        name,
        algorithm,
        world=snapshots.world,
        states=states,
        parameters=_parameters(bounds.parameters),
        order=bounds.order,
        quotes=quotes_for_selection(quotes),
    )
    if isinstance(chosen, SelectionFailure):
        return chosen
    unheard = {name: Quote(cluster=name, said=QuoteOutcome.NONE, reason="no answer in time") for name in silent}
    heard = {**unheard, **quotes}
    return replace(chosen, quoted=tuple(heard[each] for each in sorted(heard))) if heard else chosen


def _hold_for_quotes(ruling: Eligibility, algorithm: str, names: tuple[str, ...]) -> Eligibility:
    said = f"waiting for quotes of {', '.join(names)}"
    return replace(ruling, outcome="hold", reason=said, algorithm=algorithm, asks=names)


def select_or_hold(
    context: Context, ruling: Eligibility, bounds: Bounds, spec: JobSpec, round_: QuoteWindow | None = None
) -> Eligibility:
    """For a job that was accepted: steps that cannot be followed any more let it wait, and say why."""
    found = select_clusters(context, ruling, bounds, spec, round_)
    if isinstance(found, SelectionFailure):
        return replace(ruling, outcome="hold", reason=f"waits: the selection cannot be followed: {found.reason}")
    return found


def _parameters(text: str) -> dict[str, ExpressionValue]:
    given = msgspec.json.decode(text, type=dict[str, Scalar]) if text else {}
    return {name: to_selection_value(value) for name, value in given.items()}
