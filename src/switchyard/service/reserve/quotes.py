"""Stored quotes of clusters: the shape of a job, the valid quotes for it, and their value for a selection now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from math import inf

import msgspec

from switchyard.model.cluster.quote import CANDIDATES_MAX, Quote, QuoteOutcome, QuoteRecord
from switchyard.model.job.job import JobSpec
from switchyard.model.jobspec.alternatives import spec_with_set
from switchyard.model.jobspec.quantity import parse_duration_s
from switchyard.route.member import Member
from switchyard.route.quote_estimate import BacklogWork, QuoteAccuracy, backlog_s, clusters_to_ask, expected_start_s
from switchyard.route.router import ChosenSets, Eligibility
from switchyard.route.select.selector import CandidateQuote
from switchyard.service.core.context import Context
from switchyard.service.lifecycle.demands import demand_of_spec
from switchyard.store.clusters import quotes as store
from switchyard.store.engine.database import Tx
from switchyard.store.jobs import jobs

PLACEHOLDER_COMMAND = ["true"]  # a quote depends on what a job needs, not on its command
TRACK_MAX = 100  # latest starts that measure how accurate the quotes of a cluster are
# Of many clusters, only some are asked. The set changes after this time, so that no idle cluster is left out for ever.
CANDIDATES_TURN_US = 60_000_000
QUOTES_PER_SHAPE_MAX = 64  # newest quotes used for one shape
LINE_MAX = 1000  # jobs read from the backlog of a cluster; a longer backlog counts as this long

_SORTED = msgspec.json.Encoder(order="sorted")


@dataclass(frozen=True, slots=True)
class QuoteWindow:
    """When clusters were asked for a job's quotes, and until when an answer counts."""

    asked_us: int
    deadline_us: int

    @property
    def was_asked(self) -> bool:
        """False for a window that only uses quotes that are still valid (move_jobs.py makes such windows)."""
        return self.asked_us <= self.deadline_us


@dataclass(frozen=True, slots=True)
class GatheredQuotes:
    """Quotes by cluster. `names`: the clusters to ask; `missing`: those of them that have not answered.

    `sets`: of a job with alternatives, the sets that these quotes are about.
    """

    quotes: Mapping[str, Quote]
    names: tuple[str, ...]
    missing: tuple[str, ...]
    sets: ChosenSets | None = None


def shape_of(spec: JobSpec) -> tuple[str, str]:
    """Return the hash and the body of the job's shape: the part of its spec that start time and cost depend on."""
    asked = JobSpec(
        PLACEHOLDER_COMMAND,
        resources=spec.resources,
        alternatives=spec.alternatives,
        compatibility=spec.compatibility,
        demand=spec.demand,
        task_type=spec.task_type,
    )
    body = _SORTED.encode(asked)
    return sha256(body).hexdigest(), body.decode()


def gather_quotes(
    context: Context,
    eligibility: Eligibility,
    spec: JobSpec,
    window: QuoteWindow | None = None,
    *,
    names: tuple[str, ...] = (),
    is_cheapest: bool = False,
) -> GatheredQuotes:
    """Return the quotes of the eligible clusters: those valid now, or those given within `window`.

    `names`: the clusters that must answer; by default, those to ask at this time. Quotes of other clusters count, too.
    `is_cheapest`: of the sets of a job with alternatives the cheapest counts at each cluster, else the soonest.
    """
    shape, _ = shape_of(spec)
    world, now_us, eligible_names = context.snapshots.world, context.now_us(), frozenset(eligibility.eligible.names)
    names = names or clusters_to_ask(
        eligibility.eligible, seed=f"{shape} {now_us // CANDIDATES_TURN_US}", most=CANDIDATES_MAX
    )
    with context.database.read() as tx:
        rows = _rows_of_shape(tx, shape, window, now_us)
        refusing = store.ask_refusing_clusters(tx, shape, now_us=now_us)
        known = [(row, world.by_id.get(row.cluster_id)) for row in rows]
        answers = [(member, row) for row, member in known if member and member.name in eligible_names]
        asks, sets = demand_of_spec(spec).cores_total, eligibility.sets
        quotes_by_name = {
            member.name: _quote_now(
                context, tx, member, row, asks if sets is None else sets.demand(member.name).cores_total
            )
            for member, row in answers
        }
        if sets is not None:
            further = _further_quotes(context, tx, eligibility, spec, window)
            quotes_by_name, sets = _best_quotes(quotes_by_name, further, sets, is_cheapest=is_cheapest)
    answered = {member.name for member, row in answers if member.id not in refusing}
    missing = tuple(name for name in names if name in world.by_name and name not in answered)
    return GatheredQuotes(quotes_by_name, names, missing, sets)


