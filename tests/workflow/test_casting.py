"""Which types fit which: a row for each of Flyte's rules, both ways where it matters."""

from __future__ import annotations

from typing import Any

import pytest
from flyteidl.core import literals_pb2, types_pb2
from google.protobuf import json_format, struct_pb2

from switchyard.features.flyte.workflow.values.casting import Caster
from switchyard.features.flyte.workflow.values.literals import type_of_literal
from tests.workflow.builders import FLOAT, INT, NONE, STRUCT, TEXT, enum, list_of, map_of, scalar, tagged, union


def blob(form: str = "") -> Any:
    return types_pb2.LiteralType(blob=types_pb2.BlobType(format=form))


def table(form: str = "", **columns: Any) -> Any:
    dataset = types_pb2.StructuredDatasetType(format=form)
    for name, kind in columns.items():
        dataset.columns.add(name=name, literal_type=kind)
    return types_pb2.LiteralType(structured_dataset_type=dataset)


def schema(**columns: int) -> Any:
    made = types_pb2.SchemaType()
    for name, kind in columns.items():
        made.columns.add(name=name, type=kind)
    return types_pb2.LiteralType(schema=made)


def data_class(**properties: str) -> Any:
    plain = {"type": "object", "properties": {name: {"type": kind} for name, kind in properties.items()}}
    return with_schema(plain | {"required": sorted(properties)})


def with_schema(plain: dict[str, Any]) -> Any:
    kind = types_pb2.LiteralType(simple=types_pb2.STRUCT)
    kind.metadata.CopyFrom(json_format.ParseDict(plain, struct_pb2.Struct()))
    return kind


def described(kind: Any) -> Any:
    copy = tagged(kind, "")
    copy.metadata["note"] = "x"
    return copy


COLUMN = types_pb2.SchemaType.SchemaColumn
TREE = {
    "$ref": "#/$defs/Tree",
    "$defs": {"Tree": {"type": "object", "properties": {"inner": {"$ref": "#/$defs/Tree"}}}},
}
NAN = with_schema({"type": "object"})
NAN.metadata["x"] = float("nan")
ROWS: list[tuple[Any, Any, bool]] = [
    (NAN, data_class(x="integer"), False),
    (INT, INT, True),
    (INT, FLOAT, False),
    (FLOAT, INT, False),
    (INT, TEXT, False),
    (described(INT), INT, True),
    (tagged(INT, "int"), INT, True),
    (NONE, INT, False),
    (NONE, NONE, True),
    (INT, NONE, False),
    (enum("a"), TEXT, True),
    (TEXT, enum("a"), True),
    (enum("a"), enum("a"), True),
    (enum("a"), enum("b"), False),
    (enum("a"), INT, False),
    (INT, enum("a"), False),
    (blob("csv"), blob("csv"), True),
    (blob("csv"), blob(), True),
    (blob(), blob("csv"), True),
    (blob("csv"), blob("png"), False),
    (blob(), TEXT, False),
    (list_of(INT), list_of(INT), True),
    (list_of(INT), list_of(FLOAT), False),
    (list_of(NONE), list_of(list_of(TEXT)), True),
    (list_of(INT), INT, False),
    (INT, list_of(INT), False),
    (map_of(INT), map_of(INT), True),
    (map_of(NONE), map_of(TEXT), True),
    (map_of(INT), list_of(INT), False),
    (list_of(list_of(enum("a"))), list_of(list_of(TEXT)), True),
    (INT, union(INT, TEXT), True),
    (FLOAT, union(INT, TEXT), False),
    (TEXT, union(TEXT, enum("a")), False),  # two fit: nobody could say which one is meant
    (union(INT, TEXT), union(TEXT, INT, FLOAT), True),
    (union(INT, TEXT), union(INT), False),
    (union(INT), INT, True),
    (union(INT, TEXT), INT, False),
    (union(enum("a"), TEXT), TEXT, True),
    (union(), INT, False),
    (INT, union(), False),
    (NONE, union(INT, NONE), True),
    (union(tagged(INT, "int"), tagged(NONE, "none")), union(tagged(NONE, "none"), tagged(INT, "int")), True),
    (union(tagged(STRUCT, "A")), union(tagged(STRUCT, "B")), False),
    (list_of(union(INT, TEXT)), list_of(union(INT, TEXT, NONE)), True),
    (table(), table(), True),
    (table(a=INT, b=TEXT), table(a=INT), True),
    (table(a=INT), table(a=INT, b=TEXT), False),
    (table(a=INT), table(a=TEXT), False),
    (table(a=INT), table(), True),
    (table(), table(a=INT), True),
    (table("csv"), table("parquet"), False),
    (table("CSV"), table("csv"), True),
    (table("csv"), table(), True),
    (NONE, table(), True),
    (schema(a=COLUMN.INTEGER), schema(a=COLUMN.INTEGER), True),
    (schema(a=COLUMN.INTEGER), schema(a=COLUMN.STRING), False),
    (schema(a=COLUMN.INTEGER, b=COLUMN.FLOAT), schema(b=COLUMN.FLOAT), True),
    (schema(), schema(b=COLUMN.FLOAT), True),
    (schema(a=COLUMN.INTEGER), table(a=INT), True),
    (table(a=INT), schema(a=COLUMN.INTEGER), True),
    (table("csv", a=INT), schema(a=COLUMN.INTEGER), False),
    (schema(), table("csv"), False),
    (NONE, schema(), False),
    (STRUCT, STRUCT, True),
    (data_class(x="integer"), STRUCT, True),
    (STRUCT, data_class(x="integer"), True),
    (data_class(x="integer"), data_class(x="integer"), True),
    (data_class(x="integer", y="string"), data_class(x="integer"), True),
    (data_class(x="integer"), data_class(x="integer", y="string"), False),
    (data_class(x="string"), data_class(x="integer"), False),
    (data_class(x="integer"), data_class(x="number"), True),
    (data_class(x="number"), data_class(x="integer"), False),
    (with_schema(TREE), with_schema(TREE | {"title": "other"}), True),
    (with_schema(TREE), data_class(x="integer"), False),
    (with_schema({"enum": ["a"]}), with_schema({"enum": ["a", "b"]}), True),
    (with_schema({"enum": ["a", "c"]}), with_schema({"enum": ["a", "b"]}), False),
    (
        with_schema({"anyOf": [{"type": "integer"}]}),
        with_schema({"anyOf": [{"type": "string"}, {"type": "number"}]}),
        True,
    ),
    (with_schema({"anyOf": [{"type": "integer"}, {"type": "null"}]}), with_schema({"type": "integer"}), False),
    (with_schema({"type": ["integer", "null"]}), with_schema({"type": ["null", "number"]}), True),
    (with_schema({"items": {"type": "integer"}}), with_schema({"items": {"type": "string"}}), False),
    (with_schema({"$ref": "#/$defs/Nowhere"}), with_schema({"type": "integer"}), False),
    (types_pb2.LiteralType(), INT, False),
    (INT, types_pb2.LiteralType(), False),
]


