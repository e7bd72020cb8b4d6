"""Quotes on request: ask the clusters that could run a job, and show what they say. No job comes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from switchyard.model.job import JobRequest, JobSpec
from switchyard.model.quote import Quote, Quotes, Said
from switchyard.route.route import Ruling
from switchyard.route.select.quoted import cheapness, soonness
from switchyard.route.select.selector import Quoted
from switchyard.service.committer import Batch
from switchyard.service.context import Context
from switchyard.service.quote.inquiries import ask, inquiry_of
from switchyard.service.quote.quotes import Round, as_quoted, gather, shape_of
from switchyard.service.rights import Actor
from switchyard.service.submit.submit import Submit


@dataclass(frozen=True, slots=True)
class Asked:
    """Who was asked about what, and until when they may answer; no round: nobody had to be."""

    shape: str
    spec: JobSpec
    ruling: Ruling
    names: tuple[str, ...] = ()  # who is to answer
    round: Round | None = None


def begin(context: Context, submit: Submit, actor: Actor, request: JobRequest) -> Asked:
    """Ask those who could run it and whose last answer holds no more."""
    spec, ruling = submit.able(actor, request)
    shape, _ = shape_of(spec)
    if ruling.outcome != "assign":
        return Asked(shape, spec, ruling)
    gathered = gather(context, ruling, spec)
    names = gathered.names
    if not gathered.missing:
        return Asked(shape, spec, ruling, names)
    inquiry, wait_us = inquiry_of(spec, gathered.missing, context.snapshots.world), context.selections.quote_wait_us

    def apply(batch: Batch) -> Round:
        ask(batch, inquiry, wait_us=wait_us)
        return Round(batch.now_us, batch.now_us + wait_us)

    return Asked(shape, spec, ruling, names, context.committer.call(apply))


def answers(context: Context, asked: Asked) -> tuple[Quotes, bool]:
    """What they have said so far, and whether that is all."""
    if asked.ruling.outcome != "assign":
        return Quotes(shape=asked.shape, items=[], reason=asked.ruling.reason), True
    gathered = gather(context, asked.ruling, asked.spec, asked.round, names=asked.names)
    names = sorted({*asked.names, *gathered.quotes})
    wait_s = context.selections.quote_wait_us / 1e6
    silent = f"no answer within {wait_s:g} s"
    items = [gathered.quotes.get(name) or Quote(cluster=name, said=Said.NONE, reason=silent) for name in names]
    quoted = as_quoted(gathered.quotes)
    found = Quotes(
        shape=asked.shape,
        items=sorted(items, key=_rank),
        soonest=_best(quoted.items(), soonness),
        cheapest=_best(quoted.items(), cheapness),
    )
    return found, not gathered.missing


def _rank(quote: Quote) -> tuple[int, float, str]:
    """Yes, the soonest first; then who does not say when, then no, then nothing."""
    order = (Said.YES, Said.NO, Said.NONE).index(quote.said)
    return order, float("inf") if quote.starts_s is None else quote.starts_s, quote.cluster


def _best(quoted: Iterable[tuple[str, Quoted]], measure: Callable[[Quoted], float | None]) -> str | None:
    told = [(value, name) for name, each in quoted if (value := measure(each)) is not None]
    return min(told)[1] if told else None
