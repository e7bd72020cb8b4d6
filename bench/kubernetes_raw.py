"""What the measurements of Kubernetes do past Switchyard: Jobs by a plain loop over the API, ended Jobs, pods' ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec
from tests.kube_cluster import KubernetesCluster
from tests.kube_image import BUSYBOX_IMAGE
from tests.processes import until

from switchyard.features.kubernetes.agent.api.api import KubernetesApi
from switchyard.features.kubernetes.agent.api.api_errors import ApiUnavailable
from switchyard.features.kubernetes.agent.api.connection import AccessSettings, ClusterConnection
from switchyard.features.kubernetes.agent.namespaces.objects import JobObject, PodObject
from switchyard.features.kubernetes.agent.pods.labels import JOB_LABEL

AT_ONCE = 8  # creates in parallel, as many as an agent's
END_S = 1800.0
CORES, MEMORY_MIB = 1, 32


def open_api(cluster: KubernetesCluster) -> KubernetesApi:
    return KubernetesApi(ClusterConnection(AccessSettings(kubeconfig=str(cluster.kubeconfig))))


def job_manifest(name: str, *, labels: Mapping[str, str] | None = None, is_suspended: bool = False) -> dict[str, Any]:
    """A Job of `true`, as a person writes one. Its pod asks for what a job through Switchyard asks for."""
    asked = {"cpu": str(CORES), "memory": f"{MEMORY_MIB}Mi"}
    container = {
        "name": "main",
        "image": BUSYBOX_IMAGE,
        "command": ["true"],
        "resources": {"requests": asked, "limits": asked},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": {
            "backoffLimit": 0,
            "suspend": is_suspended,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        },
    }


def run_plain_jobs(api: KubernetesApi, namespace: str, count: int) -> float:
    """Create Jobs in parallel and follow them by one watch. In how many seconds all were complete."""
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    version = api.list_all(path).resource_version
    begun, left = time.monotonic(), {f"plain-{number}" for number in range(count)}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        created = [pool.submit(api.create, path, job_manifest(name)) for name in sorted(left)]
        while left and time.monotonic() < begun + END_S:
            for event in api.watch(path, resource_version=version, silence_s=END_S):
                job = msgspec.json.decode(event.object, type=JobObject)
                version = job.metadata.resource_version or version
                assert not job.condition("Failed"), job
                if job.condition("Complete"):
                    left.discard(job.metadata.name)
                if not left:
                    break
        for each in created:
            each.result()
    assert not left, f"{len(left)} Jobs have no end"
    return time.monotonic() - begun


def remove_jobs(cluster: KubernetesCluster, namespace: str) -> None:
    """Delete all Jobs of a namespace. Returns when their pods are gone, too."""
    jobs, pods = f"/apis/batch/v1/namespaces/{namespace}/jobs", f"/api/v1/namespaces/{namespace}/pods"
    cluster.request("DELETE", f"{jobs}?propagationPolicy=Background", timeout_s=END_S)

    def are_gone() -> bool:
        return not any(cluster.request("GET", f"{path}?limit=1")["items"] for path in (jobs, pods))

    until(are_gone, END_S, f"the namespace {namespace} is empty")


def create_ended_jobs(api: KubernetesApi, namespace: str, count: int, *, labels: Mapping[str, str]) -> None:
    """Jobs without pods that are complete: created as suspended ones, their status written as a controller would."""
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    done = {"status": "True", "lastTransitionTime": now, "reason": "CompletionsReached"}
    conditions = [{"type": "SuccessCriteriaMet", **done}, {"type": "Complete", **done}]
    status = {"conditions": conditions, "startTime": now, "completionTime": now, "succeeded": 1}

    def create(number: int) -> None:
        name = f"yard-ended-{number}"
        api.create(path, job_manifest(name, labels=labels, is_suspended=True))
        api.patch(f"{path}/{name}/status", {"status": status})

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for each in [pool.submit(create, number) for number in range(count)]:
            each.result()
    jobs = [msgspec.json.decode(raw, type=JobObject) for raw in api.list_all(path).items]
    complete = [job for job in jobs if job.metadata.name.startswith("yard-ended-") and job.condition("Complete")]
    assert len(complete) == count, f"{len(complete)} of {count} Jobs are complete"


class PodEnds:
    """When the API first showed the end of each job's pod, by the clock that counts from the machine's start."""

    def __init__(self, api: KubernetesApi, namespace: str) -> None:
        self.at_s: dict[str, float] = {}  # by the job's id at Switchyard
        self._api, self._path = api, f"/api/v1/namespaces/{namespace}/pods"
        self._version = api.list_all(self._path).resource_version

    def follow(self) -> None:
        for event in self._api.watch(self._path, resource_version=self._version, timeout_s=int(END_S), silence_s=END_S):
            now_s = machine_s()
            if event.type == "BOOKMARK":  # a pod without containers
                continue
            pod = msgspec.json.decode(event.object, type=PodObject)
            job = pod.metadata.labels.get(JOB_LABEL)
            if job is not None and pod.status.phase in ("Succeeded", "Failed"):
                self.at_s.setdefault(job, now_s)


@contextmanager
def following_pod_ends(cluster: KubernetesCluster, namespace: str) -> Iterator[PodEnds]:
    api = open_api(cluster)
    ends = PodEnds(api, namespace)

    def follow() -> None:
        try:
            ends.follow()
        except ApiUnavailable:
            return  # closed below

    thread = threading.Thread(target=follow, name="pod-ends", daemon=True)
    thread.start()
    try:
        yield ends
    finally:
        api.close()
        thread.join(END_S)


def machine_s() -> float:
    """The clock of /proc/uptime, which is the same in every container."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
