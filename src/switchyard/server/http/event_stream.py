"""Events as they happen: server-sent events over plain ASGI.

A follower is a cursor, not a queue: it reads the next page of events from the store when it has sent the last one, so
a slow one costs one page of memory, and one that never reads is cut off. Numbers become visible in order, so a follower
that comes back with the last number it saw misses nothing, at whatever server. Followers that may see the same and have
come equally far share each read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec

from switchyard.errors import Busy, Denied, Malformed, YardError
from switchyard.model.access import Role
from switchyard.model.api import Event
from switchyard.server.http.asgi_messages import AsgiReceive, AsgiScope, AsgiSend, header
from switchyard.server.http.authenticate import authenticate_user, bearer
from switchyard.server.http.call import Call, read_query
from switchyard.server.http.connection_gate import reset_on_close
from switchyard.server.http.endpoint import check_query
from switchyard.server.http.endpoints import ENDPOINTS
from switchyard.server.http.hot_routes import wait_for_disconnect
from switchyard.server.http.query_parameters import SEQ_MAX
from switchyard.server.runtime import ServerRuntime
from switchyard.server.wakeup_hub import wait_for_first
from switchyard.service.job import jobs
from switchyard.service.rights import Actor

PATH = "/v1/events/stream"
SEQ_DIGITS = 19  # Python itself refuses to read numbers of thousands
STREAMS_MAX = 500  # followers of one server: each costs a query per burst of events
EVENTS_PER_READ = 200  # events read at once
PART_BYTES = 32 * 1024  # handed to the socket at once: what a follower that does not read costs
READ_PAUSE_S = 0.1  # between two looks of one follower: what comes in between is read together
READ_PAUSE_PER_STREAM_S = 0.02  # the same for each stream of a user: one who has many follows each of them more slowly
HEARTBEAT_S = 15.0  # a line when nothing happens: both sides learn that the other is gone
SEND_S = 30.0  # a follower that took nothing for so long is cut off
REREAD_S = 5.0  # a look without a wake-up: one may have been lost
RETRY_MS = 1000  # what the client should wait before it comes back

_encoder = msgspec.json.Encoder()


class FollowerStalled(Exception):
    """The follower does not read."""


@dataclass
class _Cursor:
    """Where a follower stands. `job` is a whole id."""

    after: int
    job: str | None
    project: str | None


@dataclass
class _Follower:
    """Who follows, by which picture of the rules. Looked at again when that changed, and as a token may run out."""

    actor: Actor
    rights: object
    checked_at: float = 0.0

    async def look_again(self, yard: ServerRuntime, scope: AsgiScope) -> None:
        now, rights = asyncio.get_running_loop().time(), yard.context.snapshots.access
        if rights is not self.rights or now - self.checked_at >= HEARTBEAT_S:
            self.actor = await authenticate_user(yard, scope)
            self.rights, self.checked_at = rights, now


async def stream_events(yard: ServerRuntime, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
    """GET /v1/events/stream."""
    actor = await authenticate_user(yard, scope)
    query = read_query(scope)
    check_query(next(each for each in ENDPOINTS if each.path == PATH), query)
    call = Call(yard, actor, {}, query, None, bearer(scope))
    if yard.streams >= STREAMS_MAX:
        raise Busy(f"{STREAMS_MAX} followers are connected to this server.")
    rights = yard.context.snapshots.access
    with yard.limiter.holding(actor, "streams"), yard.stream_places.taken(actor.name):
        cursor = await yard.in_thread(_begin, call, _last_id(scope))
        gone: asyncio.Task[object] = asyncio.ensure_future(wait_for_disconnect(receive))
        yard.streams += 1
        try:
            await _follow(yard, scope, send, cursor, gone, who=_Follower(actor, rights))
        except FollowerStalled:
            _cut_off(send)
        finally:
            yard.streams -= 1
            gone.cancel()


async def _follow(
    yard: ServerRuntime,
    scope: AsgiScope,
    send: AsgiSend,
    cursor: _Cursor,
    gone: asyncio.Task[object],
    *,
    who: _Follower,
) -> None:
    headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    if scope["method"] == "HEAD":  # whether one may follow is all that is asked
        await _send(send, b"", more=False)
        return
    await _send(send, f"retry: {RETRY_MS}\nid: {cursor.after}\n\n".encode())
    loop = asyncio.get_running_loop()
    said = loop.time()
    while not gone.done() and not yard.hub.is_closing:
        with yard.hub.following(cursor.job) as waiter:
            # Registered first, then looked: what happens in between would wake nobody.
            try:
                await who.look_again(yard, scope)  # a token that was revoked meanwhile ends the stream
                parts, count, reached = await _read_shared(yard, who.actor, cursor)
            except YardError:
                break  # told when it comes back
            for part in parts:
                await _send(send, part)
            if parts or loop.time() - said >= HEARTBEAT_S:
                # The number alone is no event to a client, but it is where it goes on: also past what it may not see.
                await _send(send, f": here\nid: {reached}\n\n".encode())
                said = loop.time()
            cursor.after = reached
            if count == EVENTS_PER_READ:
                continue
            mine = yard.limiter.open_of(who.actor, "streams")
            left_s = max(0.0, said + HEARTBEAT_S - loop.time())
            await wait_for_first(waiter, gone, min(max(REREAD_S, mine * READ_PAUSE_PER_STREAM_S), left_s))
        await asyncio.sleep(max(READ_PAUSE_S, mine * READ_PAUSE_PER_STREAM_S))
    await _send(send, b"", more=False)


def _begin(call: Call, last_id: int | None) -> _Cursor:
    """Check what is asked for, and find where to begin."""
    context, actor = call.yard.context, call.actor
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
        what = "Last-Event-ID" if last_id is not None else "parameter 'after'"
        raise Malformed(
            f"The {what} is above the number of the newest event, {newest}.",
            next_step="Begin without one, or with the number of an event that this server has sent.",
        )
    return _Cursor(newest if after < 0 else after, job, project)


async def _read_shared(yard: ServerRuntime, actor: Actor, cursor: _Cursor) -> tuple[list[bytes], int, int]:
    """The next look, one for all followers of one user who are as far: others may not see the same clusters."""
    projects = actor.viewable_projects()
    key = (PATH, actor.id, None if projects is None else tuple(projects), cursor.job, cursor.project, cursor.after)
    found: tuple[list[bytes], int, int] = await yard.reads.read(
        key, lambda: yard.in_thread(_read_events, yard, actor, replace(cursor))
    )
    return found


def _read_events(yard: ServerRuntime, actor: Actor, cursor: _Cursor) -> tuple[list[bytes], int, int]:
    """The next events as they are sent, how many they are, and the number from which to go on."""
    found, reached = jobs.next_events(
        yard.context, actor, job_id=cursor.job, project=cursor.project, after=cursor.after, limit=EVENTS_PER_READ
    )
    return list(_parts(found)), len(found), reached


def _parts(found: list[Event]) -> Iterator[bytes]:
    part = b""
    for event in found:
        part += b"id: %d\nevent: %b\ndata: %b\n\n" % (event.seq, event.kind.encode(), _encoder.encode(event))
        if len(part) >= PART_BYTES:
            yield part
            part = b""
    if part:
        yield part


async def _send(send: AsgiSend, body: bytes, *, more: bool = True) -> None:
    """Hand it over, or give up: the send of a client that does not read waits until it does."""
    try:
        await asyncio.wait_for(send({"type": "http.response.body", "body": body, "more_body": more}), SEND_S)
    except TimeoutError as exc:
        raise FollowerStalled from exc


def _cut_off(send: AsgiSend) -> None:
    """Drop the connection with what it has not taken. ASGI has no word for it; uvicorn's `send` knows its transport."""
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