@pytest.mark.parametrize(("source", "target", "fits"), ROWS)
def test_a_type_fits_or_not(source: Any, target: Any, fits: bool) -> None:
    assert Caster().can_cast(source, target) is fits


def literal(value: Any) -> Any:
    if isinstance(value, list):
        return literals_pb2.Literal(
            collection=literals_pb2.LiteralCollection(literals=[literal(item) for item in value])
        )
    if isinstance(value, dict):
        return literals_pb2.Literal(
            map=literals_pb2.LiteralMap(literals={name: literal(item) for name, item in value.items()})
        )
    if isinstance(value, literals_pb2.Scalar):
        return literals_pb2.Literal(scalar=value)
    return literals_pb2.Literal(scalar=scalar(value))


MSGPACK = literals_pb2.Scalar(binary=literals_pb2.Binary(value=b"\x80", tag="msgpack"))
VALUES: list[tuple[Any, Any, bool]] = [
    (1, INT, True),
    (1.5, INT, False),
    (True, INT, False),
    ([1, 2], list_of(INT), True),
    ([1, "a"], list_of(INT), False),
    ([1, "a"], list_of(union(INT, TEXT)), True),
    ([], list_of(INT), True),
    ([[], [1]], list_of(list_of(INT)), True),
    ({"a": 1}, map_of(INT), True),
    ({}, map_of(INT), True),
    (None, union(INT, NONE), True),
    (MSGPACK, STRUCT, True),
    (literals_pb2.Scalar(binary=literals_pb2.Binary(value=b"", tag="other")), STRUCT, False),
    (literals_pb2.Scalar(generic=struct_pb2.Struct()), STRUCT, True),
    (literals_pb2.Scalar(union=literals_pb2.Union(value=literal(1), type=tagged(INT, "int"))), union(INT, NONE), True),
    (literals_pb2.Scalar(schema=literals_pb2.Schema()), schema(), True),
    (literals_pb2.Scalar(structured_dataset=literals_pb2.StructuredDataset()), table(), True),
]


@pytest.mark.parametrize(("value", "target", "fits"), VALUES)
def test_a_value_fits_by_its_type(value: Any, target: Any, fits: bool) -> None:
    kind = type_of_literal(literal(value))
    assert kind is not None
    assert Caster().can_cast(kind, target) is fits


@pytest.mark.parametrize(
    "value", [literals_pb2.Literal(), literal(literals_pb2.Scalar()), literal([literals_pb2.Scalar()])]
)
def test_a_value_of_no_known_form_has_no_type(value: Any) -> None:
    assert type_of_literal(value) is None
