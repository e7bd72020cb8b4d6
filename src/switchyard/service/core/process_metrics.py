"""Counters and histograms of this process. Services count here; the server exports the numbers.

A count costs about a microsecond. Label values are users' names (pools, clusters), so the number of label sets is
bounded. Further label sets are counted under `other`.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

LABEL_SETS_MAX = 2000  # per metric; Prometheus keeps a series for each
OTHER = "other"
OUTCOMES = {"assign": "assigned", "hold": "pending", "reject": "rejected"}
LabelValues = tuple[str, ...]


class LabeledCounter:
    """A counter with labels."""

    def __init__(self, *labels: str) -> None:
        self.labels = labels
        # A counter without labels starts with a visible 0.
        self._values: dict[LabelValues, float] = {} if labels else {(): 0}
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
        stored_key = key if key in self._values or len(self._values) < LABEL_SETS_MAX else self._other
        self._values[stored_key] = self._values.get(stored_key, 0) + amount

    def get(self, *key: str) -> float:
        return self._values.get(key, 0)

    def read(self) -> dict[LabelValues, float]:
        with self._lock:
            return dict(self._values)


@dataclass(slots=True)
class BucketCounts:
    """The number of values in each bucket, the last bucket without an upper bound, and the sum of the values."""

    counts: list[int]
    sum: float = 0.0


class Histogram:
    """A histogram with labels."""

    def __init__(self, bounds: tuple[float, ...], *labels: str) -> None:
        self.bounds = bounds
        self.labels = labels
        self._buckets: dict[LabelValues, BucketCounts] = {} if labels else {(): BucketCounts([0] * (len(bounds) + 1))}
        self._lock = threading.Lock()
        self._other: LabelValues = (OTHER,) * len(labels)

    def add(self, value: float, *key: str) -> None:
        bucket = bisect_left(self.bounds, value)
        with self._lock:
            buckets = self._buckets.get(key)
            if buckets is None:
                stored_key = key if len(self._buckets) < LABEL_SETS_MAX else self._other
                buckets = self._buckets.setdefault(stored_key, BucketCounts([0] * (len(self.bounds) + 1)))
            buckets.counts[bucket] += 1
            buckets.sum += value

    def read(self) -> dict[LabelValues, BucketCounts]:
        with self._lock:
            return {key: BucketCounts(list(buckets.counts), buckets.sum) for key, buckets in self._buckets.items()}


DECISION_BUCKETS_S = (0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.005, 0.02, 0.1, 1.0)
COMMIT_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0)
BATCH_SIZE_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
QUOTE_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0)
TOKEN_WAIT_BUCKETS_S = (0.1, 1.0, 10.0, 60.0, 300.0, 1800.0, 3600.0, 6 * 3600.0, 24 * 3600.0)
ETA_ERROR_BUCKETS_S = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0)
PAUSE_BUCKETS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


@dataclass(frozen=True)
class ProcessMetrics:
    """All metrics of a process. The context passes them to the use cases."""

    # Committed routing decisions: at submit, and whenever the decision changes later.
    decisions: LabeledCounter = field(
        default_factory=lambda: LabeledCounter("pool", "label", "queue", "cluster", "outcome")
    )
    # `code`: the error's code, or `rejected` for a job stored as REJECTED; `step`: the router's step, or `admit`.
    refusals: LabeledCounter = field(default_factory=lambda: LabeledCounter("code", "step"))
    limits: LabeledCounter = field(default_factory=lambda: LabeledCounter("limit"))  # refusals by a user limit
    uploads_refused: LabeledCounter = field(default_factory=lambda: LabeledCounter("limit"))  # of files
    accepted: LabeledCounter = field(default_factory=LabeledCounter)
    decision_s: Histogram = field(default_factory=lambda: Histogram(DECISION_BUCKETS_S))
    batch: Histogram = field(default_factory=lambda: Histogram(BATCH_SIZE_BUCKETS))
    commit_s: Histogram = field(default_factory=lambda: Histogram(COMMIT_BUCKETS_S))
    leases: LabeledCounter = field(default_factory=lambda: LabeledCounter("cluster"))
    # Attempts that ended, and were given less or other than their jobs asked for.
    differences: LabeledCounter = field(default_factory=lambda: LabeledCounter("cluster"))
    # Executions of Flyte's that reached a phase. `cluster` is empty for one that has none yet, or is spread.
    moves: LabeledCounter = field(default_factory=lambda: LabeledCounter("from_cluster", "to_cluster"))
    probations: LabeledCounter = field(default_factory=lambda: LabeledCounter("cluster"))  # that began
    probation_held: LabeledCounter = field(default_factory=lambda: LabeledCounter("cluster"))  # tasks not leased
    # Of jobs with alternatives: which set, by its number, they got at which cluster.
    alternatives: LabeledCounter = field(default_factory=lambda: LabeledCounter("cluster", "alternative"))
    requests: LabeledCounter = field(default_factory=lambda: LabeledCounter("method", "route", "code"))
    pause_s: Histogram = field(default_factory=lambda: Histogram(PAUSE_BUCKETS_S, "loop"))  # of an event loop
    quotes: LabeledCounter = field(default_factory=lambda: LabeledCounter("cluster", "said"))
    quote_s: Histogram = field(default_factory=lambda: Histogram(QUOTE_BUCKETS_S))  # from the inquiry to the answer
    # Difference between the quoted and the real start; `side`: late or early.
    eta_error_s: Histogram = field(default_factory=lambda: Histogram(ETA_ERROR_BUCKETS_S, "cluster", "side"))
    # Claims of callers and jobs on token pools. A waiting job counts once, however often its claim is checked.
    token_grants: LabeledCounter = field(default_factory=lambda: LabeledCounter("token_pool"))
    token_refusals: LabeledCounter = field(default_factory=lambda: LabeledCounter("token_pool"))
    token_repairs: LabeledCounter = field(default_factory=lambda: LabeledCounter("token_pool"))
    # From a job's first refusal to its tokens. Jobs that were never refused do not count.
    token_wait_s: Histogram = field(default_factory=lambda: Histogram(TOKEN_WAIT_BUCKETS_S, "token_pool"))

    def decided(self, keys: Iterable[LabelValues], rejected_by: Iterable[str] = ()) -> None:
        """Count decisions. `keys`: pool, label, queue, cluster, outcome. `rejected_by`: steps that rejected jobs."""
        self.decisions.add_many(Counter(keys))
        steps = Counter(rejected_by)
        if steps:
            self.refusals.add_many({("rejected", step): count for step, count in steps.items()})

    def committed(self, writes: int, seconds: float) -> None:
        self.batch.add(writes)
        self.commit_s.add(seconds)

    def started(self, cluster: str, *, error_s: float) -> None:
        """Count the start of a quoted job: `error_s` seconds later than quoted, negative: earlier."""
        self.eta_error_s.add(abs(error_s), cluster, "late" if error_s >= 0 else "early")
