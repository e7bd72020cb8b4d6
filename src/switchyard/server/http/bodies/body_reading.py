"""Reads a body: within its own bound, and within the budget of all large bodies."""

from __future__ import annotations

from switchyard.errors import TooLarge
from switchyard.server.grpc.byte_budget import LARGE_BYTES_MIN
from switchyard.server.http.bodies.body_budget import BodyBudgets
from switchyard.server.http.connections.asgi_messages import AsgiReceive, AsgiScope, ClientGone, header

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
