"""When a job that no agent has leased moves to another cluster, although its own cluster is up. Pure.

Two rules keep jobs from moving back and forth. A job that was just handed over rests first, longer with each handover.
And the other cluster must be better by an amount and by a share. An array whose tasks are started wherever it goes need
not rest: it rests only at its first cluster, and where none of its tasks was started.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from switchyard.model.cluster.cluster import Load
from switchyard.model.cluster.quote import QuoteOutcome
from switchyard.model.cluster.verdict import Outcome
from switchyard.route.router import Eligibility
from switchyard.route.select.weighted_draw import WeightedCandidates

HANDOVERS_BEFORE_BACKOFF = 4  # handovers before the rest time doubles with each further one
BACKOFF_DOUBLINGS_MAX = 6


@dataclass(frozen=True, slots=True)
class MovingSettings:
    """From the config. `idle_after_us`: an idle cluster takes over jobs that waited this long; none: never.

    A better quote counts if it is `gain_s` seconds sooner or `gain_cost` cheaper, and better by `gain_share`.
    """

    idle_after_us: int | None = 30_000_000
    rest_us: int = 60_000_000  # between two moves for a better quote
    gain_s: float = 60.0
    gain_cost: float = 1.0
    gain_share: float = 0.25


@dataclass(frozen=True, slots=True)
class BacklogJobs:
    """Equal jobs that wait for their lease at a cluster: what each job, or each task of an array, asks for."""

    count: int
    cores: int
    gpus: int
    memory_bytes: int
    is_array: bool
    is_aged: bool  # one was bypassed for so long that it no longer lets others pass


@dataclass(frozen=True, slots=True)
class FreeCapacity:
    """What a cluster could start now."""

    cores: int
    gpus: int
    memory_bytes: int | None  # none: the cluster does not report its memory

    @staticmethod
    def of(load: Load | None) -> FreeCapacity | None:
        """Read a cluster's load. None: nothing is free, the agent reports trouble, or the load is unknown."""
        if load is None or not load.free_cores or load.queued or load.trouble:
            return None
        return FreeCapacity(load.free_cores, load.free_gpus or 0, load.free_memory_bytes)

    def holds(self, *, cores: int, gpus: int, memory_bytes: int) -> bool:
        has_memory = self.memory_bytes is None or memory_bytes <= self.memory_bytes
        return cores <= self.cores and gpus <= self.gpus and has_memory

    def fitting(self, *, cores: int, gpus: int, memory_bytes: int) -> int:
        """How many such jobs fit."""
        pairs = ((cores, self.cores), (gpus, self.gpus), (memory_bytes, self.memory_bytes))
        return min((has // asks for asks, has in pairs if asks and has is not None), default=1)

    def less(self, *, cores: int, gpus: int, memory_bytes: int, count: int = 1) -> FreeCapacity:
        memory = None if self.memory_bytes is None else max(0, self.memory_bytes - count * memory_bytes)
        return FreeCapacity(max(0, self.cores - count * cores), max(0, self.gpus - count * gpus), memory)

    def beside(self, line: Iterable[BacklogJobs], *, is_busy: bool) -> FreeCapacity:
        """Return what is left when the jobs of the backlog that fit have started.

        As with leases, a job that does not fit lets others pass until it is aged. Then all capacity is kept for it,
        unless nothing runs there whose end would free some.
        """
        free = self
        for jobs in line:
            needs = {"cores": jobs.cores, "gpus": jobs.gpus, "memory_bytes": jobs.memory_bytes}
            # Each is compared with the full capacity: in which order they start is not decided here.
            if count := self.fitting(**needs):
                free = free.less(**needs, count=count if jobs.is_array else min(count, jobs.count))
            elif jobs.is_aged and is_busy:
                return replace(self, cores=0)
        return free


def rest_time_us(least_us: int, handovers: int) -> int:
    """How long a job stays where it is after so many handovers."""
    return least_us << min(max(handovers - HANDOVERS_BEFORE_BACKOFF, 0), BACKOFF_DOUBLINGS_MAX)


def pick_taker(eligibility: Eligibility, allowed: Iterable[str], *, seed: str) -> str | None:
    """Return the cluster that takes the job over: the first that its algorithm ranked, else one drawn by weight."""
    names = set(allowed)
    if eligibility.outcome is not Outcome.ASSIGN or not names:
        return None
    if eligibility.remaining:
        return next((name for name in eligibility.remaining if name in names), None)
    weighted = zip(eligibility.eligible.names, eligibility.eligible.weights, strict=True)
    candidates = [(name, weight) for name, weight in weighted if name in names]
    if not candidates:
        return None
    drawable = WeightedCandidates.of([name for name, _ in candidates], [weight for _, weight in candidates])
    return drawable.names[drawable.draw(seed)]


@dataclass(frozen=True, slots=True)
class BetterQuote:
    """A cluster with a better quote for a job, and the reason in words."""

    to: str
    reason: str


def find_better_quote(eligibility: Eligibility, here: str, terms: MovingSettings, *, seed: str) -> BetterQuote | None:
    """Return the winner of the job's algorithm, if its quote is clearly better than that of `here`, the job's cluster.

    For `here`, the plain quote of its agent counts, without the backlog; for the winner, the full estimate.
    """
    if eligibility.outcome is not Outcome.ASSIGN or not eligibility.quoted or here in eligibility.eligible.names:
        return None
    to = eligibility.eligible.names[eligibility.eligible.draw(seed)]
    quotes = {quote.cluster: quote for quote in eligibility.quoted}
    current, offer = quotes.get(here), quotes.get(to)
    if current is None or offer is None or offer.said is not QuoteOutcome.YES:
        return None
    if current.said is QuoteOutcome.NO:
        return BetterQuote(to, f"{here} says no by now ({current.reason}), {to} says yes")
    if eligibility.algorithm == "soonest":
        now, then, gain = current.eta_s, offer.starts_s, terms.gain_s
    elif eligibility.algorithm == "cheapest":
        now, then, gain = current.cost, offer.cost, terms.gain_cost
    else:
        return None
    if now is None or then is None or not is_clearly_better(then, now, gain=gain, share=terms.gain_share):
        return None
    if eligibility.algorithm == "soonest":
        return BetterQuote(to, f"{to} could begin it in {then:.0f} s, {here} in {now:.0f} s")
    return BetterQuote(to, f"{to} would run it for {then:.4g}, {here} for {now:.4g}")


def is_clearly_better(then: float, now: float, *, gain: float, share: float) -> bool:
    """Whether the gain is worth a move, both as an amount and as a share."""
    return now - then >= gain and now - then >= share * now
