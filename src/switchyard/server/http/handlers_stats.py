"""Counts over many jobs, as endpoints."""

from __future__ import annotations

from switchyard.model.stats import RouteStats
from switchyard.server.http.call import Call
from switchyard.service.job import stats

SINCE_S = 3600


def route_stats_get(call: Call) -> RouteStats:
    since_s = call.number("since_s", SINCE_S)
    return stats.route_stats(call.yard.context, call.actor, since_s)
