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
from switchyard.model.api import BulkAnswer, Problem
from switchyard.server.http.connection_gate import client_network
from switchyard.server.refusal_log import REFUSALS, credential_id

AsgiScope = MutableMapping[str, Any]
AsgiReceive = Callable[[], Awaitable[MutableMapping[str, Any]]]
AsgiSend = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON = (b"content-type", b"application/json")
PROBLEM = (b"content-type", b"application/problem+json")
# The second is what curl and Python's urllib declare of every body unless told otherwise.
JSON_MEDIA_TYPES = (b"application/json", b"application/x-www-form-urlencoded")
REFUSAL_STATUSES = frozenset({401, 403, 410})  # a credential or a right is missing; 410: of an agent that was removed
SCOPE_CALLER = "switchyard.who"  # in a request's scope: the name of the user or agent, once known
SCOPE_IS_CLOSED = "switchyard.is_closed"  # in a request's scope: tells whether its connection is closed
PART_BYTES = 256 * 1024  # handed to the connection at once
COPY_BYTES_MAX = 8 * 2**20  # copied within some milliseconds
STEP_ITEMS = 1000  # encoded at once

TOO_DEEP = "What was sent, or what is stored of it, is nested too deeply."

log = structlog.get_logger()
_encoder = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """An answer that is sent as it is."""

    content: bytes
    media: bytes = b"text/plain; charset=utf-8"  # as it was given: YAML or JSON


class ClientGone(Exception):
    """The client hung up before its request was whole, or before its answer was."""


def refuse_closed(scope: AsgiScope, exc: RuntimeError) -> None:
    """Raise ClientGone if an answer failed because its connection is closed: that is no defect."""
    is_closed = scope.get(SCOPE_IS_CLOSED)
    if is_closed is not None and is_closed():
        raise ClientGone from exc


async def read_body(scope: AsgiScope, receive: AsgiReceive, bytes_max: int) -> bytes:
    """The whole body, refused as soon as it is known to be too large."""
    declared = header(scope, b"content-length")
    if declared is not None and declared.isdigit() and int(declared) > bytes_max:
        raise TooLarge(f"The body has {int(declared)} bytes; the most here is {bytes_max}.")
    whole: bytes | bytearray = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        if len(whole) + len(part) > bytes_max:
            raise TooLarge(f"The body is over {bytes_max} bytes.")
        if not whole:
            whole = part
        elif isinstance(whole, bytearray):
            whole += part  # grows in place: a join of 60 MB would take its time at the end, all at once
        else:
            whole = bytearray(whole) + part
        if not message.get("more_body"):
            return bytes(whole) if len(whole) <= COPY_BYTES_MAX else whole  # type: ignore[return-value]


def require_json(scope: AsgiScope, body: bytes) -> None:
    """A body has to be there, and is JSON. A client that declares another type means something else."""
    media = header(scope, b"content-type")
    if media and media != JSON[1] and media.partition(b";")[0].strip().lower() not in JSON_MEDIA_TYPES:
        raise WrongMedia(f"The body is declared as {media[:80].decode('latin-1')!r}; it has to be JSON.")
    if not body:
        raise Malformed("The body is missing.", next_step="Send a JSON object, `{}` where nothing is to be said.")


def header(scope: AsgiScope, name: bytes) -> bytes | None:
    for key, value in scope["headers"]:
        if key == name:
            found: bytes = value
            return found
    return None


async def send_json(send: AsgiSend, status: int, value: object, *extra: tuple[bytes, bytes]) -> None:
    await send_body(send, status, _encoder.encode(value), JSON, *extra)


def encode(value: object) -> bytes:
    """JSON. What may be large is encoded on a thread."""
    return _encoder.encode(value)


def encode_bulk(answer: BulkAnswer) -> bytes:
    """In steps: one call of the encoder keeps the interpreter to itself."""
    items = answer.items
    parts = [_encoder.encode(items[at : at + STEP_ITEMS])[1:-1] for at in range(0, len(items), STEP_ITEMS)]
    return b'{"items":[%b],"made":%d,"refused":%d}' % (b",".join(parts), answer.made, answer.refused)


async def send_body(send: AsgiSend, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    if len(body) <= PART_BYTES:
        await send({"type": "http.response.body", "body": body})
        return
    # In parts, each when the one before is on its way: others get their turn in between.
    for begin in range(0, len(body), PART_BYTES):
        part = body[begin : begin + PART_BYTES]
        await send({"type": "http.response.body", "body": part, "more_body": begin + PART_BYTES < len(body)})
        await asyncio.sleep(0)


async def send_problem(send: AsgiSend, error: YardError, *headers: tuple[bytes, bytes]) -> None:
    problem = problem_of(error)
    extra = [*headers, *retry_after(error)]
    if error.status == 401:
        extra.append((b"www-authenticate", b"Bearer"))
    await send_body(send, error.status, _encoder.encode(problem), PROBLEM, *extra)


def retry_after(error: YardError) -> list[tuple[bytes, bytes]]:
    """The header that says when to come back, where time cures the error."""
    return [] if error.retry_after_s is None else [(b"retry-after", str(error.retry_after_s).encode())]


async def send_not_allowed(scope: AsgiScope, send: AsgiSend, methods: Iterable[str]) -> None:
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
        limit=error.limit,
    )


def _note_refusal(scope: AsgiScope, error: YardError) -> None:
    """Log who was refused what, and from where; of a credential only what is no secret."""
    client = scope.get("client")
    token = (header(scope, b"authorization") or b"").decode("latin-1").partition(" ")[2].strip()
    REFUSALS.note(
        "call refused",
        address=client_network(client[0]) if client else "",
        reason=error.code,
        method=scope["method"],
        path=scope["path"],
        who=scope.get(SCOPE_CALLER, ""),
        credential=credential_id(token),
        detail=error.detail,
    )


async def answer_errors(
    scope: AsgiScope,
    send: AsgiSend,
    work: Callable[[], Awaitable[None]],
    refuse: Callable[[AsgiSend, YardError], Awaitable[None]] = send_problem,
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
        if exc.status in REFUSAL_STATUSES:
            _note_refusal(scope, exc)
        await refuse(send, exc)
    except asyncio.CancelledError:
        # A stopping server gives up what is still open. Without an answer it would be a 500, which nobody tries again.
        with contextlib.suppress(RuntimeError):  # an answer that has begun, a stream, is only cut off
            await refuse(send, Unavailable("The server stops before this is done; it may still happen."))
    except RecursionError:  # of a job, say, that was stored when deeper bodies were taken
        error = Malformed(TOO_DEEP)
        _note_refusal(scope, error)
        await refuse(send, error)
    except Exception as exc:  # the door's last resort: the client gets a problem, the log the place
        log.error("defect", method=scope["method"], path=scope["path"], exc_info=exc)
        await refuse(send, Internal())
