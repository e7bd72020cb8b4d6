"""What a job's own jobspec demands beyond its plain fields, as Slurm can be told: nodes, and properties of nodes. Pure.

The server has matched all of it with the cluster; Slurm must be told, too, or the job runs where it must not. What
cannot be said is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from msgspec.structs import replace

from switchyard.model.job import JobSpec, Limits
from switchyard.model.quantity import parse_amount, parse_bytes

DEPTH_MAX = 32  # as the server has it
_LEAST = re.compile(r"\[?([0-9]{1,12})")
_FEATURE = re.compile(r"[A-Za-z0-9_.:-]+")
_PLAIN = re.compile(r"[A-Za-z0-9_.:&-]*")  # a constraint of Slurm's that another can be added to


@dataclass(frozen=True, slots=True)
class Features:
    """That a node must have: all of them, or one of them."""

    names: tuple[str, ...] = ()
    is_any: bool = False

    def __str__(self) -> str:
        return ("|" if self.is_any else "&").join(self.names)


def shaped(spec: JobSpec) -> JobSpec:
    """With the nodes that the jobspec counts. A slot of several nodes becomes one task on each, with its share."""
    need, nodes = spec.resources, _nodes(spec.demand or {})
    if not nodes or need.nodes is not None:
        return spec
    if nodes <= need.tasks:
        return replace(spec, resources=replace(need, nodes=nodes))
    ask = need.asked
    shares = {
        "cores": ceil(parse_amount(ask.cores) * need.tasks / nodes),
        "gpus": ceil(ask.gpus * need.tasks / nodes),
        "memory": ceil(parse_bytes(ask.memory) * need.tasks / nodes),
        "ephemeral_storage": ceil(parse_bytes(ask.ephemeral_storage) * need.tasks / nodes),
    }
    return replace(spec, resources=replace(need, nodes=nodes, tasks=nodes, limits=Limits(), **shares))


def constraint_of(spec: JobSpec) -> str | None:
    """For --constraint, with what the job says there itself; None: Slurm has no words for it."""
    own, found = spec.native.constraint if spec.native else "", _features(_constraints(spec.demand or {}), 0)
    if found is None:
        return None
    if not own or not found.names:
        return own or str(found)
    return None if found.is_any or not _PLAIN.fullmatch(own) else f"{own}&{found}"


def _constraints(demand: Mapping[str, Any]) -> Mapping[str, Any]:
    return _mapping(_mapping(_mapping(demand.get("attributes")).get("system")).get("constraints"))


def _features(held: Mapping[str, Any], depth: int) -> Features | None:
    """RFC 31; several operators side by side hold together."""
    if depth > DEPTH_MAX:
        return None
    parts = [_operator(name, value, depth) for name, value in held.items()]
    return _joined(parts, is_any=False)


def _operator(name: str, held: Any, depth: int) -> Features | None:
    if not isinstance(held, list):
        return None
    if name == "properties":
        return Features(tuple(held)) if all(_FEATURE.fullmatch(str(each)) for each in held) else None
    if name in ("and", "or"):
        return _joined([_features(_mapping(part), depth + 1) for part in held], is_any=name == "or")
    return None


def _joined(parts: Iterable[Features | None], *, is_any: bool) -> Features | None:
    """Slurm's `&` and `|` do not mix."""
    found: list[Features] = []
    for part in parts:
        if part is None:
            return None
        found.append(part)
    if len(found) == 1:
        return found[0]
    if is_any and not all(part.names for part in found):
        return Features()  # one of them is content with every node
    if any(len(part.names) > 1 and part.is_any is not is_any for part in found):
        return None
    return Features(tuple(dict.fromkeys(name for part in found for name in part.names)), is_any)


def _nodes(demand: Mapping[str, Any]) -> int:
    """At least so many; 0: it does not count them."""
    resources = demand.get("resources")
    if isinstance(resources, list):
        return sum(_below(vertex, 1, 0) for vertex in resources)
    groups = [group for group in _mapping(resources).values() if isinstance(group, Mapping)]
    chosen = [group for group in groups if group.get("schedule") is True]
    return sum(_below(group, 1, 0) for group in chosen or groups)


def _below(vertex: Any, times: int, depth: int) -> int:
    entry = _mapping(vertex)
    if depth > DEPTH_MAX:
        return 0
    times *= _least(entry.get("replicas")) * _least(entry.get("count"))
    if entry.get("type") == "node":
        return times
    held = entry.get("with")
    return sum(_below(each, times, depth + 1) for each in held) if isinstance(held, list) else 0


def _least(count: Any) -> int:
    """The fewest of a count, which the server has checked; none said is one."""
    if isinstance(count, Mapping):
        return _least(count.get("min"))
    if isinstance(count, str):
        found = _LEAST.match(count)
        return int(found[1]) if found else 1
    return count if isinstance(count, int) and count > 0 else 1


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
