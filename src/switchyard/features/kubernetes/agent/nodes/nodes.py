"""The graph of a cluster from its Nodes: regions, zones and racks that have them, then nodes with their resources.

Labels are properties under their own names; the architecture and the system are `arch` and `os`, as other clusters say
them. Nodes that are cordoned or not ready are part of the graph: a job may wait for them. Nodes with a taint that no
job of this site tolerates are not. Pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from switchyard.errors import Unavailable
from switchyard.features.kubernetes.agent.kubernetes_site import KubernetesSite
from switchyard.features.kubernetes.agent.namespaces.resource_amounts import CPU, MEMORY, MILLI, STORAGE
from switchyard.features.kubernetes.agent.nodes.device_labels import device_of_resource, told_properties
from switchyard.features.kubernetes.agent.nodes.node_objects import KubernetesNode, NodeInfo
from switchyard.features.kubernetes.agent.pods.taints import TolerationDict, standing_taints
from switchyard.model.cluster.hardware import COMMON_NAMES, GPU, SiteNames
from switchyard.model.cluster.hostlist import compress_hosts
from switchyard.model.graph import AttachedVertex, Graph
from switchyard.model.graph.graph import FieldValue
from switchyard.model.graph.graph_compiler import compile_graph
from switchyard.model.graph.hash_consing import ShapeTable
from switchyard.model.job.image_compatibility import SYSTEM_SUBSYSTEM, architecture_of
from switchyard.model.job.job import COUNT_MAX
from switchyard.model.rules.names import LABEL_KEY_PATTERN

DEFAULT_SITE = KubernetesSite()
GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")
# Levels of the topology, outermost first, and the labels that name a node's place in each.
TOPOLOGY: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("region", ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region")),
    ("zone", ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")),
    ("rack", ("topology.kubernetes.io/rack", "cloud.provider.com/topology-rack", "rack")),
)
ARCH_LABEL, OS_LABEL = "kubernetes.io/arch", "kubernetes.io/os"
# Labels that repeat the node's name, or another label under an old name.
HOSTNAME_LABEL = "kubernetes.io/hostname"
LEFT_OUT_LABELS = frozenset({HOSTNAME_LABEL})
LEFT_OUT_PREFIXES = ("beta.kubernetes.io/", "failure-domain.beta.kubernetes.io/")
PROPERTIES_MAX = 250  # a vertex has at most 256 fields
# From so many nodes on, a label with a different value on each node is an id and no property. It would make each node a
# shape of its own.
ID_NODES_MIN = 16
TYPE_CHARS_MAX = 64
VALUE_CHARS_MAX = 256
_KEY = re.compile(LABEL_KEY_PATTERN)
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?\Z")
# Device plugins and administrators name resources `domain/name`; of the others only huge pages are for jobs to ask for.
_EXTENDED = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*/[A-Za-z0-9][A-Za-z0-9._-]*\Z")
HUGE_PAGES = "hugepages-"
_VERSION = re.compile(r"[0-9]+(?:\.[0-9]+)*")


@dataclass(frozen=True, slots=True)
class NodeRules:
    """What all pods of a site have in common. `selectors`: sets of labels, of which each pod asks for one."""

    tolerations: tuple[TolerationDict, ...] = ()
    selectors: tuple[Mapping[str, str], ...] = ({},)

    def allow(self, node: KubernetesNode) -> bool:
        return any(all(node.labels.get(key) == value for key, value in selector.items()) for selector in self.selectors)


def usable_nodes(nodes: Iterable[KubernetesNode], rules: NodeRules) -> list[KubernetesNode]:
    """The nodes that some job of the site can use."""
    return [
        node
        for node in nodes
        if _HOST.match(node.name) and rules.allow(node) and not standing_taints(node, rules.tolerations)
    ]


def graph_of_nodes(
    nodes: Iterable[KubernetesNode],
    *,
    where: str,
    gpu_resources: Sequence[str] = GPU_RESOURCES,
    site: KubernetesSite = DEFAULT_SITE,
    names: SiteNames = COMMON_NAMES,
) -> Graph:
    """The graph. Equal nodes in one place are one shape."""
    # By length first, so that n2 comes before n10 and neighbours are one range.
    known = sorted((node for node in nodes if node.allocatable), key=lambda node: (len(node.name), node.name))
    if not known:
        raise Unavailable(
            f"{where}: no node says what it has.",
            next_step="See `kubectl get nodes`: jobs need a node that is registered, and taints that they tolerate.",
        )
    left_out = id_labels(known)
    levels = [level for level, labels in TOPOLOGY if any(_place(node, labels) for node in known)]
    shapes = ShapeTable(where)
    root = _Place("cluster", "")
    for node in known:
        below = _devices_below(shapes, node, gpu_resources, site, names)
        _leaf_place(root, node, levels).nodes.append((_node_shape(shapes, node, left_out, below), node.name))
    number = _place_shape(shapes, root)
    finished = shapes.finish(number)
    hosts = compress_hosts(_hosts_in_order(root, finished.place))
    return compile_graph(Graph(finished.shapes, hosts), where=where)


def node_properties(node: KubernetesNode, left_out: frozenset[str] = frozenset()) -> dict[str, FieldValue]:
    """The labels by name, `arch` and `os`. A label whose name is no name of ours, or too long, is left out."""
    labels = {
        key: value or True
        for key, value in sorted(node.labels.items())
        if key not in left_out and _is_property(key) and len(value) <= VALUE_CHARS_MAX
    }
    named: dict[str, FieldValue] = dict(list(labels.items())[:PROPERTIES_MAX])
    arch = node.info.architecture or node.labels.get(ARCH_LABEL, "")
    system = node.info.operating_system or node.labels.get(OS_LABEL, "")
    return named | ({"arch": architecture_of(arch)} if arch else {}) | ({"os": system} if system else {})


def system_of(info: NodeInfo) -> dict[str, str]:
    """The facts of a node's system in the fields of the subsystem `system`, as far as its kubelet reports them."""
    kernel = _VERSION.match(info.kernel_version)
    runtime, _, version = info.container_runtime_version.partition("://")
    runtime_version = _VERSION.match(version)
    facts = {
        "architecture": architecture_of(info.architecture),
        "os": info.operating_system,
        "kernel-release": info.kernel_version,
        "kernel": kernel[0] if kernel else "",
        "container-runtime": runtime if version else "",
        "container-runtime-version": runtime_version[0] if runtime_version else "",
    }
    return {name: value[:VALUE_CHARS_MAX] for name, value in facts.items() if value}