def _rows_of_shape(tx: Tx, shape: str, window: QuoteWindow | None, now_us: int) -> list[store.QuoteRow]:
    if window is None:
        return store.quote_list_valid(tx, shape, now_us=now_us, limit=QUOTES_PER_SHAPE_MAX)
    times = {"asked_us": window.asked_us, "deadline_us": window.deadline_us}
    return store.quote_list_in_time(tx, shape, **times, limit=QUOTES_PER_SHAPE_MAX)


def _further_quotes(
    context: Context, tx: Tx, eligibility: Eligibility, spec: JobSpec, window: QuoteWindow | None
) -> list[tuple[int, Quote]]:
    """Return the quotes for sets that fit a cluster besides its first one, with the numbers of the sets."""
    sets, world, now_us = eligibility.sets, context.snapshots.world, context.now_us()
    assert sets is not None, "only jobs with alternatives have further sets"
    quotes: list[tuple[int, Quote]] = []
    eligible = frozenset(eligibility.eligible.names)
    for number in sorted({number for name in eligible for number in sets.fitting.get(name, ())[1:]}):
        shape, _ = shape_of(spec_with_set(spec, number))
        for row in _rows_of_shape(tx, shape, window, now_us):
            member = world.by_id.get(row.cluster_id)
            if member is not None and member.name in eligible and number in sets.fitting.get(member.name, ())[1:]:
                asks = sets.demands[number - 1].cores_total
                quotes.append((number, _quote_now(context, tx, member, row, asks)))
    return quotes


def _best_quotes(
    first: Mapping[str, Quote], further: Iterable[tuple[int, Quote]], sets: ChosenSets, *, is_cheapest: bool
) -> tuple[dict[str, Quote], ChosenSets]:
    """Return the best quote of each cluster, and the sets these are about. Of equal ones the preferred set counts."""

    def rank(quote: Quote) -> float:
        value = quote.cost if is_cheapest else quote.starts_s
        return inf if value is None or quote.said is not QuoteOutcome.YES else value

    best, numbers = dict(first), dict(sets.by_cluster)
    for number, quote in further:
        if quote.cluster in best and rank(quote) < rank(best[quote.cluster]):
            best[quote.cluster], numbers[quote.cluster] = quote, number
    return best, replace(sets, by_cluster=numbers)


def _quote_now(context: Context, tx: Tx, member: Member, row: store.QuoteRow, asks: int) -> Quote:
    now_us = context.now_us()
    age_s = max(0.0, (now_us - row.at_us) / 1e6)
    valid_s = max(0.0, (row.until_us - now_us) / 1e6)
    quote = Quote(cluster=member.name, said=QuoteOutcome(row.said), reason=row.reason, age_s=round(age_s, 1))
    if row.said != QuoteOutcome.YES.value:
        return msgspec.structs.replace(quote, valid_s=round(valid_s, 1))
    track = track_of(tx, member.id)
    quote = msgspec.structs.replace(
        quote, cost=row.cost, confidence=round(row.confidence * track.trust, 3), valid_s=round(valid_s, 1)
    )
    if row.eta_us is None:
        return quote
    eta_s, waits_s = max(0.0, row.eta_us / 1e6 - age_s), _line_s(context, tx, member, asks)
    starts = expected_start_s(eta_s, track=track, confidence=row.confidence, line_s=waits_s)
    return msgspec.structs.replace(quote, eta_s=round(eta_s, 1), line_s=round(waits_s, 1), starts_s=round(starts, 1))


