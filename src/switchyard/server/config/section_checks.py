"""Checks a config file's section, as written, against its struct: every mistake with its path, and the valid parts."""

from __future__ import annotations

import types
import typing
from typing import Annotated, Any

import msgspec
from msgspec import Struct

INVALID_PART: Any = object()


def find_mistakes(value: Any, kind: Any, path: str) -> list[str]:
    """List every mistake in a value. msgspec stops at the first, so containers are walked here."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated and isinstance(value, (list, dict)):
        return find_mistakes(value, arguments[0], path) or _value_mistakes(value, kind, path)
    if origin is types.UnionType and type(None) in arguments:
        types_left = [argument for argument in arguments if argument is not type(None)]
        if value is None and isinstance(types_left[0], type) and issubclass(types_left[0], Struct):
            return find_mistakes({}, types_left[0], path)  # the section is there, but empty
        if value is None:
            return []
        return find_mistakes(value, types_left[0], path) if len(types_left) == 1 else _value_mistakes(value, kind, path)
    if origin is list and isinstance(value, list):
        return [
            mistake
            for index, item in enumerate(value)
            for mistake in find_mistakes(item, arguments[0], f"{path}[{index}]")
        ]
    if origin is dict and isinstance(value, dict):
        return [
            mistake
            for key, item in value.items()
            for mistake in (
                *_value_mistakes(key, arguments[0], f"{path} (name {key!r})"),
                *find_mistakes(item, arguments[1], join_path(path, str(key))),
            )
        ]
    if isinstance(kind, type) and issubclass(kind, Struct) and isinstance(value, dict):
        return _struct_mistakes(value, kind, path)
    return _value_mistakes(value, kind, path)


def _struct_mistakes(value: dict[Any, Any], kind: type[Struct], path: str) -> list[str]:
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    hints = typing.get_type_hints(kind, include_extras=True)
    mistakes = [
        f"{join_path(path, str(key))}: unknown key; known here: {', '.join(fields)}"
        for key in value
        if key not in fields
    ]
    for name, field in fields.items():
        if name in value:
            mistakes += find_mistakes(value[name], hints[field.name], join_path(path, name))
        elif field.required:
            mistakes.append(f"{join_path(path, name)}: missing")
    return mistakes or _value_mistakes(value, kind, path)  # fields that are valid one by one may contradict each other


def _value_mistakes(value: Any, kind: Any, path: str) -> list[str]:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as exc:
        return [f"{path or 'the file'}: {exc}"]
    return []


def join_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def valid_part(value: Any, kind: Any) -> Any:
    """Return a value without its invalid parts; INVALID_PART if they cannot be left out."""
    if not find_mistakes(value, kind, ""):
        return value
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _if_valid(valid_part(value, arguments[0]), kind)
    if origin in (types.UnionType, typing.Union) and isinstance(value, (list, dict)):
        kinds = [
            argument
            for argument in arguments
            if typing.get_origin(argument) in (list, dict) or hasattr(argument, "__struct_fields__")
        ]
        return valid_part(value, kinds[0]) if len(kinds) == 1 else INVALID_PART
    if origin is list and isinstance(value, list):
        return [sound for item in value if (sound := valid_part(item, arguments[0])) is not INVALID_PART]
    if origin is dict and isinstance(value, dict):
        named = {key: item for key, item in value.items() if not _value_mistakes(key, arguments[0], "")}
        parts = {key: valid_part(item, arguments[1]) for key, item in named.items()}
        return {key: item for key, item in parts.items() if item is not INVALID_PART}
    if isinstance(kind, type) and issubclass(kind, Struct) and isinstance(value, dict):
        hints = typing.get_type_hints(kind, include_extras=True)
        named = {field.encode_name: hints[field.name] for field in msgspec.structs.fields(kind)}
        parts = {name: valid_part(item, named[name]) for name, item in value.items() if name in named}
        return _if_valid({name: item for name, item in parts.items() if item is not INVALID_PART}, kind)
    return INVALID_PART


def _if_valid(value: Any, kind: Any) -> Any:
    return INVALID_PART if value is INVALID_PART or find_mistakes(value, kind, "") else value
