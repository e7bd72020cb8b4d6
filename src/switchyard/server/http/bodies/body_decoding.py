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
from switchyard.server.http.bodies.body_bounds import INLINE_BYTES, BodyBound
from switchyard.server.http.bodies.body_budget import BodyBudgets
from switchyard.server.http.bodies.body_reading import read_body
from switchyard.server.http.connections.asgi_messages import AsgiReceive, AsgiScope, require_json
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
