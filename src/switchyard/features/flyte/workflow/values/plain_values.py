"""Literals from plain values, as people write them in YAML and JSON, and plain values from literals to show them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from math import isfinite
from typing import Any

import msgspec
from flyteidl.core import literals_pb2, types_pb2
from google.protobuf import json_format

from switchyard.errors import TooLarge
from switchyard.features.flyte.workflow.values.bindings import show_type
from switchyard.features.flyte.workflow.values.literals import MSGPACK, UNREADABLE_VALUE

INTEGER_MAX = 2**63 - 1
SECONDS_MAX = 10**11  # of a duration: what protobuf takes
VALUE_DEPTH_MAX = 64  # of a plain value; protobuf reads 100
STEPS_MAX = 300_000  # values compared with types, in one request
SHOWN_BYTES_MAX = 64 * 2**10  # of all inputs or all outputs together
_UNITS = {"h": "3600", "m": "60", "s": "1", "ms": "0.001", "us": "0.000001", "µs": "0.000001"}
UNIT_S = {unit: Decimal(seconds) for unit, seconds in _UNITS.items()}
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}\Z")
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(h|ms|us|µs|m|s)")
_DURATION = re.compile(rf"(?:{_DURATION_PART.pattern})+\Z")


class NoSuchValue(ValueError):
    """A plain value is not of the type that is wanted; the text says where and why."""


class Steps:
    """Bounds the work of all values of one request together: unions of unions multiply it."""

    def __init__(self, most: int = STEPS_MAX) -> None:
        self._most = most
        self._taken = 0

    def take(self) -> None:
        self._taken += 1
        if self._taken > self._most:
            raise TooLarge(
                f"The inputs take more than {self._most:,} steps to compare with their types.",
                next_step="Give fewer values, or use types with fewer unions of unions.",
            )


def literals_of(values: Mapping[str, Any], expected: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """Plain values as a LiteralMap, and all mistakes. `expected`: parameters by name. Unknown names are mistakes."""
    literals, mistakes, steps = literals_pb2.LiteralMap(), list[str](), Steps()
    for name, value in values.items():
        if name not in expected:
            known = ", ".join(sorted(expected)[:20]) or "none"
            mistakes.append(f"there is no input {name[:80]!r}; known: {known}")
            continue
        try:
            literal = literal_of(value, expected[name].var.type, steps, where=name)
        except NoSuchValue as exc:
            mistakes.append(str(exc))
            continue
        literals.literals[name].CopyFrom(literal)
    return literals, mistakes


def literal_of(value: Any, wanted: Any, steps: Steps, *, where: str, is_strict: bool = False, depth: int = 0) -> Any:
    """A plain value as a literal of a type. `is_strict`: a text is nothing but a text. Raises NoSuchValue."""
    steps.take()
    if depth > VALUE_DEPTH_MAX:
        raise NoSuchValue(f"{where[:200]}: nested too deeply")
    case = wanted.WhichOneof("type")
    literal = literals_pb2.Literal()
    if case == "simple":
        _set_simple(literal, value, wanted.simple, where, is_strict=is_strict)
    elif case == "collection_type":
        inner = _checked(value, list, where, "a list")
        items = enumerate(inner)
        literal.collection.SetInParent()
        literal.collection.literals.extend(
            literal_of(item, wanted.collection_type, steps, where=f"{where}[{n}]", is_strict=is_strict, depth=depth + 1)
            for n, item in items
        )
    elif case == "map_value_type":
        literal.map.SetInParent()
        inner_type = wanted.map_value_type
        for key, item in _checked(value, dict, where, "a map").items():
            made = literal_of(item, inner_type, steps, where=f"{where}.{key}", is_strict=is_strict, depth=depth + 1)
            literal.map.literals[str(key)].CopyFrom(made)
    elif case == "union_type":
        variants = list(wanted.union_type.variants)
        literal.scalar.union.CopyFrom(_union(value, variants, steps, where, is_strict=is_strict, depth=depth))
    elif case == "enum_type":
        literal.scalar.primitive.string_value = _member(value, wanted.enum_type.values, where)
    elif case == "blob":
        literal.scalar.blob.uri = _checked(value, str, where, "the address of a file or directory")
        literal.scalar.blob.metadata.type.CopyFrom(wanted.blob)
    elif case == "structured_dataset_type":
        literal.scalar.structured_dataset.uri = _checked(value, str, where, "the address of a data set")
        metadata = literal.scalar.structured_dataset.metadata
        metadata.structured_dataset_type.CopyFrom(wanted.structured_dataset_type)
    else:
        raise NoSuchValue(f"{where}: a value of type {show_type(wanted)} cannot be written as a plain value")
    return literal


def _set_simple(literal: Any, value: Any, kind: int, where: str, *, is_strict: bool) -> None:
    primitive = literal.scalar.primitive
    if kind == types_pb2.NONE:
        if value is not None:
            raise NoSuchValue(f"{where}: must be null")
        literal.scalar.none_type.SetInParent()
    elif kind == types_pb2.INTEGER:
        primitive.integer = _integer(value, where, is_strict=is_strict)
    elif kind == types_pb2.FLOAT:
        primitive.float_value = _number(value, where, is_strict=is_strict)
    elif kind == types_pb2.STRING:
        primitive.string_value = _checked(value, str, where, "a text (put quotes around it)")
    elif kind == types_pb2.BOOLEAN:
        primitive.boolean = _boolean(value, where, is_strict=is_strict)
    elif kind == types_pb2.DATETIME:
        primitive.datetime.FromDatetime(_moment(value, where))
    elif kind == types_pb2.DURATION:
        primitive.duration.FromNanoseconds(int(_seconds(value, where, is_strict=is_strict) * 10**9))
    elif kind == types_pb2.STRUCT:
        literal.scalar.binary.value = msgspec.msgpack.encode(_checked(value, dict | list, where, "a map or a list"))
        literal.scalar.binary.tag = MSGPACK
    else:
        name = show_type(types_pb2.LiteralType(simple=kind))
        raise NoSuchValue(f"{where}: a value of type {name} cannot be written as a plain value")


def _union(value: Any, variants: list[Any], steps: Steps, where: str, *, is_strict: bool, depth: int) -> Any:
    """The first variant that the value is of. A text counts as another type only if no variant takes it as it is."""
    for is_strict_now in (True,) if is_strict else (True, False):
        for variant in variants:
            try:
                made = literal_of(value, variant, steps, where=where, is_strict=is_strict_now, depth=depth + 1)
            except NoSuchValue:
                continue
            return literals_pb2.Union(value=made, type=variant)
    shown = " | ".join(show_type(variant) for variant in variants[:10])
    raise NoSuchValue(f"{where}: {_show(value)} is none of {shown}")


def _checked(value: Any, kind: Any, where: str, words: str) -> Any:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):  # True is an int in Python
        raise NoSuchValue(f"{where}: {_show(value)} is not {words}")
    return value


def _integer(value: Any, where: str, *, is_strict: bool) -> int:
    if isinstance(value, str) and not is_strict and _INTEGER.match(value):
        value = int(value)
    number: int = _checked(value, int, where, "a whole number")
    if not -INTEGER_MAX - 1 <= number <= INTEGER_MAX:
        raise NoSuchValue(f"{where}: {_show(value)} has more than 64 bits")
    return number


def _number(value: Any, where: str, *, is_strict: bool) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number or (isinstance(value, str) and not is_strict):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    raise NoSuchValue(f"{where}: {_show(value)} is not a number")


def _boolean(value: Any, where: str, *, is_strict: bool) -> bool:
    if isinstance(value, str) and not is_strict and value.lower() in ("true", "false"):
        return value.lower() == "true"
    return bool(_checked(value, bool, where, "true or false"))


def _moment(value: Any, where: str) -> datetime:
    """A time without a zone is in UTC."""
    text = _checked(value, str, where, "a time, such as 2026-11-17T09:30:00Z")
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as exc:
        raise NoSuchValue(f"{where}: {_show(value)} is not a time, such as 2026-11-17T09:30:00Z") from exc


def _seconds(value: Any, where: str, *, is_strict: bool) -> Decimal:
    words = "a duration, such as 90s or 1h30m"
    try:
        if isinstance(value, str) and _DURATION.match(value):
            parts = (Decimal(amount) * UNIT_S[unit] for amount, unit in _DURATION_PART.findall(value))
            total = sum(parts, Decimal(0))
        elif isinstance(value, bool) or (isinstance(value, str) and is_strict):
            raise NoSuchValue(f"{where}: {_show(value)} is not {words}")
        else:
            total = Decimal(str(_checked(value, int | float | str, where, words)))
    except InvalidOperation as exc:
        raise NoSuchValue(f"{where}: {_show(value)} is not {words}") from exc
    if not total.is_finite() or abs(total) > SECONDS_MAX:
        raise NoSuchValue(f"{where}: {_show(value)} is not {words}")
    return total


def _member(value: Any, members: Iterable[str], where: str) -> str:
    known = list(members)
    text: str = _checked(value, str, where, f"one of {', '.join(known[:20])}")
    if text not in known:
        raise NoSuchValue(f"{where}: {_show(value)} is none of {', '.join(known[:20])}")
    return text


def _show(value: Any) -> str:
    return ascii(value)[:80]


def plain_values(literals: Mapping[str, Any], *, size_max: int = SHOWN_BYTES_MAX) -> dict[str, Any]:
    """Plain values of literals, by name, for JSON. Those that do not fit any more are a note on their size."""
    shown, left = dict[str, Any](), size_max
    for name in sorted(literals):
        size = literals[name].ByteSize()
        left -= size
        shown[name] = _infinite_as_text(plain_value(literals[name])) if left >= 0 else f"({size} bytes)"
        left = left if left >= 0 else left + size
    return shown


def _infinite_as_text(value: Any) -> Any:
    """Infinite numbers and NaN as texts, as `literal_of` takes them. JSON would show null."""
    if isinstance(value, dict):
        return {key: _infinite_as_text(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_infinite_as_text(item) for item in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def plain_value(literal: Any) -> Any:
    try:
        return _plain(literal)
    except UNREADABLE_VALUE:
        return f"(cannot be read: {literal.ByteSize()} bytes)"


def _plain(literal: Any) -> Any:
    case = literal.WhichOneof("value")
    if case == "collection":
        return [_plain(one) for one in literal.collection.literals]
    if case == "map":
        return {key: _plain(one) for key, one in sorted(literal.map.literals.items())}
    scalar = literal.scalar
    kind = scalar.WhichOneof("value")
    if kind == "primitive":
        return _plain_primitive(scalar.primitive)
    if kind == "union":
        return _plain(scalar.union.value)
    if kind == "binary" and scalar.binary.tag == MSGPACK:
        return msgspec.to_builtins(msgspec.msgpack.decode(scalar.binary.value), str_keys=True)
    if kind == "generic":
        return json_format.MessageToDict(scalar.generic)
    if kind in ("blob", "schema", "structured_dataset"):
        return getattr(scalar, kind).uri
    return None if kind in (None, "none_type") else f"({kind}, {literal.ByteSize()} bytes)"


def _plain_primitive(primitive: Any) -> Any:
    kind = primitive.WhichOneof("value")
    if kind in ("datetime", "duration"):
        return getattr(primitive, kind).ToJsonString()
    return getattr(primitive, kind) if kind is not None else None
