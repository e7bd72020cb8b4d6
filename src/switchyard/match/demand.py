"""What a job needs, in whole units per task. Equal demands are one shape, so an answer can be kept per shape."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from switchyard.model.job import Resources
from switchyard.model.quantity import ceil, parse_amount, parse_bytes


@dataclass(frozen=True, slots=True)
class Demand:
    """`tasks` in all, each with this much; `nodes`: spread over exactly that many, none: over any."""

    tasks: int = 1
    nodes: int | None = None
    cores: int = 1
    gpus: int = 0
    memory_bytes: int = 0
    storage_bytes: int = 0

    @property
    def cores_total(self) -> int:
        return self.tasks * self.cores

    @property
    def gpus_total(self) -> int:
        return self.tasks * self.gpus

    @property
    def memory_bytes_total(self) -> int:
        return self.tasks * self.memory_bytes


@lru_cache(maxsize=4096)
def demand_of(resources: Resources) -> Demand:
    """Cores stay exact in the job and are rounded up to whole ones only here."""
    asked = resources.asked
    return Demand(
        tasks=resources.tasks,
        nodes=resources.nodes,
        cores=ceil(parse_amount(asked.cores)),
        gpus=asked.gpus,
        memory_bytes=parse_bytes(asked.memory),
        storage_bytes=parse_bytes(asked.ephemeral_storage),
    )
