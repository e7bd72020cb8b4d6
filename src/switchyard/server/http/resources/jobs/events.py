"""What happened to all jobs: events, in pages and as a stream, and counts."""

from __future__ import annotations

from dataclasses import replace

from switchyard.model.failures.failure_stats import FAILURE_DIMENSIONS, FailureStats
from switchyard.model.wire.api import Event, Page
from switchyard.model.wire.stats import RouteStats
from switchyard.server.http import event_stream
from switchyard.server.http.call import Call
from switchyard.server.http.endpoint import Endpoint
from switchyard.server.http.query_parameters import LIMIT, SEQ_CURSOR, SINCE, QueryParameter
from switchyard.service.job import failure_stats, jobs, stats


def event_list(call: Call) -> Page[Event]:
    after = max(call.number("cursor", 0), call.number("after", 0))
    since_s = call.number_or_none("since_s")
    return jobs.all_events(call.context, call.actor, after=after, limit=call.limit, since_s=since_s)


SINCE_S = 3600
FAILURES_SINCE_S = 86_400


def route_stats_get(call: Call) -> RouteStats:
    since_s = call.number("since_s", SINCE_S)
    return stats.route_stats(call.context, call.actor, since_s)


def failure_stats_get(call: Call) -> FailureStats:
    since_s = call.number("since_s", FAILURES_SINCE_S)
    by, project = call.text("by") or FAILURE_DIMENSIONS[0], call.text("project") or None
    return failure_stats.failure_stats(call.context, call.actor, by=by, since_s=since_s, project=project)


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "GET",
        "/v1/events",
        "The events of all jobs you may view, in order",
        Page[Event],
        event_list,
        query=(QueryParameter("after", "integer", "only after this number"), SINCE, LIMIT, SEQ_CURSOR),
    ),
    Endpoint(
        "GET",
        "/v1/events/stream",
        "New events of jobs you may view, as server-sent events, without end; Last-Event-ID resumes the stream",
        Event,
        serve=event_stream.stream_events,
        query=event_stream.PARAMETERS,
        media="text/event-stream",
    ),
    Endpoint(
        "GET",
        "/v1/stats/routes",
        "Counts of the jobs you may view, by outcome and cluster",
        RouteStats,
        route_stats_get,
        is_heavy=True,
        query=(replace(SINCE, about="jobs made within so many seconds; none: an hour"),),
    ),
    Endpoint(
        "GET",
        "/v1/stats/failures",
        "Counts of failed attempts of the jobs you may view, by kind",
        FailureStats,
        failure_stats_get,
        is_heavy=True,
        query=(
            QueryParameter("by", about="what they are counted by; none: cluster", words=FAILURE_DIMENSIONS),
            QueryParameter("project", about="only those of this project"),
            replace(SINCE, about="attempts that ended within so many seconds; none: a day"),
        ),
    ),
)
