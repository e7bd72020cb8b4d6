"""Whether the cluster still has the types of devices that a job asks for: they may change after the server chose it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from switchyard.model.cluster.hardware import Hardware, types_of_vertex
from switchyard.model.graph import Graph
from switchyard.model.job.job import JobSpec
from switchyard.model.jobspec.devices import Device, devices_of, typed_resources


class HardwareCheck:
    """Used by one thread. `graph`: the cluster's present one; None: it is not known, so it keeps no job from starting.

    Types are read once per graph. A graph that did not change is the same object. Where it tells no type of a kind, the
    server knows them by a graph that an operator gave it, and the job may start.
    """

    def __init__(self, graph: Callable[[], Graph | None]) -> None:
        self._graph = graph
        self._read: Graph | None = None
        self._types: dict[str, set[Hardware]] = {}  # by the kind of device

    def refusal(self, spec: JobSpec) -> str:
        """Why the job must not start here; empty: it may. Looks at the graph only for a job with a type or a memory."""
        resources = spec.resources
        if resources.gpus is None and resources.limits.gpus is None and not resources.devices:
            return ""
        asked = [device for device in devices_of(typed_resources(spec)) if device.type or device.memory_mb]
        graph = self._graph() if asked else None
        if graph is None:
            return ""
        if graph is not self._read:
            self._read, self._types = graph, _types_by_kind(graph)
        for device in asked:
            types = self._types.get(device.kind)
            if types and not any(map(device.is_met_by, types)):
                return f"its cluster has no {_words(device)} any more"
        return ""


def _types_by_kind(graph: Graph) -> dict[str, set[Hardware]]:
    types: defaultdict[str, set[Hardware]] = defaultdict(set)
    for shape in graph.shapes:
        if shape.properties and shape.size:
            types[shape.type].update(types_of_vertex(shape.properties))
    return types


def _words(device: Device) -> str:
    type_ = f" of type {device.type}" if device.type else ""
    memory = f" with at least {device.memory_mb / 1000:g} GB" if device.memory_mb else ""
    return f"{device.kind}{type_}{memory}"
