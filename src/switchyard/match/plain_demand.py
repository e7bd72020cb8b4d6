"""The plain form as a demand: tasks in all, each with so many cores, gpus, bytes. Pure."""

from __future__ import annotations

from functools import lru_cache

from switchyard.match.demand import Demand, Need, NeedKind, PlainResources
from switchyard.match.requirement import Requirement
from switchyard.model.job.job import Resources
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
    return demand_of_plain(plain, requires)


def demand_of_plain(plain: PlainResources, requires: tuple[Requirement, ...] = ()) -> Demand:
    amounts = (
        Need("core", plain.cores),
        Need("gpu", plain.gpus),
        Need("memory", plain.memory_bytes, "B"),
        Need("storage", plain.storage_bytes, "B"),
    )
    task = Need(
        "task", plain.tasks, kind=NeedKind.SLOT, requires=requires, holds=tuple(need for need in amounts if need.count)
    )
    return Demand((task,), nodes=plain.nodes, unit_word="task", plain=plain)
