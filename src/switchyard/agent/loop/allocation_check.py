"""Compares what a cluster gave to an attempt with what its job asked for. Pure.

A batch system may give less or other than it was asked for: a site's plugin rewrites jobs, an option of the job
overrides a resource, a label of a node is wrong. What the cluster does not tell is never a difference.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from switchyard.agent.loop.need import spec_of
from switchyard.errors import Malformed
from switchyard.model.cluster.allocation import DIFFERENCES_MAX, WORDS_CHARS_MAX, GivenResources
from switchyard.model.cluster.hardware import GPU, read_hardware
from switchyard.model.cluster.hostlist import expand_hosts, parse_hosts
from switchyard.model.cluster.poll import Lease
from switchyard.model.job.job import JobSpec, Usage
from switchyard.model.jobspec.constraint import Constraint, NodeTraits, read_constraint
from switchyard.model.jobspec.devices import Device, devices_of, typed_resources
from switchyard.model.jobspec.quantity import parse_amount
from switchyard.model.rules.names import printable_line

NODES_MAX = 10_000  # compared with a constraint
ROUNDING = 1e-6


def checked_usage(lease: Lease, usage: Usage | None) -> Usage | None:
    """The usage with the differences from what the job asked for."""
    if usage is None or usage.allocated is None:
        return usage
    found = tuple(words[:WORDS_CHARS_MAX] for words in _differences(spec_of(lease), usage, usage.allocated))
    if not found:
        return usage
    allocated = msgspec.structs.replace(usage.allocated, differs=found[:DIFFERENCES_MAX])
    return msgspec.structs.replace(usage, allocated=allocated)


def _differences(spec: JobSpec, usage: Usage, allocated: GivenResources) -> Iterator[str]:
    resources = typed_resources(spec)
    gpus = [device for device in devices_of(resources) if device.kind == GPU]
    asked_gpus = sum(device.count for device in gpus) * resources.tasks
    if allocated.gpus is not None and allocated.gpus < asked_gpus:
        yield f"{allocated.gpus} of {asked_gpus} GPUs"
    is_more = allocated.gpus is not None and allocated.gpus > asked_gpus
    for device in gpus:
        if words := _other_type(device, allocated.gpu_types, is_mixed=len(gpus) > 1 or is_more):
            yield words
    if allocated.cores is not None:
        asked_cores = float(parse_amount(resources.asked.cores)) * resources.tasks
        if allocated.cores < asked_cores - ROUNDING:
            yield f"{allocated.cores:g} of {asked_cores:g} cores"
    if usage.nodes and spec.demand is not None and (node := _forbidden_node(spec, usage.nodes)):
        yield printable_line(f"node {node}, which its constraint excludes")


def _other_type(device: Device, told: tuple[str, ...], *, is_mixed: bool) -> str:
    """Say which type it has in place of the asked one. `is_mixed`: it may have further GPUs of other types."""
    if not told or not (device.type or device.memory_mb):
        return ""
    unmet = [name for name in told if not _is_met(device, name)]
    if not unmet or (is_mixed and len(unmet) < len(told)):
        return ""
    asked = device.spelling or f"with at least {device.memory_mb / 1000:g} GB"
    return f"GPUs {', '.join(unmet)} instead of {asked}"


def _is_met(device: Device, name: str) -> bool:
    """Whether a GPU of this name may be the device: a name that tells no memory contradicts no amount of it."""
    hardware = read_hardware(name)
    is_type = device.type in ("", hardware.name)
    return is_type and (not hardware.memory_mb or hardware.memory_mb >= device.memory_mb)


def _forbidden_node(spec: JobSpec, nodes: str) -> str:
    """The first node that the job's constraint on host names excludes; empty: there is none, or it is not known."""
    attributes = (spec.demand or {}).get("attributes") or {}
    try:
        constraint = read_constraint((attributes.get("system") or {}).get("constraints"), where="constraints")
        if constraint is None or not _is_by_host(constraint):
            return ""
        runs = parse_hosts(nodes)
    except (AttributeError, Malformed, ValueError):
        return ""
    if sum(map(len, runs)) > NODES_MAX:
        return ""
    return next((host for host in expand_hosts(runs) if not constraint.allows(NodeTraits({}, host))), "")


def _is_by_host(constraint: Constraint) -> bool:
    """Whether it is about host names alone: properties and ranks are not known here."""
    if constraint.operator in ("properties", "ranks"):
        return False
    return all(map(_is_by_host, constraint.parts))
