"""What a quote counts as: with what waits before the job, how late that cluster usually is, how sure it is. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from switchyard.route.select.weighted_draw import WeightedCandidates

MEASURED_STARTS_MIN = 5  # measured starts before a cluster's record says anything
HALF_TRUST_ERROR_S = 600.0  # quotes that are off by this much (the median) are half as sure as they say
CONFIDENCE_MIN = 0.01
ASSUMED_LIMIT_S = 60.0  # what a waiting job without a time limit counts as: somebody's guess, and on the small side


@dataclass(frozen=True, slots=True)
class QuoteAccuracy:
    """How well a cluster kept its last quotes, in seconds of actual less quoted start."""

    starts: int = 0
    error_s: float = 0.0
    error_abs_s: float = 0.0

    @staticmethod
    def of(errors_us: Sequence[int]) -> QuoteAccuracy:
        if not errors_us:
            return QuoteAccuracy()
        seconds = [error / 1e6 for error in errors_us]
        return QuoteAccuracy(len(seconds), median(seconds), median(abs(each) for each in seconds))

    @property
    def trust(self) -> float:
        """By what its confidence is scaled: 1 at no error, a half at DOUBT_S, less and less beyond."""
        return 1.0 if self.starts < MEASURED_STARTS_MIN else 1 / (1 + self.error_abs_s / HALF_TRUST_ERROR_S)

    @property
    def late_s(self) -> float:
        """How much later than quoted jobs usually begin there."""
        return 0.0 if self.starts < MEASURED_STARTS_MIN else max(0.0, self.error_s)


@dataclass(frozen=True, slots=True)
class BacklogWork:
    """Jobs that wait at a cluster for their lease, which its agent knows nothing of."""

    cores: int
    limit_s: float | None
    jobs: int = 1


def expected_start_s(eta_s: float, *, track: QuoteAccuracy, confidence: float, line_s: float) -> float:
    """In how many seconds a job is reckoned to begin: an ETA of half the confidence counts as twice as long."""
    return (eta_s + track.late_s + line_s) / max(CONFIDENCE_MIN, confidence * track.trust)


def backlog_s(line: Sequence[BacklogWork], *, asks: int, free: int | None, cores: int) -> float:
    """How long what waits before a job keeps a cluster busy; nothing, as long as all of it finds room now."""
    waiting = sum(each.cores * each.jobs for each in line)
    if not waiting or cores <= 0 or (free is not None and waiting + asks <= free):
        return 0.0
    work = sum(each.cores * each.jobs * (ASSUMED_LIMIT_S if each.limit_s is None else each.limit_s) for each in line)
    return work / cores


def clusters_to_ask(able: WeightedCandidates, *, seed: str, most: int) -> tuple[str, ...]:
    """Whom to ask: the first so many of a draw by weight. By the shape, so that equal jobs share the answers."""
    if len(able.names) <= most:
        return able.names
    return tuple(able.names[number] for number in able.first(seed, most))


def estimate_cost(per_node_hour: float, *, nodes: float, limit_s: float | None) -> float:
    """What a job costs at most: for its time limit, or where it has none for an hour."""
    return per_node_hour * nodes * (3600.0 if limit_s is None else limit_s) / 3600.0
