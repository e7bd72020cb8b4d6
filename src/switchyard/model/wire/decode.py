"""Decodes every body and file: msgspec checks the types, this module refuses what msgspec would accept."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cache, partial
from itertools import accumulate
from typing import Any, TypeVar

import msgspec

from switchyard.decoder_warmup import warm_type
from switchyard.errors import BadValue, ImpossibleValue, Malformed, TooLarge
from switchyard.model.wire.json_scanner import has_at_most_values
from switchyard.model.wire.pattern_hints import user_message

# Bounds the nesting of JSON and YAML before any value is built.
#
# Many readers recurse: the YAML library composes in C without a limit and crashes the process, and printers in Python
# raise RecursionError. A body that nests within NESTING_MAX levels is safe for all of them.

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


T = TypeVar("T")

# Matches whole strings of valid JSON without escapes, so the gap between two strings is never taken for one. A string
# followed by a colon is a key.
_STRING = re.compile(rb'"([^"]*+)"(\s*+:)?+')
FLOAT_EXACT_MAX = 2.0**53  # above it, not every whole number is a float
YAML_DEPTH_MAX = NESTING_MAX
YAML_BYTES_MAX = 16 * 2**20
CHARS_PER_NODE = 100  # a long text counts as several values, since an alias repeats all of it
YAML_TAG = "tag:yaml.org,2002:"
# A value may not match its tag; then the constructors of the YAML library fail with errors of many types.
YAML_CHECKED = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "timestamp": "a date",
    "str": "a text in Unicode",
}


class JsonReader:
    """Decodes one type from JSON: strict types, no unknown or duplicate fields, bounded depth."""

    def __init__(self, kind: Any, *, is_checked_whole: bool = True) -> None:
        # False for a body whose parts are read later, each with its own check.
        self._is_checked_whole = is_checked_whole
        warm_type(kind)
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)

    def read(self, body: bytes) -> Any:
        try:
            value = self._decode(body)
        except msgspec.ValidationError as exc:
            raise validation_refusal(exc) from exc
        except msgspec.DecodeError as exc:
            raise Malformed(f"The body is not valid JSON: {exc}") from exc
        except RecursionError as exc:
            raise Malformed(JSON_TOO_DEEP) from exc
        except UnicodeDecodeError as exc:
            raise Malformed("The body is not valid UTF-8.") from exc
        if self._is_checked_whole:
            refuse_deep_json(body)
            refuse_duplicates(body)
        return value

    def _decode(self, body: bytes) -> Any:
        try:
            return self._decoder.decode(body)
        except msgspec.ValidationError as exc:
            if "got `float`" not in str(exc):
                raise
            # In JSON, and so in a schema, 3.0 is a whole number; msgspec refuses it.
            normalized = _with_whole_numbers(body)
            if normalized is None:
                raise
        return self._decoder.decode(normalized)


def validation_refusal(exc: msgspec.ValidationError, where: str = "") -> Malformed:
    """Return the error for a refused value: Malformed for its form, BadValue for a rule that no schema can express."""
    kind = BadValue if isinstance(exc.__cause__, ImpossibleValue) else Malformed
    return kind(where + user_message(str(exc)))


def _with_whole_numbers(body: bytes) -> bytes | None:
    """Return the JSON with 3 instead of 3.0 and 3e0; none: nothing changes."""
    is_changed = False

    def number(text: str) -> float | int:
        nonlocal is_changed
        value = float(text)
        if not value.is_integer() or abs(value) >= FLOAT_EXACT_MAX:
            return value
        is_changed = True
        return int(value)

    try:
        value = json.loads(body, parse_float=number, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None
    return msgspec.json.encode(value) if is_changed else None


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


_undecoded = JsonReader(msgspec.Raw, is_checked_whole=False)


def decode_json(body: bytes, kind: type[T]) -> T:
    value: T = JsonReader(kind).read(body)
    return value


def refuse_many_values(body: bytes, most: int) -> None:
    """Bound the number of values: decoding one text of 8 MB takes 10 ms, 8 MB of empty texts take a second."""
    if has_at_most_values(body, most):
        return
    _undecoded.read(body)  # reports invalid or deeply nested JSON instead, and builds no values
    raise TooLarge(
        f"The body has over {most} values.", next_step="Put what is large in a file, or send it in several requests."
    )


def refuse_duplicates(body: bytes) -> None:
    """Raise if an object has a key twice. Most bodies have no key twice anywhere, which one quick scan shows."""
    if b"\\" not in body:
        keys = [text for text, colon in _STRING.findall(body) if colon]
        if len(keys) == len(set(keys)):
            return
    try:
        json.loads(body, object_pairs_hook=_refuse_duplicate_keys)
    except RecursionError as exc:
        raise Malformed(JSON_TOO_DEEP) from exc
    except json.JSONDecodeError as exc:
        raise Malformed(f"The body is not valid JSON: {exc}") from exc


def _refuse_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise Malformed(f"The field {twice[:80]!r} is given twice.")
    return mapping


def convert(value: Any, kind: type[T], *, where: str) -> T:
    """Check a plain value, for example from YAML, against a type."""
    warm_type(kind)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as exc:
        raise validation_refusal(exc, f"{where}: ") from exc
    except RecursionError as exc:
        raise Malformed(f"{where}: nested too deeply.") from exc


def load_yaml(text: str | bytes, *, where: str, nodes_max: int = 0, is_fast: bool = False) -> Any:
    """Read YAML as plain values: safe types, no duplicate keys, bounded depth. Errors have line and column.

    Aliases are refused unless `nodes_max` bounds the values, aliases expanded: programs that write YAML use aliases.
    `is_fast`: use the library's parser in C, which is ten times as fast and words errors differently.
    """
    import yaml  # slow to import, and most commands read no YAML

    if len(text) > YAML_BYTES_MAX:
        raise Malformed(f"{where}: over {YAML_BYTES_MAX} bytes.")
    try:
        # The loader composes recursively, in C without any limit: the depth is checked first.
        refuse_deep_yaml(text, _loader(is_fast=True), where=where)
        loader = _loader(is_fast=is_fast or nodes_max > 0)(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _YamlChecker(where, nodes_max).refuse(node, 0)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        at = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise Malformed(f"{where}: {at}{exc.problem or exc.context}") from exc
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as exc:
        raise Malformed(f"{where}: {exc}") from exc
    except RecursionError as exc:
        raise Malformed(f"{where}: nested too deeply.") from exc


@cache
def _loader(*, is_fast: bool) -> Any:
    """Return the library's safe loader, changed so that every value it cannot construct is reported with its place."""
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader) if is_fast else yaml.SafeLoader
    loader: Any = type("Loader", (base,), {})
    for kind, words in YAML_CHECKED.items():
        tag = YAML_TAG + kind
        loader.add_constructor(tag, partial(_construct_checked, base.yaml_constructors[tag], words))
    return loader


