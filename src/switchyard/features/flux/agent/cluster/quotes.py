"""Quotes: whether the instance could run a job, and when. Pure, but for the facts it is given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from switchyard.agent.backends import BackendQuote
from switchyard.agent.loop.need import OccupiedResources, ResourceNeed, estimate_occupied, need_of, quote_of
from switchyard.features.flux.agent.cluster.resource_sets import FluxNode
from switchyard.model.cluster.poll import Room
from switchyard.model.job.job import JobSpec
from switchyard.model.jobspec.quantity import ceil_fraction, parse_amount

EXPIRATION_MAX_S = 2**33  # later: the job has no time limit


def size_refusal(spec: JobSpec, nodes: Sequence[FluxNode]) -> str:
    """Why the job fits no such instance, however empty; empty: it may fit. For a scheduler that cannot be asked."""
    if spec.demand is not None:
        return ""
    ask, need = spec.resources.asked, spec.resources
    cores = ceil_fraction(parse_amount(ask.cores))
    slots = [min(node.total.cores // cores, _gpu_slots(node, ask.gpus)) for node in nodes]
    if need.nodes is not None and sum(1 for count in slots if count) < need.nodes:
        return f"only {sum(1 for count in slots if count)} of {len(nodes)} nodes can hold a task; it needs {need.nodes}"
    if sum(slots) < need.tasks:
        return f"there is room for {sum(slots)} such tasks in all; it has {need.tasks}"
    return ""


def estimate_start(
    spec: JobSpec, nodes: Iterable[FluxNode], running: Iterable[Mapping[str, Any]], *, now_s: float
) -> BackendQuote:
    """When there is room for the job, if running jobs end at their time limits and nothing else comes."""
    nodes = list(nodes)
    need = need_of(spec)
    return quote_of(
        ResourceNeed(cores=need.cores, gpus=need.gpus),
        Room(cores=sum(node.total.cores for node in nodes), gpus=sum(node.total.gpus for node in nodes)),
        Room(cores=sum(node.free.cores for node in nodes), gpus=sum(node.free.gpus for node in nodes)),
        [_occupied(job, now_s) for job in running],
    )


def _occupied(job: Mapping[str, Any], now_s: float) -> OccupiedResources:
    """The list of jobs does not say how many GPUs a job holds, so only its cores come free here."""
    began_s, expires_s = float(job.get("t_run") or now_s), float(job.get("expiration") or 0.0)
    limit_s = expires_s - began_s if 0 < expires_s < EXPIRATION_MAX_S else None
    need = ResourceNeed(cores=int(job.get("ncores") or 0))
    return estimate_occupied(need, ran_s=max(0.0, now_s - began_s), limit_s=limit_s)


def _gpu_slots(node: FluxNode, gpus: int) -> int:
    return node.total.gpus // gpus if gpus else node.total.cores
