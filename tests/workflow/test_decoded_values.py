"""Values of data classes and dictionaries: what they take in memory is known before they are made."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from google.protobuf import json_format, struct_pb2

from switchyard.features.flyte.workflow.values import decoded_values
from switchyard.features.flyte.workflow.values.decoded_values import DecodedTooLarge, decode_msgpack, decode_struct

EMPTY_LISTS = b"\xdc\x10\x00" + b"\x90" * 2**12
VALUES: list[Any] = [
    {"a": [0, -1, 200, -200, 2**40, -(2**40), 0.5, None, True], "b": {"c": {}}},
    ["x" * 20, "x" * 200, "x" * 70_000, "é" * 20],
    [b"x" * 20, b"x" * 200, b"x" * 70_000],
    {str(number): number for number in range(1000)},
]


@pytest.mark.parametrize("value", VALUES, ids=["numbers", "texts", "bytes", "a map"])
def test_messagepack_is_measured_to_its_end(value: Any) -> None:
    """A value that was taken for another one would hide what follows it: its memory would miss."""
    lists: list[list[int]] = [[]] * 100
    decoded, size = decode_msgpack(msgspec.msgpack.encode([value, *lists]))
    assert decoded == [value, *lists]
    _, alone = decode_msgpack(msgspec.msgpack.encode([value]))
    assert size - alone >= 100 * 56, "an empty list takes 56 bytes"


def test_structs_are_read_as_protobuf_reads_them() -> None:
    struct = struct_pb2.Struct()
    struct.update({"a": [1, 2.5, "x", None, True, [], {}], "b": {"c": {"d": "é"}}})
    assert decode_struct(struct)[0] == json_format.MessageToDict(struct)
    struct.update({"bad": float("nan")})
    with pytest.raises(ValueError, match="nan"):
        decode_struct(struct)


def test_what_would_take_too_much_memory_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoded_values, "DECODED_BYTES_MAX", 2**16)
    with pytest.raises(DecodedTooLarge):
        decode_msgpack(EMPTY_LISTS)
    struct = struct_pb2.Struct()
    struct.update({"a": [[]] * 1000})
    with pytest.raises(DecodedTooLarge):
        decode_struct(struct)