def _construct_checked(construct: Any, words: str, loader: Any, node: Any) -> Any:
    from yaml import YAMLError
    from yaml.constructor import ConstructorError

    try:
        value = construct(loader, node)
        if isinstance(value, str):
            value.encode()
    except YAMLError:
        raise
    except (ValueError, LookupError, ArithmeticError, AttributeError, TypeError) as exc:
        problem = f"{str(node.value)[:80]!r} is not {words}"
        raise ConstructorError(None, None, problem, node.start_mark) from exc
    return value


BOOL_TAG, TEXT_TAG = "tag:yaml.org,2002:bool", "tag:yaml.org,2002:str"


class _YamlChecker:
    """Refuses what no document may have: too deep nesting, a field given twice, aliases (or too many of them).

    A field named `on` stays a text: YAML 1.1 reads on, off, yes and no as booleans, and a field is never one.
    """

    def __init__(self, where: str, nodes_max: int) -> None:
        self._where, self._nodes_max = where, nodes_max
        self._seen: set[int] = set()
        self._nodes = 0

    def refuse(self, node: Any, depth: int) -> None:
        self._nodes += 1 if isinstance(node.value, list) else 1 + len(node.value) // CHARS_PER_NODE
        if depth > YAML_DEPTH_MAX:
            raise Malformed(f"{self._place(node)}: nested deeper than {YAML_DEPTH_MAX}.")
        if id(node) in self._seen and not self._nodes_max:
            raise Malformed(f"{self._place(node)}: aliases are not allowed here.")
        if self._nodes > self._nodes_max > 0:
            raise Malformed(f"{self._place(node)}: over {self._nodes_max} values, with what its aliases repeat.")
        if not isinstance(node.value, list):
            return
        self._seen.add(id(node))
        if node.id == "sequence":
            for child in node.value:
                self.refuse(child, depth + 1)
            return
        keys: set[str] = set()
        for key, child in node.value:
            if isinstance(key.value, str):
                if key.value in keys:
                    at = f"line {key.start_mark.line + 1}, column {key.start_mark.column + 1}"
                    raise Malformed(f"{self._where}: {at}: the field {key.value[:80]!r} is given twice.")
                keys.add(key.value)
                key.tag = TEXT_TAG if key.tag == BOOL_TAG else key.tag
            self.refuse(key, depth + 1)
            self.refuse(child, depth + 1)

    def _place(self, node: Any) -> str:
        return f"{self._where}: line {node.start_mark.line + 1}, column {node.start_mark.column + 1}"
