"""Builds what msgspec needs to decode a type, under one lock and before threads decode it. It reads no message.

msgspec builds the fields of a Struct when the first decoder of it is made, and shows the unfinished result to other
threads: a thread that decodes meanwhile reads through a null pointer, and the process dies
(docs/upstream/msgspec-first-decode.md). Decoding and converting are affected; encoding and `replace` are not.

- A program with threads of its own (server, agent) calls `warm_loaded` once its modules are loaded and before its
  threads start, and again after it has loaded more.
- The SDK, which is called from other people's threads, calls `warm` before each decode: a look-up from then on.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec

_building = threading.Lock()
_built: set[Any] = set()


def warm_type(kind: Any) -> None:
    """Build this type and all that it holds, unless that was done. For any thread."""
    if kind not in _built:
        with _building:
            _build(kind)


def warm_loaded_types(*kinds: Any) -> None:
    """Build every Struct class of the modules that are loaded, ours and other people's, and these types."""
    with _building:
        for kind in (*_structs(msgspec.Struct), *kinds):
            if kind not in _built:
                _build(kind)


def is_type_warm(kind: Any) -> bool:
    return kind in _built


def _build(kind: Any) -> None:
    # A type that is only ever encoded, or a class whose names cannot be resolved: nobody can decode it.
    with suppress(TypeError, NameError):
        msgspec.json.Decoder(kind)
        _built.add(kind)


def _structs(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for each in kind.__subclasses__():
        yield each
        yield from _structs(each)
