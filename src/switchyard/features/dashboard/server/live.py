"""Streams the live blocks of a page to open browsers, as server-sent events.

A stream has no queue: when something happened, the blocks are rendered again, after a pause, and those that changed
are sent. The pause grows with what a rendering costs and with the open streams of the user. All streams of one user on
the same view share each rendering; of the overview, all streams of users with the same rights do. So a slow client
costs one rendering of memory, and a hundred open pages cost one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field, replace

import msgspec

from switchyard.errors import YardError
from switchyard.features.dashboard.server.rendering import Renderer
from switchyard.model.rules.access import ROLE_RANK, Role
from switchyard.model.wire.ids import LENGTH, is_id
from switchyard.server.http.call import Call
from switchyard.server.http.connections.asgi_messages import AsgiReceive, AsgiScope, AsgiSend, wait_for_disconnect
from switchyard.server.http.event_stream import (
    RETRY_MS,
    FollowerStalled,
    StreamFollower,
    cut_off,
    send_part,
)
from switchyard.server.loops.runtime import ServerRuntime
from switchyard.server.loops.wakeup_hub import wait_for_first
from switchyard.server.pages.web_page import WebPage
from switchyard.service.core.rights import Actor

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
    (b"vary", b"accept, cookie"),
]

STEP_S = 2.0  # between two looks whether rights have changed
BEAT_S = 5.0  # between two lines when nothing changes: a browser that hears none for long says that it is not live
BEAT = b"event: here\ndata: {}\n\n"
VIEWERS = ":viewers"  # in a key: all who may view the platform; no user can be called so
RENDER_SHARE = 10  # a stream waits so many times as long as its last rendering took: it keeps a tenth of a thread busy
PAUSE_PER_STREAM_S = 0.1  # for each open stream of the user: many streams of one user are slower
PAUSE_MAX_S = 15.0

_encoder = msgspec.json.Encoder()
LoadFragments = Callable[[Call], Awaitable[dict[str, str]]]


@dataclass
class _View:
    """One open page: what it shows, and what it has got of it."""

    page: WebPage
    call: Call
    load: LoadFragments
    block_hashes: dict[str, int] = field(default_factory=dict)  # block → hash of its last text
    spoke_at: float = 0.0
    is_begun: bool = False  # the browser got the beginning of the stream

    @property
    def job_id(self) -> str | None:
        """The job whose changes wake the view; None: all events do."""
        job = self.call.path.get("job", "")
        return job if len(job) == LENGTH and is_id(job) else None

    def changes(self, fragments: dict[str, str]) -> bytes:
        """The blocks that changed since the last call, as events."""
        parts = []
        for name, html in fragments.items():
            if self.block_hashes.get(name) != hash(html):
                self.block_hashes[name] = hash(html)
                parts.append(b"event: block\ndata: %b\n\n" % _encoder.encode({"name": name, "html": html}))
        return b"".join(parts)


async def stream_fragments(
    server: ServerRuntime,
    scope: AsgiScope,
    receive: AsgiReceive,
    send: AsgiSend,
    *,
    page: WebPage,
    call: Call,
    load: LoadFragments,
    renderer: Renderer,
) -> None:
    """Follow a page until the browser leaves it, the session ends, or the server stops."""
    follower = StreamFollower(call.actor, server.context.snapshots.access)
    view = _View(page, call, load)

    async def begin() -> None:
        hello = _encoder.encode({"version": renderer.version, "now_us": server.context.now_us(), "beat_s": BEAT_S})
        await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
        await send_part(send, f"retry: {RETRY_MS}\nevent: hello\ndata: {hello.decode()}\n\n".encode())
        view.is_begun = True

    with server.limiter.hold_open(call.actor, "streams"):
        gone: asyncio.Task[object] = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            await _follow(server, scope, send=send, view=view, gone=gone, follower=follower, begin=begin)
        except FollowerStalled:
            cut_off(send)
        finally:
            gone.cancel()


async def _follow(
    server: ServerRuntime,
    scope: AsgiScope,
    send: AsgiSend,
    view: _View,
    gone: asyncio.Task[object],
    *,
    follower: StreamFollower,
    begin: Callable[[], Awaitable[None]],
) -> None:
    """Send the blocks that change. A page that may not be shown at all is refused with its status, not streamed."""
    loop, hub = asyncio.get_running_loop(), server.wakeups.hub

    async def wait(waiter: asyncio.Future[None], seconds: float) -> None:
        """Wait for an event or a change of the user's rights. A revoked session raises Unauthenticated."""
        deadline, rights = loop.time() + seconds, rights_key(view.call.actor)
        while not waiter.done() and rights_key(view.call.actor) == rights and (left := deadline - loop.time()) > 0:
            if not await _wait(server, send, view=view, waiter=waiter, gone=gone, seconds=left):
                break
            await authenticate()

    async def authenticate() -> None:
        await follower.authenticate_again(server, scope)
        view.call = replace(view.call, actor=follower.actor)

    try:
        while not gone.done() and not hub.is_closing:
            with hub.event_waiter(view.job_id) as waiter:
                # Register first, then read: an event in between would wake nobody.
                await authenticate()
                fragments, cost_s = await _read_shared(server, view)
                if not view.is_begun:
                    await begin()
                if part := view.changes(fragments):
                    await send_part(send, part)
                    view.spoke_at = loop.time()
                await wait(waiter, view.page.refresh_s)
            user_streams = server.limiter.open["streams"].of(view.call.actor.name)
            await wait(loop.create_future(), pause_s(view.page, cost_s, user_streams))
    except YardError:
        if not view.is_begun:
            raise
        # The browser hears the reason when it asks again.
    if not view.is_begun:  # the server stops
        await begin()
    await send_part(send, b"", more=False)


