"""YAML in: safe values, no traps, and mistakes with their line and column."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

from switchyard.errors import Malformed
from switchyard.model.wire.decode import YAML_BYTES_MAX, YAML_DEPTH_MAX, load_yaml


def refusal(text: str | bytes) -> str:
    with pytest.raises(Malformed) as caught:
        load_yaml(text, where="yard.yaml")
    assert caught.value.detail.startswith("yard.yaml: ")
    return caught.value.detail


def test_plain_values_are_read() -> None:
    text = "a: 1\nb: [x, 'y', 2.5, true, null]\nc: {d: |\n  two\n  lines\n}\n"
    assert load_yaml("a: 1\nb: [x, 'y', 2.5, true, null]\n", where="f") == {"a": 1, "b": ["x", "y", 2.5, True, None]}
    assert load_yaml("", where="f") is None
    assert load_yaml("# nothing\n", where="f") is None
    assert "line" in refusal(text)  # a block inside a flow is no YAML


def test_a_field_named_on_is_a_text_and_a_value_is_not() -> None:
    assert load_yaml("on: {no: on}\n", where="f") == {"on": {"no": True}}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\na: 2\n", "line 2, column 1: the field 'a' is given twice"),
        ("a:\n  b: 1\n  c: 2\n  b: 3\n", "line 4, column 3: the field 'b' is given twice"),
        ("- {x: 1, 'x': 2}\n", "line 1, column 10: the field 'x' is given twice"),
        ("a: [1, 2\nb: 3\n", "line 2"),
        ("a:\n\tb: 1\n", "line 2, column 1"),
        ("a: 'open\n", "line 2"),
        ("a: 1\n---\nb: 2\n", "line 2, column 1"),
        ("a: &x {b: 1}\nc: *x\n", "line 1, column 4: aliases are not allowed"),
        ("a: *nobody\n", "line 1, column 4: found undefined alias"),
        ("a: &a [*a]\n", "aliases are not allowed"),
        ("!!python/object/apply:os.system ['true']\n", "line 1, column 1: could not determine a constructor"),
        ("a: !secret b\n", "line 1, column 4"),
        ("a: \x07\n", "special characters are not allowed"),
        ("when: 2024-99-99\n", "line 1, column 7: '2024-99-99' is not a date"),
        ("a:\n  x: !!timestamp foo\n", "line 2, column 6: 'foo' is not a date"),
        ("x: !!timestamp {=: 3}\n", "line 1, column 4"),
        ("x: !!bool foo\n", "'foo' is not true or false"),
        ("x: !!int ''\n", "'' is not a whole number"),
        ("x: !!float ''\n", "'' is not a number"),
        (f"x: {'9' * 5000}\n", "is not a whole number"),
        ('x: "\\ud800"\n', "is not a text in Unicode"),
        ("{[1]: 2}\n", "line 1"),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, says: str) -> None:
    assert says in refusal(text)


@pytest.mark.parametrize("tag", ["int", "float", "bool", "null", "timestamp", "binary", "str", "set", "omap", "pairs"])
@pytest.mark.parametrize(
    "value", ["foo", "''", "_", "+", "1:x", "9999-12-31T23:59:59-23:00", "[1]", "{=: 3}", '"\\uD83D"']
)
def test_no_tag_on_any_value_is_more_than_a_mistake(tag: str, value: str) -> None:
    for nodes_max in (0, 100):
        with suppress(Malformed):
            load_yaml(f"x: !!{tag} {value}\n", where="yard.yaml", nodes_max=nodes_max)


def test_a_billion_laughs_are_refused_at_once() -> None:
    lines = ["a0: &a0 [lol, lol]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]" for n in range(1, 60)]
    began = time.perf_counter()
    assert "aliases are not allowed" in refusal("\n".join(lines))
    assert time.perf_counter() - began < 20, "unfolded they would take for ever"


@pytest.mark.parametrize("text", ["[" * 500, "[" * 500 + "]" * 500, "- " * 10_000 + "x", "{a: " * 10_000])
def test_thousands_of_levels_are_refused(text: str) -> None:
    assert "deep" in refusal(text)


def test_the_deepest_allowed_level_is_read() -> None:
    assert load_yaml("[" * YAML_DEPTH_MAX + "]" * YAML_DEPTH_MAX, where="f")
    assert "nested deeper" in refusal("[" * (YAML_DEPTH_MAX + 2) + "]" * (YAML_DEPTH_MAX + 2))


def test_bytes_that_are_no_text_and_files_beyond_the_bound_are_refused() -> None:
    assert refusal(b"a: \xff\xfe\n")
    assert str(YAML_BYTES_MAX) in refusal("#" * (YAML_BYTES_MAX + 1))
