"""Fields of a vertex as somebody gave them, checked: names with a text, a number, or true or false each. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

import msgspec

from switchyard.errors import Malformed
from switchyard.model.graph.graph import Fields, FieldValue


def check_fields(given: Mapping[Any, Any], place: str) -> dict[str, FieldValue]:
    """What JSON can carry and a graph may hold; YAML has more, such as .nan and .inf."""
    for name, value in given.items():
        if isinstance(value, float) and not isfinite(value):
            raise Malformed(f"{place}: the field {str(name)[:80]!r} holds {value}, which is no number to compare with.")
    try:
        return msgspec.convert(given, Fields)
    except msgspec.ValidationError as exc:
        said = (
            str(exc).replace(" - at `$[...]`", " in a field").replace(" - at `key` in `$`", " as the name of a field")
        )
        raise Malformed(f"{place}: {said}.") from exc
