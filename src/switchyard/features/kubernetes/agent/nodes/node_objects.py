"""Nodes and pods as read from the API: only the fields that the graph, the load and quotes need. Pure.

One broken object never fails a list: fields of a wrong type make that object unreadable, and it alone is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Struct

from switchyard.features.kubernetes.agent.namespaces.resource_amounts import (
    Amounts,
    add_amounts,
    allocatable_amounts,
    asked_amounts,
    largest_amounts,
)

NO_NEW_PODS = ("NoSchedule", "NoExecute")  # effects of taints; PreferNoSchedule forbids nothing
ENDED_PHASES = ("Succeeded", "Failed")
_Quantities = dict[str, str | int | float]


class Taint(Struct, frozen=True):
    key: str
    effect: str = ""
    value: str | None = None

    def __str__(self) -> str:
        """As kubectl writes it: `dedicated=ml:NoSchedule`."""
        return f"{self.key}{f'={self.value}' if self.value else ''}:{self.effect}"

    @property
    def is_forbidding(self) -> bool:
        return self.effect in NO_NEW_PODS


class NodeInfo(Struct, frozen=True, rename="camel"):
    """The system of a node, as its kubelet reports it."""

    architecture: str = ""
    operating_system: str = ""
    kernel_version: str = ""
    container_runtime_version: str = ""


NO_INFO = NodeInfo()


class _NodeMetadata(Struct, frozen=True, rename="camel"):
    name: str
    labels: dict[str, str] | None = None
    deletion_timestamp: str | None = None


class _NodeSpec(Struct, frozen=True):
    unschedulable: bool | None = None
    taints: list[Taint] | None = None


class _Condition(Struct, frozen=True):
    type: str
    status: str
    reason: str | None = None
    message: str | None = None


class _NodeStatus(Struct, frozen=True, rename="camel"):
    allocatable: _Quantities | None = None
    conditions: list[_Condition] | None = None
    node_info: NodeInfo | None = None


class _Node(Struct, frozen=True):
    metadata: _NodeMetadata
    spec: _NodeSpec | None = None
    status: _NodeStatus | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesNode:
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    allocatable: Mapping[str, int] = field(default_factory=dict)
    info: NodeInfo = NO_INFO
    is_cordoned: bool = False  # or being deleted
    is_ready: bool = True
    not_ready_reason: str = ""


class _Resources(Struct, frozen=True):
    requests: _Quantities | None = None
    limits: _Quantities | None = None


class _Container(Struct, frozen=True, rename="camel"):
    name: str = ""
    resources: _Resources | None = None
    restart_policy: str | None = None  # Always: an init container that keeps running beside the others


class _PodSpec(Struct, frozen=True, rename="camel"):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    node_name: str | None = None
    restart_policy: str | None = None
    overhead: _Quantities | None = None
    resources: _Resources | None = None


class _ContainerStatus(Struct, frozen=True, rename="camel"):
    name: str = ""
    allocated_resources: _Quantities | None = None


class _PodStatus(Struct, frozen=True, rename="camel"):
    phase: str | None = None
    container_statuses: list[_ContainerStatus] | None = None


class _PodMetadata(Struct, frozen=True):
    name: str
    namespace: str | None = None


class _Pod(Struct, frozen=True):
    metadata: _PodMetadata
    spec: _PodSpec | None = None
    status: _PodStatus | None = None


@dataclass(frozen=True, slots=True)
class PodUse:
    """What one pod takes of its node; no node: it is not scheduled yet."""

    node: str
    requests: Mapping[str, int]
    is_batch: bool  # it runs to an end, as a job does, and is no service


_NODE = msgspec.json.Decoder(_Node)
_POD = msgspec.json.Decoder(_Pod)


def read_node(raw: bytes | msgspec.Raw | Mapping[str, Any]) -> KubernetesNode | None:
    """One Node; None: it cannot be read."""
    try:
        node = msgspec.convert(raw, _Node) if isinstance(raw, Mapping) else _NODE.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    spec, status = node.spec or _NodeSpec(), node.status or _NodeStatus()
    ready = next((row for row in status.conditions or () if row.type == "Ready"), None)
    return KubernetesNode(
        name=node.metadata.name,
        labels=node.metadata.labels or {},
        taints=tuple(spec.taints or ()),
        allocatable=allocatable_amounts(status.allocatable or {}),
        info=status.node_info or NodeInfo(),
        is_cordoned=bool(spec.unschedulable) or node.metadata.deletion_timestamp is not None,
        is_ready=ready is not None and ready.status == "True",
        not_ready_reason=_not_ready_reason(ready),
    )


def read_pod_use(raw: bytes | msgspec.Raw | Mapping[str, Any]) -> PodUse | None:
    """What a pod takes of its node; None: nothing, since it has ended or cannot be read."""
    try:
        pod = msgspec.convert(raw, _Pod) if isinstance(raw, Mapping) else _POD.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    spec, status = pod.spec or _PodSpec(), pod.status or _PodStatus()
    if status.phase in ENDED_PHASES:
        return None
    granted = {row.name: asked_amounts(row.allocated_resources or {}) for row in status.container_statuses or ()}
    return PodUse(
        node=spec.node_name or "",
        requests=_effective_requests(spec, granted),
        is_batch=spec.restart_policy in ("Never", "OnFailure"),
    )


def pod_requests(pod_spec: Mapping[str, Any]) -> Amounts:
    """What the scheduler reserves for a pod with this spec, such as the one of a Job's template."""
    return _effective_requests(msgspec.convert(pod_spec, _PodSpec), {})


def pod_limits(pod_spec: Mapping[str, Any]) -> Amounts:
    """The limits of a pod's containers together."""
    containers = msgspec.convert(pod_spec, _PodSpec).containers or ()
    return add_amounts(*(asked_amounts((row.resources and row.resources.limits) or {}) for row in containers))


def _effective_requests(spec: _PodSpec, granted: Mapping[str, Amounts]) -> Amounts:
    """As the scheduler counts: the containers together, or the largest step of the init containers if that is more."""
    running = add_amounts(*(_asked(container, granted) for container in spec.containers or ()))
    beside: Amounts = {}  # init containers that keep running
    steps: list[Amounts] = []
    for container in spec.init_containers or ():
        asked = _asked(container, granted)
        if container.restart_policy == "Always":
            beside = add_amounts(beside, asked)
            steps.append(beside)
        else:
            steps.append(add_amounts(beside, asked))
    total = largest_amounts([add_amounts(running, beside), *steps])
    if spec.resources is not None:  # the pod as a whole has requests of its own, which hold instead
        total |= _written(spec.resources)
    return add_amounts(total, asked_amounts(spec.overhead or {}))


def _asked(container: _Container, granted: Mapping[str, Amounts]) -> Amounts:
    """A container that is being made smaller keeps what it was granted until its node has done so."""
    asked = _written(container.resources) if container.resources is not None else {}
    return largest_amounts([asked, granted[container.name]]) if container.name in granted else asked


def _written(resources: _Resources) -> Amounts:
    """A limit without a request is the request."""
    return asked_amounts((resources.limits or {}) | (resources.requests or {}))


def _not_ready_reason(ready: _Condition | None) -> str:
    if ready is None:
        return "its kubelet has not reported yet"
    if ready.status == "True":
        return ""
    return ready.message or ready.reason or f"Ready is {ready.status}"
