"""Values of bindings: constants, outputs of other nodes, lists and maps of both; and parts of values by a path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from flyteidl.core import literals_pb2
from google.protobuf import struct_pb2

from switchyard.features.flyte.workflow.values.decoded_values import decode_msgpack, decode_struct_value
from switchyard.features.flyte.workflow.values.literals import MSGPACK, UNREADABLE_VALUE
from switchyard.features.flyte.workflow.values.nesting import is_too_deep

# The output of a node by the node's id and the variable. None: there is none.
FindOutput = Callable[[str, str], Any | None]


# The values of one node: as much as the outputs of a task may have. Bindings copy, so without a bound lists of lists of
# one value would fill the memory.
VALUES_BYTES_MAX = 8 * 2**20
DECODED_BYTES_MAX = 128 * 2**20  # in memory, of the data classes and dictionaries that one node takes parts of
# Of one step. The next step goes on, after the turns of other owners. Two nodes with the largest values are within it.
STEP_BYTES_MAX = 16 * 2**20
BINDING_BYTES = 64  # what a binding costs besides its bytes: 20 microseconds are as long as a copy of these takes
DECODED_SHARE = 8  # bytes in memory of a decoded value that cost as much as one byte of a copy
ValueKey = tuple[str | int, ...]  # the scope, the node, the variable and the steps of the path to a value


class BindingFailed(Exception):
    """An input cannot have a value; the text says why. A mistake of the workflow or its data, not of the engine."""


@dataclass(slots=True)
class StepValues:
    """What one step has done with values. It keeps the values that it has decoded: many bindings name parts of one."""

    size: int = 0
    _decoded: dict[ValueKey, tuple[Any, int]] = field(default_factory=dict)
    _decoded_bytes: int = 0  # bytes in memory of these

    @property
    def is_full(self) -> bool:
        """Whether the next step has to do the rest."""
        return self.size > STEP_BYTES_MAX

    def decode(self, key: ValueKey, body: bytes) -> tuple[Any, int]:
        if key not in self._decoded:
            value, size = decode_msgpack(body)
            if self._decoded_bytes + size > DECODED_BYTES_MAX:
                self._decoded, self._decoded_bytes = {}, 0
            self._decoded[key] = value, size
            self._decoded_bytes += size
            self.size += size // DECODED_SHARE
        return self._decoded[key]


@dataclass(slots=True)
class NodeValues:
    """The values of one node while they are made. Counts what is copied and decoded, and ends it at the bounds.

    `find`: outputs of the nodes in `scope`, which names these nodes among all of the execution.
    """

    find: FindOutput
    step: StepValues
    scope: str = ""
    copied: int = 0
    decoded: dict[ValueKey, int] = field(default_factory=dict)

    def add(self, value: Any) -> Any:
        size = int(value.ByteSize())
        self.copied += size
        self.step.size += size + BINDING_BYTES
        if self.copied > VALUES_BYTES_MAX:
            raise BindingFailed(
                f"the values have over {VALUES_BYTES_MAX >> 20} MiB together; hand large data on as files"
            )
        return value

    def add_decoded(self, key: ValueKey, size: int) -> None:
        self.decoded[key] = size
        if sum(self.decoded.values()) > DECODED_BYTES_MAX:
            raise BindingFailed(
                "the values that parts are taken of would take over "
                f"{DECODED_BYTES_MAX >> 20} MiB of memory; hand large data on as files"
            )


def resolve_bindings(
    bindings: Sequence[Any], find: FindOutput, step: StepValues | None = None, *, scope: str = ""
) -> Any:
    """The inputs of a node, or the outputs of a workflow. `step`: the work of the step, if this is part of one."""
    values, node = literals_pb2.LiteralMap(), NodeValues(find, step or StepValues(), scope)
    for binding in bindings:
        try:
            values.literals[binding.var].CopyFrom(_resolve_value(binding.binding, node))
        except UNREADABLE_VALUE as exc:
            raise BindingFailed(f"the value for {binding.var} cannot be read: {str(exc)[:200]}") from exc
    if is_too_deep(values):  # parts in a list lie deeper than in the value that they come from
        raise BindingFailed("the values are nested too deeply")
    return values


def _resolve_value(data: Any, node: NodeValues) -> Any:
    case = data.WhichOneof("value")
    literal = literals_pb2.Literal()
    if case == "scalar":
        literal.scalar.CopyFrom(node.add(data.scalar))
    elif case == "promise":
        literal.CopyFrom(_promised(data.promise, node))
    elif case == "collection":
        literal.collection.literals.extend(_resolve_value(item, node) for item in data.collection.bindings)
        literal.collection.SetInParent()
    elif case == "map":
        for key, item in data.map.bindings.items():
            literal.map.literals[key].CopyFrom(_resolve_value(item, node))
        literal.map.SetInParent()
    else:
        raise BindingFailed("a binding has no value")
    return literal


def _promised(promise: Any, node: NodeValues) -> Any:
    value = node.find(promise.node_id, promise.var)
    if value is None:
        raise BindingFailed(f"node {promise.node_id or 'start-node'} has no output {promise.var}")
    for position, step in enumerate(promise.attr_path):
        while value.scalar.HasField("union"):
            value = value.scalar.union.value
        case = value.WhichOneof("value")
        if case == "scalar" and value.scalar.WhichOneof("value") in ("binary", "generic"):
            return _part_of_struct(value.scalar, position, promise, node)
        value = _part(value, case, step, promise)
    return node.add(value)


def _part(value: Any, case: str | None, step: Any, promise: Any) -> Any:
    """An element of a list or a map."""
    key = _key(step)
    if case == "collection" and isinstance(key, int) and 0 <= key < len(value.collection.literals):
        return value.collection.literals[key]
    if case == "map" and isinstance(key, str) and key in value.map.literals:
        return value.map.literals[key]
    raise _missing(promise, key)


def _part_of_struct(scalar: Any, position: int, promise: Any, node: NodeValues) -> Any:
    """A part of a data class or a dictionary. `position`: in the path to it, of the first step in this value."""
    keys = [_key(step) for step in promise.attr_path]
    whole: ValueKey = (node.scope, promise.node_id, promise.var, *keys[:position])
    if scalar.HasField("generic"):
        part, size = decode_struct_value(_part_of_generic(scalar.generic, keys[position:], promise))
        node.add_decoded((*whole, *keys[position:]), size)
        node.step.size += size // DECODED_SHARE
        return _literal_of(part, node)
    if scalar.binary.tag != MSGPACK:
        raise BindingFailed(f"output {promise.var} of {promise.node_id} is binary, and its parts are not known")
    part, size = node.step.decode(whole, scalar.binary.value)
    node.add_decoded(whole, size)
    for key in keys[position:]:
        try:
            part = part[key]
        except (KeyError, IndexError, TypeError) as exc:
            raise _missing(promise, key) from exc
    return _literal_of(part, node)


def _part_of_generic(struct: Any, keys: Sequence[str | int], promise: Any) -> Any:
    """A value in a Struct, without a look at the others."""
    value: Any = None
    for number, key in enumerate(keys):
        inner = struct if number == 0 else getattr(value, value.WhichOneof("kind") or "null_value")
        if isinstance(inner, struct_pb2.Struct) and isinstance(key, str) and key in inner.fields:
            value = inner.fields[key]
        elif isinstance(inner, struct_pb2.ListValue) and isinstance(key, int) and 0 <= key < len(inner.values):
            value = inner.values[key]
        else:
            raise _missing(promise, key)
    return value


def _literal_of(value: Any, node: NodeValues, *, is_inner: bool = False) -> Any:
    """A plain value as a literal. Elements of lists stay in the form that data classes have."""
    literal = literals_pb2.Literal()
    primitive = literal.scalar.primitive
    if isinstance(value, dict) or is_inner:
        literal.scalar.binary.value = msgspec.msgpack.encode(value)
        literal.scalar.binary.tag = MSGPACK
    elif isinstance(value, list):
        literal.collection.SetInParent()
        for item in value:
            literal.collection.literals.append(_literal_of(item, node, is_inner=True))
        return literal  # its elements are counted
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
    return node.add(literal)


def _key(step: Any) -> str | int:
    key: str | int = step.int_value if step.WhichOneof("value") == "int_value" else step.string_value
    return key


def _missing(promise: Any, key: str | int) -> BindingFailed:
    return BindingFailed(f"output {promise.var} of node {promise.node_id} has no {str(key)[:80]!r}")
