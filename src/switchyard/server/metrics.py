"""`/metrics` in Prometheus's text form: counts of this process, and a few counts from the database.

Counts from the database are cached for some seconds, however often a server is scraped.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version as package_version
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from switchyard.model.rules.access import Role
from switchyard.server.feature import server_features
from switchyard.server.http.connections.asgi_messages import AsgiReceive, AsgiScope, AsgiSend, send_body
from switchyard.server.loops.runtime import ServerRuntime
from switchyard.service.core.process_metrics import LABEL_SETS_MAX, Histogram, LabeledCounter
from switchyard.service.core.unreadable_rows import unreadable_counts
from switchyard.service.files.outputs import stored_files
from switchyard.service.job.live_job_counts import count_live_jobs
from switchyard.service.token.pool_calls import pools_used

T = TypeVar("T")
CACHE_S = 5.0  # counts from the database; Prometheus scrapes every server every 15 s or so
FILES_CACHE_S = 60.0  # counts of all stored objects
MEDIA = (b"content-type", CONTENT_TYPE_LATEST.encode())


@dataclass(frozen=True, slots=True)
class _MetricSpec:
    """A metric: its name without our prefix, its help text, and the attribute of ProcessMetrics that has it."""

    name: str
    about: str
    of: str


COUNTERS = (
    _MetricSpec(
        "route_decisions", "Decisions that were stored, on arrival and when an answer changed later.", "decisions"
    ),
    _MetricSpec("route_refusals", "Submits that were refused, and jobs that were rejected.", "refusals"),
    _MetricSpec("limit_refusals", "Requests that a limit of one user refused, by the limit's name.", "limits"),
    _MetricSpec("file_uploads_refused", "Uploads of files that a limit refused, by the limit.", "uploads_refused"),
    _MetricSpec("jobs_accepted", "Jobs that were accepted.", "accepted"),
    _MetricSpec("leases", "Attempts that were handed to agents.", "leases"),
    _MetricSpec(
        "allocation_differences", "Attempts that were given less or other than their jobs asked for.", "differences"
    ),
    _MetricSpec("moves", "Jobs that were moved from one cluster to another before they were leased.", "moves"),
    _MetricSpec("probations", "Probations that began, by cluster.", "probations"),
    _MetricSpec("probation_held", "Tasks that a cluster on probation was not given when it asked.", "probation_held"),
    _MetricSpec(
        "alternatives", "Jobs with alternatives that were assigned, by the number of the set they got.", "alternatives"
    ),
    _MetricSpec("quotes", "Quotes that were answered, refused or missed.", "quotes"),
    _MetricSpec("token_grants", "Claims that were granted, of callers and of jobs.", "token_grants"),
    _MetricSpec("token_refusals", "Claims that were refused; a job that waits counts once.", "token_refusals"),
    _MetricSpec("token_repairs", "Differences from what live jobs hold that were put right.", "token_repairs"),
    _MetricSpec("http_requests", "Answers given, by route and status code.", "requests"),
)
HISTOGRAMS = (
    _MetricSpec("route_decision_seconds", "From a decoded job to its decision.", "decision_s"),
    _MetricSpec("commit_seconds", "One transaction of the committer.", "commit_s"),
    _MetricSpec("commit_batch", "Changes in one transaction.", "batch"),
    _MetricSpec("loop_pause_seconds", "How late an event loop was for a callback that runs every 10 ms.", "pause_s"),
    _MetricSpec("quote_seconds", "From the question to a cluster's quote.", "quote_s"),
    _MetricSpec("token_wait_seconds", "From a job's first refusal to its tokens.", "token_wait_s"),
    _MetricSpec("quote_eta_error_seconds", "How far a start was from what was quoted.", "eta_error_s"),
)


class Metrics(Collector):
    """The metrics of one server. `collect` runs on a thread, because it reads the database."""

    def __init__(self, server: ServerRuntime) -> None:
        self._server = server
        self._live = CachedCount(partial(count_live_jobs, server.context))
        self._files = CachedCount(partial(stored_files, server.context), seconds=FILES_CACHE_S)
        self._used = CachedCount(partial(pools_used, server.context))
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        self._further = [collector for feature in server_features() for collector in feature.collectors(server)]
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._registry)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        tally = self._server.context.tally
        for shown in COUNTERS:
            yield counter(shown.name, shown.about, getattr(tally, shown.of))
        for shown in HISTOGRAMS:
            yield _histogram(shown, getattr(tally, shown.of))
        yield from self._of_store()
        yield from self._of_tokens()
        yield from self._of_process()
        for collector in self._further:
            yield from collector.collect()

    def _of_store(self) -> Iterator[Metric]:
        live, queues = self._live.read(), self._server.context.snapshots.laid.layout.queues
        yield _gauge("jobs", "Live jobs; at most 100,000 of a kind are counted.", "state", live.states)
        about = "Jobs that wait, by what they wait for; of very many the oldest."
        yield _gauge("jobs_pending", about, "reason", live.waiting)
        used = {**dict.fromkeys(queues, 0), **live.queues}
        yield _gauge("queue_jobs", "Jobs of a queue that clusters have.", "queue", used)
        most = {name: queue.limits.running for name, queue in queues.items() if queue.limits.running is not None}
        yield _gauge("queue_limit", "How many a queue lets run at once.", "queue", most)
        totals = self._files.read()
        yield GaugeMetricFamily("switchyard_file_objects", "Objects of files that are stored.", totals.objects)
        yield GaugeMetricFamily("switchyard_file_bytes", "Bytes of files that are stored.", totals.bytes)

    def _of_tokens(self) -> Iterator[Metric]:
        context = self._server.context
        quotas = {name: pool.quota for name, pool in context.snapshots.token_pools.entries.items()}
        for word, about, values in (
            ("used", "Units of a token pool that are held.", self._used.read()),
            ("quota", "How many units of a token pool there are.", quotas),
            ("waiting", "Jobs that wait for tokens, as the leader last saw it.", context.tokens.counts.waiting),
        ):
            yield _gauge(f"token_{word}", about, "token_pool", dict(sorted(values.items())[:LABEL_SETS_MAX]))

    def _of_process(self) -> Iterator[Metric]:
        server, snapshots = self._server, self._server.context.snapshots
        healths = Counter(member.health.value for member in snapshots.world.members)
        yield _gauge("clusters", "Clusters, by health.", "health", healths)
        about = "Clusters on probation: for all jobs, or for those of some owners; and nodes that jobs avoid."
        yield _gauge("clusters_on_probation", about, "whose", snapshots.probation.counts)
        live = sum(snapshots.is_live(agent) for agent in snapshots.fleet.agents)
        agents = {"live": live, "silent": len(snapshots.fleet.agents) - live}
        yield _gauge("agents", "Agents: live, or silent for too long.", "state", agents)
        for name, about, value in (
            ("polls_parked", "Polls of agents that are parked here.", server.agents.parked_polls),
            ("event_streams", "Followers of events that are connected here.", server.limiter.open["streams"].total),
            ("commit_queue", "Changes that wait for the committer.", server.context.committer.waiting),
        ):
            yield GaugeMetricFamily(f"switchyard_{name}", about, value=value)
        about = "Stored rows that this process could not read, by table."
        yield _gauge("unreadable_rows", about, "table", {"jobs": 0, **unreadable_counts()})
        yield from self._of_pauses()
        build = GaugeMetricFamily("switchyard_build_info", "The version that runs.", labels=["version", "database"])
        build.add_metric([package_version("switchyard"), server.context.database.url.get_backend_name()], 1)
        yield build

    def _of_pauses(self) -> Iterator[Metric]:
        pauses = self._server.pauses.take()
        about = "The longest pause of an event loop since this was last read."
        yield _gauge("loop_pause_longest_seconds", about, "loop", {name: one.wall_s for name, one in pauses.items()})
        about = "The same, without the time for which the machine gave this process no core."
        yield _gauge("loop_pause_longest_cpu_seconds", about, "loop", {name: one.cpu_s for name, one in pauses.items()})


class CachedCount(Generic[T]):
    """A count that is read from the database at most once in some seconds. From any thread."""

    def __init__(self, count: Callable[[], T], *, seconds: float = CACHE_S) -> None:
        self._count = count
        self._seconds = seconds
        self._lock = threading.Lock()
        self._last: tuple[float, T] | None = None  # when it was counted, and the count

    def read(self) -> T:
        with self._lock:
            if self._last is None or time.monotonic() - self._last[0] > self._seconds:
                count = self._count()
                self._last = time.monotonic(), count
            return self._last[1]


async def serve_metrics(
    server: ServerRuntime, shown: Metrics, scope: AsgiScope, _receive: AsgiReceive, send: AsgiSend
) -> None:
    """GET /metrics. It needs a role: it names pools, queues and clusters, including private ones."""
    if not server.settings.config.metrics.anonymous:
        (await server.authenticator.user(scope)).need_platform(Role.VIEW)
    body = await server.workers.in_thread(shown.text)
    await send_body(send, 200, body, MEDIA)


def counter(name: str, about: str, count: LabeledCounter) -> Metric:
    family = CounterMetricFamily(f"switchyard_{name}", about, labels=count.labels)
    for key, value in sorted(count.read().items()):
        family.add_metric(key, value)
    return family


def _gauge(name: str, about: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(f"switchyard_{name}", about, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family


def _histogram(shown: _MetricSpec, histogram: Histogram) -> Metric:
    family = HistogramMetricFamily(f"switchyard_{shown.name}", shown.about, labels=histogram.labels)
    bounds = [*(f"{bound:g}" for bound in histogram.bounds), "+Inf"]
    for key, spread in sorted(histogram.read().items()):
        below, buckets = 0, []
        for bound, count in zip(bounds, spread.counts, strict=True):
            below += count
            buckets.append((bound, below))
        family.add_metric(key, buckets, sum_value=spread.sum)
    return family
