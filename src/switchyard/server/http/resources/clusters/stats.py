"""Counts over many jobs."""

from __future__ import annotations

from dataclasses import replace

from switchyard.model.wire.stats import RouteStats
from switchyard.server.http.call import Call
from switchyard.server.http.endpoint import Endpoint
from switchyard.server.http.query_parameters import SINCE
from switchyard.service.job import stats

SINCE_S = 3600


def route_stats_get(call: Call) -> RouteStats:
    since_s = call.number("since_s", SINCE_S)
    return stats.route_stats(call.context, call.actor, since_s)


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "GET",
        "/v1/stats/routes",
        "Counts of the jobs you may view, by outcome and cluster",
        RouteStats,
        route_stats_get,
        is_heavy=True,
        query=(replace(SINCE, about="jobs made within so many seconds; none: an hour"),),
    ),
)
