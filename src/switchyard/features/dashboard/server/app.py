"""The dashboard's addresses: pages, static files, sign-in and sign-out, and the API for scripts of our own pages."""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import quote

from starlette.routing import Route, Router

from switchyard.errors import NotFound, Unauthenticated, YardError
from switchyard.features.dashboard.server import session
from switchyard.features.dashboard.server.live import stream_fragments
from switchyard.features.dashboard.server.pages import audit, clusters, job, jobs, overview, plan, pools, rules
from switchyard.features.dashboard.server.rendering import STATIC_TYPES, Renderer, compress
from switchyard.features.dashboard.server.session import THEME_COOKIE, read_cookies
from switchyard.server.feature import AsgiApp, server_features
from switchyard.server.http.bodies.body_bounds import SMALL_BODY
from switchyard.server.http.bodies.body_decoding import read_bounded
from switchyard.server.http.call import Call, read_query
from switchyard.server.http.connections.asgi_messages import (
    JSON,
    AsgiReceive,
    AsgiScope,
    AsgiSend,
    answer_errors,
    encode,
    header,
    note_refusal,
    retry_after,
    send_body,
    send_not_allowed,
    send_problem,
)
from switchyard.server.http.endpoint import Endpoint, check_query
from switchyard.server.http.endpoint_route import EndpointRoute
from switchyard.server.loops.runtime import ServerRuntime
from switchyard.server.pages.web_page import WebPage, without_empty_fields

PAGES = (overview.PAGE, jobs.PAGE, job.PAGE)
LATER_PAGES = (
    clusters.LIST_PAGE,
    clusters.ONE_PAGE,
    plan.PAGE,
    rules.PAGE,
    pools.PAGE,
    audit.PAGE,
)
API_PREFIX = "/session"  # before the path of the API
STATIC_PREFIX = "/static/"
SIGN_IN, SIGN_OUT = "/sign-in", "/sign-out"
FIRST_WORDS = frozenset({"", "session", "static", "sign-in", "sign-out"})
YEAR_S = 366 * 86_400
# Scripts, styles and connections of this server alone, nothing inline; no other page may hold ours in a frame.
SECURITY_HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        b"form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]
HTML = (b"content-type", b"text/html; charset=utf-8")
NO_STORE = (b"cache-control", b"no-store")
BY_ACCEPT = (b"vary", b"accept, accept-encoding, cookie")
GZIP = (b"content-encoding", b"gzip")
THEMES = ("light", "dark")


def all_pages() -> list[WebPage]:
    """The pages of the dashboard and of features, in the order of the navigation."""
    of_features = (page for feature in server_features() for page in feature.pages())
    return [*PAGES, *of_features, *LATER_PAGES]


