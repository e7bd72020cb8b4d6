"""Kueue: Jobs that begin suspended, with the label of a queue. Whether there is such a queue, and what a Job waits for.

Kueue ends the suspension when the queue admits the Job. A Job that Kueue evicts is suspended again and its pods end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from switchyard.features.kubernetes.agent.api.api import KubernetesApi
from switchyard.features.kubernetes.agent.api.api_errors import ApiRefusal
from switchyard.features.kubernetes.agent.pods.labels import QUEUE_LABEL

GROUP = "kueue.x-k8s.io"
GROUP_PATH = f"/apis/{GROUP}"

ReadObject = Callable[[str], Mapping[str, Any] | None]  # path → object; None: there is none


def object_reader(api: KubernetesApi) -> ReadObject:
    """Reads objects of a cluster. An object that may not be read counts as there, and empty."""

    def read(path: str) -> Mapping[str, Any] | None:
        try:
            return api.get(path)
        except ApiRefusal as exc:
            if exc.is_absent:
                return None
            if exc.is_right_missing:
                return {}
            raise

    return read


def kueue_wait_reason(labels: Mapping[str, str], *, is_suspended: bool) -> str:
    """Why a Job with these labels has no pods, if Kueue holds it; empty: Kueue does not."""
    queue = labels.get(QUEUE_LABEL)
    return f"waits in Kueue's queue {queue}" if queue and is_suspended else ""


def queue_problem(read: ReadObject, *, queue: str, namespace: str) -> str:
    """Why no Job can wait in this queue; empty: Jobs can. Asks the API for the group, and for the queue if a namespace
    is given."""
    group = read(GROUP_PATH)
    if group is None:
        return f"Kueue is not installed in this cluster (no API group {GROUP}), and the site file asks for it"
    version = (group.get("preferredVersion") or {}).get("groupVersion")
    if not version:
        return f"the API group {GROUP} has no version"
    if not namespace or not queue or read(f"/apis/{version}/namespaces/{namespace}/localqueues/{queue}") is not None:
        return ""
    return f"the namespace {namespace} has no LocalQueue {queue} of Kueue"
