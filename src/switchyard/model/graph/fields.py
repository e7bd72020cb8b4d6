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


def read_properties(value: Any, place: str) -> dict[str, FieldValue]:
    """Names with values; a list of names, as some writers have it, is names alone."""
    if not value:
        return {}
    if isinstance(value, list) and all(isinstance(name, str) and name for name in value):
        return check_fields(dict.fromkeys(value, True), f"{place}: properties")
    if isinstance(value, Mapping) and all(isinstance(held, str | int | float | bool) for held in value.values()):
        return check_fields(value, f"{place}: properties")
    raise Malformed(f"{place}: properties are names with a text, a number, or true or false each.")
