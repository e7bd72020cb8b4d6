"""Data classes and dictionaries (MessagePack, protobuf's Struct) as Python's values, with a bound on memory. Pure.

A byte of MessagePack can become 80 bytes of memory. So values are counted before they are made, or meanwhile.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

import msgspec

from switchyard.features.flyte.workflow.values.literals import MSGPACK

DECODED_BYTES_MAX = 64 * 2**20  # of one value in memory: 1.6 million numbers, or 800,000 empty lists
_SMALL, _NUMBER, _TEXT, _CONTAINER = 8, 40, 64, 88  # memory of a value and of the reference to it
_CHARACTER_BYTES = 4  # one rare character makes a whole text this wide
# By the first byte of a value in MessagePack: the memory, the bytes that follow, and how many say how many more.
_TOKENS: list[tuple[int, int, int]] = [
    *[(_SMALL, 0, 0)] * 0x80,
    *[(_CONTAINER, 0, 0)] * 0x20,
    *[(_TEXT + 1, count, 0) for count in range(0x20)],
    *[(_SMALL, 0, 0)] * 4,
    *[(_TEXT, 0, width) for width in (1, 2, 4)],  # bytes
    *[(_TEXT, 1, width) for width in (1, 2, 4)],  # extensions
    *[(_NUMBER, width, 0) for width in (4, 8, 1, 2, 4, 8, 1, 2, 4, 8)],
    *[(_TEXT, 1 + width, 0) for width in (1, 2, 4, 8, 16)],  # extensions of a fixed size
    *[(_TEXT, 0, width) for width in (1, 2, 4)],
    *[(_CONTAINER, width, 0) for width in (2, 4, 2, 4)],
    *[(_SMALL, 0, 0)] * 0x20,
]


class DecodedTooLarge(ValueError):
    """A value would take too much memory as Python's values."""

    def __init__(self) -> None:
        super().__init__(
            f"it would take over {DECODED_BYTES_MAX >> 20} MiB of memory to read; hand large data on as files"
        )


def is_decodable(scalar: Any) -> bool:
    """Whether parts of a scalar are known: it is a data class or a dictionary."""
    return bool(scalar.HasField("generic") or (scalar.HasField("binary") and scalar.binary.tag == MSGPACK))


def decode_scalar(scalar: Any) -> tuple[Any, int]:
    """A data class or a dictionary as Python's value, and the memory that it takes. Raises DecodedTooLarge."""
    if scalar.HasField("generic"):
        return decode_struct(scalar.generic)
    return decode_msgpack(scalar.binary.value)


def decode_msgpack(body: bytes) -> tuple[Any, int]:
    size = _msgpack_size(body)
    return msgspec.msgpack.decode(body), size


def decode_struct(struct: Any) -> tuple[Any, int]:
    """A Struct."""
    reader = _StructReader()
    value = reader.fields(struct)
    return value, reader.size


def decode_struct_value(value: Any) -> tuple[Any, int]:
    """A value in a Struct."""
    reader = _StructReader()
    return reader.value(value), reader.size


def _msgpack_size(body: bytes) -> int:
    """Add up the memory of all values. Containers have no end mark, so their nesting needs no attention."""
    at, end, size = 0, len(body), 0
    while at < end:
        memory, skipped, width = _TOKENS[body[at]]
        at += 1
        if width:
            skipped += int.from_bytes(body[at : at + width], "big")
            at += width
        at += skipped
        size += memory + (skipped * _CHARACTER_BYTES if memory >= _TEXT else 0)
        if size > DECODED_BYTES_MAX:
            raise DecodedTooLarge
    return size


class _StructReader:
    """Makes Python's values of a Struct, and counts them meanwhile."""

    def __init__(self) -> None:
        self.size = 0

    def fields(self, struct: Any) -> dict[str, Any]:
        self._add(_CONTAINER)
        return {name: self.value(inner) for name, inner in struct.fields.items()}

    def value(self, value: Any) -> Any:
        kind = value.WhichOneof("kind")
        if kind == "struct_value":
            return self.fields(value.struct_value)
        if kind == "list_value":
            self._add(_CONTAINER)
            return [self.value(inner) for inner in value.list_value.values]
        if kind is None or kind == "null_value":
            self._add(_NUMBER)
            return None
        plain = getattr(value, kind)
        self._add(_TEXT + len(plain) if kind == "string_value" else _NUMBER)
        if kind == "number_value" and not isfinite(plain):
            raise ValueError(f"{plain} is no number of JSON")
        return plain

    def _add(self, size: int) -> None:
        self.size += size
        if self.size > DECODED_BYTES_MAX:
            raise DecodedTooLarge