def id_labels(nodes: Sequence[KubernetesNode]) -> frozenset[str]:
    """The labels that name each node, in a cluster that has many."""
    if len(nodes) < ID_NODES_MIN:
        return frozenset()
    having: Counter[str] = Counter()
    values: dict[str, set[str]] = {}
    for node in nodes:
        for key, value in node.labels.items():
            having[key] += 1
            values.setdefault(key, set()).add(value)
    return frozenset(key for key, count in having.items() if count >= ID_NODES_MIN and len(values[key]) == count)


def gpus_of(amounts: Mapping[str, int], gpu_resources: Sequence[str]) -> int:
    return sum(amounts.get(name, 0) for name in gpu_resources)


@dataclass(slots=True)
class _Place:
    """A region, a zone, a rack or the whole cluster, while the graph is built."""

    kind: str
    name: str
    parts: dict[tuple[str, str], _Place] = field(default_factory=dict)
    nodes: list[tuple[int, str]] = field(default_factory=list)  # number of the shape, name
    number: int = -1


def _leaf_place(root: _Place, node: KubernetesNode, levels: Sequence[str]) -> _Place:
    """The innermost place that the node's labels name. A node without a label for a level lies directly above it."""
    place = root
    for level, labels in TOPOLOGY:
        if level in levels and (name := _place(node, labels)):
            place = place.parts.setdefault((level, name), _Place(level, name))
    return place


def _place(node: KubernetesNode, labels: Sequence[str]) -> str:
    return next((value for label in labels if (value := node.labels.get(label))), "")


def _place_shape(shapes: ShapeTable, place: _Place) -> int:
    counts = Counter(number for number, _ in place.nodes)
    for part in place.parts.values():
        counts[_place_shape(shapes, part)] += 1
    named: dict[str, FieldValue] = {"name": place.name} if place.name else {}
    place.number = shapes.shape(place.kind, properties=named, children=counts)
    return place.number


def _hosts_in_order(place: _Place, order: Mapping[int, int]) -> list[str]:
    """Names of nodes in the order in which a walk through the finished shapes meets them."""
    found: list[tuple[int, list[str]]] = [(order[number], [name]) for number, name in place.nodes]
    found += [(order[part.number], _hosts_in_order(part, order)) for part in place.parts.values()]
    return [name for _, names in sorted(found, key=lambda entry: entry[0]) for name in names]


def _devices_below(
    shapes: ShapeTable, node: KubernetesNode, gpu_resources: Sequence[str], site: KubernetesSite, names: SiteNames
) -> dict[int, int]:
    """GPUs, and what other device plugins and administrators add."""
    below: dict[int, int] = {}
    has = node.allocatable
    if gpus := gpus_of(has, gpu_resources):
        below[shapes.shape(GPU, properties=told_properties(node, GPU, site, names))] = min(gpus, COUNT_MAX)
    for name, amount in sorted(has.items()):
        if name not in gpu_resources and len(name) <= TYPE_CHARS_MAX and _EXTENDED.match(name):
            kind, type_ = device_of_resource(name, site)
            told = {"type": type_} if type_ else told_properties(node, kind, site, names)
            below[shapes.shape(kind, size=amount, properties=told)] = 1
    return below


def _node_shape(shapes: ShapeTable, node: KubernetesNode, left_out: frozenset[str], below: dict[int, int]) -> int:
    has = node.allocatable
    if cores := has.get(CPU, 0) // MILLI:
        below[shapes.shape("core")] = min(cores, COUNT_MAX)
    for kind, size in (("memory", has.get(MEMORY, 0)), ("storage", has.get(STORAGE, 0))):
        if size:
            below[shapes.shape(kind, size=size, unit="B")] = 1
    for name, amount in sorted(has.items()):
        if len(name) <= TYPE_CHARS_MAX and name.startswith(HUGE_PAGES):
            below[shapes.shape(name, size=amount, unit="B")] = 1
    facts: dict[str, FieldValue] = {**system_of(node.info)}
    attached = [AttachedVertex(SYSTEM_SUBSYSTEM, {"type": SYSTEM_SUBSYSTEM, **facts})] if facts else []
    return shapes.shape("node", properties=node_properties(node, left_out), attached=attached, children=below)


def _is_property(key: str) -> bool:
    return _KEY.match(key) is not None and key not in LEFT_OUT_LABELS and not key.startswith(LEFT_OUT_PREFIXES)
