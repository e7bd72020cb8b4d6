"""Values of bindings: constants, outputs of other nodes, lists and maps of both; and parts of values by a path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from flyteidl.core import literals_pb2
from google.protobuf import json_format

from switchyard.workflow.literals import MSGPACK, UNREADABLE_VALUE
from switchyard.workflow.nesting import is_too_deep

# The output of a node by the node's id and the variable. None: there is none.
FindOutput = Callable[[str, str], Any | None]


# The values of one node: as much as the outputs of a task may have. Bindings copy, so without a bound lists of lists of
# one value would fill the memory.
VALUES_BYTES_MAX = 8 * 2**20


class BindingFailed(Exception):
    """An input cannot have a value; the text says why. A mistake of the workflow or its data, not of the engine."""


def resolve_bindings(bindings: Sequence[Any], find: FindOutput) -> Any:
    """The inputs of a node, or the outputs of a workflow."""
    values, copied = literals_pb2.LiteralMap(), CopiedBytes()
    for binding in bindings:
        try:
            values.literals[binding.var].CopyFrom(resolve_value(binding.binding, find, copied))
        except UNREADABLE_VALUE as exc:
            raise BindingFailed(f"the value for {binding.var} cannot be read: {str(exc)[:200]}") from exc
    if is_too_deep(values):  # parts in a list lie deeper than in the value that they come from
        raise BindingFailed("the values are nested too deeply")
    return values


@dataclass(slots=True)
class CopiedBytes:
    """Counts what bindings have copied, and ends it at the bound."""

    size: int = 0

    def add(self, value: Any) -> Any:
        self.size += value.ByteSize()
        if self.size > VALUES_BYTES_MAX:
            raise BindingFailed(
                f"the values have over {VALUES_BYTES_MAX >> 20} MiB together; hand large data on as files"
            )
        return value


def resolve_value(data: Any, find: FindOutput, copied: CopiedBytes) -> Any:
    case = data.WhichOneof("value")
    literal = literals_pb2.Literal()
    if case == "scalar":
        literal.scalar.CopyFrom(copied.add(data.scalar))
    elif case == "promise":
        literal.CopyFrom(copied.add(_promised(data.promise, find)))
    elif case == "collection":
        literal.collection.literals.extend(resolve_value(item, find, copied) for item in data.collection.bindings)
        literal.collection.SetInParent()
    elif case == "map":
        for key, item in data.map.bindings.items():
            literal.map.literals[key].CopyFrom(resolve_value(item, find, copied))
        literal.map.SetInParent()
    else:
        raise BindingFailed("a binding has no value")
    return literal


def _promised(promise: Any, find: FindOutput) -> Any:
    value = find(promise.node_id, promise.var)
    if value is None:
        raise BindingFailed(f"node {promise.node_id or 'start-node'} has no output {promise.var}")
    for position, step in enumerate(promise.attr_path):
        while value.scalar.HasField("union"):
            value = value.scalar.union.value
        case = value.WhichOneof("value")
        if case == "scalar" and value.scalar.WhichOneof("value") in ("binary", "generic"):
            return _part_of_struct(value.scalar, promise.attr_path[position:], promise)
        value = _part(value, case, step, promise)
    return value


def _part(value: Any, case: str | None, step: Any, promise: Any) -> Any:
    """An element of a list or a map."""
    key = _key(step)
    if case == "collection" and isinstance(key, int) and 0 <= key < len(value.collection.literals):
        return value.collection.literals[key]
    if case == "map" and isinstance(key, str) and key in value.map.literals:
        return value.map.literals[key]
    raise _missing(promise, key)


def _part_of_struct(scalar: Any, path: Sequence[Any], promise: Any) -> Any:
    """A part of a data class or a dictionary."""
    is_binary = scalar.HasField("binary")
    if is_binary and scalar.binary.tag != MSGPACK:
        raise BindingFailed(f"output {promise.var} of {promise.node_id} is binary, and its parts are not known")
    value = msgspec.msgpack.decode(scalar.binary.value) if is_binary else json_format.MessageToDict(scalar.generic)
    for step in path:
        key = _key(step)
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError) as exc:
            raise _missing(promise, key) from exc
    return _literal_of(value, is_inner=False)


def _literal_of(value: Any, *, is_inner: bool) -> Any:
    """A plain value as a literal. Elements of lists stay in the form that data classes have."""
    literal = literals_pb2.Literal()
    primitive = literal.scalar.primitive
    if isinstance(value, dict) or is_inner:
        literal.scalar.binary.value = msgspec.msgpack.encode(value)
        literal.scalar.binary.tag = MSGPACK
    elif isinstance(value, list):
        literal.collection.literals.extend(_literal_of(item, is_inner=True) for item in value)
        literal.collection.SetInParent()
    elif value is None:
        literal.scalar.none_type.SetInParent()
    elif isinstance(value, bool):
        primitive.boolean = value
    elif isinstance(value, int):
        primitive.integer = value
    elif isinstance(value, float):
        primitive.float_value = value
    elif isinstance(value, str):
        primitive.string_value = value
    else:
        raise BindingFailed(f"a part of a value is {type(value).__name__}, which no input takes")
    return literal


def _key(step: Any) -> str | int:
    key: str | int = step.int_value if step.WhichOneof("value") == "int_value" else step.string_value
    return key


def _missing(promise: Any, key: str | int) -> BindingFailed:
    return BindingFailed(f"output {promise.var} of node {promise.node_id} has no {str(key)[:80]!r}")
