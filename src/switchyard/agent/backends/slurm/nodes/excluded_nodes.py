"""Finds the nodes that a job's constraint excludes, for `--exclude`: Slurm's features cannot express it all. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from switchyard.errors import PolicyRefused
from switchyard.model.cluster.hostlist import compress_hosts
from switchyard.model.graph import Graph
from switchyard.model.job.job import JobSpec
from switchyard.model.jobspec.constraint import NodeTraits, read_constraint

CHARS_MAX = 100_000  # of one word of a command: the kernel's bound is 128 KiB


def constraint_of(spec: JobSpec) -> Any:
    """`attributes.system.constraints` of the jobspec; None: every node will do."""
    attributes = (spec.demand or {}).get("attributes") or {}
    return (attributes.get("system") or {}).get("constraints")


def find_excluded_nodes(spec: JobSpec, graph: Graph, names: Collection[str]) -> str:
    """The excluded nodes as a host list of Slurm, by the graph that the server matched. `names`: the nodes that Slurm
    has; a graph written by a person may have others."""
    constraint = read_constraint(constraint_of(spec), where="attributes.system.constraints")
    if constraint is None:
        return ""
    nodes = zip(graph.host_names, graph.rank_numbers, graph.host_shapes(), strict=True)
    seen = (NodeTraits(graph.shapes[shape].properties, host, rank) for host, rank, shape in nodes)
    ruled_out = {node.host for node in seen if node.host in names and not constraint.allows(node)}
    hosts = compress_hosts(sorted(ruled_out, key=lambda name: (len(name), name)))
    if len(hosts) > CHARS_MAX:
        raise PolicyRefused(f"Its constraint ({constraint}) rules out more nodes than Slurm can be told by name.")
    return hosts
