"""Builds msgspec's decoders under one lock, before threads use them. It reads no message.

msgspec builds the fields of a Struct when the first decoder of it is made, and shows the unfinished result to other
threads: a thread that decodes meanwhile reads through a null pointer, and the process dies
(docs/upstream/msgspec-first-decode.md). Decoding and converting are affected; encoding and `replace` are not.

- A program with threads of its own (server, agent) calls `warm_loaded_types` once its modules are loaded, before its
  threads start, and again after it has loaded more.
- The SDK runs in its callers' threads, so it calls `warm_type` before each decode: a look-up after the first time.
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
    """Build the decoder of this type and of the types in it, once. Thread-safe."""
    if kind not in _built:
        with _building:
            _build(kind)


def warm_loaded_types(*kinds: Any) -> None:
    """Build the decoders of every Struct class of the loaded modules, and of these types."""
    with _building:
        for kind in (*_structs(msgspec.Struct), *kinds):
            if kind not in _built:
                _build(kind)


def is_type_warm(kind: Any) -> bool:
    return kind in _built


def _build(kind: Any) -> None:
    # Skip types that cannot be decoded: those that are only encoded, or whose annotations cannot be resolved.
    with suppress(TypeError, NameError):
        msgspec.json.Decoder(kind)
        _built.add(kind)


def _structs(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _structs(subclass)
