"""Bounds the nesting of JSON and YAML before any value is built.

Many readers recurse: the YAML library composes in C without a limit and crashes the process, and printers in Python
raise RecursionError. A body that nests within NESTING_MAX levels is safe for all of them.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from switchyard.errors import Malformed

NESTING_MAX = 64  # levels of a request's body, and of a YAML file
JSON_TOO_DEEP = f"The body is nested too deeply: the most is {NESTING_MAX} levels."
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_AS_LISTS = bytes.maketrans(b"{}", b"[]")
_ROUNDS = 8
_STEPS = {ord("["): 1, ord("]"): -1}
# Every collection in YAML has at least one of these characters of its own.
_YAML_OPENERS = "[{:-?"


def refuse_deep_json(text: bytes) -> None:
    """Raise Malformed if valid JSON nests too deeply. Every step runs in C, and most bodies need only the first."""
    if text.count(b"[") + text.count(b"{") <= NESTING_MAX:
        return
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = b"".join(text.split(b'"')[::2]).translate(_AS_LISTS, _NOT_BRACKETS)
    rounds = min(_ROUNDS, NESTING_MAX)
    for _ in range(rounds):  # each removes the innermost level everywhere: most bodies have few
        brackets = brackets.replace(b"[]", b"")
        if not brackets:
            return
    if max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > NESTING_MAX - rounds:
        raise Malformed(JSON_TOO_DEEP)


def refuse_deep_yaml(text: str | bytes, loader: Any, *, where: str) -> None:
    """Raise Malformed if YAML nests too deeply. The events are read one by one, and only up to that level.

    `loader` should be the one in C. A text that is no YAML is left to whoever composes it, which fails at the same
    place.
    """
    import yaml

    if _openers(text) <= NESTING_MAX:
        return
    depth = 0
    try:
        for event in yaml.parse(text, Loader=loader):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > NESTING_MAX + 1:
                    mark = event.start_mark
                    at = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
                    raise Malformed(f"{where}: {at}nested deeper than {NESTING_MAX}.")
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
    except (yaml.YAMLError, UnicodeDecodeError, ValueError):
        return


def _openers(text: str | bytes) -> int:
    if isinstance(text, str):
        return sum(text.count(char) for char in _YAML_OPENERS)
    return sum(text.count(char.encode()) for char in _YAML_OPENERS)
