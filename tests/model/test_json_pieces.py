"""JSON in pieces: they are what a JSON reader would find, whatever stands in strings and wherever a window ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from switchyard.errors import Malformed, TooLarge
from switchyard.model.wire.json_scanner import JsonScanner, has_at_most_values

LEAVES = some.none() | some.booleans() | some.integers(0, 9) | some.text('ab"\\[]{},: \n', max_size=8)
KEYS = some.text("ab{[,:", max_size=3)
VALUES = some.recursive(
    LEAVES,
    lambda inner: some.lists(inner, max_size=4) | some.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)
WINDOWS = some.sampled_from([1, 2, 3, 7, 1000])
INDENTS = some.sampled_from([None, 1])


@given(value=some.lists(VALUES, max_size=4), indent=INDENTS, window=WINDOWS)
def test_the_elements_of_an_array(value: list[Any], indent: int | None, window: int) -> None:
    text = json.dumps(value, indent=indent).encode()
    pieces = JsonScanner(text, steps_max=1000, window=window)
    assert [json.loads(text[begin:end]) for begin, end in pieces.elements()] == value
    pieces.end()


@given(value=some.dictionaries(KEYS, VALUES, max_size=4), indent=INDENTS, window=WINDOWS)
def test_the_members_of_an_object(value: dict[str, Any], indent: int | None, window: int) -> None:
    text = json.dumps(value, indent=indent).encode()
    pieces = JsonScanner(text, steps_max=1000, window=window)
    found: dict[str, Any] = {}
    for key in pieces.members():
        begin, end = pieces.value()
        found[key.decode()] = json.loads(text[begin:end])
    assert found == value
    pieces.end()


@pytest.mark.parametrize(
    "text",
    [
        *('', '[', '[1', '["a', '["a\\"]', '[1 2]', '[1,,2]', '[1,]', '[,1]', '[1]]', '[1] 2'),
        *('{}', '1', '[' * 1000, '["a\\', '[1}'),
    ],
)  # fmt: skip
def test_what_is_no_array_is_refused(text: str) -> None:
    pieces = JsonScanner(text.encode(), steps_max=100_000, window=4)
    with pytest.raises(Malformed):
        _take(pieces, pieces.elements())


@pytest.mark.parametrize("text", ['{"a"}', '{"a":}', '{1:2}', '{"a":1 "b":2}', '{"a":1,}', '[]'])  # fmt: skip
def test_what_is_no_object_is_refused(text: str) -> None:
    pieces = JsonScanner(text.encode(), steps_max=1000)
    with pytest.raises(Malformed):
        _take(pieces, (pieces.value() for _ in pieces.members()))


def _take(pieces: JsonScanner, items: Iterator[Any]) -> None:
    for _ in items:
        pass
    pieces.end()


def test_very_many_values_are_refused_before_they_are_looked_at() -> None:
    pieces = JsonScanner(b"[" + b"{}," * 100 + b"{}]", steps_max=100)
    with pytest.raises(TooLarge):
        pieces.value()


@given(value=VALUES, most=some.integers(1, 30))
def test_values_are_counted_outside_of_strings(value: Any, most: int) -> None:
    def count(part: Any) -> int:
        inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        return 1 + sum(count(each) for each in inner)

    text = json.dumps(value).encode()
    if count(value) <= most / 2:
        assert has_at_most_values(text, most)
    if count(value) > most * 2:
        assert not has_at_most_values(text, most)
