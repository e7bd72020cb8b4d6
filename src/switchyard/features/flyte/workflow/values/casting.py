"""Which types may be bound to which. Flyte's rules: nothing is converted, a value is only read as another type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flyteidl.core import types_pb2

from switchyard.errors import BadRequest
from switchyard.features.flyte.workflow.values.json_schema import SchemaComparison, schema_of
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
