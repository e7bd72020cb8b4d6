"""Every pattern of a type has words: no error shows a regular expression."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any, get_args, get_type_hints

import pytest
from msgspec import Meta, Struct

import switchyard
from switchyard.errors import Malformed
from switchyard.model.files.files import JobFiles, MissingQuery
from switchyard.model.wire.decode import decode_json
from switchyard.model.wire.pattern_hints import PATTERN_HINTS


def patterns_of(hint: Any) -> set[str]:
    own = {meta.pattern for meta in getattr(hint, "__metadata__", ()) if isinstance(meta, Meta) and meta.pattern}
    return own.union(*(patterns_of(part) for part in get_args(hint)))


def all_structs() -> set[type[Struct]]:
    found: set[type[Struct]] = set()
    for module in pkgutil.walk_packages(switchyard.__path__, "switchyard."):
        values = vars(importlib.import_module(module.name)).values()
        found |= {value for value in values if isinstance(value, type) and issubclass(value, Struct)}
    return found


def test_every_pattern_has_words() -> None:
    structs = all_structs()
    assert len(structs) > 100
    places = {
        pattern: f"{struct.__name__}.{name}"
        for struct in structs
        for name, hint in get_type_hints(struct, include_extras=True).items()
        for pattern in patterns_of(hint)
    }
    assert {pattern: place for pattern, place in places.items() if pattern not in PATTERN_HINTS} == {}


@pytest.mark.parametrize(
    ("kind", "body", "says"),
    [
        (JobFiles, b'{"out": ["/etc/passwd"]}', "Not a pattern of files in the job's folder"),
        (JobFiles, b'{"tree": "' + b"X" * 64 + b'"}', "Not a SHA-256"),
        (MissingQuery, b'{"objects": ["' + b"g" * 64 + b'"]}', "Not a SHA-256"),
    ],
)
def test_a_field_that_does_not_match_is_refused_in_words(kind: type[Struct], body: bytes, says: str) -> None:
    with pytest.raises(Malformed, match=says) as refused:
        decode_json(body, kind)
    assert "^" not in refused.value.detail
