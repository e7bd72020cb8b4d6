"""Estimate a job's start from a quote: the backlog, how late the cluster usually is, and how sure it is. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from switchyard.route.select.weighted_draw import WeightedCandidates

MEASURED_STARTS_MIN = 5  # measured starts before a cluster's accuracy counts
HALF_TRUST_ERROR_S = 600.0  # a median error that halves the confidence of a quote
CONFIDENCE_MIN = 0.01
ASSUMED_LIMIT_S = 60.0  # assumed for a waiting job without a time limit: a low guess


@dataclass(frozen=True, slots=True)
class QuoteAccuracy:
    """How well a cluster kept its last quotes: actual minus quoted start, in seconds."""

    starts: int = 0
    error_s: float = 0.0
    error_abs_s: float = 0.0

    @staticmethod
    def of(errors_us: Sequence[int]) -> QuoteAccuracy:
        if not errors_us:
            return QuoteAccuracy()
        seconds = [error / 1e6 for error in errors_us]
        return QuoteAccuracy(len(seconds), median(seconds), median(map(abs, seconds)))

    @property
    def trust(self) -> float:
        """The factor of a quote's confidence: 1 without error, a half at HALF_TRUST_ERROR_S, less beyond."""
        return 1.0 if self.starts < MEASURED_STARTS_MIN else 1 / (1 + self.error_abs_s / HALF_TRUST_ERROR_S)

    @property
    def late_s(self) -> float:
        """How much later than quoted jobs usually start there."""
        return 0.0 if self.starts < MEASURED_STARTS_MIN else max(0.0, self.error_s)


@dataclass(frozen=True, slots=True)
class BacklogWork:
    """Jobs that are assigned to a cluster but not leased: its agent does not know them yet."""

    cores: int
    limit_s: float | None
    jobs: int = 1


def expected_start_s(eta_s: float, *, track: QuoteAccuracy, confidence: float, line_s: float) -> float:
    """Estimate in how many seconds a job starts. Half the confidence doubles the estimate."""
    return (eta_s + track.late_s + line_s) / max(CONFIDENCE_MIN, confidence * track.trust)


def backlog_s(line: Sequence[BacklogWork], *, asks: int, free: int | None, cores: int) -> float:
    """How long the backlog before a job keeps a cluster busy; 0 if the backlog and the job fit into what is free."""
    waiting = sum(work.cores * work.jobs for work in line)
    if not waiting or cores <= 0 or (free is not None and waiting + asks <= free):
        return 0.0
    core_s = sum(work.cores * work.jobs * (ASSUMED_LIMIT_S if work.limit_s is None else work.limit_s) for work in line)
    return core_s / cores


def clusters_to_ask(eligible: WeightedCandidates, *, seed: str, most: int) -> tuple[str, ...]:
    """Return the clusters to ask for a quote: the first of a weighted draw. Jobs of one shape have one seed."""
    if len(eligible.names) <= most:
        return eligible.names
    return tuple(eligible.names[number] for number in eligible.ranked(seed, most))


def estimate_cost(per_node_hour: float, *, nodes: float, limit_s: float | None) -> float:
    """The most that a job costs: for its time limit, or for an hour if it has none."""
    return per_node_hour * nodes * (3600.0 if limit_s is None else limit_s) / 3600.0
