"""The nodes that a job's own constraint rules out. Slurm hears their names: its features cannot say all of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from switchyard.agent.backends.slurm.nodes import Node
from switchyard.errors import PolicyRefused
from switchyard.model.constraint import Node as Seen
from switchyard.model.constraint import read_constraint
from switchyard.model.hostlist import compress
from switchyard.model.job import JobSpec

CHARS_MAX = 100_000  # of one word of a command: the kernel takes no more than 128 KiB


def constraint_of(spec: JobSpec) -> Any:
    """What a jobspec says under `attributes.system.constraints`; none: any node will do."""
    attributes = (spec.demand or {}).get("attributes") or {}
    return (attributes.get("system") or {}).get("constraints")


def excluded(spec: JobSpec, nodes: Iterable[Node]) -> str:
    """As Slurm writes lists of hosts."""
    constraint = read_constraint(constraint_of(spec), where="attributes.system.constraints")
    if constraint is None:
        return ""
    seen = ((node.name, Seen(node.properties, node.name, rank)) for rank, node in enumerate(nodes))
    found = compress(name for name, node in seen if not constraint.allows(node))
    if len(found) > CHARS_MAX:
        raise PolicyRefused(f"Its constraint ({constraint}) rules out more nodes than Slurm can be told by name.")
    return found
