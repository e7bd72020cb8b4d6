"""Get quotes for a job without submitting it: ask the eligible clusters and show their answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from switchyard.model.cluster.quote import Quote, QuoteOutcome, Quotes
from switchyard.model.cluster.verdict import Outcome
from switchyard.model.job.job import JobRequest, JobSpec
from switchyard.route.router import Eligibility
from switchyard.route.select.quote_selectors import rounded_cost, rounded_start_s
from switchyard.route.select.selector import CandidateQuote
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.core.writes.batch import Batch
from switchyard.service.reserve.inquiries import ask_clusters, further_inquiries, inquiry_of
from switchyard.service.reserve.quotes import QuoteWindow, gather_quotes, quotes_for_selection, shape_of
from switchyard.service.submit.named_clusters import find_stale_tokens
from switchyard.service.submit.submit import Submit


@dataclass(frozen=True, slots=True)
class OpenInquiry:
    """An inquiry for one job. No window: the last quotes of all clusters are still valid, or none is eligible."""

    shape: str
    spec: JobSpec
    eligibility: Eligibility
    names: tuple[str, ...] = ()  # clusters that are to answer
    window: QuoteWindow | None = None
    stale_tokens: tuple[str, ...] = ()  # of the request


def begin_inquiry(context: Context, submit: Submit, actor: Actor, request: JobRequest) -> OpenInquiry:
    """Ask the eligible clusters whose last quote is no longer valid."""
    request = submit.prepare(actor, request)
    spec, eligibility, *_ = submit.eligibility(actor, request)
    shape, _ = shape_of(spec)
    stale = tuple(find_stale_tokens(context.snapshots, request))
    if eligibility.outcome is not Outcome.ASSIGN:
        return OpenInquiry(shape, spec, eligibility, stale_tokens=stale)
    gathered = gather_quotes(context, eligibility, spec)
    names = gathered.names
    if not gathered.missing:
        return OpenInquiry(shape, spec, eligibility, names, stale_tokens=stale)
    world, missing = context.snapshots.world, gathered.missing
    inquiry = inquiry_of(spec, missing, world, owner=actor.id)
    further = further_inquiries(spec, eligibility, missing, world, owner=actor.id)
    wait_us = context.selections.quote_wait_us

    def apply(batch: Batch) -> QuoteWindow:
        ask_clusters(batch, [inquiry, *further], wait_us=wait_us)
        return QuoteWindow(batch.now_us, batch.now_us + wait_us)

    window = context.committer.call(apply)
    return OpenInquiry(shape, spec, eligibility, names=names, window=window, stale_tokens=stale)


def inquiry_answers(context: Context, inquiry: OpenInquiry) -> tuple[Quotes, bool]:
    """Return the answers so far, and whether all clusters have answered."""
    stale = list(inquiry.stale_tokens)
    if inquiry.eligibility.outcome is not Outcome.ASSIGN:
        reason = inquiry.eligibility.reason
        return Quotes(shape=inquiry.shape, items=[], reason=reason, stale_tokens=stale), True
    gathered = gather_quotes(context, inquiry.eligibility, inquiry.spec, inquiry.window, names=inquiry.names)
    names = sorted({*inquiry.names, *gathered.quotes})
    reason = f"no answer within {context.selections.quote_wait_us / 1e6:g} s"
    items = [gathered.quotes.get(name) or Quote(cluster=name, said=QuoteOutcome.NONE, reason=reason) for name in names]
    quoted = quotes_for_selection(gathered.quotes)
    answers = Quotes(
        shape=inquiry.shape,
        items=sorted(items, key=_rank),
        soonest=_best(quoted.items(), rounded_start_s),
        cheapest=_best(quoted.items(), rounded_cost),
        stale_tokens=stale,
    )
    return answers, not gathered.missing


def _rank(quote: Quote) -> tuple[int, float, str]:
    """Order quotes: yes, the earliest start first and unknown starts last; then no; then no answer."""
    order = (QuoteOutcome.YES, QuoteOutcome.NO, QuoteOutcome.NONE).index(quote.said)
    return order, float("inf") if quote.starts_s is None else quote.starts_s, quote.cluster


def _best(
    quoted: Iterable[tuple[str, CandidateQuote]], measure: Callable[[CandidateQuote], float | None]
) -> str | None:
    values = [(value, name) for name, quote in quoted if (value := measure(quote)) is not None]
    return min(values)[1] if values else None
