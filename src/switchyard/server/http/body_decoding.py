"""Where a body is decoded: a small one on the loop, a larger one on a thread.

The loop serves everybody. What takes longer the more a caller sends is therefore done elsewhere, a few at a time. A
thread helps only as long as it lets go of the interpreter, and one call of the JSON decoder does not. So a body that is
decoded at once has a bound on its values, and one that may have more of them by right is decoded in pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from switchyard.errors import TooLarge
from switchyard.model.decode import JsonReader, refuse_many_values
from switchyard.server.http.asgi_messages import AsgiReceive, AsgiScope, read_body, require_json
from switchyard.server.http.body_bounds import INLINE_BYTES, BodyBound
from switchyard.server.runtime import ServerRuntime

T = TypeVar("T")


async def read_bounded(scope: AsgiScope, receive: AsgiReceive, bound: BodyBound) -> bytes:
    try:
        return await read_body(scope, receive, bound.bytes_max)
    except TooLarge as exc:
        raise _with_bound(exc, bound) from exc


async def decode_body(yard: ServerRuntime, scope: AsgiScope, body: bytes, reader: JsonReader, bound: BodyBound) -> Any:
    """Decode a body where that holds nobody up."""
    require_json(scope, body)
    if len(body) <= INLINE_BYTES:
        return reader.read(body)
    return await yard.decoders.run(_read_at_once, body, reader, bound, size=len(body))


async def read_in_pieces(yard: ServerRuntime, body: bytes, read: Callable[[bytes], T], bound: BodyBound) -> T:
    """Decode a large body by what takes it apart."""
    return await yard.decoders.run(read_within_bound, body, read, bound, size=len(body))


def _read_at_once(body: bytes, reader: JsonReader, bound: BodyBound) -> Any:
    refuse_large(body, bound)
    return reader.read(body)


def refuse_large(body: bytes, bound: BodyBound) -> None:
    """Also for one job of many."""
    try:
        if len(body) > bound.bytes_max:
            raise TooLarge(f"It has {len(body)} bytes; the most here is {bound.bytes_max}.")
        refuse_many_values(body, bound.values_max)
    except TooLarge as exc:
        raise _with_bound(exc, bound) from exc


def read_within_bound(body: bytes, read: Callable[[bytes], T], bound: BodyBound) -> T:
    try:
        return read(body)
    except TooLarge as exc:
        raise _with_bound(exc, bound) from exc


def _with_bound(error: TooLarge, bound: BodyBound) -> TooLarge:
    most = f"The most of a {bound.name} is {bound.bytes_max} bytes with {bound.values_max} values."
    return TooLarge(f"{error.detail} {most}", next_step=error.next_step)
