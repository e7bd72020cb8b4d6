"""ResourceQuotas of a namespace: what a job would take of them, and which one is in its way. Pure.

A quota with scopes is for some pods only; those are left to Kubernetes. For an agent that may not list nodes, quotas
are the graph and the load. Nobody knows how a quota is spread over nodes, so it counts as one node: a job that fits it
may still find no node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct

from switchyard.errors import Unavailable
from switchyard.features.kubernetes.agent.namespaces.resource_amounts import (
    CPU,
    MEMORY,
    MILLI,
    NODE_AMOUNT_MAX,
    PODS,
    STORAGE,
    Amounts,
    read_amount,
    show_amount,
)
from switchyard.model.cluster.cluster import Load
from switchyard.model.graph import Graph
from switchyard.model.graph.graph_compiler import compile_graph
from switchyard.model.job.job import COUNT_MAX

# Names of what a quota bounds → the resource whose requests they bound.
REQUEST_NAMES = {CPU: CPU, MEMORY: MEMORY, STORAGE: STORAGE, PODS: PODS, "count/pods": PODS}
REQUESTS, LIMITS = "requests.", "limits."
JOBS_QUOTA = "count/jobs.batch"
_Quantities = dict[str, str | int | float]


class _QuotaMetadata(Struct, frozen=True):
    name: str
    namespace: str = ""


class _QuotaSpec(Struct, frozen=True, rename="camel"):
    scopes: list[str] | None = None
    scope_selector: dict[str, Any] | None = None
    hard: _Quantities | None = None


class _QuotaStatus(Struct, frozen=True):
    hard: _Quantities | None = None
    used: _Quantities | None = None


class _Quota(Struct, frozen=True):
    metadata: _QuotaMetadata
    spec: _QuotaSpec | None = None
    status: _QuotaStatus | None = None


@dataclass(frozen=True, slots=True)
class NamespaceQuota:
    """The bounds of one ResourceQuota and what is used of them, under the quota's own names."""

    name: str
    namespace: str
    hard: Mapping[str, int]
    used: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class QuotaObstacle:
    """The first bound that a job does not keep. `is_permanent`: not even an empty namespace would do."""

    reason: str
    is_permanent: bool


def read_quota(raw: bytes | msgspec.Raw | Mapping[str, Any]) -> NamespaceQuota | None:
    """One ResourceQuota; None: it has scopes, or cannot be read."""
    try:
        quota = msgspec.convert(raw, _Quota) if isinstance(raw, Mapping) else msgspec.json.decode(raw, type=_Quota)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    spec, status = quota.spec or _QuotaSpec(), quota.status or _QuotaStatus()
    if spec.scopes or spec.scope_selector:
        return None
    return NamespaceQuota(
        quota.metadata.name,
        quota.metadata.namespace,
        hard=_amounts(spec.hard or status.hard or {}, is_asked=False),
        used=_amounts(status.used or {}, is_asked=True),
    )


def quota_obstacle(
    quotas: Iterable[NamespaceQuota], *, requests: Mapping[str, int], limits: Mapping[str, int], pods: int
) -> QuotaObstacle | None:
    """What is in the way of a Job with so many pods that ask for this much together; None: nothing."""
    waiting: QuotaObstacle | None = None
    for quota in quotas:
        for name, bound in sorted(quota.hard.items()):
            demand = _demand_of(name, requests, limits, pods)
            left = bound - quota.used.get(name, 0)
            which = f"the quota {quota.name} of the namespace {quota.namespace}"
            resource = resource_of(name)
            if demand > bound:
                needs = show_amount(resource, demand)
                most = _show_bound(resource, bound)
                return QuotaObstacle(f"{which} allows {name} {most}; the job needs {needs}", True)
            if demand > left and waiting is None:
                rest = _show_bound(resource, max(0, left))
                waiting = QuotaObstacle(
                    f"{which} has {rest} of {name} left; the job needs {_show_bound(resource, demand)}", False
                )
    return waiting


def quota_amounts(quotas: Iterable[NamespaceQuota], *, is_left: bool) -> Amounts:
    """The tightest bound of each requested resource: in all, or what is left of it."""
    tightest: Amounts = {}
    for quota in quotas:
        for name, bound in quota.hard.items():
            resource = resource_of(name)
            if name.startswith(LIMITS) or (name not in REQUEST_NAMES and not name.startswith(REQUESTS)):
                continue
            amount = max(0, bound - quota.used.get(name, 0)) if is_left else bound
            tightest[resource] = min(amount, tightest.get(resource, amount))
    return tightest


def resource_of(name: str) -> str:
    """The resource that a name of a quota is about: `requests.nvidia.com/gpu` bounds `nvidia.com/gpu`."""
    return REQUEST_NAMES.get(name) or name.removeprefix(REQUESTS).removeprefix(LIMITS)


def _demand_of(name: str, requests: Mapping[str, int], limits: Mapping[str, int], pods: int) -> int:
    if name == JOBS_QUOTA:
        return 1
    resource = resource_of(name)
    if resource == PODS:
        return pods
    return limits.get(resource, 0) if name.startswith(LIMITS) else requests.get(resource, 0)


def _amounts(written: Mapping[str, str | int | float], *, is_asked: bool) -> dict[str, int]:
    return {name: read_amount(resource_of(name), text, is_asked=is_asked) for name, text in written.items()}


def _show_bound(resource: str, amount: int) -> str:
    return show_amount(resource, amount).partition(" ")[0]


def graph_of_quotas(quotas: Sequence[NamespaceQuota], *, gpu_resource: str) -> Graph:
    amounts = quota_amounts(quotas, is_left=False)
    if amounts.get(CPU, 0) < MILLI:
        raise Unavailable(
            f"The quotas of the namespace {quotas[0].namespace} do not bound cpu, so nobody knows what jobs may use.",
            next_step="Allow the agent to list nodes, or give it the graph with `--graph FILE`.",
        )
    each = {
        "core": min(amounts[CPU] // MILLI, COUNT_MAX),
        "gpu": min(amounts.get(gpu_resource, 0), COUNT_MAX),
        "memory": min(amounts.get(MEMORY, 0), NODE_AMOUNT_MAX),
        "storage": min(amounts.get(STORAGE, 0), NODE_AMOUNT_MAX),
    }
    namespace = quotas[0].namespace
    group = {"nodes": 1, "each": each, "properties": {"source": "quota"}, "hosts": namespace}
    return compile_graph(group, where=f"quotas of the namespace {namespace}")


def load_of_quotas(quotas: Sequence[NamespaceQuota], graph: Graph, *, gpu_resource: str) -> Load:
    """What is left of the quotas. Without quotas nobody knows what is free."""
    left = quota_amounts(quotas, is_left=True)
    return Load(
        free_cores=min(left[CPU] // MILLI, COUNT_MAX) if CPU in left else None,
        free_gpus=min(left[gpu_resource], COUNT_MAX) if gpu_resource in left else None,
        free_memory_bytes=left.get(MEMORY),
        signature=graph.signature,
    )
