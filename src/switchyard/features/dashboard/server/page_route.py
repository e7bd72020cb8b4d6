"""Serves one page: as HTML, as a stream of its live blocks, or as its live blocks once.

The browser asks for all three at the page's own address, by the header Accept. So the address of a view is also the
address of its stream, and both are checked by the same rules.
"""

from __future__ import annotations

from functools import partial

from switchyard.features.dashboard.server.live import stream_fragments
from switchyard.features.dashboard.server.rendering import Renderer, compress
from switchyard.features.dashboard.server.session import THEME_COOKIE, read_cookies
from switchyard.server.http.call import Call, read_query
from switchyard.server.http.connections.asgi_messages import (
    JSON,
    AsgiReceive,
    AsgiScope,
    AsgiSend,
    encode,
    header,
    send_body,
)
from switchyard.server.http.endpoint import Endpoint, check_query
from switchyard.server.http.endpoint_route import EndpointRoute
from switchyard.server.loops.runtime import ServerRuntime
from switchyard.server.pages.web_page import WebPage, without_empty_fields

HTML = (b"content-type", b"text/html; charset=utf-8")
NO_STORE = (b"cache-control", b"no-store")
BY_ACCEPT = (b"vary", b"accept, accept-encoding, cookie")
GZIP = (b"content-encoding", b"gzip")
THEMES = ("light", "dark")


class PageRoute(EndpointRoute):
    """A page as an endpoint: authentication, threads and fresh snapshots are those of the API."""

    def __init__(self, page: WebPage, renderer: Renderer) -> None:
        super().__init__(Endpoint("GET", page.path, page.title, None, self._render, is_heavy=page.is_heavy))
        self.page = page
        self._renderer = renderer

    async def __call__(self, server: ServerRuntime, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        known = server.context.snapshots.all_versions
        actor, _ = await self._authenticate(server, scope)
        call = Call(server.services, server.wakeups, actor, dict(scope["path_params"]), read_query(scope))
        call = without_empty_fields(call)
        check_query(self.page.query, call.query)
        accept = header(scope, b"accept") or b""
        if accept.startswith(b"text/event-stream"):
            load = partial(self._load_fragments, server, scope, known=known)
            await stream_fragments(
                server, scope, receive, send, page=self.page, call=call, load=load, renderer=self._renderer
            )
        elif accept.startswith(b"application/json"):
            fragments = await self._run(server, scope, call, known, self._render_fragments)
            await send_body(send, 200, encode(fragments), JSON, NO_STORE, BY_ACCEPT)
        else:
            render = partial(self._render, theme=theme_of(scope), is_gzip=accepts_gzip(scope))
            body = await self._run(server, scope, call, known, render)
            encoding = (GZIP,) if accepts_gzip(scope) else ()
            await send_body(send, 200, body, HTML, NO_STORE, BY_ACCEPT, *encoding)

    async def _load_fragments(
        self, server: ServerRuntime, scope: AsgiScope, call: Call, *, known: tuple[int, ...]
    ) -> dict[str, str]:
        fragments: dict[str, str] = await self._run(server, scope, call, known, self._render_fragments)
        return fragments

    def _render(self, call: Call, *, theme: str = "", is_gzip: bool = False) -> bytes:
        """Read, render and compress on one thread: all three grow with the page."""
        body = self._renderer.page(self.page, call, self.page.load(call), theme=theme)
        return compress(body) if is_gzip else body

    def _render_fragments(self, call: Call) -> dict[str, str]:
        return self._renderer.fragments(self.page, call, self.page.load(call))


def accepts_gzip(scope: AsgiScope) -> bool:
    return b"gzip" in (header(scope, b"accept-encoding") or b"")


def theme_of(scope: AsgiScope) -> str:
    """The theme that the reader chose; empty: that of their system."""
    theme = read_cookies(scope).get(THEME_COOKIE, "")
    return theme if theme in THEMES else ""
