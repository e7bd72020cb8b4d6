"""The stored form of entities, and its digest. Equal contents are stored once."""

from __future__ import annotations

from hashlib import sha256
from typing import Any


def content_bytes(message: Any) -> bytes:
    """The message in bytes, maps sorted. Another version of protobuf may order fields otherwise: see `is_same`."""
    return bytes(message.SerializeToString(deterministic=True))


def content_digest(body: bytes) -> bytes:
    return sha256(body).digest()


def is_same(kind: type[Any], first: bytes, second: bytes) -> bool:
    """Whether two contents are equal, whichever library wrote them."""
    return first == second or bool(kind.FromString(first) == kind.FromString(second))
