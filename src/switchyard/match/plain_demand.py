"""The plain form as a demand: tasks in all, each with so many cores, gpus, bytes. Pure."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from switchyard.match.demand import Demand, Need, NeedKind, PlainResources, merge_needs
from switchyard.match.requirement import Requirement, requirements_of
from switchyard.model.cluster.hardware import GPU
from switchyard.model.job.job import Resources
from switchyard.model.jobspec.devices import devices_of
from switchyard.model.jobspec.quantity import ceil_fraction, parse_amount, parse_bytes


@lru_cache(maxsize=4096)
def demand_of_resources(resources: Resources, requires: tuple[Requirement, ...] = ()) -> Demand:
    """Cores stay exact in the job and are rounded up to whole ones only here. `requires` is asked of each node."""
    asked = resources.asked
    plain = PlainResources(
        tasks=resources.tasks,
        nodes=resources.nodes,
        cores=ceil_fraction(parse_amount(asked.cores)),
        gpus=asked.gpus,
        memory_bytes=parse_bytes(asked.memory),
        storage_bytes=parse_bytes(asked.ephemeral_storage),
    )
    if resources.gpu_type or resources.gpu_memory or resources.devices:
        plain = replace(plain, **_devices(resources))
    return demand_of_plain(plain, requires)


def _devices(resources: Resources) -> dict[str, Any]:
    needs = [Need(device.kind, device.count, requires=requirements_of(device)) for device in devices_of(resources)]
    first = needs[0] if resources.asked.gpus else None
    return {
        "gpu_requires": first.requires if first else (),
        "devices": merge_needs([need for need in needs if need is not first]),
    }


def demand_of_plain(plain: PlainResources, requires: tuple[Requirement, ...] = ()) -> Demand:
    amounts = (
        Need("core", plain.cores),
        Need(GPU, plain.gpus, requires=plain.gpu_requires),
        Need("memory", plain.memory_bytes, "B"),
        Need("storage", plain.storage_bytes, "B"),
        *plain.devices,
    )
    task = Need(
        "task", plain.tasks, kind=NeedKind.SLOT, requires=requires, holds=tuple(need for need in amounts if need.count)
    )
    return Demand((task,), nodes=plain.nodes, unit_word="task", plain=plain)
