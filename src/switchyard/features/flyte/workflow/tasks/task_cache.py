"""Cached tasks: which tasks are, and the key of their outputs. Pure.

As in Flyte, the key has the project, domain and name of the task, the version of its cache, its interface and its
inputs; not the version of the task. A literal that has a hash counts by it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from flyteidl.core import interface_pb2, literals_pb2

from switchyard.features.flyte.workflow.compile.entity_id import EntityId
from switchyard.features.flyte.workflow.values.content import content_bytes

MISS, HIT, POPULATED, SKIPPED = "CACHE_MISS", "CACHE_HIT", "CACHE_POPULATED", "CACHE_SKIPPED"  # Flyte's words, stored


@dataclass(frozen=True, slots=True)
class CacheRule:
    """`is_serial`: of several equal tasks at once, one runs."""

    version: str
    is_serial: bool


@dataclass(frozen=True, slots=True)
class CacheAnswer:
    """What the cache says of a node that could begin. `must_wait`: another node runs the same, and this one waits."""

    status: str
    key: bytes
    outputs: Any = None
    source: str = ""  # who made the outputs: execution, node and attempt
    must_wait: bool = False
    is_serial: bool = False


def is_inside_holder(
    around: Collection[str],
    launchers: Iterable[tuple[str, str]],
    holders: Collection[tuple[str, str]],
    *,
    execution: str,
) -> bool:
    """Whether a node is inside of one that holds a key of the cache. Such a node must not wait for another key.

    A dynamic node holds its key until the nodes inside it have ended. If these waited for keys, nodes would wait for
    each other in a circle: for the key of the very node around them, or for that of one that waits for this one.
    `around`: the nodes around it in its own execution. `launchers`: the nodes of other executions that its execution is
    inside of. `holders`: execution and node of each that holds a key.
    """
    if any((execution, node_id) in holders for node_id in around):
        return True
    return any(
        outer == holding and node_id.startswith(f"{holder}-")
        for outer, node_id in launchers
        for holding, holder in holders
    )


def cache_rule(template: Any, node: Any) -> CacheRule | None:
    """How a node's task is cached: what the node says, else what the task says. None: it is not."""
    task, own = template.metadata, node.metadata
    is_cached = own.cacheable if own.WhichOneof("cacheable_value") else task.discoverable
    if not is_cached:
        return None
    version = own.cache_version if own.WhichOneof("cache_version_value") else task.discovery_version
    is_serial = own.cache_serializable if own.WhichOneof("cache_serializable_value") else task.cache_serializable
    return CacheRule(version, bool(is_serial))


def cache_key(task: EntityId, template: Any, rule: CacheRule, inputs: Any, *, scope: Sequence[str]) -> bytes:
    """The key of outputs. `scope`: where they may be used.

    Whoever may run a task of another project must not choose what that project gets from its cache.
    """
    ignored = set(template.metadata.cache_ignore_input_vars)
    counted = literals_pb2.LiteralMap()
    for name, literal in inputs.literals.items():
        if name not in ignored:
            counted.literals[name].CopyFrom(_counted(literal))
    parts = [text.encode() for text in (*scope, task.project, task.domain, task.name, rule.version)]
    parts += [_interface_bytes(template.interface), content_bytes(counted)]
    digest = sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


def _counted(literal: Any) -> Any:
    """A literal with the hashes of its parts in the place of their values."""
    counted = literals_pb2.Literal()
    case = literal.WhichOneof("value")
    if literal.hash:
        counted.hash = literal.hash
    elif case == "collection":
        counted.collection.SetInParent()
        for one in literal.collection.literals:
            counted.collection.literals.add().CopyFrom(_counted(one))
    elif case == "map":
        counted.map.SetInParent()
        for name, one in literal.map.literals.items():
            counted.map.literals[name].CopyFrom(_counted(one))
    elif case == "scalar" and literal.scalar.HasField("union"):
        counted.CopyFrom(_counted(literal.scalar.union.value))  # a value may come with its union, or bare
    else:
        counted.CopyFrom(literal)
        counted.ClearField("metadata")
    return counted


def _interface_bytes(interface: Any) -> bytes:
    """Names and types alone: a description is no part of the interface."""
    plain = interface_pb2.TypedInterface()
    for given, kept in ((interface.inputs, plain.inputs), (interface.outputs, plain.outputs)):
        for name, variable in given.variables.items():
            kept.variables[name].type.CopyFrom(variable.type)
    return content_bytes(plain)
