"""Which types may be bound to which. Flyte's rules: nothing is converted, a value is only read as another type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from flyteidl.core import types_pb2

from switchyard.errors import BadRequest
from switchyard.features.flyte.workflow.values.content import plain_message
from switchyard.features.flyte.workflow.values.limits import CAST_STEPS_MAX

PARQUET = "parquet"  # the one format of a schema
_COLUMN = types_pb2.SchemaType.SchemaColumn
COLUMN_TYPES = {
    _COLUMN.INTEGER: types_pb2.INTEGER,
    _COLUMN.FLOAT: types_pb2.FLOAT,
    _COLUMN.STRING: types_pb2.STRING,
    _COLUMN.BOOLEAN: types_pb2.BOOLEAN,
    _COLUMN.DATETIME: types_pb2.DATETIME,
    _COLUMN.DURATION: types_pb2.DURATION,
}


@dataclass
class Caster:
    """Compares types, and bounds the work of all comparisons of one compilation together."""

    steps_left: int = CAST_STEPS_MAX

    def can_cast(self, source: Any, target: Any) -> bool:
        """Whether a value of type `source` may be bound to an input of type `target`."""
        self.step()
        if source == target:
            return True
        if source.WhichOneof("type") == "union_type":
            variants = source.union_type.variants
            return bool(variants) and all(self._variant_fits(variant, target) for variant in variants)
        if target.WhichOneof("type") == "union_type":
            fitting = [variant for variant in target.union_type.variants if self.can_cast(source, variant)]
            return len(fitting) == 1  # of two, nobody could say which one is meant
        return self._plain_fits(source, target)

    def step(self, steps: int = 1) -> None:
        self.steps_left -= steps
        if self.steps_left < 0:
            raise BadRequest(
                "The types of this entity take too many steps to compare.",
                next_step="Use smaller types: unions of unions multiply the work.",
            )

    def _variant_fits(self, variant: Any, target: Any) -> bool:
        """A value of a union says which variant it is, so two that fit are no doubt here."""
        if target.WhichOneof("type") == "union_type":
            return any(self.can_cast(variant, choice) for choice in target.union_type.variants)
        return self.can_cast(variant, target)

    def _plain_fits(self, source: Any, target: Any) -> bool:
        """Neither is a union."""
        has, wants = source.WhichOneof("type"), target.WhichOneof("type")
        if wants in ("collection_type", "map_value_type"):
            inner = getattr(source, wants)
            return has == wants and (_is_none(inner) or self.can_cast(inner, getattr(target, wants)))
        if wants == "structured_dataset_type" and _is_none(source):
            return True
        if wants in ("schema", "structured_dataset_type"):
            return has in ("schema", "structured_dataset_type") and self._tables_fit(source, target)
        if wants == "blob":
            formats = {source.blob.format, target.blob.format} - {""}
            return has == "blob" and len(formats) < 2
        if {has, wants} == {"enum_type", "simple"}:
            return types_pb2.STRING in (source.simple, target.simple)
        if _is_struct(source) and _is_struct(target):
            return _tags_fit(source, target) and self._structs_fit(source, target)
        return has == wants and _tags_fit(source, target) and getattr(source, has) == getattr(target, wants)

    def _structs_fit(self, source: Any, target: Any) -> bool:
        if not source.HasField("metadata") or not target.HasField("metadata"):
            return True
        if source.metadata == target.metadata:
            return True
        self.step((source.metadata.ByteSize() + target.metadata.ByteSize()) // 16)
        has, wants = schema_of(source.metadata), schema_of(target.metadata)
        return has is not None and wants is not None and SchemaComparison(has, wants, self.step).is_satisfied()

    def _tables_fit(self, source: Any, target: Any) -> bool:
        """Schemas and structured data sets: the target's columns are a part of the source's, or one side has none."""
        formats = {_format(source), _format(target)} - {""}
        if len(formats) > 1:
            return False
        has, wants = _columns(source), _columns(target)
        if not has or not wants:
            return True
        return all(name in has and self.can_cast(has[name], kind) for name, kind in wants.items())


def _is_none(kind: Any) -> bool:
    return bool(kind.WhichOneof("type") == "simple" and kind.simple == types_pb2.NONE)


def _is_struct(kind: Any) -> bool:
    return bool(kind.WhichOneof("type") == "simple" and kind.simple == types_pb2.STRUCT)


def _tags_fit(source: Any, target: Any) -> bool:
    """The tag of a variant is the name of its Python type."""
    return not source.structure.tag or not target.structure.tag or source.structure.tag == target.structure.tag


def _format(table: Any) -> str:
    if table.WhichOneof("type") == "schema":
        return PARQUET
    return str(table.structured_dataset_type.format).lower()


def _columns(table: Any) -> dict[str, Any]:
    if table.WhichOneof("type") == "schema":
        return {
            column.name: types_pb2.LiteralType(simple=COLUMN_TYPES.get(column.type, types_pb2.NONE))
            for column in table.schema.columns
        }
    return {column.name: column.literal_type for column in table.structured_dataset_type.columns}


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
