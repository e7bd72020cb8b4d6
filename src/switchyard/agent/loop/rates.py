"""What a job costs at a site, by the rates of its site file. Pure."""

from __future__ import annotations

from switchyard.agent.loop.need import need_of
from switchyard.agent.site.site import Rates, Site
from switchyard.model.job.job import JobSpec
from switchyard.model.jobspec.quantity import parse_duration_s

HOUR_S = 3600


def cost_of(spec: JobSpec, site: Site, *, queue: str) -> float | None:
    """The cost for the time limit, or for an hour without one. `queue`: the cluster's name for the job's queue."""
    rates = site.rates.get(queue) or site.rates.get("*")
    if rates is None:
        return None
    limit = spec.resources.time_limit
    hours = (parse_duration_s(limit) if limit is not None else HOUR_S) / HOUR_S
    return round(_hourly(spec, rates) * hours, 6)


def _hourly(spec: JobSpec, rates: Rates) -> float:
    need = need_of(spec)
    return (spec.resources.nodes or 1) * rates.node + need.cores * rates.core + need.gpus * rates.gpu
