"""Decodes large bodies in pieces, so that other threads run in between. For worker threads, not the event loop."""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from switchyard.errors import Malformed, TooLarge
from switchyard.model.wire.decode import JsonReader, refuse_many_values
from switchyard.model.wire.json_scanner import JsonScanner, TextSpan

PIECE_BYTES = 64 * 1024  # decoded in one step: some milliseconds at most
PIECE_ITEMS = 500


class _ListField(NamedTuple):
    items: JsonReader  # reads a list of some items
    least: int
    most: int


class PieceReader:
    """Reads one Struct. Its lists, and those of Structs directly in it, are decoded in pieces; the rest at once."""

    def __init__(self, kind: type[Struct], *, values_max: int, rest_values_max: int, is_checked: bool = True) -> None:
        self._kind = kind
        self._values_max = values_max  # of the whole body
        self._rest_values_max = rest_values_max  # of the part that is decoded at once
        self._fields = msgspec.structs.fields(kind)
        hints = get_type_hints(kind, include_extras=True)
        self._lists = {
            name: list_type
            for name, hint in hints.items()
            if (list_type := _list_of(hint, is_checked=is_checked)) is not None
        }
        self._structs = {
            name: PieceReader(inner, values_max=values_max, rest_values_max=rest_values_max, is_checked=is_checked)
            for name, hint in hints.items()
            if (inner := _struct_of(hint)) is not None and _has_lists(inner)
        }
        other_fields = [(name, Union[hint, UnsetType], UNSET) for name, hint in hints.items()]  # noqa: UP007
        self._rest = JsonReader(
            msgspec.defstruct(f"{kind.__name__}Rest", other_fields, forbid_unknown_fields=True),
            is_checked_whole=is_checked,
        )

    def read(self, body: bytes) -> Any:
        pieces = JsonScanner(body, steps_max=self._values_max)
        value = self._read(body, pieces)
        pieces.end()
        return value

    def _read(self, body: bytes, pieces: JsonScanner) -> Any:
        lists: dict[str, Any] = {}
        members: list[bytes] = []
        for key in pieces.members():
            name = key.decode("utf-8", "replace")
            if name in self._lists and pieces.char() == b"[":
                value: Any = self._items(name, body, pieces)
            elif name in self._structs and pieces.char() == b"{":
                value = self._structs[name]._read(body, pieces)
            else:
                begin, end = pieces.value()
                members.append(b'"%b":%b' % (key, body[begin:end]))
                continue
            _refuse_twice(lists, name)
            lists[name] = value
        return self._made(lists, b"{%b}" % b",".join(members))

    def _items(self, name: str, body: bytes, pieces: JsonScanner) -> list[Any]:
        items, minimum, maximum = self._lists[name]
        elements: list[Any] = []
        for begin, end in _group_spans(pieces.elements()):
            try:
                elements += items.read(b"[%b]" % body[begin:end])
            except Malformed as exc:
                raise Malformed(f"{name}, after {len(elements)} of its items: {exc.detail}") from exc
            if len(elements) > maximum:
                raise Malformed(f"Expected `array` of length <= {maximum} - at `{name}`")
        if len(elements) < minimum:
            raise Malformed(f"Expected `array` of length >= {minimum} - at `{name}`")
        return elements

    def _made(self, lists: dict[str, Any], body: bytes) -> Any:
        refuse_many_values(body, self._rest_values_max)
        read = self._rest.read(body)
        for field in self._fields:
            if (value := getattr(read, field.name)) is not UNSET:
                _refuse_twice(lists, field.name)
                lists[field.name] = value
            elif field.required and field.name not in lists:
                raise Malformed(f"Object missing required field `{field.name}`")
        try:
            return self._kind(**lists)
        except ValueError as exc:
            raise Malformed(str(exc)) from exc


def split_bulk_body(body: bytes, *, items_max: int, item_bytes_max: int, values_max: int) -> tuple[list[bytes], bytes]:
    """Return the items of `jobs`, not decoded, and the body without them."""
    pieces = JsonScanner(body, steps_max=values_max, value_bytes_max=item_bytes_max)
    items: list[bytes] | None = None
    members: list[bytes] = []
    for key in pieces.members():
        if key == b"jobs" and pieces.char() == b"[":
            if items is not None:
                raise Malformed("The field 'jobs' is given twice.")
            items = []
            for begin, end in pieces.elements():
                items.append(bytes(body[begin:end]))
                if len(items) > items_max:
                    raise Malformed(f"Expected `array` of length <= {items_max} - at `jobs`")
        else:
            begin, end = pieces.value()
            members.append(b'"%b":%b' % (key, body[begin:end]))
    pieces.end()
    envelope = b"{%b}" % b",".join([*members, b'"jobs":[null]'] if items else members)
    if len(envelope) > PIECE_BYTES:
        raise TooLarge(f"A bulk request has over {PIECE_BYTES} bytes beside its jobs.")
    return items or [], envelope


def _group_spans(elements: Iterator[TextSpan]) -> Iterator[TextSpan]:
    """Group adjacent elements into spans of at most PIECE_ITEMS elements and about PIECE_BYTES bytes."""
    first = last = count = -1
    for begin, end in elements:
        if count > 0 and (count >= PIECE_ITEMS or end - first > PIECE_BYTES):
            yield first, last
            count = -1
        first, count = (begin, 1) if count < 0 else (first, count + 1)
        last = end
    if count > 0:
        yield first, last


def _refuse_twice(fields: dict[str, Any], name: str) -> None:
    if name in fields:
        raise Malformed(f"The field {name[:80]!r} is given twice.")


def _list_of(hint: Any, *, is_checked: bool) -> _ListField | None:
    """Return how to read a field that is a list or an optional list; none: it is neither."""
    for part in _alternatives(hint):
        kind, metas = (get_args(part)[0], get_args(part)[1:]) if get_origin(part) is Annotated else (part, ())
        if get_origin(kind) is list:
            bounds = [meta for meta in metas if isinstance(meta, Meta)]
            minimums = [meta.min_length for meta in bounds if meta.min_length is not None]
            maximums = [meta.max_length for meta in bounds if meta.max_length is not None]
            assert maximums, "a list without a bound"
            return _ListField(JsonReader(kind, is_checked_whole=is_checked), max(minimums, default=0), min(maximums))
    return None


def _struct_of(hint: Any) -> type[Struct] | None:
    for part in _alternatives(hint):
        if isinstance(part, type) and issubclass(part, Struct):
            return part
    return None


def _has_lists(kind: type[Struct]) -> bool:
    return any(
        _list_of(hint, is_checked=False) is not None for hint in get_type_hints(kind, include_extras=True).values()
    )


def _alternatives(hint: Any) -> list[Any]:
    if get_origin(hint) in (Union, UnionType):
        return [part for part in get_args(hint) if part is not NoneType]
    return [hint]
