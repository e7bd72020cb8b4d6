"""How two messages differ, in few lines for a person."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from switchyard.features.flyte.workflow.values.content import plain_message
from switchyard.model.rules.names import printable_line

LINES_MAX = 10
VALUE_CHARS_MAX = 80
MISSING = object()


def describe_difference(before: Any, after: Any) -> str:
    """The first differences: `template.container.image: "a" → "b"`. Empty: there are none."""
    plain, other = plain_message(before), plain_message(after)
    if plain is None or other is None:
        return "it has values that JSON has not, so it is not shown"
    lines = list(islice(_differences(plain, other, ""), LINES_MAX + 1))
    if len(lines) > LINES_MAX:
        lines[LINES_MAX:] = ["and more"]
    return "; ".join(lines)


def _differences(before: Any, after: Any, path: str) -> Iterator[str]:
    if before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            inner = f"{path}.{key}" if path else key
            yield from _differences(before.get(key, MISSING), after.get(key, MISSING), inner)
    elif isinstance(before, list) and isinstance(after, list):
        for index in range(max(len(before), len(after))):
            yield from _differences(_item(before, index), _item(after, index), f"{path}[{index}]")
    else:
        yield f"{printable_line(path[-200:])}: {_shown(before)} → {_shown(after)}"


def _item(values: list[Any], index: int) -> Any:
    return values[index] if index < len(values) else MISSING


def _shown(value: Any) -> str:
    if value is MISSING:
        return "nothing"
    text = printable_line(repr(value)[: VALUE_CHARS_MAX + 1])
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[:VALUE_CHARS_MAX]}…"
