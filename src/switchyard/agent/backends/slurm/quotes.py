"""Quotes: what `sbatch --test-only` says, made sane, and what it would cost by the site's rates. Pure."""

from __future__ import annotations

import re
from datetime import datetime

from switchyard.agent.need import need_of
from switchyard.agent.site import Rates, Site
from switchyard.model.job import JobSpec
from switchyard.model.quantity import parse_duration_s

ETA_S_MAX = 366 * 86_400  # Slurm says the year 2707 for "I cannot tell"
HOUR_S = 3600
_START = re.compile(r"to start at (\S+)")
_PROBLEM = re.compile(r"(?:allocation failure|submission failed|error): *(.*)")


def read_start_delay_s(text: str, *, now_s: float) -> int | None:
    """In how many seconds it would start; None: Slurm cannot tell."""
    found = _START.search(text)
    at_s = _seconds(found[1]) if found else None
    if at_s is None or at_s - now_s > ETA_S_MAX:
        return None
    return max(0, round(at_s - now_s))


def read_problem(text: str) -> str:
    """Why not, in Slurm's own words: the last of them, which is the plainest."""
    found = _PROBLEM.findall(text)
    return found[-1].strip() if found else text.strip()[-300:]


def cost_of(spec: JobSpec, site: Site, *, partition: str) -> float | None:
    """For its time limit; without one, for an hour."""
    rates = site.rates.get(partition) or site.rates.get("*")
    if rates is None:
        return None
    limit = spec.resources.time_limit
    hours = (parse_duration_s(limit) if limit is not None else HOUR_S) / HOUR_S
    return round(_hourly(spec, rates) * hours, 6)


def _hourly(spec: JobSpec, rates: Rates) -> float:
    need = need_of(spec)
    return (spec.resources.nodes or 1) * rates.node + need.cores * rates.core + need.gpus * rates.gpu


def _seconds(text: str) -> float | None:
    if text.isdigit():
        return float(text)
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
