"""When a job that nobody has leased goes to another cluster, although its own is well. Pure.

Two rules keep jobs from wandering: one that was just handed over rests first, the longer the more often it was; and
another cluster must be better by an amount and by a share. An array does not wander while its tasks are begun wherever
it goes: it rests only where it was first drawn to, and where nobody has begun any of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from switchyard.model.cluster import Load
from switchyard.model.quote import QuoteOutcome
from switchyard.route.router import Eligibility
from switchyard.route.select.weighted_draw import WeightedCandidates

HANDOVERS_BEFORE_BACKOFF = 4  # so often a job is handed over before it has to rest for longer each time
BACKOFF_DOUBLINGS_MAX = 6


@dataclass(frozen=True, slots=True)
class MovingSettings:
    """From the config. `idle_after_us`: waited elsewhere for so long, an idle cluster takes over; none: never does.

    A better quote counts from `gain_s` seconds sooner or `gain_cost` cheaper, and from `gain_share` of what it was.
    """

    idle_after_us: int | None = 30_000_000
    rest_us: int = 60_000_000  # between two moves for a better quote
    gain_s: float = 60.0
    gain_cost: float = 1.0
    gain_share: float = 0.25


@dataclass(frozen=True, slots=True)
class BacklogJobs:
    """Some that wait for their lease at a cluster: what each of them asks for, or of an array each of its tasks."""

    count: int
    cores: int
    gpus: int
    memory_bytes: int
    is_array: bool
    is_aged: bool  # one has waited for as long as it lets others pass


@dataclass(frozen=True, slots=True)
class FreeCapacity:
    """What a cluster could start now beside what is in line there."""

    cores: int
    gpus: int
    memory_bytes: int | None  # none: it does not count its memory

    @staticmethod
    def of(load: Load | None) -> FreeCapacity | None:
        """None: nothing to give, in trouble, or nobody knows."""
        if load is None or not load.free_cores or load.queued or load.trouble:
            return None
        return FreeCapacity(load.free_cores, load.free_gpus or 0, load.free_memory_bytes)

    def holds(self, *, cores: int, gpus: int, memory_bytes: int) -> bool:
        has_memory = self.memory_bytes is None or memory_bytes <= self.memory_bytes
        return cores <= self.cores and gpus <= self.gpus and has_memory

    def fitting(self, *, cores: int, gpus: int, memory_bytes: int) -> int:
        """For how many of these there is room."""
        pairs = ((cores, self.cores), (gpus, self.gpus), (memory_bytes, self.memory_bytes))
        return min((has // asks for asks, has in pairs if asks and has is not None), default=1)

    def less(self, *, cores: int, gpus: int, memory_bytes: int, count: int = 1) -> FreeCapacity:
        memory = None if self.memory_bytes is None else max(0, self.memory_bytes - count * memory_bytes)
        return FreeCapacity(max(0, self.cores - count * cores), max(0, self.gpus - count * gpus), memory)

    def beside(self, line: Iterable[BacklogJobs], *, is_busy: bool) -> FreeCapacity:
        """What is left when those in line have begun that fit. As leases are given: who does not fit lets others pass
        until it is aged; from then on all room is kept for it, unless nothing runs there whose end would make some."""
        left = self
        for each in line:
            needs = {"cores": each.cores, "gpus": each.gpus, "memory_bytes": each.memory_bytes}
            # Whoever else is in line: in which order they begin is not decided here.
            if count := self.fitting(**needs):
                left = left.less(**needs, count=count if each.is_array else min(count, each.count))
            elif each.is_aged and is_busy:
                return replace(self, cores=0)
        return left


def rest_time_us(least_us: int, handovers: int) -> int:
    """How long a job that was handed over so often stays where it is."""
    return least_us << min(max(handovers - HANDOVERS_BEFORE_BACKOFF, 0), BACKOFF_DOUBLINGS_MAX)


def pick_taker(ruling: Eligibility, allowed: Iterable[str], *, seed: str) -> str | None:
    """Which of these clusters takes a job over: the first that its algorithm left in the race, else drawn by weight."""
    names = set(allowed)
    if ruling.outcome != "assign" or not names:
        return None
    if ruling.remaining:
        return next((name for name in ruling.remaining if name in names), None)
    weighted = zip(ruling.able.names, ruling.able.weights, strict=True)
    among = [(name, weight) for name, weight in weighted if name in names]
    if not among:
        return None
    field = WeightedCandidates.of([name for name, _ in among], [weight for _, weight in among])
    return field.names[field.draw(seed)]


@dataclass(frozen=True, slots=True)
class BetterQuote:
    """Where a job is better off by what clusters quote, and why in words."""

    to: str
    reason: str


def find_better_quote(ruling: Eligibility, here: str, terms: MovingSettings, *, seed: str) -> BetterQuote | None:
    """The winner of the job's algorithm, if its quote is clearly better than that of where the job waits.

    Of `here` it counts what its agent said, without those in line before the job; of the other all that is reckoned in.
    """
    if ruling.outcome != "assign" or not ruling.quoted or here in ruling.able.names:
        return None
    to = ruling.able.names[ruling.able.draw(seed)]
    quotes = {quote.cluster: quote for quote in ruling.quoted}
    mine, other = quotes.get(here), quotes.get(to)
    if mine is None or other is None or other.said is not QuoteOutcome.YES:
        return None
    if mine.said is QuoteOutcome.NO:
        return BetterQuote(to, f"{here} says no by now ({mine.reason}), {to} says yes")
    if ruling.algorithm == "soonest":
        now, then, gain = mine.eta_s, other.starts_s, terms.gain_s
    elif ruling.algorithm == "cheapest":
        now, then, gain = mine.cost, other.cost, terms.gain_cost
    else:
        return None
    if now is None or then is None or not is_clearly_better(then, now, gain=gain, share=terms.gain_share):
        return None
    if ruling.algorithm == "soonest":
        return BetterQuote(to, f"{to} could begin it in {then:.0f} s, {here} in {now:.0f} s")
    return BetterQuote(to, f"{to} would run it for {then:.4g}, {here} for {now:.4g}")


def is_clearly_better(other: float, now: float, *, gain: float, share: float) -> bool:
    """Whether so much less is worth a move: by the amount and by the share."""
    return now - other >= gain and now - other >= share * now
