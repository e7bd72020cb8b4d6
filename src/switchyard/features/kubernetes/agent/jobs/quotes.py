"""Quotes: whether a job fits the nodes and the namespace's quota now, later or never, with the reason. Pure.

It reads the pod's spec as the Job's template has it, so it judges what the scheduler will judge: requests, node
selector, required node affinity and tolerations. Rules between pods are left to the scheduler. Kubernetes has no
estimate of starts, so a job that does not fit now has an unknown ETA.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from switchyard.agent.backends import BackendQuote
from switchyard.agent.loop.need import NOW_VALID_S
from switchyard.features.kubernetes.agent.namespaces.quotas import NamespaceQuota, quota_obstacle
from switchyard.features.kubernetes.agent.namespaces.resource_amounts import (
    PODS,
    Amounts,
    remaining_amounts,
    short_resources,
    show_amount,
)
from switchyard.features.kubernetes.agent.nodes.load import count_batch_pods, used_by_node
from switchyard.features.kubernetes.agent.nodes.node_objects import KubernetesNode, PodUse, pod_limits, pod_requests
from switchyard.features.kubernetes.agent.nodes.nodes import HOSTNAME_LABEL
from switchyard.features.kubernetes.agent.pods.taints import TolerationDict, closed_reason, standing_taints

EVERY_TAINT = {"operator": "Exists"}
TAINTS_SHOWN_MAX = 3
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
REASONS_SHOWN_MAX = 4
NAMES_SHOWN_MAX = 3


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


@dataclass(frozen=True, slots=True)
class PodPlacement:
    """What one pod of a job needs of a node."""

    requests: Mapping[str, int]
    selector: Mapping[str, str]
    affinity: tuple[Mapping[str, Any], ...] | None  # terms of which one must hold; None: any node
    tolerations: tuple[TolerationDict, ...]
    node_name: str = ""


@dataclass(frozen=True, slots=True)
class FreeNode:
    """A node and what is left of it. `pods`: how many more pods it takes."""

    node: KubernetesNode
    left: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class FitCounts:
    """How many pods of one kind the nodes hold, and why the other nodes hold none, with how many nodes each."""

    pods: int
    nodes: int  # nodes that hold at least one
    reasons: tuple[tuple[str, int], ...]

    @property
    def words(self) -> str:
        """As the scheduler says it: `2 with only 4 cpu, 1 cordoned`."""
        shown = [f"{count} {reason}" for reason, count in self.reasons[:REASONS_SHOWN_MAX]]
        more = len(self.reasons) - len(shown)
        return ", ".join([*shown, *([f"and {more} more reasons"] if more > 0 else [])])


def read_placement(pod_spec: Mapping[str, Any]) -> PodPlacement:
    required = ((pod_spec.get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED)
    return PodPlacement(
        requests=pod_requests(pod_spec),
        selector=dict(pod_spec.get("nodeSelector") or {}),
        affinity=tuple(required.get("nodeSelectorTerms") or ()) if required else None,
        tolerations=tuple(pod_spec.get("tolerations") or ()),
        node_name=pod_spec.get("nodeName") or "",
    )


def permanent_reason(pod: PodPlacement, node: KubernetesNode) -> str:
    """Why the pod can never run on this node as it is, as a word for the node; empty: it can."""
    if pod.node_name and pod.node_name != node.name:
        return f"other than {pod.node_name}"
    if not _selects(pod, node):
        return "outside its node selector or affinity"
    if taints := standing_taints(node, pod.tolerations):
        return f"with the taint {taints[0]} that the job does not tolerate"
    return _short(pod.requests, node.allocatable, "")


def count_possible(pod: PodPlacement, nodes: Iterable[KubernetesNode]) -> FitCounts:
    """How many pods the nodes would hold if nothing else ran there. Closed nodes count: they may open again."""
    return _count(pod, [FreeNode(node, node.allocatable) for node in nodes], is_now=False)


def count_now(pod: PodPlacement, nodes: Iterable[FreeNode]) -> FitCounts:
    """How many pods the nodes hold now, besides what runs there."""
    return _count(pod, nodes, is_now=True)


def free_nodes(nodes: Iterable[KubernetesNode], used: Mapping[str, Mapping[str, int]]) -> list[FreeNode]:
    """`used`: by node, what all pods there ask for; each pod counts as one of the resource `pods`."""
    return [FreeNode(node, remaining_amounts(node.allocatable, used.get(node.name, {}))) for node in nodes]


def _count(pod: PodPlacement, nodes: Iterable[FreeNode], *, is_now: bool) -> FitCounts:
    pods = holding = 0
    reasons: Counter[str] = Counter()
    for free in nodes:
        reason = permanent_reason(pod, free.node)
        if is_now and not reason:
            reason = closed_reason(free.node, pod.tolerations) or _short(pod.requests, free.left, " free")
        fit = 0 if reason else _times(pod.requests, free.left)
        if not reason and not fit:
            reason = "without room for one more pod"
        if reason:
            reasons[reason] += 1
        pods, holding = pods + fit, holding + bool(fit)
    return FitCounts(pods, holding, tuple(reasons.most_common()))


def _times(requests: Mapping[str, int], left: Mapping[str, int]) -> int:
    """How often the requests fit. A node that does not say how many pods it takes is not bounded by them."""
    asked = {**requests, **({PODS: 1} if PODS in left else {})}
    return min((left.get(name, 0) // amount for name, amount in asked.items() if amount), default=1)


def _short(asked: Mapping[str, int], has: Mapping[str, int], word: str) -> str:
    short = short_resources(asked, has)
    if not short:
        return ""
    shown = " and ".join(show_amount(name, has.get(name, 0)) for name in short[:NAMES_SHOWN_MAX])
    return f"with only {shown}{word}"


def _selects(pod: PodPlacement, node: KubernetesNode) -> bool:
    if any(node.labels.get(key) != value for key, value in pod.selector.items()):
        return False
    return pod.affinity is None or any(_term_holds(term, node) for term in pod.affinity)


def _term_holds(term: Mapping[str, Any], node: KubernetesNode) -> bool:
    """All expressions of a term must hold. A term without any holds for no node."""
    expressions: Sequence[Mapping[str, Any]] = term.get("matchExpressions") or ()
    fields: Sequence[Mapping[str, Any]] = term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    named = {"metadata.name": node.name}
    return all(_holds(expression, node.labels) for expression in expressions) and all(
        _holds(expression, named) for expression in fields
    )


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, values = expression.get("key", ""), expression.get("values") or ()
    value = labels.get(key)
    match expression.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            return _compares(value, values, is_greater=operator == "Gt")
    return False


def _compares(value: str | None, values: Sequence[str], *, is_greater: bool) -> bool:
    try:
        left, right = int(value or ""), int(values[0])
    except (ValueError, IndexError):
        return False
    return left > right if is_greater else left < right
