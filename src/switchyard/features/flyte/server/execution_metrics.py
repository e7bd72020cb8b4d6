"""Metrics of executions: how many reached a phase, and how many are live."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from switchyard.features.flyte.service.executions.calls.execution_counts import ExecutionTally, count_live
from switchyard.features.flyte.store.executions.execution_pages import LiveCount
from switchyard.server.metrics import CACHE_S, counter
from switchyard.service.core.context import Context
from switchyard.service.core.process_metrics import LABEL_SETS_MAX

LABELS = ("pool", "label", "cluster", "phase")
PHASES_ABOUT = "Executions that reached a phase, by what bounds them and where they run."
LIVE_ABOUT = "Executions that are not over; of very many sets of labels the largest."


class ExecutionMetrics(Collector):
    """`collect` runs on a thread, because it reads the database."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._live: Sequence[LiveCount] = ()
        self._live_at = -CACHE_S * 2

    def collect(self) -> Iterator[Metric]:
        yield counter("executions", PHASES_ABOUT, self._context.setting(ExecutionTally).phases)
        family = GaugeMetricFamily("switchyard_executions_live", LIVE_ABOUT, labels=LABELS)
        for one in self._live_now():
            family.add_metric([one.pool, one.label, one.cluster, one.phase], one.count)
        yield family

    def _live_now(self) -> Sequence[LiveCount]:
        with self._lock:
            if time.monotonic() - self._live_at > CACHE_S:
                self._live = count_live(self._context, sets_max=LABEL_SETS_MAX)
                self._live_at = time.monotonic()
            return self._live
