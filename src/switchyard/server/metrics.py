"""`/metrics` in Prometheus's text form: counts of this process, and a few counts from the database.

Counts from the database are cached for some seconds, however often a server is scraped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version as package_version

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
from switchyard.service.files.outputs import StoredTotals, stored_files
from switchyard.service.job.live_job_counts import LiveJobCounts, count_live_jobs
from switchyard.service.token.pool_calls import pools_used

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
    _MetricSpec("moves", "Jobs that were moved from one cluster to another before they were leased.", "moves"),
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
        self._live: LiveJobCounts | None = None
        self._live_at = 0.0
        self._files: StoredTotals | None = None
        self._files_at = 0.0
        self._used: Mapping[str, int] = {}
        self._used_at = -CACHE_S * 2
        self._lock = threading.Lock()
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
        live = self._live_now()
        states = GaugeMetricFamily(
            "switchyard_jobs", "Live jobs; at most 100,000 of a kind are counted.", labels=["state"]
        )
        for state, count in sorted(live.states.items()):
            states.add_metric([state], count)
        yield states
        waiting = GaugeMetricFamily(
            "switchyard_jobs_pending",
            "Jobs that wait, by what they wait for; of very many the oldest.",
            labels=["reason"],
        )
        for word, count in sorted(live.waiting.items()):
            waiting.add_metric([word], count)
        yield waiting
        yield from self._of_queues(live)
        yield from self._of_files()

    def _of_files(self) -> Iterator[Metric]:
        totals = self._files_now()
        yield GaugeMetricFamily("switchyard_file_objects", "Objects of files that are stored.", totals.objects)
        yield GaugeMetricFamily("switchyard_file_bytes", "Bytes of files that are stored.", totals.bytes)

    def _of_queues(self, live: LiveJobCounts) -> Iterator[Metric]:
        layout = self._server.context.snapshots.laid.layout
        used = GaugeMetricFamily("switchyard_queue_jobs", "Jobs of a queue that clusters have.", labels=["queue"])
        for name in sorted({*live.queues, *layout.queues}):
            used.add_metric([name], live.queues.get(name, 0))
        yield used
        most = GaugeMetricFamily("switchyard_queue_limit", "How many a queue lets run at once.", labels=["queue"])
        for name, queue in sorted(layout.queues.items()):
            if queue.limits.running is not None:
                most.add_metric([name], queue.limits.running)
        yield most

    def _of_tokens(self) -> Iterator[Metric]:
        context = self._server.context
        entries, waiting = context.snapshots.token_pools.entries, context.tokens.counts.waiting
        shown: dict[str, tuple[str, Mapping[str, int]]] = {
            "used": ("Units of a token pool that are held.", self._used_now()),
            "quota": (
                "How many units of a token pool there are.",
                {name: pool.quota for name, pool in entries.items()},
            ),
            "waiting": ("Jobs that wait for tokens, as the leader last saw it.", waiting),
        }
        for word, (about, values) in shown.items():
            gauge = GaugeMetricFamily(f"switchyard_token_{word}", about, labels=["token_pool"])
            for name in sorted(values)[:LABEL_SETS_MAX]:
                gauge.add_metric([name], values[name])
            yield gauge

    def _used_now(self) -> Mapping[str, int]:
        with self._lock:
            if time.monotonic() - self._used_at > CACHE_S:
                self._used, self._used_at = pools_used(self._server.context), time.monotonic()
            return self._used

    def _live_now(self) -> LiveJobCounts:
        with self._lock:
            if self._live is None or time.monotonic() - self._live_at > CACHE_S:
                self._live, self._live_at = count_live_jobs(self._server.context), time.monotonic()
            return self._live

    def _files_now(self) -> StoredTotals:
        with self._lock:
            if self._files is None or time.monotonic() - self._files_at > FILES_CACHE_S:
                self._files, self._files_at = stored_files(self._server.context), time.monotonic()
            return self._files

    def _of_process(self) -> Iterator[Metric]:
        server, snapshots = self._server, self._server.context.snapshots
        clusters = GaugeMetricFamily("switchyard_clusters", "Clusters, by health.", labels=["health"])
        healths = [member.health.value for member in snapshots.world.members]
        for health in sorted(set(healths)):
            clusters.add_metric([health], healths.count(health))
        yield clusters
        agents = GaugeMetricFamily("switchyard_agents", "Agents: live, or silent for too long.", labels=["state"])
        live = sum(snapshots.is_live(agent) for agent in snapshots.fleet.agents)
        agents.add_metric(["live"], live)
        agents.add_metric(["silent"], len(snapshots.fleet.agents) - live)
        yield agents
        for name, about, value in (
            ("polls_parked", "Polls of agents that are parked here.", server.agents.parked_polls),
            ("event_streams", "Followers of events that are connected here.", server.limiter.open["streams"].total),
            ("commit_queue", "Changes that wait for the committer.", server.context.committer.waiting),
        ):
            yield GaugeMetricFamily(f"switchyard_{name}", about, value=value)
        damaged = GaugeMetricFamily(
            "switchyard_unreadable_rows", "Stored rows that this process could not read, by table.", labels=["table"]
        )
        for table, count in sorted({"jobs": 0, **unreadable_counts()}.items()):
            damaged.add_metric([table], count)
        yield damaged
        yield from self._of_pauses()
        build = GaugeMetricFamily("switchyard_build_info", "The version that runs.", labels=["version", "database"])
        build.add_metric([package_version("switchyard"), server.context.database.url.get_backend_name()], 1)
        yield build

    def _of_pauses(self) -> Iterator[Metric]:
        labels = ["loop"]
        wall = GaugeMetricFamily(
            "switchyard_loop_pause_longest_seconds",
            "The longest pause of an event loop since this was last read.",
            labels=labels,
        )
        cpu = GaugeMetricFamily(
            "switchyard_loop_pause_longest_cpu_seconds",
            "The same, without the time for which the machine gave this process no core.",
            labels=labels,
        )
        for name, longest in self._server.pauses.take().items():
            wall.add_metric([name], longest.wall_s)
            cpu.add_metric([name], longest.cpu_s)
        yield from (wall, cpu)


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
