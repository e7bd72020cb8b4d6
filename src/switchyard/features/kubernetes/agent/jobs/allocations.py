"""What Kubernetes gave to an attempt: what its pods have, and the types that labels of their nodes tell. Pure.

What counts are the pods as they are: a webhook or a policy of the cluster may have changed what the Job asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction

from switchyard.features.kubernetes.agent.kubernetes_site import KubernetesSite
from switchyard.features.kubernetes.agent.namespaces.objects import PodContainer, PodObject
from switchyard.features.kubernetes.agent.nodes.device_labels import device_of_resource, told_properties
from switchyard.features.kubernetes.agent.nodes.node_objects import KubernetesNode
from switchyard.features.kubernetes.agent.pods.pod_facts import seconds
from switchyard.model.cluster.allocation import GivenResources, shown_types
from switchyard.model.cluster.hardware import GPU, SiteNames
from switchyard.model.cluster.pod_part import MAIN_CONTAINER
from switchyard.model.job.job import Usage
from switchyard.model.jobspec.quantity import parse_kubernetes

NODES_SHOWN_MAX = 20
AMOUNT_MAX = 2**31 - 1


def usage_of_pods(
    pods: Iterable[PodObject],
    node_of: Callable[[str], KubernetesNode | None],
    *,
    site: KubernetesSite,
    names: SiteNames,
) -> Usage | None:
    """The nodes, and what the containers of the command have there. None: no pod has a node."""
    placed = [pod for pod in sorted(pods, key=_age) if pod.spec.node_name]
    last = list({pod.index: pod for pod in placed}.values())  # an earlier pod of an index was replaced
    if not last:
        return None
    mains = [(pod, main) for pod in last if (main := _main(pod)) is not None]
    cores = [_amount(main, "cpu") for _, main in mains]
    memory = [_amount(main, "memory") for _, main in mains]
    gpus, types = 0, set[str]()
    for pod, main in mains:
        count, kinds = _gpus(main, site)
        gpus += count
        types |= kinds - {""}
        if "" in kinds and (node := node_of(pod.spec.node_name)) is not None:
            types.add(names.common(str(told_properties(node, GPU, site, names).get("type", ""))))
    return Usage(
        nodes=",".join(sorted({pod.spec.node_name for pod in last})[:NODES_SHOWN_MAX])[:4096],
        allocated=GivenResources(
            cores=float(sum(cores)) if mains and all(cores) else None,
            memory_bytes=min(int(sum(memory)), 2**62) if mains and all(memory) else None,
            gpus=min(gpus, AMOUNT_MAX) if mains else None,
            gpu_types=shown_types(types),
        ),
    )


def _main(pod: PodObject) -> PodContainer | None:
    return next((row for row in pod.spec.containers if row.name == MAIN_CONTAINER), None)


def _gpus(main: PodContainer, site: KubernetesSite) -> tuple[int, set[str]]:
    """How many GPUs the container has, and their types; an empty name: the node has to tell it."""
    count, types = 0, set[str]()
    for resource in main.resources.limits:
        kind, type_ = (GPU, "") if resource == site.gpu_resource else device_of_resource(resource, site)
        if kind == GPU and (amount := int(_quantity(main.resources.limits, resource))):
            count += amount
            types.add(type_)
    return count, types


def _amount(main: PodContainer, resource: str) -> Fraction:
    """What the scheduler keeps for the container: its request, else its limit; 0: neither is there."""
    return _quantity(main.resources.requests, resource) or _quantity(main.resources.limits, resource)


def _quantity(amounts: Mapping[str, str], resource: str) -> Fraction:
    try:
        return parse_kubernetes(amounts.get(resource, 0))
    except ValueError:
        return Fraction(0)


def _age(pod: PodObject) -> float:
    return seconds(pod.metadata.creation_timestamp) or 0.0