def _line_s(context: Context, tx: Tx, member: Member, asks: int) -> float:
    """Return the wait in seconds behind jobs that no agent has leased yet. Quotes of agents do not include them."""
    rows = store.backlog_by_spec(tx, member.id, LINE_MAX)
    if not rows or member.graph is None:
        return 0.0
    bodies = jobs.spec_get_many(tx, (row.spec_hash for row in rows))
    line = [BacklogWork(row.cores, time_limit_s(bodies.get(row.spec_hash)), row.jobs) for row in rows]
    load = context.snapshots.load_of(member.id)
    return backlog_s(line, asks=asks, free=load.free_cores if load else None, cores=member.graph.cores)


class _ResourcesTimeLimit(msgspec.Struct, frozen=True):
    time_limit: int | str | None = None


class _SpecTimeLimit(msgspec.Struct, frozen=True):
    resources: _ResourcesTimeLimit = _ResourcesTimeLimit()


_time_limit_decoder = msgspec.json.Decoder(_SpecTimeLimit)


def time_limit_s(body: str | None) -> float | None:
    """Return the time limit of a stored spec, or None. Decodes no other field."""
    limit = _time_limit_decoder.decode(body).resources.time_limit if body else None
    return None if limit is None else float(parse_duration_s(limit))


def track_of(tx: Tx, cluster_id: str) -> QuoteAccuracy:
    return QuoteAccuracy.of(store.use_errors(tx, [cluster_id], TRACK_MAX)[cluster_id])


def quote_record_of(context: Context, cluster_id: str) -> QuoteRecord | None:
    """Return how accurate the quotes of a cluster were, or None if no job has started there by a quote."""
    with context.database.read() as tx:
        track = track_of(tx, cluster_id)
    if not track.starts:
        return None
    return QuoteRecord(
        starts=track.starts,
        error_s=round(track.error_s, 1),
        error_abs_s=round(track.error_abs_s, 1),
        trust=round(track.trust, 3),
    )


def quotes_for_selection(quotes: Mapping[str, Quote]) -> dict[str, CandidateQuote]:
    """Return the quotes in the form that selections read. Unusable answers are left out."""
    return {
        name: CandidateQuote(quote.said is QuoteOutcome.YES, quote.starts_s, quote.cost, quote.reason)
        for name, quote in quotes.items()
        if quote.said is not QuoteOutcome.NONE
    }


def quote_use_row(
    job_id: str, eligibility: Eligibility, chosen: str, cluster_id: str, *, now_us: int
) -> store.QuoteUseRow:
    """Return the record of a decision by quotes. The job's start will be compared with the quoted start and backlog.

    The corrected start time is not used: a cluster whose quotes are corrected would seem accurate.
    """
    chosen_quote = next((quote for quote in eligibility.quoted if quote.cluster == chosen), None)
    expected_us = None
    if chosen_quote is not None and chosen_quote.eta_s is not None:
        expected_us = now_us + round((chosen_quote.eta_s + (chosen_quote.line_s or 0.0)) * 1e6)
    return store.QuoteUseRow(
        job_id=job_id,
        cluster_id=cluster_id,
        body=msgspec.json.encode(eligibility.quoted).decode(),
        at_us=now_us,
        expected_us=expected_us,
        error_us=None,
        is_open=expected_us is not None,
    )


@dataclass(frozen=True, slots=True)
class QuotesUsed:
    """The quotes that a job's cluster was chosen by, the time of the choice, and how much later the job started."""

    quotes: list[Quote]
    at_us: int
    error_s: float | None


def quotes_of(tx: Tx, job_id: str) -> QuotesUsed | None:
    """Return the quotes that a job's cluster was chosen by, or None if it was not chosen by quotes."""
    row = store.use_get(tx, job_id)
    if row is None:
        return None
    error_s = None if row.error_us is None else row.error_us / 1e6
    return QuotesUsed(msgspec.json.decode(row.body, type=list[Quote]), row.at_us, error_s)
