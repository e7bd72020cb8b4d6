"""Builds the Job of an attempt, of a range of an array's tasks, or of a gang. Pure.

| job | Job of Kubernetes | native id |
|---|---|---|
| one task, or several on one node | one pod | `NAME` |
| a range of an array's tasks | Indexed, a pod for each task; each fails by itself | `NAME/INDEX` |
| several tasks or nodes | Indexed, a pod for each task or node; one failure ends all (gang.py) | `NAME` |

NAME is the marker of the attempt in lower case, so creating a Job twice is a conflict and not a second run. Kubernetes
never starts a command again by itself: no pod is restarted (`restartPolicy`), none is replaced (`backoffLimit`), and a
pod counts as failed only when it has ended (`podReplacementPolicy`). If it makes a pod twice, one of them starts
(start_gates.py). The rules of `podFailurePolicy` ignore nothing;
they make Kubernetes write the exit code, or that the pod was disrupted, into the Job, where it outlives the pod.

The time limit is the pod's. At the time limit of a Job, Kubernetes removes the pod, with its log and exit code.
"""

from __future__ import annotations

from typing import Any

import msgspec

from switchyard.agent.backends import marker_of
from switchyard.agent.loop.need import spec_of
from switchyard.agent.site.site import Site
from switchyard.errors import PolicyRefused
from switchyard.features.kubernetes.agent.jobs.gang import gang_of, gang_policy
from switchyard.features.kubernetes.agent.kubernetes_names import (
    LABEL_CHARS_MAX,
    is_namespace,
    is_object_name,
    is_reserved_namespace,
)
from switchyard.features.kubernetes.agent.kubernetes_site import kubernetes_of
from switchyard.features.kubernetes.agent.nodes.device_labels import NO_LABELS, DeviceLabels
from switchyard.features.kubernetes.agent.pods.labels import QUEUE_LABEL, annotations_of, labels_of
from switchyard.features.kubernetes.agent.pods.pod_template import pod_template
from switchyard.model.cluster.pod_part import MAIN_CONTAINER
from switchyard.model.cluster.poll import Lease

# Kubernetes stores an object in one request to etcd, which takes 1.5 MiB; what Kubernetes adds needs a part of it.
MANIFEST_BYTES_MAX = 1_300_000
DISRUPTED = [{"type": "DisruptionTarget", "status": "True"}]
Manifest = dict[str, Any]


def job_name(lease: Lease) -> str:
    """The name of the Job of an attempt; of a range, by the fence of its first task."""
    return marker_of(lease).lower()


def range_size(lease: Lease) -> int:
    return 1 if lease.lo is None or lease.hi is None else lease.hi - lease.lo + 1


def namespace_of(lease: Lease, site: Site) -> str:
    """The namespace of the lease's project and domain. Raises PolicyRefused for a name that Kubernetes refuses."""
    name = kubernetes_of(site).namespace_of(project=lease.project, domain=lease.domain)
    if not is_namespace(name):
        raise PolicyRefused(
            f"The namespace of project {lease.project} and domain {lease.domain} would be {name[:80]!r}. Kubernetes "
            "takes a-z, 0-9 and - inside, at most 63 characters.",
            next_step="Another name for the project, or another `namespace` in the agent's site file.",
        )
    if is_reserved_namespace(name) and name != kubernetes_of(site).fixed_namespace:
        raise PolicyRefused(
            f"The namespace of project {lease.project} and domain {lease.domain} would be {name}, which belongs to the "
            "cluster or to the agent.",
            next_step="Another name for the project, or another `namespace` in the agent's site file.",
        )
    return name


def job_manifest(
    lease: Lease, site: Site, *, cluster: str, work_root: str = "", labels: DeviceLabels = NO_LABELS
) -> Manifest:
    """The Job of a lease. Raises PolicyRefused, with the reason, for what the site or Kubernetes does not take.

    `cluster`: the name that the agent serves; `work_root`: where the agent makes the folders of attempts with files;
    `labels`: of nodes that have the devices for which the job asks by type.
    """
    size, gang, name = range_size(lease), gang_of(spec_of(lease), kubernetes_of(site)), job_name(lease)
    pods = size if size > 1 else gang.size
    _check_name(name, pods)
    if size > 1 and (gang.size > 1 or not can_share_job(lease, site)):
        raise PolicyRefused("Its tasks need a Job each.")  # a defect of the caller: see `can_share_job`
    own_labels, annotations = labels_of(lease, cluster, kubernetes_of(site)), annotations_of(lease, kubernetes_of(site))
    queue = lease.native_queue or site.queues.get(lease.queue, "") or kubernetes_of(site).queue
    is_queued = kubernetes_of(site).kueue and bool(queue)
    template = pod_template(
        lease,
        site,
        own_labels,
        annotations,
        cluster=cluster,
        name=name,
        gang=gang,
        work_root=work_root,
        device_labels=labels,
    )
    manifest: Manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": namespace_of(lease, site),
            "labels": {**own_labels, **({QUEUE_LABEL: queue} if is_queued else {})},
            "annotations": annotations,
        },
        "spec": {
            **_policy(size, gang.size),
            "podReplacementPolicy": "Failed",
            "ttlSecondsAfterFinished": kubernetes_of(site).keep_s,
            "template": template,
            **({"suspend": True} if is_queued else {}),
        },
    }
    if len(msgspec.json.encode(manifest)) > MANIFEST_BYTES_MAX:
        raise PolicyRefused(
            f"Its command and variables have more bytes than Kubernetes stores in one object ({MANIFEST_BYTES_MAX}).",
            next_step="Send large data as files or let the command fetch it.",
        )
    return manifest


def can_share_job(lease: Lease, site: Site) -> bool:
    """Whether tasks of this array can be one Indexed Job. Tasks with files have a folder each, gangs a Job each."""
    spec = spec_of(lease)
    return not kubernetes_of(site).array_jobs and spec.files is None and gang_of(spec, kubernetes_of(site)).size == 1


def _policy(size: int, gang_size: int) -> Manifest:
    """How many pods run at once, and what a failure of one means."""
    if size > 1:
        return {
            "completionMode": "Indexed",
            "completions": size,
            "parallelism": size,
            "backoffLimitPerIndex": 0,
            "podFailurePolicy": {"rules": [{"action": "FailIndex", "onPodConditions": DISRUPTED}]},
        }
    policy = {
        "backoffLimit": 0,
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onPodConditions": DISRUPTED},
                {
                    "action": "FailJob",
                    "onExitCodes": {"containerName": MAIN_CONTAINER, "operator": "NotIn", "values": [0]},
                },
            ]
        },
    }
    return {**policy, **gang_policy(gang_size)}


def _check_name(name: str, pods: int) -> None:
    """A pod of an Indexed Job has the host name NAME-INDEX, which is a DNS label."""
    chars = len(name) + (len(str(pods - 1)) + 1 if pods > 1 else 0)
    if chars > LABEL_CHARS_MAX or not is_object_name(name):
        raise PolicyRefused(f"{name} cannot be the name of a Job: Kubernetes takes {LABEL_CHARS_MAX} characters.")
