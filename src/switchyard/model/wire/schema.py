"""JSON Schema for rules between the fields of one message, which no type can express. Pure.

A message with such a rule checks it in `__post_init__` and has the same rule as `SCHEMA`. `schemas_of` adds it to the
schema that is made from the types.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

UNIQUE_ITEMS = {"uniqueItems": True}


def field_given(name: str) -> dict[str, Any]:
    """The field is there, and is not null."""
    return {"required": [name], "properties": {name: {"not": {"type": "null"}}}}


def not_both(first: str, second: str) -> dict[str, Any]:
    return {"not": {"allOf": [field_given(first), field_given(second)]}}


def requires_field(field: str, required: str) -> dict[str, Any]:
    """Where the first field is given, the second is, too."""
    return {"if": field_given(field), "then": field_given(required)}


def schemas_of(kinds: Iterable[Any], ref_template: str) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
    """The schemas of these types, and those of the messages within, with the rules between their fields."""
    kinds = list(kinds)
    schemas, components = msgspec.json.schema_components(kinds, ref_template=ref_template)
    for message in _messages(msgspec.Struct):
        rule = getattr(message, "SCHEMA", None)
        if rule and message.__name__ in components:
            components[message.__name__] |= rule
    return schemas, components


def _messages(base: type[Any]) -> Iterable[type[Any]]:
    for child in base.__subclasses__():
        yield child
        yield from _messages(child)
