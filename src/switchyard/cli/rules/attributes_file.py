"""Attribute files: YAML with the scope and the fields of one kind, as flytectl reads them. It calls no server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches, unified_diff
from typing import Any

from switchyard.cli.terminal.option_file import read_option_file
from switchyard.errors import Malformed
from switchyard.model.wire.decode import load_yaml

SCOPE_KEYS = ("project", "domain", "workflow", "launch_plan")
FILE_BYTES_MAX = 2**20  # the server's limit for one row
KeyPath = tuple[str | int, ...]  # the keys and indexes that lead to a value


@dataclass(frozen=True, slots=True)
class AttributeFile:
    """The content of an attribute file: the scope, and the fields of the kind."""

    scope: dict[str, str]
    value: dict[str, Any]


def read_attribute_file(name: str, schema: Mapping[str, Any]) -> AttributeFile:
    """Read an attribute file. Keys that the kind does not know are refused, with their lines."""
    text = read_option_file(name, "--attr-file", bytes_max=FILE_BYTES_MAX)
    fields = load_yaml(text, where=name)
    if not isinstance(fields, dict):
        raise Malformed(f"{name}: not a map of fields.", next_step="`yard update KIND --gen` writes a sample.")
    scope = {key: fields.pop(key) for key in SCOPE_KEYS if key in fields}
    # flytectl writes words that are not given as empty. Not so the project: without it the row would be everyone's.
    scope = {key: value for key, value in scope.items() if key == "project" or value != ""}
    for key, value in scope.items():
        if not isinstance(value, str):
            raise Malformed(f"{name}: {key} is not a text.", next_step="Put quotes around it.")
    unknown = list(unknown_keys(fields, schema))
    if unknown:
        raise Malformed(_format_unknown_keys(name, text, unknown), next_step="Correct the file; nothing was changed.")
    return AttributeFile(scope, fields)


def unknown_keys(value: Any, schema: Mapping[str, Any]) -> Iterator[tuple[KeyPath, list[str]]]:
    """Yield the path of each key that the JSON Schema does not know, with the keys it knows there."""
    yield from _find_unknown_keys(value, schema, schema.get("$defs", {}), ())


def _find_unknown_keys(
    value: Any, schema: Any, defs: Mapping[str, Any], path: KeyPath
) -> Iterator[tuple[KeyPath, list[str]]]:
    shapes = list(_schema_alternatives(schema, defs))
    if isinstance(value, list):
        items = [shape["items"] for shape in shapes if "items" in shape]
        for index, item in enumerate(value):
            yield from _find_unknown_keys(item, {"anyOf": items}, defs, (*path, index))
    if not isinstance(value, dict):
        return
    objects = [shape for shape in shapes if shape.get("type") == "object"]
    known: dict[str, list[Any]] = {}
    for shape in objects:
        for key, child in shape.get("properties", {}).items():
            known.setdefault(key, []).append(child)
    free = [shape.get("additionalProperties", True) for shape in objects]
    for key, item in value.items():
        if key in known:
            yield from _find_unknown_keys(item, {"anyOf": known[key]}, defs, (*path, str(key)))
        elif objects and not any(free):
            yield (*path, str(key)), list(known)
        else:
            yield from _find_unknown_keys(
                item, {"anyOf": [child for child in free if isinstance(child, dict)]}, defs, (*path, str(key))
            )


def _schema_alternatives(schema: Any, defs: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the forms that a schema allows, with references and `anyOf` resolved."""
    if "$ref" in schema:
        yield from _schema_alternatives(defs.get(schema["$ref"].rpartition("/")[2], {}), defs)
    elif "anyOf" in schema:
        for alternative in schema["anyOf"]:
            yield from _schema_alternatives(alternative, defs)
    else:
        yield schema


def _format_unknown_keys(name: str, text: str, unknown: list[tuple[KeyPath, list[str]]]) -> str:
    places = dict(_key_positions(text))
    lines = []
    for path, known in unknown:
        close = get_close_matches(str(path[-1]), known, n=1)
        guess = f"did you mean {close[0]}? " if close else ""
        lines.append(
            f"{name}: {places.get(path, '')}{_format_key_path(path)}: unknown key; {guess}known: {', '.join(known)}"
        )
    return "\n".join(lines)


def _key_positions(text: str) -> Iterator[tuple[KeyPath, str]]:
    """Yield the line and column of each key. Keys that YAML does not read as text, such as `on`, are missing."""
    import yaml

    def walk(node: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
        if node.id == "sequence":
            for index, child in enumerate(node.value):
                yield from walk(child, (*path, index))
        if node.id == "mapping":
            for key, child in node.value:
                at = (*path, key.value)
                yield at, f"line {key.start_mark.line + 1}, column {key.start_mark.column + 1}: "
                yield from walk(child, at)

    yield from walk(yaml.compose(text, yaml.SafeLoader), ())


def _format_key_path(path: KeyPath) -> str:
    """limits.cpu, overrides[2].task_type"""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def format_attribute_file(scope: Mapping[str, str | None], value: Mapping[str, Any]) -> str:
    """Format a row as a file that `yard update` can read."""
    import yaml

    given_scope = {key: text for key, text in scope.items() if text}
    return yaml.safe_dump({**given_scope, **value}, sort_keys=False, allow_unicode=True, width=1000)


def diff_values(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> list[str]:
    """Return the lines of a unified diff of two values. None: there is no row."""
    old, new = (format_attribute_file({}, row).splitlines() if row else [] for row in (before, after))
    return list(unified_diff(old, new, lineterm="", n=3))[2:]  # without the heading: a row has no file's name
