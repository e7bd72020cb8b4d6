"""Decodes small bodies on the loop and larger ones on a thread.

The loop serves all users, so work that grows with a body runs on threads, a few at a time. A thread helps only while it
releases the interpreter, and one call of the JSON decoder does not. So a body that is decoded in one call has a bound
on its values; a body that may have more values is decoded in pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from switchyard.errors import TooLarge
from switchyard.model.wire.decode import JsonReader, refuse_many_values
from switchyard.server.grpc.byte_budget import LARGE_BYTES_MIN
from switchyard.server.http.bodies.body_bounds import INLINE_BYTES, BodyBound
from switchyard.server.http.bodies.body_budget import BodyBudgets
from switchyard.server.http.connections.asgi_messages import AsgiReceive, AsgiScope, ClientGone, header, require_json
from switchyard.server.loops.workers import Workers

T = TypeVar("T")


async def read_bounded(budgets: BodyBudgets, scope: AsgiScope, receive: AsgiReceive, bound: BodyBound) -> bytes:
    try:
        return await read_body(budgets, scope, receive, bound.bytes_max)
    except TooLarge as exc:
        raise _with_bound(exc, bound) from exc


async def decode_body(workers: Workers, scope: AsgiScope, body: bytes, reader: JsonReader, bound: BodyBound) -> Any:
    """Decode a body, on a thread if it is large."""
    require_json(scope, body)
    if len(body) <= INLINE_BYTES:
        return reader.read(body)
    return await workers.decoders.run(_read_at_once, body, reader, bound, size=len(body))


async def read_in_pieces(workers: Workers, body: bytes, read: Callable[[bytes], T], bound: BodyBound) -> T:
    """Decode a large body on a thread. `read` decodes it in pieces."""
    return await workers.decoders.run(read_within_bound, body, read, bound, size=len(body))


def _read_at_once(body: bytes, reader: JsonReader, bound: BodyBound) -> Any:
    refuse_large(body, bound)
    return reader.read(body)


def refuse_large(body: bytes, bound: BodyBound) -> None:
    """Refuse a body over its bound; also for one job of a bulk request."""
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


COPY_BYTES_MAX = 8 * 2**20  # copied within some milliseconds


async def read_body(budgets: BodyBudgets, scope: AsgiScope, receive: AsgiReceive, bytes_max: int) -> bytes:
    """Read the body. Refuse it as soon as it is known to be too large.

    A large body is counted by its declared size; without one, by the largest size that it may have.
    """
    declared = header(scope, b"content-length")
    size = int(declared) if declared is not None and declared.isdigit() else None
    if size is not None and size > bytes_max:
        raise TooLarge(f"The body has {size} bytes; the most here is {bytes_max}.")
    body: bytes | bytearray = b""
    is_complete = False
    if size is None or size <= LARGE_BYTES_MIN:
        body, is_complete = await _read_on(receive, body, bytes_max, pause_above=LARGE_BYTES_MIN)
    if not is_complete:
        async with budgets.hold(scope, size or bytes_max):
            body, _ = await _read_on(receive, body, bytes_max, pause_above=bytes_max)
    return bytes(body) if len(body) <= COPY_BYTES_MAX else body  # type: ignore[return-value]


async def _read_on(
    receive: AsgiReceive, body: bytes | bytearray, bytes_max: int, *, pause_above: int
) -> tuple[bytes | bytearray, bool]:
    """Read until the body is complete or above `pause_above` bytes. Returns also whether it is complete."""
    while len(body) <= pause_above:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        if len(body) + len(part) > bytes_max:
            raise TooLarge(f"The body is over {bytes_max} bytes.")
        if not body:
            body = part
        elif isinstance(body, bytearray):
            body += part  # grows in place: joining 60 MB at the end would stop the loop
        else:
            body = bytearray(body) + part
        if not message.get("more_body"):
            return body, True
    return body, False
