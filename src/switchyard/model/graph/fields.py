"""Check the fields of a vertex: each has a name and a text, a number, or true or false. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

import msgspec

from switchyard.errors import Malformed
from switchyard.model.graph.graph import Fields, FieldValue


def check_fields(fields: Mapping[Any, Any], place: str) -> dict[str, FieldValue]:
    """What JSON can carry and a graph may hold; YAML has more, such as .nan and .inf."""
    for name, value in fields.items():
        if isinstance(value, float) and not isfinite(value):
            raise Malformed(f"{place}: the field {str(name)[:80]!r} holds {value}, which is no number to compare with.")
    try:
        return msgspec.convert(fields, Fields)
    except msgspec.ValidationError as exc:
        problem = (
            str(exc).replace(" - at `$[...]`", " in a field").replace(" - at `key` in `$`", " as the name of a field")
        )
        raise Malformed(f"{place}: {problem}.") from exc
