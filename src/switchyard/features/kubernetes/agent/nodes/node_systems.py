"""Finds the system of each node: what its kubelet reports, and with an image what a short Job on the node finds there.

The Job runs `yard agent discover --per-node` in a container, so only facts that the container shares with its node
count: the kernel and the GPU driver. The C library and MPI are the image's. A Job is removed when its answer was read.
If this program dies, Kubernetes ends the Job after its deadline and removes it.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from switchyard.errors import Unavailable, YardError
from switchyard.features.kubernetes.agent.api.api import KubernetesApi
from switchyard.features.kubernetes.agent.api.api_errors import ApiRefusal
from switchyard.features.kubernetes.agent.nodes.node_objects import KubernetesNode, read_node
from switchyard.features.kubernetes.agent.nodes.nodes import system_of
from switchyard.model.job.image_compatibility import SYSTEM_SUBSYSTEM

PARALLEL_NODES = 8
ANSWER_S = 120.0  # with the time to pull the image
LOOK_S = 0.5
KEEP_S = 60  # how long Kubernetes keeps the ended Job of a program that died
NODE_ANSWER_BYTES_MAX = 65_536
NODES_PATH = "/api/v1/nodes"
NOBODY = 65_534  # the probes need no rights, and clusters that refuse root take the pod
# Facts that a container shares with its node.
NODE_FACTS = frozenset({"architecture", "os", "kernel", "kernel-release", "gpu-vendor", "gpu-driver", "cuda"})
COMMAND = ["yard", "agent", "discover", "--per-node", "-o", "json"]


@dataclass(frozen=True, slots=True)
class DiscoveryJob:
    """Where the Jobs run, and what."""

    namespace: str
    image: str
    pull_secrets: tuple[str, ...] = ()
    user: int = NOBODY
    answer_s: float = ANSWER_S
    command: tuple[str, ...] = tuple(COMMAND)


def describe_node_systems(api: KubernetesApi, discovery: DiscoveryJob | None) -> tuple[dict[str, Any], dict[str, str]]:
    """The subsystem `system` of all nodes, and which nodes did not answer and why. None: run no Jobs."""
    nodes = [node for raw in api.list_all(NODES_PATH).items if (node := read_node(raw)) is not None]
    if not nodes:
        raise Unavailable("This cluster has no nodes.", next_step="See `kubectl get nodes`.")
    facts = {node.name: system_of(node.info) for node in nodes}
    silent: dict[str, str] = {}
    if discovery is not None:
        with ThreadPoolExecutor(PARALLEL_NODES) as pool:
            answers = list(pool.map(lambda node: _ask(api, node, discovery), nodes))
        for node, answer in zip(nodes, answers, strict=True):
            if isinstance(answer, str):
                silent[node.name] = answer
            else:
                facts[node.name] |= answer
    attach = {name: [{"type": SYSTEM_SUBSYSTEM, **found}] for name, found in facts.items() if found}
    return {"attach": attach}, silent


def discovery_manifest(node: str, discovery: DiscoveryJob, *, name: str) -> dict[str, Any]:
    """The Job of one node. It names its node, so no scheduler and no taint is in its way."""
    container = {
        "name": "main",
        "image": discovery.image,
        "command": list(discovery.command),
        "terminationMessagePolicy": "FallbackToLogsOnError",  # the end of the log says why it failed
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    pod = {
        "nodeName": node,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "tolerations": [{"operator": "Exists"}],
        "securityContext": {
            "runAsNonRoot": discovery.user != 0,
            "runAsUser": discovery.user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "imagePullSecrets": [{"name": secret} for secret in discovery.pull_secrets],
        "containers": [container],
    }
    labels = {"app.kubernetes.io/managed-by": "switchyard", "app.kubernetes.io/component": "discover"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": discovery.namespace, "labels": labels},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": int(discovery.answer_s) + 1,
            "ttlSecondsAfterFinished": KEEP_S,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _ask(api: KubernetesApi, node: KubernetesNode, discovery: DiscoveryJob) -> dict[str, str] | str:
    """The facts that a Job found on one node, or why they are not known."""
    if not node.is_ready:
        return f"not ready ({node.not_ready_reason})"
    jobs = f"/apis/batch/v1/namespaces/{discovery.namespace}/jobs"
    name = f"yard-discover-{secrets.token_hex(6)}"
    try:
        try:
            api.create(jobs, discovery_manifest(node.name, discovery, name=name))
            pod = _ended_pod(api, name, discovery)
            log = api.call("GET", f"{_pods(discovery)}/{pod}/log", query={"limitBytes": NODE_ANSWER_BYTES_MAX})
        finally:
            _remove(api, f"{jobs}/{name}")
    except YardError as exc:
        return exc.detail
    return read_answer(log)


def read_answer(log: bytes) -> dict[str, str] | str:
    """The facts in what the Job printed, or why there are none."""
    try:
        attached = json.loads(log)["attach"]
        (vertex,) = next(iter(attached.values()))
        return {name: str(value) for name, value in vertex.items() if name in NODE_FACTS}
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration):
        return "its answer cannot be read"


def _ended_pod(api: KubernetesApi, job: str, discovery: DiscoveryJob) -> str:
    """Wait for the Job's pod to succeed. Returns its name."""
    until = time.monotonic() + discovery.answer_s
    state = "has no pod yet"
    while time.monotonic() < until:
        found = api.get(_pods(discovery), {"labelSelector": f"batch.kubernetes.io/job-name={job}"}).get("items") or []
        for pod in found:
            status: Mapping[str, Any] = pod.get("status") or {}
            if status.get("phase") == "Succeeded":
                return str(pod["metadata"]["name"])
            state = _pod_state(status)
            if status.get("phase") == "Failed":
                raise Unavailable(f"the pod failed: {state}")
        time.sleep(LOOK_S)
    raise Unavailable(f"no answer within {discovery.answer_s:g} s: the pod {state}")


def _pod_state(status: Mapping[str, Any]) -> str:
    """The most telling words of a pod's status."""
    for row in status.get("containerStatuses") or ():
        for state in (row.get("state") or {}).values():
            if words := state.get("message") or state.get("reason"):
                return str(words).strip()[-300:]
    return str(status.get("message") or status.get("reason") or f"is {status.get('phase')}")


def _pods(discovery: DiscoveryJob) -> str:
    return f"/api/v1/namespaces/{discovery.namespace}/pods"


def _remove(api: KubernetesApi, path: str) -> None:
    try:
        api.delete(path, propagation="Background")
    except ApiRefusal as exc:
        if not exc.is_absent:
            raise
