"""The types of literal values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flyteidl.core import types_pb2
from google.protobuf import json_format, message

MSGPACK = "msgpack"  # the tag of data classes and dictionaries
# What readers of values raise for garbage: it is not MessagePack, too deep, too large, or no text.
UNREADABLE_VALUE = (ValueError, TypeError, RecursionError, OverflowError, json_format.Error, message.Error)
PRIMITIVES = {
    "integer": types_pb2.INTEGER,
    "float_value": types_pb2.FLOAT,
    "string_value": types_pb2.STRING,
    "boolean": types_pb2.BOOLEAN,
    "datetime": types_pb2.DATETIME,
    "duration": types_pb2.DURATION,
}
SIMPLE_SCALARS = {"none_type": types_pb2.NONE, "error": types_pb2.ERROR, "generic": types_pb2.STRUCT}


def type_of_literal(literal: Any) -> Any | None:
    """The type of a value. None: it has no value that we know."""
    case = literal.WhichOneof("value")
    if case == "scalar":
        return type_of_scalar(literal.scalar)
    if case == "collection":
        inner = _type_of_many(literal.collection.literals)
        return None if inner is None else types_pb2.LiteralType(collection_type=inner)
    if case == "map":
        inner = _type_of_many(literal.map.literals.values())
        return None if inner is None else types_pb2.LiteralType(map_value_type=inner)
    if case == "offloaded_metadata":
        return literal.offloaded_metadata.inferred_type
    return None


def type_of_scalar(scalar: Any) -> Any | None:
    case = scalar.WhichOneof("value")
    if case == "primitive":
        return type_of_primitive(scalar.primitive)
    if case in SIMPLE_SCALARS:
        return _simple(SIMPLE_SCALARS[case])
    if case == "binary":
        return _simple(types_pb2.STRUCT if scalar.binary.tag == MSGPACK else types_pb2.BINARY)
    if case == "blob":
        return types_pb2.LiteralType(blob=scalar.blob.metadata.type) if scalar.blob.HasField("metadata") else None
    if case == "schema":
        return types_pb2.LiteralType(schema=scalar.schema.type)
    if case == "structured_dataset":
        return types_pb2.LiteralType(structured_dataset_type=scalar.structured_dataset.metadata.structured_dataset_type)
    if case == "union":
        return types_pb2.LiteralType(union_type=types_pb2.UnionType(variants=[scalar.union.type]))
    return None


def type_of_primitive(primitive: Any) -> Any | None:
    case = primitive.WhichOneof("value")
    return None if case is None else _simple(PRIMITIVES[case])


def _simple(number: int) -> Any:
    return types_pb2.LiteralType(simple=number)


def _type_of_many(literals: Iterable[Any]) -> Any | None:
    """The common type of elements: none of an empty list, a union of different ones."""
    kinds: dict[bytes, Any] = {}
    for literal in literals:
        kind = type_of_literal(literal)
        if kind is None:
            return None
        kinds[kind.SerializeToString(deterministic=True)] = kind
    if not kinds:
        return _simple(types_pb2.NONE)
    if len(kinds) == 1:
        return next(iter(kinds.values()))
    return types_pb2.LiteralType(union_type=types_pb2.UnionType(variants=[kinds[key] for key in sorted(kinds)]))
