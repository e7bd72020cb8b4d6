"""Plain values of YAML and JSON as literals of the types that are expected, and back."""

from __future__ import annotations

from math import isnan
from typing import Any

import pytest
from flyteidl.core import interface_pb2, literals_pb2, types_pb2

from switchyard.errors import TooLarge
from switchyard.features.flyte.workflow.engine.execution_checks import value_mistake
from switchyard.features.flyte.workflow.values.casting import Caster
from switchyard.features.flyte.workflow.values.plain_values import (
    NoSuchValue,
    Steps,
    literal_of,
    literals_of,
    plain_value,
    plain_values,
)
from tests.workflow.builders import FLOAT, INT, NONE, STRUCT, TEXT, enum, list_of, map_of, union

BOOL = types_pb2.LiteralType(simple=types_pb2.BOOLEAN)
TIME = types_pb2.LiteralType(simple=types_pb2.DATETIME)
SPAN = types_pb2.LiteralType(simple=types_pb2.DURATION)
FILE = types_pb2.LiteralType(blob=types_pb2.BlobType())
SCHEMA = types_pb2.LiteralType(schema=types_pb2.SchemaType())
MAYBE = union(INT, TEXT, NONE)

GOOD: list[tuple[Any, Any, Any]] = [
    (3, INT, 3),
    ("-3", INT, -3),
    (2**63 - 1, INT, 2**63 - 1),
    (3, FLOAT, 3.0),
    ("1e3", FLOAT, 1000.0),
    ("-inf", FLOAT, float("-inf")),
    ("3", TEXT, "3"),
    (True, BOOL, True),
    ("false", BOOL, False),
    ("2026-11-17", TIME, "2026-11-17T00:00:00Z"),
    ("2026-11-17T10:30:00+01:00", TIME, "2026-11-17T09:30:00Z"),
    ("1h30m", SPAN, "5400s"),
    (1.5, SPAN, "1.500s"),
    ("250ms", SPAN, "0.250s"),
    (None, NONE, None),
    ([1, "2"], list_of(INT), [1, 2]),
    ([], list_of(INT), []),
    ({"a": [1]}, map_of(list_of(INT)), {"a": [1]}),
    ({"x": {"1": None}}, STRUCT, {"x": {"1": None}}),
    ("red", enum("red", "blue"), "red"),
    ("s3://bucket/file", FILE, "s3://bucket/file"),
    ("3", MAYBE, "3"),
    (3, MAYBE, 3),
    (None, MAYBE, None),
    ("3", union(INT, NONE), 3),
]
BAD: list[tuple[Any, Any, str]] = [
    ("three", INT, "x: 'three' is not a whole number"),
    (True, INT, "x: True is not a whole number"),
    (1.5, INT, "x: 1.5 is not a whole number"),
    (2**63, INT, "more than 64 bits"),
    (True, FLOAT, "x: True is not a number"),
    (10**400, FLOAT, "is not a number"),
    (3, TEXT, "x: 3 is not a text (put quotes around it)"),
    ("yes", BOOL, "x: 'yes' is not true or false"),
    ("soon", TIME, "x: 'soon' is not a time"),
    (7, TIME, "x: 7 is not a time"),
    ("soon", SPAN, "x: 'soon' is not a duration"),
    ("1e400", SPAN, "is not a duration"),
    (float("nan"), SPAN, "is not a duration"),
    (True, SPAN, "is not a duration"),
    (0, NONE, "x: must be null"),
    (3, list_of(INT), "x: 3 is not a list"),
    ([1, [2]], list_of(INT), "x[1]: [2] is not a whole number"),
    ({"a": "b"}, map_of(INT), "x.a: 'b' is not a whole number"),
    ("text", STRUCT, "x: 'text' is not a map or a list"),
    ("green", enum("red", "blue"), "x: 'green' is none of red, blue"),
    ([1], MAYBE, "x: [1] is none of INTEGER | STRING | NONE"),
    (7, FILE, "is not the address of a file or directory"),
    ("s3://bucket/frame", SCHEMA, "cannot be written as a plain value"),
    ("\x1b[31m", INT, r"x: '\x1b[31m' is not a whole number"),
]


@pytest.mark.parametrize(("value", "kind", "shown"), GOOD)
def test_a_value_becomes_a_literal_of_the_type_and_is_shown_again(value: Any, kind: Any, shown: Any) -> None:
    literal = literal_of(value, kind, Steps(), where="x")
    assert value_mistake("x", literal, kind, Caster()) == ""
    assert plain_value(literal) == shown


@pytest.mark.parametrize(("value", "kind", "words"), BAD)
def test_a_value_of_another_type_is_refused_with_its_place(value: Any, kind: Any, words: str) -> None:
    with pytest.raises(NoSuchValue) as caught:
        literal_of(value, kind, Steps(), where="x")
    assert words in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_value_that_is_nested_too_deeply_is_refused() -> None:
    value: Any = 1
    kind: Any = INT
    for _ in range(70):
        value, kind = [value], list_of(kind)
    with pytest.raises(NoSuchValue, match="nested too deeply"):
        literal_of(value, kind, Steps(), where="x")


def test_all_mistakes_are_told_at_once_and_unknown_names_with_the_known_ones() -> None:
    expected = {"a": parameter(INT), "b": parameter(TEXT)}
    literals, mistakes = literals_of({"a": "one", "c": 1, "b": "good"}, expected)
    assert mistakes == ["a: 'one' is not a whole number", "there is no input 'c'; known: a, b"]
    assert set(literals.literals) == {"b"}


def test_values_that_do_not_fit_are_shown_by_their_size() -> None:
    large = literal_of("x" * 1000, TEXT, Steps(), where="x")
    small = literal_of(1, INT, Steps(), where="x")
    shown = plain_values({"a": large, "b": small, "c": large}, size_max=1100)
    assert (shown["a"], shown["b"]) == ("x" * 1000, 1)
    assert "bytes" in shown["c"]


def test_numbers_that_json_lacks_are_shown_as_texts_that_are_taken_again() -> None:
    given = {"a": ["nan", "inf", 1.5], "b": {"x": [float("-inf")]}, "c": "nan"}
    kinds = {"a": list_of(FLOAT), "b": STRUCT, "c": union(FLOAT, NONE)}
    literals, mistakes = literals_of(given, {name: parameter(kind) for name, kind in kinds.items()})
    assert mistakes == []
    assert isnan(literals.literals["c"].scalar.union.value.scalar.primitive.float_value)
    assert plain_values(literals.literals) == {"a": ["nan", "inf", 1.5], "b": {"x": ["-inf"]}, "c": "nan"}


def test_garbage_is_a_note() -> None:
    literal = literals_pb2.Literal()
    literal.scalar.binary.value, literal.scalar.binary.tag = b"\xc1", "msgpack"
    assert "cannot be read" in plain_value(literal)


def parameter(kind: Any) -> Any:
    return interface_pb2.Parameter(var=interface_pb2.Variable(type=kind))


def test_unions_of_unions_do_not_multiply_the_work() -> None:
    kind = union(INT, NONE)
    for _ in range(40):
        kind = union(kind, NONE)
    with pytest.raises(NoSuchValue, match="is none of"):
        literal_of("no number", kind, Steps(), where="x")


def test_the_work_of_one_request_is_bounded() -> None:
    steps = Steps(10)
    literal_of([1] * 8, list_of(INT), steps, where="x")
    with pytest.raises(TooLarge, match="more than 10 steps"):
        literal_of([1] * 8, list_of(INT), steps, where="y")
