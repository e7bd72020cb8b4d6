"""The ASGI application: finds what serves a request by its path and method, and counts the answers."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from functools import partial
from typing import Any

from starlette.routing import Route, Router

from switchyard.errors import NotFound
from switchyard.server.feature import HttpRoute, server_features
from switchyard.server.grpc.limiter import ANONYMOUS, current_address, current_caller
from switchyard.server.http.connections.asgi_messages import (
    JSON,
    AsgiReceive,
    AsgiScope,
    AsgiSend,
    ClientGone,
    answer_errors,
    encode,
    refuse_closed,
    send_body,
    send_json,
    send_not_allowed,
    send_problem,
)
from switchyard.server.http.connections.connection_gate import client_network
from switchyard.server.http.endpoint import AsgiHandler
from switchyard.server.http.endpoint_route import EndpointRoute
from switchyard.server.http.endpoints import ENDPOINTS
from switchyard.server.http.openapi import document
from switchyard.server.loops.runtime import ServerRuntime
from switchyard.server.metrics import Metrics, serve_metrics

UNVERSIONED_PATHS = frozenset({"/healthz", "/readyz", "/metrics", "/v1/openapi.json"})  # not in the table: GET alone
READ_METHODS = ("GET", "HEAD")
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class HttpApp:
    """Endpoints that serve themselves are found by comparison, the others by Starlette's router."""

    def __init__(self, server: ServerRuntime) -> None:
        self._server = server
        self._requests = server.context.tally.requests
        methods_by_path: dict[str, dict[str, AsgiHandler]] = {}
        for endpoint in ENDPOINTS:
            serve = endpoint.serve or EndpointRoute(endpoint)
            methods_by_path.setdefault(endpoint.path, {})[endpoint.method] = serve
        self._direct = {(endpoint.method, endpoint.path): endpoint.serve for endpoint in ENDPOINTS if endpoint.serve}
        self._literal_paths = UNVERSIONED_PATHS | {path for _, path in self._direct}
        # `/v1/agents/join` must be tried before `/v1/agents/{agent}`.
        paths = sorted(methods_by_path, key=lambda path: "{" in path)
        routes = [Route(path, _PathRoute(server, path, methods_by_path[path])) for path in paths]
        self._router = Router(routes=routes, default=_send_not_found, redirect_slashes=False)
        self._metrics = Metrics(server)
        self._features = [route for feature in server_features() for route in feature.routes(server, self._serve)]

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        if scope["type"] != "http":
            return
        current_caller.set(ANONYMOUS)
        current_address.set(client_network((scope.get("client") or ("",))[0]))
        status = 0

        async def send_noting_status(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            try:
                await send(message)
            except RuntimeError as exc:
                refuse_closed(scope, exc)
                raise

        try:
            await self._serve(scope, receive, send_noting_status)
        except ClientGone:
            pass
        finally:
            if status:  # 0: the client closed the connection before there was an answer
                method = scope["method"] if scope["method"] in METHODS else "other"
                self._requests.add(method, self._path_label(scope), str(status))

    async def _serve(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        path, method = scope["path"], scope["method"]
        if (serve := self._direct.get((method, path))) is not None:
            await answer_errors(scope, send, partial(serve, self._server, scope, receive, send))
        elif path in UNVERSIONED_PATHS and method not in READ_METHODS:
            await send_not_allowed(scope, send, READ_METHODS)
        elif path in ("/healthz", "/readyz"):
            reason = "" if path == "/healthz" else await self._server.readiness.why_not()
            answer = {"status": "not ready", "reason": reason} if reason else {"status": "ok"}
            await send_json(send, 503 if reason else 200, answer)
        elif path == "/metrics":
            await answer_errors(scope, send, lambda: serve_metrics(self._server, self._metrics, scope, receive, send))
        elif path == "/v1/openapi.json":
            is_open = self._server.settings.is_open
            await send_body(send, 200, await self._server.workers.in_thread(_openapi, is_open=is_open), JSON)
        elif not path.isprintable():
            # No name has such a character; `$` in a route's pattern would let a last newline through.
            await _send_not_found(scope, receive, send)
        elif (feature := self._feature_of(path)) is not None:
            await feature.app(scope, receive, send)
        else:
            await answer_errors(scope, send, lambda: self._router(scope, receive, send))

    def _path_label(self, scope: AsgiScope) -> str:
        """The path as the table has it: a label with the names of jobs in it would be a new one for each job."""
        route = scope.get("endpoint")  # set by the router
        if isinstance(route, _PathRoute):
            return route.path
        path = str(scope["path"])
        if path in self._literal_paths:
            return path
        feature = self._feature_of(path)
        return feature.label if feature is not None else "other"

    def _feature_of(self, path: str) -> HttpRoute | None:
        return next((route for route in self._features if route.serves(path)), None)


class _PathRoute:
    """All methods of one path."""

    def __init__(self, server: ServerRuntime, path: str, by_method: Mapping[str, AsgiHandler]) -> None:
        self.path = path
        self._server = server
        # HEAD is GET without the body, which the HTTP server leaves out.
        self._by_method = {**by_method, **({"HEAD": by_method["GET"]} if "GET" in by_method else {})}

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        serve = self._by_method.get(scope["method"])
        if serve is None:
            await send_not_allowed(scope, send, self._by_method)
        else:
            await serve(self._server, scope, receive, send)


def _openapi(*, is_open: bool) -> bytes:
    """Made at the first request: it takes a while."""
    return encode(document(is_open=is_open))


async def _send_not_found(scope: AsgiScope, _receive: AsgiReceive, send: AsgiSend) -> None:
    # As it was sent: decoded, `jobs/..%2Fclusters` would look like another address.
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    path = raw.partition(b"?")[0].decode(errors="replace")
    error = NotFound(f"There is nothing at {path[:200]!r}.", next_step="`/v1/openapi.json` lists every address.")
    await send_problem(send, error)