class DashboardApp:
    """`api` serves the API: scripts of our pages call it with the session's cookie."""

    def __init__(self, server: ServerRuntime, api: AsgiApp) -> None:
        self._server = server
        self._api = api
        pages = all_pages()
        self._first_words = FIRST_WORDS | {page.path.split("/")[1] for page in pages}
        self._renderer = Renderer(pages)
        self._sign_ins = session.SignInLimiter()
        routes = [Route(page.path, partial(PageRoute(page, self._renderer), server)) for page in pages]
        self._router = Router(routes=routes, default=_not_found, redirect_slashes=False)

    def serves(self, path: str) -> bool:
        return path.startswith("/") and path[1:].partition("/")[0] in self._first_words

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        path: str = scope["path"]
        send = partial(_send_secured, send)
        if path.startswith(f"{API_PREFIX}/"):
            await answer_errors(scope, send, lambda: self._call_api(scope, receive, send))
            return
        request = session.with_session(scope)
        refuse = partial(self._send_error, scope)
        await answer_errors(request, send, lambda: self._serve(request, receive, send), refuse)

    async def _serve(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        path, method = scope["path"], scope["method"]
        if path in (SIGN_IN, SIGN_OUT):
            if method == "POST":
                await (self._sign_in if path == SIGN_IN else self._sign_out)(scope, receive, send)
            elif method in ("GET", "HEAD") and path == SIGN_IN:
                await self._send_sign_in(scope, send, 200)
            else:
                await send_not_allowed(scope, send, ("POST",))
        elif method not in ("GET", "HEAD"):
            await send_not_allowed(scope, send, ("GET", "HEAD"))
        elif path.startswith(STATIC_PREFIX):
            await self._send_static(scope, send, path.removeprefix(STATIC_PREFIX))
        elif not path.isprintable():
            await _not_found(scope, receive, send)
        else:
            await self._router(scope, receive, send)

    async def _call_api(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        """Serve a call of the API for a script of our own pages."""
        session.need_page_header(scope)
        request = session.with_session(scope)
        request["path"] = scope["path"].removeprefix(API_PREFIX)
        request["raw_path"] = request["path"].encode()
        if not request["path"].startswith("/v1/"):
            raise NotFound(f"There is nothing at {scope['path'][:200]!r}.")
        await self._api(request, receive, send)

    async def _sign_in(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        session.refuse_other_sites(scope)
        form = session.read_form(await read_bounded(self._server.bodies, scope, receive, SMALL_BODY))
        target = session.local_address(form.get("next", "/"))
        if self._server.settings.is_open:
            await _redirect(send, target)
            return
        try:
            actor = await self._server.authenticator.user(session.with_token(scope, form.get("token", "").strip()))
        except Unauthenticated as exc:
            note_refusal(session.with_token(scope, form.get("token", "").strip()), exc)
            await self._send_sign_in(scope, send, 401, target=target, problem=exc.detail)
            return
        self._sign_ins.count(actor)
        cookie = await self._server.workers.in_thread(session.open_session, self._server.context, actor)
        await _redirect(send, target, session.session_cookie(scope, cookie))

    async def _sign_out(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        session.refuse_other_sites(scope)
        await read_bounded(self._server.bodies, scope, receive, SMALL_BODY)
        token = session.session_token(scope)
        try:
            actor = await self._server.authenticator.user(session.with_token(scope, token))
        except Unauthenticated:
            pass  # it has ended already
        else:
            if token:
                await self._server.workers.in_thread(session.close_session, self._server.context, actor)
        await _redirect(send, SIGN_IN, session.session_cookie(scope, ""))

    async def _send_sign_in(
        self, scope: AsgiScope, send: AsgiSend, status: int, *, target: str = "", problem: str = ""
    ) -> None:
        if self._server.settings.is_open:
            await _redirect(send, "/")
            return
        query = session.read_form(scope["query_string"]) if scope["query_string"].isascii() else {}
        target = target or session.local_address(query.get("next", "/"))
        body = self._renderer.plain("sign_in.html", theme=theme_of(scope), target=target, problem=problem)
        await send_body(send, status, body, HTML, NO_STORE)

    async def _send_error(self, scope: AsgiScope, send: AsgiSend, error: YardError) -> None:
        """Send an error to a person as a page, and to a script as a problem. Who is not signed in goes to sign in."""
        if not (header(scope, b"accept") or b"*/*").startswith((b"text/html", b"*/*")):
            await send_problem(send, error)
        elif isinstance(error, Unauthenticated):
            query = scope["query_string"].decode("latin-1")
            here = f"{scope['path']}?{query}" if query else scope["path"]
            await _redirect(send, SIGN_IN if here == "/" else f"{SIGN_IN}?next={quote(here)}")
        else:
            body = self._renderer.plain("error.html", theme=theme_of(scope), error=error, path=scope["path"])
            await send_body(send, error.status, body, HTML, NO_STORE, *retry_after(error))

    async def _send_static(self, scope: AsgiScope, send: AsgiSend, name: str) -> None:
        """A static file. Its address has a hash of all static files, so browsers may keep it."""
        version, _, file = name.partition("/")
        if file not in STATIC_TYPES:
            raise NotFound(f"There is nothing at {scope['path'][:200]!r}.")
        is_current = version == self._renderer.version
        age = f"public, max-age={YEAR_S}, immutable" if is_current else "no-store"
        headers = [(b"content-type", STATIC_TYPES[file]), (b"cache-control", age.encode())]
        body = self._renderer.static[file]
        if accepts_gzip(scope):
            body = await self._server.workers.in_thread(self._renderer.packed, file)
            headers += [GZIP, (b"vary", b"accept-encoding")]
        await send_body(send, 200, body, *headers)


class PageRoute(EndpointRoute):
    """A page as an endpoint: authentication, threads and fresh snapshots are those of the API.

    It is served as HTML, as a stream of its live blocks, or as its live blocks once. The browser asks for all three at
    the page's own address, by the header Accept: so all are checked by the same rules.
    """

    def __init__(self, page: WebPage, renderer: Renderer) -> None:
        super().__init__(
            Endpoint("GET", page.path, summary=page.title, answer=None, handler=self._render, is_heavy=page.is_heavy)
        )
        self.page = page
        self._renderer = renderer

    async def __call__(self, server: ServerRuntime, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        versions = server.context.snapshots.all_versions
        actor, _ = await self._authenticate(server, scope)
        call = Call(server.services, server.wakeups, actor, dict(scope["path_params"]), read_query(scope))
        call = without_empty_fields(call)
        check_query(self.page.query, call.query)
        accept = header(scope, b"accept") or b""
        if accept.startswith(b"text/event-stream"):
            load = partial(self._load_fragments, server, scope, known=versions)
            await stream_fragments(
                server, scope, receive, send, page=self.page, call=call, load=load, renderer=self._renderer
            )
        elif accept.startswith(b"application/json"):
            fragments = await self._run(server, scope, call, versions, self._render_fragments)
            await send_body(send, 200, encode(fragments), JSON, NO_STORE, BY_ACCEPT)
        else:
            render = partial(self._render, theme=theme_of(scope), is_gzip=accepts_gzip(scope))
            body = await self._run(server, scope, call, versions, render)
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


async def _send_secured(send: AsgiSend, message: Any) -> None:
    if message["type"] == "http.response.start":
        message = {**message, "headers": [*message["headers"], *SECURITY_HEADERS]}
    await send(message)


async def _redirect(send: AsgiSend, target: str, *headers: tuple[bytes, bytes]) -> None:
    await send_body(send, 303, b"", (b"location", target.encode()), NO_STORE, *headers)


async def _not_found(scope: AsgiScope, _receive: AsgiReceive, _send: AsgiSend) -> None:
    raise NotFound(f"There is no page {scope['path'][:200]!r}.", next_step="The links above lead to all pages.")


def accepts_gzip(scope: AsgiScope) -> bool:
    return b"gzip" in (header(scope, b"accept-encoding") or b"")


def theme_of(scope: AsgiScope) -> str:
    """The theme that the reader chose; empty: that of their system."""
    theme = read_cookies(scope).get(THEME_COOKIE, "")
    return theme if theme in THEMES else ""
