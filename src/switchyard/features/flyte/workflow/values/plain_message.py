"""Messages as plain data."""

from __future__ import annotations

from typing import Any

from google.protobuf import json_format


def plain_message(message: Any) -> dict[str, Any] | None:
    """proto3's JSON of a message. None: it has none, because of NaN, a time out of range, or an Any of unknown type."""
    try:
        plain: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    except (json_format.Error, TypeError, ValueError):
        return None
    return plain
