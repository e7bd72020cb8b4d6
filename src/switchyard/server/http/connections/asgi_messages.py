"""Read requests and send answers over plain ASGI: headers, JSON, problems."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog

from switchyard.errors import Internal, Malformed, MethodNotAllowed, Unavailable, WrongMedia, YardError
from switchyard.model.wire.api import BulkAnswer, Problem
from switchyard.server.http.connections.connection_gate import client_network
from switchyard.server.refusal_log import REFUSALS, credential_id

AsgiScope = MutableMapping[str, Any]
AsgiReceive = Callable[[], Awaitable[MutableMapping[str, Any]]]
AsgiSend = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON = (b"content-type", b"application/json")
PROBLEM = (b"content-type", b"application/problem+json")
# With the bytes of a user's file: a browser that opens the address saves them, and never runs them as a page of ours.
USER_BYTES_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-disposition", b"attachment"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'; sandbox"),
)
# curl and Python's urllib declare the second one by default, whatever the body is.
JSON_MEDIA_TYPES = (b"application/json", b"application/x-www-form-urlencoded")
REFUSAL_STATUSES = frozenset({401, 403, 410})  # these are logged; 410: the agent was removed
SCOPE_CALLER = "switchyard.who"  # in a request's scope: the name of the user or agent, once known
SCOPE_IS_CLOSED = "switchyard.is_closed"  # in a request's scope: tells whether its connection is closed
PART_BYTES = 256 * 1024  # handed to the connection at once
STEP_ITEMS = 1000  # encoded at once

TOO_DEEP = "What was sent, or what is stored of it, is nested too deeply."

log = structlog.get_logger()
_encoder = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """An answer that is sent without encoding."""

    content: bytes
    media: bytes = b"text/plain; charset=utf-8"  # as it was uploaded: YAML or JSON


class ClientGone(Exception):
    """The client closed the connection before its request or its answer was complete."""


def refuse_closed(scope: AsgiScope, exc: RuntimeError) -> None:
    """Raise ClientGone if an answer could not be sent because the connection is closed: that is no defect."""
    is_closed = scope.get(SCOPE_IS_CLOSED)
    if is_closed is not None and is_closed():
        raise ClientGone from exc


def refuse_gone(scope: AsgiScope) -> None:
    """Raise ClientGone if the connection of this request is closed."""
    is_closed = scope.get(SCOPE_IS_CLOSED)
    if is_closed is not None and is_closed():
        raise ClientGone


async def wait_for_disconnect(receive: AsgiReceive) -> object:
    while (await receive())["type"] != "http.disconnect":
        pass
    return None


def refuse_parameters(scope: AsgiScope) -> None:
    """Refuse a query, for a call that takes everything in its body."""
    if scope["query_string"]:
        raise Malformed("This call takes no parameters; everything is in the body.")


def require_json(scope: AsgiScope, body: bytes) -> None:
    """Refuse an empty body, and one that is declared as something else than JSON."""
    media = header(scope, b"content-type")
    if media and media != JSON[1] and media.partition(b";")[0].strip().lower() not in JSON_MEDIA_TYPES:
        raise WrongMedia(f"The body is declared as {media[:80].decode('latin-1')!r}; it has to be JSON.")
    if not body:
        raise Malformed("The body is missing.", next_step="Send a JSON object, `{}` where nothing is to be said.")


def header(scope: AsgiScope, name: bytes) -> bytes | None:
    for key, value in scope["headers"]:
        if key == name:
            content: bytes = value
            return content
    return None


async def send_json(send: AsgiSend, status: int, value: object, *extra: tuple[bytes, bytes]) -> None:
    await send_body(send, status, _encoder.encode(value), JSON, *extra)


def encode(value: object) -> bytes:
    """Encode as JSON. Call it on a thread if the value may be large."""
    return _encoder.encode(value)


def encode_bulk(answer: BulkAnswer) -> bytes:
    """Encode in steps: the encoder holds the interpreter during one call."""
    items = answer.items
    parts = [_encoder.encode(items[at : at + STEP_ITEMS])[1:-1] for at in range(0, len(items), STEP_ITEMS)]
    return b'{"items":[%b],"made":%d,"refused":%d}' % (b",".join(parts), answer.made, answer.refused)


async def send_body(send: AsgiSend, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    if len(body) <= PART_BYTES:
        await send({"type": "http.response.body", "body": body})
        return
    # In parts, so that other requests get their turn in between.
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
    """The Retry-After header, for errors that may be gone later."""
    return [] if error.retry_after_s is None else [(b"retry-after", str(error.retry_after_s).encode())]


async def send_not_allowed(scope: AsgiScope, send: AsgiSend, methods: Iterable[str]) -> None:
    """Send a 405 with the allowed methods."""
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


def note_refusal(scope: AsgiScope, error: YardError) -> None:
    """Log a refusal: caller, address and reason. Of a credential only the id, which is no secret."""
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
    """Run a route and send an error as a problem. A defect is logged with its traceback.

    `refuse`: sends an error in another form, for Flyte's REST API.
    """
    try:
        await work()
    except ClientGone:
        return
    except YardError as exc:
        if exc.status >= 500 and not exc.transient:
            log.error("request failed", method=scope["method"], path=scope["path"], error=repr(exc), exc_info=exc)
        if exc.status in REFUSAL_STATUSES:
            note_refusal(scope, exc)
        await refuse(send, exc)
    except asyncio.CancelledError:
        # The server stops. Without this answer uvicorn would send a 500, which clients do not retry.
        with contextlib.suppress(RuntimeError):  # an answer that has begun, as of a stream, is cut off
            await refuse(send, Unavailable("The server stops before this is done; it may still happen."))
    except RecursionError:  # for example of a job that was stored when deeper bodies were allowed
        error = Malformed(TOO_DEEP)
        note_refusal(scope, error)
        await refuse(send, error)
    except Exception as exc:  # a defect: the client gets a problem, the log the traceback
        log.error("defect", method=scope["method"], path=scope["path"], exc_info=exc)
        await refuse(send, Internal())
