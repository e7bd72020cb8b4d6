"""Quotes: whether a job fits the nodes and the namespace's quota now, later or never, with the reason. Pure.

Kubernetes has no estimate of starts, so a job that does not fit now has an unknown ETA.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from switchyard.agent.backends import BackendQuote
from switchyard.agent.loop.need import NOW_VALID_S
from switchyard.features.kubernetes.agent.jobs.placement import (
    REQUIRED,
    FitCounts,
    PodPlacement,
    count_now,
    count_possible,
    free_nodes,
    permanent_reason,
    read_placement,
)
from switchyard.features.kubernetes.agent.namespaces.quotas import NamespaceQuota, quota_obstacle
from switchyard.features.kubernetes.agent.namespaces.resource_amounts import Amounts
from switchyard.features.kubernetes.agent.nodes.load import count_batch_pods, used_by_node
from switchyard.features.kubernetes.agent.nodes.node_objects import KubernetesNode, PodUse, pod_limits
from switchyard.features.kubernetes.agent.nodes.nodes import HOSTNAME_LABEL
from switchyard.features.kubernetes.agent.pods.taints import standing_taints

EVERY_TAINT = {"operator": "Exists"}
TAINTS_SHOWN_MAX = 3


@dataclass(frozen=True, slots=True)
class JobPods:
    """The pods of a job that run at the same time, all alike."""

    placement: PodPlacement
    count: int
    limits: Mapping[str, int]
    is_spread: bool = False  # each pod on a node of its own

    def fit(self, counts: FitCounts) -> int:
        """How many of the pods fit at the same time."""
        return counts.nodes if self.is_spread else counts.pods

    @property
    def requests(self) -> Amounts:
        return {name: amount * self.count for name, amount in self.placement.requests.items()}

    @property
    def all_limits(self) -> Amounts:
        return {name: amount * self.count for name, amount in self.limits.items()}


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What is known of the cluster. None: this agent may not list it."""

    nodes: Sequence[KubernetesNode] | None = None
    pods: Sequence[PodUse] | None = None
    quotas: Sequence[NamespaceQuota] = ()
    # The operator's graph may promise nodes that an autoscaler adds only when a pod waits for them.
    may_grow: bool = False


def pods_of_manifest(manifest: Mapping[str, Any]) -> JobPods:
    """The pods of a Job as it would be created."""
    spec = manifest["spec"]
    pod = spec["template"]["spec"]
    count = int(spec.get("parallelism") or 1)
    return JobPods(read_placement(pod), count, pod_limits(pod), is_spread=count > 1 and _is_spread(pod))


def quote_job(job: JobPods, view: ClusterView) -> BackendQuote:
    obstacle = quota_obstacle(view.quotas, requests=job.requests, limits=job.all_limits, pods=job.count)
    if obstacle is not None and obstacle.is_permanent:
        return BackendQuote(can=False, reason=obstacle.reason)
    if view.nodes is None:
        reason = obstacle.reason if obstacle else "this agent may not list nodes, so it does not know what is free"
        return BackendQuote(can=True, reason=reason)
    if refusal := misfit_reason(job, view.nodes):
        if not view.may_grow:
            return BackendQuote(can=False, reason=refusal)
        return BackendQuote(can=True, reason=f"the cluster may have to grow: {refusal}")
    if obstacle is not None:
        return BackendQuote(can=True, reason=obstacle.reason)
    if view.pods is None:
        return BackendQuote(can=True, reason="this agent may not list pods, so it does not know what is free")
    fit = count_now(job.placement, free_nodes(view.nodes, used_by_node(view.pods)))
    if job.fit(fit) < job.count:
        return BackendQuote(can=True, reason=_shortage(job, fit, len(view.nodes), "now"))
    if count_batch_pods(view.pods)[1]:
        return BackendQuote(can=True, reason="there is room now, but other pods wait for the scheduler")
    return BackendQuote(can=True, eta_s=0, reason="there is room now", valid_s=NOW_VALID_S)


def misfit_reason(job: JobPods, nodes: Sequence[KubernetesNode]) -> str:
    """Why the job could not run here even if nothing else ran; empty: it could."""
    fit = count_possible(job.placement, nodes)
    return "" if job.fit(fit) >= job.count else _shortage(job, fit, len(nodes), "ever")


def taint_refusal(job: JobPods, nodes: Sequence[KubernetesNode]) -> str:
    """Why only taints keep the job out; empty: they do not, or nodes are missing for other reasons, which may pass."""
    blank = replace(job.placement, tolerations=(EVERY_TAINT,))
    fitting = [node for node in nodes if not permanent_reason(blank, node)]
    taints = {str(taint) for node in fitting for taint in standing_taints(node, job.placement.tolerations)[:1]}
    if not fitting or any(not permanent_reason(job.placement, node) for node in fitting):
        return ""
    shown = ", ".join(sorted(taints)[:TAINTS_SHOWN_MAX])
    return f"it fits only nodes with taints that it does not tolerate: {shown}"


def _is_spread(pod: Mapping[str, Any]) -> bool:
    """Whether no two pods of the job may share a node."""
    apart = ((pod.get("affinity") or {}).get("podAntiAffinity") or {}).get(REQUIRED) or ()
    return any(term.get("topologyKey") == HOSTNAME_LABEL for term in apart)


def _shortage(job: JobPods, fit: FitCounts, nodes: int, when: str) -> str:
    """`0 of 3 nodes can ever run it: 2 have the taint …`; for several pods, how many of them fit."""
    words = f": {fit.words}" if fit.words else ""
    if job.count == 1:
        can = "could ever run it" if when == "ever" else "can run it now"
        return f"0 of {nodes} nodes {can}{words}"
    can = "would fit on an empty cluster" if when == "ever" else "fit now"
    return f"it has {job.count} pods that run together; {job.fit(fit)} {can}, on {fit.nodes} of {nodes} nodes{words}"
