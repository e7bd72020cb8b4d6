"""Which nodes a pod may run on, by the scheduler's rules, and in words why the others are none. Pure.

It reads the pod's spec as the Job's template has it, so it judges what the scheduler will judge: requests, node
selector, required node affinity and tolerations. Rules between pods are left to the scheduler.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from switchyard.features.kubernetes.agent.namespaces.resource_amounts import (
    PODS,
    remaining_amounts,
    short_resources,
    show_amount,
)
from switchyard.features.kubernetes.agent.nodes.node_objects import KubernetesNode, pod_requests
from switchyard.features.kubernetes.agent.pods.taints import TolerationDict, closed_reason, standing_taints

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
REASONS_SHOWN_MAX = 4
NAMES_SHOWN_MAX = 3


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
