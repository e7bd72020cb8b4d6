"""Select among the eligible clusters by the job's algorithm, with the current state of the clusters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from switchyard.errors import BadRequest
from switchyard.model.cluster.quote import Quote, QuoteOutcome
from switchyard.model.cluster.selection import Scalar
from switchyard.model.cluster.verdict import Outcome
from switchyard.model.job.bounds import Bounds
from switchyard.model.job.job import JobSpec
from switchyard.route.apply_selection import apply_selection
from switchyard.route.operators import ExpressionValue
from switchyard.route.router import Eligibility
from switchyard.route.select.selector import SelectionFailure, reads_quotes
from switchyard.service.core.agents.cluster_state import selection_values, to_selection_value
from switchyard.service.core.context import Context
from switchyard.service.placement.eligibility_cache import CachedEligibility, cache_eligibility
from switchyard.service.reserve.quotes import QuoteWindow, gather_quotes, quotes_for_selection, shape_of

SELECTIONS_CACHE_MAX = 256
SELECTIONS_CACHE_US = 1_000_000  # selections are cached at most this long: ages of state values change
QUOTED_CACHE_US = 50_000  # likewise for selections by quotes


class SelectionCache:
    """Caches selections while nothing changes: a bulk request repeats the same selection thousands of times."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._selected: dict[tuple[object, ...], CachedEligibility] = {}
        self._selected_from: tuple[int, ...] = ()  # versions of the data that the cached selections used
        self._quoted: dict[tuple[object, ...], CachedEligibility] = {}
        self._quoted_at = 0

    def among(
        self, cached: CachedEligibility, key: tuple[object, ...], bounds: Bounds, spec: JobSpec
    ) -> CachedEligibility:
        """Return the eligibility with only the clusters that the job's algorithm selects. `key`: its cache key."""
        context = self._context
        if reads_quotes(context.selections.choose(bounds.select)[1]):
            return self._among_quoted(cached, (key, shape_of(spec)[0]), bounds, spec)
        snapshots = context.snapshots
        versions = *snapshots.versions, snapshots.fleet.version
        inputs = *versions, snapshots.loads_number, context.now_us() // SELECTIONS_CACHE_US
        if self._selected_from != inputs or len(self._selected) > SELECTIONS_CACHE_MAX:
            self._selected, self._selected_from = {}, inputs
        cache = self._selected  # another thread may replace it meanwhile
        selected = cache.get(key)
        if selected is None:
            selection = _refuse_failed(select_clusters(context, cached.eligibility, bounds, spec))
            selected = cache[key] = cache_eligibility(selection)
        return selected

    def _among_quoted(
        self, cached: CachedEligibility, key: tuple[object, ...], bounds: Bounds, spec: JobSpec
    ) -> CachedEligibility:
        """Select by quotes. The cache is short: quotes arrive at any time, and each placed job delays the next job."""
        moment = self._context.now_us() // QUOTED_CACHE_US
        if self._quoted_at != moment:
            self._quoted, self._quoted_at = {}, moment
        cache = self._quoted  # another thread may replace it meanwhile
        selected = cache.get(key)
        if selected is None:
            selection = _refuse_failed(select_clusters(self._context, cached.eligibility, bounds, spec))
            selected = cache[key] = cache_eligibility(selection)
        return selected


def _refuse_failed(selection: Eligibility | SelectionFailure) -> Eligibility:
    if isinstance(selection, SelectionFailure):
        raise BadRequest(f"The selection cannot be followed: {selection.reason}.")
    return selection


def select_clusters(
    context: Context, eligibility: Eligibility, bounds: Bounds, spec: JobSpec, window: QuoteWindow | None = None
) -> Eligibility | SelectionFailure:
    """Select without a cache. `window`: clusters were asked for quotes within this window, and it is over."""
    selections, snapshots = context.selections, context.snapshots
    if bounds.is_decided or selections.is_drawn(bounds.select):
        return eligibility
    name, algorithm = selections.choose(bounds.select)
    states = {}
    if algorithm.reads_state and eligibility.outcome is Outcome.ASSIGN:
        states = selection_values(snapshots, eligibility.eligible.names, selections, now_us=context.now_us())
    quotes: Mapping[str, Quote] = {}
    silent: tuple[str, ...] = ()
    if reads_quotes(algorithm) and eligibility.outcome is Outcome.ASSIGN and _has_choice(eligibility):
        gathered = gather_quotes(context, eligibility, spec, window, is_cheapest=name == "cheapest")
        if gathered.missing and window is None:
            return _hold_for_quotes(eligibility, name, gathered.missing)
        quotes = gathered.quotes
        if gathered.sets is not None:
            eligibility = replace(eligibility, sets=gathered.sets)
        silent = () if window is None or not window.was_asked else gathered.missing
    selection = apply_selection(
        eligibility,
        name,
        algorithm,
        world=snapshots.world,
        states=states,
        parameters=_parameters(bounds.parameters),
        order=bounds.order,
        quotes=quotes_for_selection(quotes),
    )
    if isinstance(selection, SelectionFailure):
        return selection
    unanswered = {name: Quote(cluster=name, said=QuoteOutcome.NONE, reason="no answer in time") for name in silent}
    quoted = {**unanswered, **quotes}
    return replace(selection, quoted=tuple(quoted[name] for name in sorted(quoted))) if quoted else selection


def _has_choice(eligibility: Eligibility) -> bool:
    """Return whether there are several clusters, or several sets for the one cluster."""
    names, sets = eligibility.eligible.names, eligibility.sets
    return len(names) > 1 or (sets is not None and any(len(sets.fitting.get(name, ())) > 1 for name in names))


def _hold_for_quotes(eligibility: Eligibility, algorithm: str, names: tuple[str, ...]) -> Eligibility:
    reason = f"waiting for quotes of {', '.join(names)}"
    return replace(eligibility, outcome=Outcome.HOLD, reason=reason, algorithm=algorithm, asks=names)


def select_or_hold(
    context: Context, eligibility: Eligibility, bounds: Bounds, spec: JobSpec, window: QuoteWindow | None = None
) -> Eligibility:
    """Select for an accepted job. If its selection can no longer be followed, the job is held with the reason."""
    selected = select_clusters(context, eligibility, bounds, spec, window=window)
    if isinstance(selected, SelectionFailure):
        return replace(
            eligibility, outcome=Outcome.HOLD, reason=f"waits: the selection cannot be followed: {selected.reason}"
        )
    return selected


def _parameters(text: str) -> dict[str, ExpressionValue]:
    given = msgspec.json.decode(text, type=dict[str, Scalar]) if text else {}
    return {name: to_selection_value(value) for name, value in given.items()}
