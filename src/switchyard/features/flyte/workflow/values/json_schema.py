"""Whether every value of one JSON schema is a value of another. Flyte's data classes carry such schemas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from switchyard.features.flyte.workflow.values.plain_message import plain_message

Schema = dict[str, Any]
CHOICES = ("anyOf", "oneOf")


def schema_of(metadata: Any) -> Schema | None:
    """The schema in the metadata of a type: a Struct. None: it has values that JSON has not, such as NaN."""
    return plain_message(metadata)


@dataclass
class SchemaComparison:
    """Compares two documents. `step` is called for each pair of schemas, and raises if there are too many."""

    source: Schema
    target: Schema
    step: Callable[[], None]
    # By identity, with the pair itself: an id belongs to another schema once its own is gone.
    results: dict[tuple[int, int], tuple[bool, Schema, Schema]] = field(default_factory=dict)

    def is_satisfied(self) -> bool:
        """Whether values of `source` are values of `target`. What a schema leaves open, fits."""
        return self._fits(self.source, self.target)

    def _fits(self, source: Any, target: Any) -> bool:
        self.step()
        source, target = _resolved(source, self.source), _resolved(target, self.target)
        if not isinstance(source, dict) or not isinstance(target, dict):
            return target is not False
        pair = (id(source), id(target))
        if pair not in self.results:
            self.results[pair] = (True, source, target)  # while it is compared: in a type that contains itself
            self.results[pair] = (source == target or self._compare(source, target), source, target)
        return self.results[pair][0]

    def _compare(self, source: Schema, target: Schema) -> bool:
        if sources := _choices(source):
            return all(self._fits(choice, target) for choice in sources)
        if targets := _choices(target):
            return any(self._fits(source, choice) for choice in targets)
        return (
            _types_fit(source, target)
            and _enums_fit(source, target)
            and self._properties_fit(source, target)
            and self._inner_fits(source, target, "items")
            and self._inner_fits(source, target, "additionalProperties")
        )

    def _properties_fit(self, source: Schema, target: Schema) -> bool:
        has, wants = _dict(source, "properties"), _dict(target, "properties")
        required = target.get("required")
        if isinstance(required, list) and any(str(name) not in has for name in required):
            return False
        return all(self._fits(has[name], inner) for name, inner in wants.items() if name in has)

    def _inner_fits(self, source: Schema, target: Schema, name: str) -> bool:
        inner, wanted = source.get(name), target.get(name)
        return not (isinstance(inner, dict) and isinstance(wanted, dict)) or self._fits(inner, wanted)


def _resolved(schema: Any, document: Schema) -> Any:
    """Follow a reference into the same document: `#/$defs/Point`. One that leads nowhere leaves everything open."""
    seen = 0
    while isinstance(schema, dict) and isinstance(schema.get("$ref"), str) and seen < len(document) + 100:
        schema, seen = _at(document, schema["$ref"]), seen + 1
    return schema


def _at(document: Schema, reference: str) -> Any:
    place: Any = document
    for part in reference.removeprefix("#").strip("/").split("/"):
        if part:
            place = place.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(place, dict) else None
    return {} if place is None else place


def _dict(schema: Schema, name: str) -> Schema:
    value = schema.get(name)
    return value if isinstance(value, dict) else {}


def _choices(schema: Schema) -> list[Any]:
    for name in CHOICES:
        if isinstance(schema.get(name), list):
            return list(schema[name])
    kinds = schema.get("type")
    return [{**schema, "type": kind} for kind in kinds] if isinstance(kinds, list) else []


def _types_fit(source: Schema, target: Schema) -> bool:
    has, wants = source.get("type"), target.get("type")
    return wants is None or has == wants or (has == "integer" and wants == "number")


def _enums_fit(source: Schema, target: Schema) -> bool:
    wanted = target.get("enum")
    if not isinstance(wanted, list):
        return True
    has = source.get("enum")
    return isinstance(has, list) and all(value in wanted for value in has)
