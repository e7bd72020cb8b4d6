"""What this process has done, as numbers that only grow. Services count here; who shows it, and how, is not known here.

A count costs about a microsecond. Labels are other people's names (pools, clusters), so each count has a
bound on the different ones it keeps: what comes beyond it is counted under `other`.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

LABEL_SETS_MAX = 2000  # different labels of one count; Prometheus keeps a series for each
OTHER = "other"
OUTCOMES = {"assign": "assigned", "hold": "pending", "reject": "rejected"}
LabelValues = tuple[str, ...]


class LabeledCounter:
    """How often, by labels."""

    def __init__(self, *labels: str) -> None:
        self.labels = labels
        self._values: dict[LabelValues, float] = (
            {} if labels else {(): 0}
        )  # without labels it is known that there was none
        self._lock = threading.Lock()
        self._other: LabelValues = (OTHER,) * len(labels)

    def add(self, *key: str, amount: float = 1) -> None:
        with self._lock:
            self._add(key, amount)

    def add_many(self, amounts: Mapping[LabelValues, float]) -> None:
        with self._lock:
            for key, amount in amounts.items():
                self._add(key, amount)

    def _add(self, key: LabelValues, amount: float) -> None:
        kept = key if key in self._values or len(self._values) < LABEL_SETS_MAX else self._other
        self._values[kept] = self._values.get(kept, 0) + amount

    def get(self, *key: str) -> float:
        return self._values.get(key, 0)

    def read(self) -> dict[LabelValues, float]:
        with self._lock:
            return dict(self._values)


@dataclass(slots=True)
class BucketCounts:
    """How many values fell up to each bound, and above all; and their sum."""

    counts: list[int]
    sum: float = 0.0


class Histogram:
    """How large, by labels."""

    def __init__(self, bounds: tuple[float, ...], *labels: str) -> None:
        self.bounds = bounds
        self.labels = labels
        self._spreads: dict[LabelValues, BucketCounts] = {} if labels else {(): BucketCounts([0] * (len(bounds) + 1))}
        self._lock = threading.Lock()
        self._other: LabelValues = (OTHER,) * len(labels)

    def add(self, value: float, *key: str) -> None:
        place = bisect_left(self.bounds, value)
        with self._lock:
            spread = self._spreads.get(key)
            if spread is None:
                kept = key if len(self._spreads) < LABEL_SETS_MAX else self._other
                spread = self._spreads.setdefault(kept, BucketCounts([0] * (len(self.bounds) + 1)))
            spread.counts[place] += 1
            spread.sum += value

    def read(self) -> dict[LabelValues, BucketCounts]:
        with self._lock:
            return {key: BucketCounts(list(spread.counts), spread.sum) for key, spread in self._spreads.items()}


DECISION_BUCKETS_S = (0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.005, 0.02, 0.1, 1.0)
COMMIT_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0)
BATCH_SIZE_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
QUOTE_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0)
TOKEN_WAIT_BUCKETS_S = (0.1, 1.0, 10.0, 60.0, 300.0, 1800.0, 3600.0, 6 * 3600.0, 24 * 3600.0)
ETA_ERROR_BUCKETS_S = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0)
PAUSE_BUCKETS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


@dataclass(frozen=True)
class ProcessMetrics:
    """One per process, handed down with the context."""

    # What was decided, once it is durable: on arrival and whenever the answer changed later.
    decisions: LabeledCounter = field(
        default_factory=lambda: LabeledCounter("pool", "label", "queue", "cluster", "outcome")
    )
    # `code`: of the error, or `rejected` for a job that is stored as such; `step`: of the router, or `admit`.
    refusals: LabeledCounter = field(default_factory=lambda: LabeledCounter("code", "step"))
    limits: LabeledCounter = field(default_factory=lambda: LabeledCounter("limit"))  # refusals by a limit of one user
    accepted: LabeledCounter = field(default_factory=LabeledCounter)
    decision_s: Histogram = field(default_factory=lambda: Histogram(DECISION_BUCKETS_S))
    batch: Histogram = field(default_factory=lambda: Histogram(BATCH_SIZE_BUCKETS))
    commit_s: Histogram = field(default_factory=lambda: Histogram(COMMIT_BUCKETS_S))
    leases: LabeledCounter = field(default_factory=lambda: LabeledCounter("cluster"))
    moves: LabeledCounter = field(default_factory=lambda: LabeledCounter("from_cluster", "to_cluster"))
    requests: LabeledCounter = field(default_factory=lambda: LabeledCounter("method", "route", "code"))
    pause_s: Histogram = field(default_factory=lambda: Histogram(PAUSE_BUCKETS_S, "loop"))  # of an event loop
    quotes: LabeledCounter = field(default_factory=lambda: LabeledCounter("cluster", "said"))
    quote_s: Histogram = field(default_factory=lambda: Histogram(QUOTE_BUCKETS_S))  # from the question to the answer
    # How far a start was from what was quoted; `side`: late or early.
    eta_error_s: Histogram = field(default_factory=lambda: Histogram(ETA_ERROR_BUCKETS_S, "cluster", "side"))
    # Of token pools: claims of callers and of jobs, a job's once, however often it is looked at while it waits.
    token_grants: LabeledCounter = field(default_factory=lambda: LabeledCounter("token_pool"))
    token_refusals: LabeledCounter = field(default_factory=lambda: LabeledCounter("token_pool"))
    token_repairs: LabeledCounter = field(default_factory=lambda: LabeledCounter("token_pool"))
    # From a job's first refusal to its tokens; of one that was not refused, none.
    token_wait_s: Histogram = field(default_factory=lambda: Histogram(TOKEN_WAIT_BUCKETS_S, "token_pool"))

    def decided(self, keys: Iterable[LabelValues], rejected_by: Iterable[str] = ()) -> None:
        """Decisions by pool, label, queue, cluster and outcome; and the steps that rejected some of them."""
        self.decisions.add_many(Counter(keys))
        steps = Counter(rejected_by)
        if steps:
            self.refusals.add_many({("rejected", step): times for step, times in steps.items()})

    def committed(self, writes: int, seconds: float) -> None:
        self.batch.add(writes)
        self.commit_s.add(seconds)

    def started(self, cluster: str, *, error_s: float) -> None:
        """A job that was quoted has started: later than quoted, or earlier."""
        self.eta_error_s.add(abs(error_s), cluster, "late" if error_s >= 0 else "early")
