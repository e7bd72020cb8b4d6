"""What the user of a running attempt must know: why it does not end, or whether it still runs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from switchyard.agent.backends.kubernetes.jobs.job_status import JobView, NodeState
from switchyard.agent.backends.kubernetes.namespaces.objects import ObjectMeta, PodObject
from switchyard.agent.backends.kubernetes.pods.labels import TRACKING_FINALIZER
from switchyard.agent.backends.kubernetes.pods.pod_facts import PodFacts

# Finalizers that Kubernetes sets and takes off by itself.
KUBERNETES_FINALIZERS = ("foregroundDeletion", "orphan", TRACKING_FINALIZER)


def running_note(view: JobView, node_state: Callable[[str], NodeState]) -> str:
    """The note of an attempt that has not ended; empty: there is nothing to tell."""
    pods = [pod for pod in view.pods if view.index is None or pod.index == view.index]
    gone = [pod for pod in view.gone_pods if view.index is None or pod.index == view.index]
    if away := _away_node([*pods, *gone], node_state):
        return f"its node {away} does not answer: it may still run there"
    if held := _holders(view, pods):
        return f"it is being deleted, held by {', '.join(held)}"
    ending = next((pod for pod in pods if pod.metadata.deletion_timestamp and not PodFacts(pod).terminated), None)
    if ending is None:
        return ""
    grace_s = ending.metadata.deletion_grace_period_seconds
    return "its pod is being ended" + (f": it has {grace_s} s after SIGTERM" if grace_s else "")


def _away_node(pods: Sequence[PodObject], node_state: Callable[[str], NodeState]) -> str:
    """The node of a pod that has not ended, as far as its kubelet told, and whose node does not answer."""
    nodes = (pod.spec.node_name for pod in pods if pod.spec.node_name and not PodFacts(pod).terminated)
    return next((node for node in nodes if node_state(node) is NodeState.AWAY), "")


def _holders(view: JobView, pods: Sequence[PodObject]) -> list[str]:
    """The finalizers of others on a Job or a pod whose containers have ended and that is being deleted."""
    if any(not PodFacts(pod).terminated for pod in pods):
        return []
    objects: list[ObjectMeta] = [pod.metadata for pod in pods]
    if view.job is not None and not view.is_deleted:
        objects.append(view.job.metadata)
    deleting = [meta for meta in objects if meta.deletion_timestamp is not None]
    return sorted({name for meta in deleting for name in meta.finalizers} - set(KUBERNETES_FINALIZERS))