def pause_s(page: WebPage, cost_s: float, user_streams: int) -> float:
    """The time between two renderings of one stream. `cost_s`: how long the last rendering took."""
    return min(PAUSE_MAX_S, max(page.pause_s, RENDER_SHARE * cost_s, PAUSE_PER_STREAM_S * user_streams))


async def _wait(
    server: ServerRuntime,
    send: AsgiSend,
    view: _View,
    waiter: asyncio.Future[None],
    gone: asyncio.Task[object],
    *,
    seconds: float,
) -> bool:
    """Wait for a short while, and let the browser know that the server lives. False: the stream is over."""
    await wait_for_first(waiter, gone, min(seconds, STEP_S))
    if gone.done() or server.wakeups.hub.is_closing:
        return False
    now = asyncio.get_running_loop().time()
    if now - view.spoke_at >= BEAT_S:
        await send_part(send, BEAT)
        view.spoke_at = now
    return True


async def _read_shared(server: ServerRuntime, view: _View) -> tuple[dict[str, str], float]:
    """Render once for all streams on this view whose users have the same rights. Return the blocks and the seconds."""
    call, loop = view.call, asyncio.get_running_loop()

    async def load() -> tuple[dict[str, str], float]:
        begun = loop.time()
        return await view.load(call), loop.time() - begun

    fragments: tuple[dict[str, str], float] = await server.wakeups.reads.read(view_key(view.page, call), load)
    return fragments


def view_key(page: WebPage, call: Call) -> Hashable:
    """What the live blocks of a page depend on, besides the data: the address, and who looks with which rights."""
    is_same = page.is_same_for_viewers and call.actor.rights.platform >= ROLE_RANK[Role.VIEW]
    query = tuple((name, value) for name, value in call.query if name not in page.still_query)
    reader = VIEWERS if is_same else call.actor.id
    return (
        "page",
        page.path,
        reader,
        rights_key(call.actor, with_projects=not is_same),
        (*sorted(call.path.items()),),
        query,
    )


def rights_key(actor: Actor, *, with_projects: bool = True) -> Hashable:
    """The rights of a user as a key. Projects do not matter for one who may view the platform and so all projects."""
    return actor.rights.cluster_key, actor.rights.project_key if with_projects else None
