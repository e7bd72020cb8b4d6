"""Streams of events: server-sent events over plain ASGI.

A stream is a cursor, not a queue: it reads the next page of events from the database after it has sent the last one. So
a slow client costs one page of memory, and one that never reads is cut off. Event numbers become visible in order, so a
client that reconnects with its last number misses nothing, at any server. Streams of one user at the same position
share each read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec

from switchyard.errors import Denied, Malformed, YardError
from switchyard.model.rules.access import Role
from switchyard.model.wire.api import Event
from switchyard.server.http.call import Call, read_query
from switchyard.server.http.connections.asgi_messages import (
    AsgiReceive,
    AsgiScope,
    AsgiSend,
    header,
    wait_for_disconnect,
)
from switchyard.server.http.connections.connection_gate import reset_on_close
from switchyard.server.http.endpoint import check_query
from switchyard.server.http.query_parameters import SEQ_MAX, QueryParameter
from switchyard.server.loops.runtime import ServerRuntime
from switchyard.server.loops.wakeup_hub import wait_for_first
from switchyard.service.core.rights import Actor
from switchyard.service.job import jobs

PARAMETERS = (
    QueryParameter("after", "integer", "from this number on; none: from now on"),
    QueryParameter("job", about="only of this job"),
    QueryParameter("project", about="only of this project"),
)
SEQ_DIGITS = 19  # checked first: Python refuses to read numbers with thousands of digits
EVENTS_PER_READ = 200  # events read at once
PART_BYTES = 32 * 1024  # handed to the socket at once: the memory that a client costs that does not read
READ_PAUSE_S = 0.1  # between two reads of one stream: events in between are read together
READ_PAUSE_PER_STREAM_S = 0.02  # the same for each open stream of the user: many streams of one user are slower
HEARTBEAT_S = 15.0  # between two lines when there are no events: both sides notice that the other is gone
SEND_S = 30.0  # a client that took nothing for so long is cut off
REREAD_S = 5.0  # a read without a wake-up: one may have been lost
RETRY_MS = 1000  # how long a client should wait before it reconnects

_encoder = msgspec.json.Encoder()


class FollowerStalled(Exception):
    """The client does not read."""


@dataclass
class _Cursor:
    """The position of a stream. `job`: a full id."""

    after: int
    job: str | None
    project: str | None


@dataclass
class StreamFollower:
    """The user of a stream. Authenticated again when a grant changed, and now and then because a token may expire."""

    actor: Actor
    rights: object
    checked_at: float = 0.0

    async def authenticate_again(self, server: ServerRuntime, scope: AsgiScope) -> None:
        now, rights = asyncio.get_running_loop().time(), server.context.snapshots.access
        if rights is not self.rights or now - self.checked_at >= HEARTBEAT_S:
            self.actor = await server.authenticator.user(scope)
            self.rights, self.checked_at = rights, now


async def stream_events(server: ServerRuntime, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
    """GET /v1/events/stream."""
    actor = await server.authenticator.user(scope)
    query = read_query(scope)
    check_query(PARAMETERS, query)
    call = Call(server.services, server.wakeups, actor, {}, query)
    rights = server.context.snapshots.access
    with server.limiter.hold_open(actor, "streams"):
        cursor = await server.workers.in_thread(_begin, call, _last_id(scope))
        gone: asyncio.Task[object] = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            await _follow(server, scope, send, cursor, gone, follower=StreamFollower(actor, rights))
        except FollowerStalled:
            cut_off(send)
        finally:
            gone.cancel()


async def _follow(
    server: ServerRuntime,
    scope: AsgiScope,
    send: AsgiSend,
    cursor: _Cursor,
    gone: asyncio.Task[object],
    *,
    follower: StreamFollower,
) -> None:
    headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    if scope["method"] == "HEAD":  # it asks only whether the stream is allowed
        await send_part(send, b"", more=False)
        return
    await send_part(send, f"retry: {RETRY_MS}\nid: {cursor.after}\n\n".encode())
    loop = asyncio.get_running_loop()
    spoke_at = loop.time()
    while not gone.done() and not server.wakeups.hub.is_closing:
        with server.wakeups.hub.event_waiter(cursor.job) as waiter:
            # Register first, then read: an event in between would wake nobody.
            try:
                await follower.authenticate_again(server, scope)  # a revoked token ends the stream
                parts, count, reached = await _read_shared(server, follower.actor, cursor)
            except YardError:
                break  # the client hears the reason when it reconnects
            for part in parts:
                await send_part(send, part)
            if parts or loop.time() - spoke_at >= HEARTBEAT_S:
                # An id without an event moves the client's position, also past events that it may not see.
                await send_part(send, f": here\nid: {reached}\n\n".encode())
                spoke_at = loop.time()
            cursor.after = reached
            if count == EVENTS_PER_READ:
                continue
            user_streams = server.limiter.open["streams"].of(follower.actor.name)
            left_s = max(0.0, spoke_at + HEARTBEAT_S - loop.time())
            await wait_for_first(waiter, gone, min(max(REREAD_S, user_streams * READ_PAUSE_PER_STREAM_S), left_s))
        await asyncio.sleep(max(READ_PAUSE_S, user_streams * READ_PAUSE_PER_STREAM_S))
    await send_part(send, b"", more=False)


def _begin(call: Call, last_id: int | None) -> _Cursor:
    """Check the parameters and find the first position."""
    context, actor = call.context, call.actor
    job, project = call.text("job"), call.text("project")
    if job is not None:
        job = jobs.job_get(context, actor, job).id
    if project is not None and not actor.may_project(Role.VIEW, project):
        raise Denied(f"You may not view the jobs of project {project[:80]}.")
    after = call.number("after", -1)
    if last_id is not None:
        after = last_id
    newest = jobs.last_event(context)
    if after > newest:
        source = "Last-Event-ID" if last_id is not None else "parameter 'after'"
        raise Malformed(
            f"The {source} is above the number of the newest event, {newest}.",
            next_step="Begin without one, or with the number of an event that this server has sent.",
        )
    return _Cursor(newest if after < 0 else after, job, project)


async def _read_shared(server: ServerRuntime, actor: Actor, cursor: _Cursor) -> tuple[list[bytes], int, int]:
    """Read the next events, once for all streams of one user at this position. Other users may see fewer clusters."""
    projects = actor.viewable_projects()
    key = ("events", actor.id, None if projects is None else tuple(projects), cursor.job, cursor.project, cursor.after)
    read: tuple[list[bytes], int, int] = await server.wakeups.reads.read(
        key, lambda: server.workers.in_thread(_read_events, server, actor, replace(cursor))
    )
    return read


def _read_events(server: ServerRuntime, actor: Actor, cursor: _Cursor) -> tuple[list[bytes], int, int]:
    """Return the next events as they are sent, their number, and the position after them."""
    events, reached = jobs.next_events(
        server.context, actor, job_id=cursor.job, project=cursor.project, after=cursor.after, limit=EVENTS_PER_READ
    )
    return list(_parts(events)), len(events), reached


def _parts(events: list[Event]) -> Iterator[bytes]:
    part = b""
    for event in events:
        part += b"id: %d\nevent: %b\ndata: %b\n\n" % (event.seq, event.kind.encode(), _encoder.encode(event))
        if len(part) >= PART_BYTES:
            yield part
            part = b""
    if part:
        yield part


async def send_part(send: AsgiSend, body: bytes, *, more: bool = True) -> None:
    """Send, or give up after a while: sending to a client that does not read waits until it reads."""
    try:
        await asyncio.wait_for(send({"type": "http.response.body", "body": body, "more_body": more}), SEND_S)
    except TimeoutError as exc:
        raise FollowerStalled from exc


def cut_off(send: AsgiSend) -> None:
    """Abort the connection and drop unsent bytes. ASGI has no call for this; uvicorn's `send` knows its transport."""
    transport = getattr(getattr(send, "__self__", None), "transport", None)
    if transport is not None:
        reset_on_close(transport.get_extra_info("socket"))
        transport.abort()


def _last_id(scope: AsgiScope) -> int | None:
    value = header(scope, b"last-event-id")
    if value is None or not value.strip():
        return None
    number = value.strip()
    if not number.isdigit() or len(number) > SEQ_DIGITS or int(number) > SEQ_MAX:
        raise Malformed("The Last-Event-ID is the number of an event, as the stream's `id` lines have it.")
    return int(number)
