"""Requests in, answers out: bounded bodies, JSON, problems. Plain ASGI, used by the hot routes and the others alike."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog

from switchyard.errors import Internal, Malformed, MethodNotAllowed, TooLarge, Unavailable, WrongMedia, YardError
from switchyard.model.api import Problem
from switchyard.model.decode import JsonReader

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON = (b"content-type", b"application/json")
PROBLEM = (b"content-type", b"application/problem+json")
RETRY_AFTER_S = 1

log = structlog.get_logger()
_encoder = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class Body:
    """An answer that is sent as it is."""

    content: bytes
    media: bytes = b"text/plain; charset=utf-8"  # as it was given: YAML or JSON


class ClientGone(Exception):
    """The client hung up before its request was whole."""


async def read_body(scope: Scope, receive: Receive, bytes_max: int) -> bytes:
    """The whole body, refused as soon as it is known to be too large."""
    declared = header(scope, b"content-length")
    if declared is not None and declared.isdigit() and int(declared) > bytes_max:
        raise TooLarge(f"The body has {int(declared)} bytes; the most here is {bytes_max}.")
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size > bytes_max:
            raise TooLarge(f"The body is over {bytes_max} bytes.")
        parts.append(part)
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def read_json(reader: JsonReader, scope: Scope, body: bytes) -> Any:
    """A body that has to be there, and is JSON. A client that declares another type means something else."""
    media = header(scope, b"content-type")
    if media and media != JSON[1] and media.partition(b";")[0].strip().lower() != JSON[1]:
        raise WrongMedia(f"The body is declared as {media[:80].decode('latin-1')!r}; it has to be JSON.")
    if not body:
        raise Malformed("The body is missing.", next_step="Send a JSON object, `{}` where nothing is to be said.")
    return reader.read(body)


def header(scope: Scope, name: bytes) -> bytes | None:
    for key, value in scope["headers"]:
        if key == name:
            found: bytes = value
            return found
    return None


async def send_json(send: Send, status: int, value: object, *extra: tuple[bytes, bytes]) -> None:
    await send_body(send, status, _encoder.encode(value), JSON, *extra)


async def send_body(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


async def send_problem(send: Send, error: YardError, *headers: tuple[bytes, bytes]) -> None:
    problem = problem_of(error)
    extra = [*headers, (b"retry-after", str(RETRY_AFTER_S).encode())] if error.transient else [*headers]
    if error.status == 401:
        extra.append((b"www-authenticate", b"Bearer"))
    await send_body(send, error.status, _encoder.encode(problem), PROBLEM, *extra)


async def send_not_allowed(scope: Scope, send: Send, methods: Iterable[str]) -> None:
    """405, with the methods that there are."""
    allowed = ", ".join(sorted(methods))
    error = MethodNotAllowed(f"{scope['path'][:200]} takes {allowed}, not {scope['method'][:20]}.")
    await send_problem(send, error, (b"allow", allowed.encode()))


def problem_of(error: YardError) -> Problem:
    return Problem(
        type=f"urn:switchyard:error:{error.code}",
        title=error.title,
        status=error.status,
        code=error.code,
        detail=error.detail,
        next_step=error.next_step,
    )


async def guarded(
    scope: Scope,
    send: Send,
    work: Callable[[], Awaitable[None]],
    refuse: Callable[[Send, YardError], Awaitable[None]] = send_problem,
) -> None:
    """Run a route; whatever it raises becomes a problem, and a defect is logged with its place.

    `refuse`: how an error is said, at a door with words of its own.
    """
    try:
        await work()
    except ClientGone:
        return
    except YardError as exc:
        if exc.status >= 500 and not exc.transient:
            log.error("request failed", method=scope["method"], path=scope["path"], error=repr(exc), exc_info=exc)
        await refuse(send, exc)
    except asyncio.CancelledError:
        # A stopping server gives up what is still open. Without an answer it would be a 500, which nobody tries again.
        with contextlib.suppress(RuntimeError):  # an answer that has begun, a stream, is only cut off
            await refuse(send, Unavailable("The server stops before this is done; it may still happen."))
    except Exception as exc:  # the door's last resort: the client gets a problem, the log the place
        log.error("defect", method=scope["method"], path=scope["path"], exc_info=exc)
        await refuse(send, Internal())
