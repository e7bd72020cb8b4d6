"""Answers of the Kubernetes API: pages of lists, events of watches, and the object that says why not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec
from msgspec import Struct

from switchyard.agent.backends.kubernetes.api.api_errors import ApiUnavailable

EVENT_BYTES_MAX = 16 * 2**20  # of one event of a watch; etcd refuses objects over 1.5 MiB

T = TypeVar("T")


class ApiStatus(Struct, frozen=True):
    """What we read of a `Status` object."""

    reason: str | None = None
    message: str | None = None


class _ListMeta(Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class ObjectPage(Struct, frozen=True):
    metadata: _ListMeta = _ListMeta()
    items: list[msgspec.Raw] | None = None


class ObjectList(Struct, frozen=True):
    """All objects of a list, undecoded, and the version at which a watch goes on."""

    items: list[msgspec.Raw]
    resource_version: str


class WatchEvent(Struct, frozen=True):
    """One event of a watch: ADDED, MODIFIED, DELETED or BOOKMARK. ERROR is raised as an ApiRefusal instead."""

    type: str
    object: msgspec.Raw


def decode_answer(data: bytes | msgspec.Raw, type_: type[T], path: str) -> T:
    try:
        return msgspec.json.decode(data, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise ApiUnavailable(f"The answer to {path} is not what the Kubernetes API sends: {exc}.") from exc


def whole_lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Whole lines of a stream. A cut last line is an incomplete answer."""
    rest = bytearray()
    for piece in pieces:
        rest += piece
        if b"\n" not in piece:
            if len(rest) > EVENT_BYTES_MAX:
                raise ApiUnavailable(f"An event of a watch is over {EVENT_BYTES_MAX} bytes.")
            continue
        *whole, last = bytes(rest).split(b"\n")
        rest = bytearray(last)
        yield from (row for row in whole if row.strip())
    if rest.strip():
        raise ApiUnavailable("A watch ended within an event.")
