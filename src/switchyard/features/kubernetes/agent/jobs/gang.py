"""Gangs: jobs with several tasks or nodes, whose pods run at the same time and know each other. Pure.

Without `nodes` a gang has a pod for each task. With `nodes` it has a pod for each node, which holds the resources of
the tasks there, and no two of its pods share a node. Every pod runs the command. Its environment says which pod it is
(SWITCHYARD_TASK_INDEX, from 0), how many there are (SWITCHYARD_PEER_COUNT) and what they are called
(SWITCHYARD_PEERS, in the order of their indexes; SWITCHYARD_LEADER is the first).

The names are those of Indexed Jobs: NAME-INDEX.SERVICE.NAMESPACE.svc. One headless Service in the namespace serves all
gangs there, so no object per job can be left behind. It publishes a pod before it is ready, since peers look for each
other while they start.

Kubernetes places pods one by one, so some pods of a gang may run while others wait. If the others do not run within
`gang_wait_s`, the job fails and all pods end. A failure of one pod ends the others at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from switchyard.errors import PolicyRefused
from switchyard.features.kubernetes.agent.kubernetes_site import KubernetesSite
from switchyard.features.kubernetes.agent.pods.labels import GANG_LABEL, INDEX_LABEL, MANAGED_BY_LABEL, MANAGER
from switchyard.model.job.job import JobSpec

PEERS_BYTES_MAX = 100_000  # of the variable with all names: the kernel's bound is 128 KiB
HOSTNAME_TOPOLOGY = "kubernetes.io/hostname"
Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Gang:
    """`size` pods, each with the resources of `tasks_per_pod` tasks."""

    size: int = 1
    tasks_per_pod: int = 1
    is_spread: bool = False  # each pod on a node of its own


def gang_of(spec: JobSpec, site: KubernetesSite) -> Gang:
    """The pods of a job. Raises PolicyRefused if its tasks cannot be spread evenly, or are too many."""
    need = spec.resources
    if need.nodes is None:
        gang = Gang(size=need.tasks)
    elif need.tasks % need.nodes:
        raise PolicyRefused(
            f"Its {need.tasks} tasks do not divide evenly by {need.nodes} nodes, and on Kubernetes all pods of a "
            "job are alike."
        )
    else:
        gang = Gang(size=need.nodes, tasks_per_pod=need.tasks // need.nodes, is_spread=need.nodes > 1)
    if gang.size > site.gang_max:
        raise PolicyRefused(
            f"It would have {gang.size} pods, and this site runs at most {site.gang_max} for one job (`gang_max`)."
        )
    return gang


def gang_policy(size: int) -> Manifest:
    if size == 1:
        return {"completions": 1, "parallelism": 1}
    return {"completionMode": "Indexed", "completions": size, "parallelism": size}


def gang_service(namespace: str, site: KubernetesSite) -> Manifest:
    """The headless Service that gives the pods of all gangs of a namespace their names."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": site.gang_service,
            "namespace": namespace,
            "labels": {MANAGED_BY_LABEL: MANAGER},
        },
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {GANG_LABEL: "true"}},
    }


def is_gang(job: Mapping[str, Any]) -> bool:
    """Whether the pods of this Job are a gang."""
    return GANG_LABEL in job["spec"]["template"]["metadata"]["labels"]


def gang_variables(name: str, namespace: str, gang: Gang, site: KubernetesSite) -> list[Manifest]:
    """Variables that a pod of a gang gets. Raises PolicyRefused if there are too many names for one variable."""
    domain = f".{site.gang_service}.{namespace}.svc" if site.gang_service else ""
    names = [f"{name}-{index}{domain}" for index in range(gang.size)]
    peers = ",".join(names)
    if len(peers) > PEERS_BYTES_MAX:
        raise PolicyRefused(f"The names of its {gang.size} pods do not fit into one variable.")
    return [
        {"name": "SWITCHYARD_PEER_COUNT", "value": str(gang.size)},
        {"name": "SWITCHYARD_PEERS", "value": peers},
        {"name": "SWITCHYARD_LEADER", "value": names[0]},
        {
            "name": "SWITCHYARD_TASK_INDEX",
            "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX_LABEL}']"}},
        },
    ]


def gang_pod(name: str, gang: Gang, site: KubernetesSite) -> Manifest:
    """What the pods of a gang have in their spec."""
    spec: Manifest = {"subdomain": site.gang_service} if site.gang_service else {}
    if gang.is_spread:
        spec["affinity"] = {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "topologyKey": HOSTNAME_TOPOLOGY,
                        "labelSelector": {"matchLabels": {"batch.kubernetes.io/job-name": name}},
                    }
                ]
            }
        }
    return spec
