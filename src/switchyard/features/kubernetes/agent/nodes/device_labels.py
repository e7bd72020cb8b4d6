"""The types of devices on nodes, as their labels tell them, and the resources that device plugins call them. Pure.

A pod asks for a number of a resource, and for a type by the label that told it: nodes of one type may spell it in
several ways, so any of these values will do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from switchyard.errors import PolicyRefused
from switchyard.features.kubernetes.agent.kubernetes_names import is_label_value
from switchyard.features.kubernetes.agent.kubernetes_site import KubernetesSite
from switchyard.features.kubernetes.agent.nodes.node_objects import KubernetesNode
from switchyard.model.cluster.hardware import GPU, SiteNames, types_of_vertex
from switchyard.model.graph.graph import FieldValue
from switchyard.model.jobspec.devices import Device

GPU_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "cloud.google.com/gke-accelerator")
MEMORY_LABEL = "nvidia.com/gpu.memory"  # of each GPU, in MiB
TPU, TPU_RESOURCE, TPU_LABEL = "tpu", "google.com/tpu", "cloud.google.com/gke-tpu-accelerator"
MIB = 2**20

# For each device that a job asks for by type: labels, each with the values of which a node must have one.
DeviceLabels = Mapping[Device, Mapping[str, tuple[str, ...]]]
NO_LABELS: DeviceLabels = {}


def told_properties(node: KubernetesNode, kind: str, site: KubernetesSite, names: SiteNames) -> dict[str, FieldValue]:
    """The type and the memory of a node's devices of this kind, as far as its labels tell them."""
    label = _telling_label(node, kind, site)
    told: dict[str, FieldValue] = {"type": names.common(node.labels[label])} if label else {}
    memory = node.labels.get(MEMORY_LABEL, "") if kind == GPU else ""
    return told | ({"memory": int(memory) * MIB} if memory.isdecimal() and len(memory) < 10 else {})


def labels_of_devices(
    devices: Iterable[Device], nodes: Iterable[KubernetesNode], site: KubernetesSite, names: SiteNames
) -> DeviceLabels:
    """How nodes are labelled that have the devices. Values that other nodes have, too, are left out."""
    nodes = list(nodes)
    return {device: _values(device, nodes, site, names) for device in devices if device.type or device.memory_mb}


def _values(
    device: Device, nodes: list[KubernetesNode], site: KubernetesSite, names: SiteNames
) -> dict[str, tuple[str, ...]]:
    fitting: dict[str, set[str]] = {}
    other: set[tuple[str, str]] = set()
    for node in nodes:
        if label := _telling_label(node, device.kind, site):
            value = node.labels[label]
            if any(map(device.is_met_by, types_of_vertex(told_properties(node, device.kind, site, names)))):
                fitting.setdefault(label, set()).add(value)
            else:
                other.add((label, value))
    values = {label: tuple(sorted(v for v in found if (label, v) not in other)) for label, found in fitting.items()}
    if values := {label: found for label, found in values.items() if found}:
        return values
    if not device.spelling or not is_label_value(device.spelling):  # no node is known: the label as the job writes it
        shown = device.spelling[:80] or f"at least {device.memory_mb} MB"
        raise PolicyRefused(f"No node has the {device.kind} type {shown!r}: it is no value of a label of nodes.")
    return {_labels(device.kind, site)[0]: (device.spelling,)}


def _telling_label(node: KubernetesNode, kind: str, site: KubernetesSite) -> str:
    return next((label for label in _labels(kind, site) if node.labels.get(label)), "")


def _labels(kind: str, site: KubernetesSite) -> tuple[str, ...]:
    if kind == TPU:
        return (TPU_LABEL,)
    return (site.gpu_type_label, *GPU_LABELS) if kind == GPU else (f"{kind}.type",)


def resource_of(device: Device, site: KubernetesSite) -> str:
    """What a device plugin calls it. Raises PolicyRefused for a kind that this cluster has no resource for."""
    if device.kind == GPU:
        return site.gpu_resource
    named = site.devices.get(f"{device.kind}:{device.spelling}") or site.devices.get(device.kind)
    if not named and device.kind == TPU:
        return TPU_RESOURCE
    if not named and "/" not in device.kind:
        raise PolicyRefused(
            f"This cluster has no resource for {device.kind}.",
            next_step="Name the resource of its device plugin: `kubernetes: {devices: {…}}` in the agent's site file.",
        )
    return named or device.kind


def device_of_resource(resource: str, site: KubernetesSite) -> tuple[str, str]:
    """The kind and the type of a resource; the resource's own name, if the site says nothing else."""
    named = next((name for name, called in site.devices.items() if called == resource), "")
    kind, _, type_ = (named or (TPU if resource == TPU_RESOURCE else resource)).partition(":")
    return kind, type_


def names_type(device: Device, site: KubernetesSite) -> bool:
    """Whether the resource itself has the type, so that no label is needed."""
    return f"{device.kind}:{device.spelling}" in site.devices
