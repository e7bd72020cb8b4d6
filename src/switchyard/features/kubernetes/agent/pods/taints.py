"""Taints of nodes: which close a node for a time, and which keep out every pod that does not tolerate them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from switchyard.features.kubernetes.agent.nodes.node_objects import KubernetesNode, Taint

# Kubernetes, cloud providers and autoscalers set these while a node cannot take pods; they go away by themselves.
TEMPORARY_PREFIXES = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
TEMPORARY_KEYS = frozenset(
    {
        "ToBeDeletedByClusterAutoscaler",
        "DeletionCandidateOfClusterAutoscaler",
        "karpenter.sh/disrupted",
        "karpenter.sh/disruption",
        "karpenter.sh/unregistered",
        "node.cilium.io/agent-not-ready",
    }
)
CORDON_KEY = "node.kubernetes.io/unschedulable"

TolerationDict = Mapping[str, Any]  # as in the spec of a pod


def is_temporary(taint: Taint) -> bool:
    return taint.key in TEMPORARY_KEYS or taint.key.startswith(TEMPORARY_PREFIXES)


def is_tolerated(taint: Taint, tolerations: Iterable[TolerationDict]) -> bool:
    return any(_tolerates(toleration, taint) for toleration in tolerations)


def standing_taints(node: KubernetesNode, tolerations: Iterable[TolerationDict]) -> list[Taint]:
    """The taints that keep out pods with these tolerations for as long as an administrator leaves them there."""
    tolerations = list(tolerations)
    return [
        taint
        for taint in node.taints
        if taint.is_forbidding and not is_temporary(taint) and not is_tolerated(taint, tolerations)
    ]


def closed_reason(node: KubernetesNode, tolerations: Iterable[TolerationDict] = ()) -> str:
    """Why the node takes no new pod now, as a word for it: `cordoned`; empty: it is open."""
    if not node.is_ready:
        return f"not ready ({node.not_ready_reason})"
    if node.is_cordoned:
        return "cordoned"
    tolerations = list(tolerations)
    for taint in node.taints:
        if taint.is_forbidding and is_temporary(taint) and not is_tolerated(taint, tolerations):
            return "cordoned" if taint.key == CORDON_KEY else f"with the taint {taint}"
    return ""


def _tolerates(toleration: TolerationDict, taint: Taint) -> bool:
    """By the rules of Kubernetes: no effect means every effect; Exists without a key means every taint."""
    if toleration.get("effect") and toleration["effect"] != taint.effect:
        return False
    key, operator = toleration.get("key") or "", toleration.get("operator") or "Equal"
    if operator == "Exists":
        return key in ("", taint.key)
    return operator == "Equal" and key == taint.key and (toleration.get("value") or "") == (taint.value or "")
