"""The stored form of entities, and its digest; a message as plain data. Equal contents are stored once."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from google.protobuf import json_format


def content_bytes(message: Any) -> bytes:
    """The message in bytes, maps sorted. Another version of protobuf may order fields otherwise: see `is_same`."""
    return bytes(message.SerializeToString(deterministic=True))


def content_digest(body: bytes) -> bytes:
    return sha256(body).digest()


def is_same(kind: type[Any], first: bytes, second: bytes) -> bool:
    """Whether two contents are equal, whichever library wrote them."""
    return first == second or bool(kind.FromString(first) == kind.FromString(second))


def plain_message(message: Any) -> dict[str, Any] | None:
    """proto3's JSON of a message. None: it has none, because of NaN, a time out of range, or an Any of unknown type."""
    try:
        plain: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    except (json_format.Error, TypeError, ValueError):
        return None
    return plain
