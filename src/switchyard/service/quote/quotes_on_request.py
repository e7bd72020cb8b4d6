"""Quotes on request: ask the clusters that could run a job, and show what they say. No job comes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from switchyard.model.job import JobRequest, JobSpec
from switchyard.model.quote import Quote, QuoteOutcome, Quotes
from switchyard.route.router import Eligibility
from switchyard.route.select.quote_selectors import rounded_cost, rounded_start_s
from switchyard.route.select.selector import CandidateQuote
from switchyard.service.committer import Batch
from switchyard.service.context import Context
from switchyard.service.quote.inquiries import ask_clusters, inquiry_of
from switchyard.service.quote.quotes import QuoteWindow, gather_quotes, quotes_for_selection, shape_of
from switchyard.service.rights import Actor
from switchyard.service.submit.submit import Submit


@dataclass(frozen=True, slots=True)
class OpenInquiry:
    """Who was asked about what, and until when they may answer; no round: nobody had to be."""

    shape: str
    spec: JobSpec
    ruling: Eligibility
    names: tuple[str, ...] = ()  # who is to answer
    round: QuoteWindow | None = None


def begin_inquiry(context: Context, submit: Submit, actor: Actor, request: JobRequest) -> OpenInquiry:
    """Ask those who could run it and whose last answer holds no more."""
    spec, ruling = submit.able(actor, request)
    shape, _ = shape_of(spec)
    if ruling.outcome != "assign":
        return OpenInquiry(shape, spec, ruling)
    gathered = gather_quotes(context, ruling, spec)
    names = gathered.names
    if not gathered.missing:
        return OpenInquiry(shape, spec, ruling, names)
    inquiry, wait_us = inquiry_of(spec, gathered.missing, context.snapshots.world), context.selections.quote_wait_us

    def apply(batch: Batch) -> QuoteWindow:
        ask_clusters(batch, inquiry, wait_us=wait_us)
        return QuoteWindow(batch.now_us, batch.now_us + wait_us)

    return OpenInquiry(shape, spec, ruling, names, context.committer.call(apply))


def inquiry_answers(context: Context, asked: OpenInquiry) -> tuple[Quotes, bool]:
    """What they have said so far, and whether that is all."""
    if asked.ruling.outcome != "assign":
        return Quotes(shape=asked.shape, items=[], reason=asked.ruling.reason), True
    gathered = gather_quotes(context, asked.ruling, asked.spec, asked.round, names=asked.names)
    names = sorted({*asked.names, *gathered.quotes})
    wait_s = context.selections.quote_wait_us / 1e6
    silent = f"no answer within {wait_s:g} s"
    items = [gathered.quotes.get(name) or Quote(cluster=name, said=QuoteOutcome.NONE, reason=silent) for name in names]
    quoted = quotes_for_selection(gathered.quotes)
    found = Quotes(
        shape=asked.shape,
        items=sorted(items, key=_rank),
        soonest=_best(quoted.items(), rounded_start_s),
        cheapest=_best(quoted.items(), rounded_cost),
    )
    return found, not gathered.missing


def _rank(quote: Quote) -> tuple[int, float, str]:
    """Yes, the soonest first; then who does not say when, then no, then nothing."""
    order = (QuoteOutcome.YES, QuoteOutcome.NO, QuoteOutcome.NONE).index(quote.said)
    return order, float("inf") if quote.starts_s is None else quote.starts_s, quote.cluster


def _best(
    quoted: Iterable[tuple[str, CandidateQuote]], measure: Callable[[CandidateQuote], float | None]
) -> str | None:
    told = [(value, name) for name, each in quoted if (value := measure(each)) is not None]
    return min(told)[1] if told else None
