"""From the table of endpoints to Starlette routes: authenticate, decode, run the use case on a thread, encode."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import parse_qsl

from starlette.routing import Route, Router

from switchyard.errors import Malformed, NotFound, YardError
from switchyard.model.decode import JsonReader
from switchyard.model.lifecycle import FINAL
from switchyard.server.http import hot
from switchyard.server.http.answer import Receive, Scope, Send, guarded, read_body, send_json, send_problem
from switchyard.server.http.authenticate import authenticate_user, bearer, refuse_strangers
from switchyard.server.http.call import Call
from switchyard.server.http.endpoints import ENDPOINTS, JOINER, OPEN, Endpoint, check_query
from switchyard.server.http.openapi import document
from switchyard.server.hub import first_of
from switchyard.server.yard import Yard
from switchyard.service.rights import Actor, Rights

NOBODY = Actor("nobody", Rights())
QUERY_FIELDS_MAX = 100


class MethodNotAllowed(YardError):
    """This address does not take this method."""

    code = "method-not-allowed"
    status = 405
    grpc = "UNIMPLEMENTED"
    default_next = "`/v1/openapi.json` lists every address with its methods."


class Door:
    """The ASGI application. The two hottest routes are found by comparison, the others by Starlette's router."""

    def __init__(self, yard: Yard) -> None:
        self._yard = yard
        served: dict[str, dict[str, Any]] = {}
        for endpoint in ENDPOINTS:
            handler = _Handler(yard, endpoint) if endpoint.handler else _hot(endpoint)
            served.setdefault(endpoint.path, {})[endpoint.method] = handler
        # `/v1/agents/join` must be tried before `/v1/agents/{agent}`.
        ordered = sorted(served.items(), key=lambda item: "{" in item[0])
        routes = [Route(path, _Methods(yard, by_method)) for path, by_method in ordered]
        self._router = Router(routes=routes, default=_no_such_address, redirect_slashes=False)
        self._openapi = document()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path, method = scope["path"], scope["method"]
        if method == "POST" and path == "/v1/jobs":
            await guarded(scope, send, lambda: hot.submit(self._yard, scope, receive, send))
        elif method == "POST" and path == "/v1/agents/poll":
            await guarded(scope, send, lambda: hot.poll(self._yard, scope, receive, send))
        elif path in ("/healthz", "/readyz"):
            is_ok = path == "/healthz" or self._yard.is_ready
            await send_json(send, 200 if is_ok else 503, {"status": "ok" if is_ok else "not ready"})
        elif path == "/v1/openapi.json":
            await send_json(send, 200, self._openapi)
        elif not path.isprintable():
            # No name has such a character; `$` in a route's pattern would let a last newline through.
            await _no_such_address(scope, receive, send)
        else:
            await guarded(scope, send, lambda: self._router(scope, receive, send))


class _Methods:
    """All methods of one address."""

    def __init__(self, yard: Yard, by_method: dict[str, Any]) -> None:
        self._yard = yard
        self._by_method = by_method

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = self._by_method.get(scope["method"])
        if handler is None:
            allowed = ", ".join(sorted(self._by_method))
            error = MethodNotAllowed(f"{scope['path'][:200]} takes {allowed}, not {scope['method'][:20]}.")
            await send_problem(send, error, (b"allow", allowed.encode()))
            return
        if isinstance(handler, _Handler):
            await handler(scope, receive, send)
        else:
            await handler(self._yard, scope, receive, send)


class _Handler:
    """One cold endpoint."""

    def __init__(self, yard: Yard, endpoint: Endpoint) -> None:
        self._yard = yard
        self._endpoint = endpoint
        self._reader = JsonReader(endpoint.body) if endpoint.body is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint, yard = self._endpoint, self._yard
        actor = NOBODY if endpoint.who in (OPEN, JOINER) else await authenticate_user(yard, scope)
        if endpoint.who == JOINER and yard.settings.is_open:
            refuse_strangers(scope)
        query = _query(scope)
        check_query(endpoint, query)
        bounds = yard.settings.bounds
        raw = await read_body(scope, receive, bounds.job_bytes if endpoint.path == "/v1/plan" else bounds.other_bytes)
        body = self._reader.read(raw or b"{}") if self._reader else None
        call = Call(yard, actor, dict(scope["path_params"]), query, body, bearer(scope))
        assert endpoint.handler is not None
        if endpoint.is_waiting:
            await self._wait(call, receive)
        result = await yard.in_thread(endpoint.handler, call)
        await send_json(send, endpoint.status, result)

    async def _wait(self, call: Call, receive: Receive) -> None:
        """Park until the job is final, woken by whoever ends it; look again now and then in case a wake-up was lost."""
        yard = self._yard
        loop = asyncio.get_running_loop()
        deadline = loop.time() + call.seconds("timeout_s", 30, most=yard.settings.bounds.wait_s)
        assert self._endpoint.handler is not None
        gone: asyncio.Task[object] = asyncio.ensure_future(hot.until_gone(receive))
        try:
            job = await yard.in_thread(self._endpoint.handler, call)
            while job.state not in FINAL and not gone.done() and not yard.hub.is_closing:
                with yard.hub.watching(job.id) as waiter:
                    # Once more, now that we are registered: an end that came since would wake nobody.
                    job = await yard.in_thread(self._endpoint.handler, call)
                    left_s = deadline - loop.time()
                    if job.state in FINAL or left_s <= 0:
                        return
                    await first_of(waiter, gone, min(left_s, yard.settings.pace.sweep_s))
        finally:
            gone.cancel()


def _query(scope: Scope) -> list[tuple[str, str]]:
    try:
        return parse_qsl(
            scope["query_string"].decode("latin-1"),
            keep_blank_values=True,
            max_num_fields=QUERY_FIELDS_MAX,
            errors="strict",
        )
    except ValueError as exc:
        raise Malformed("The query is not well-formed.") from exc


def _hot(endpoint: Endpoint) -> Any:
    return {"/v1/jobs": hot.submit, "/v1/agents/poll": hot.poll}[endpoint.path]


async def _no_such_address(scope: Scope, _receive: Receive, send: Send) -> None:
    error = NotFound(
        f"There is nothing at {scope['path'][:200]!r}.", next_step="`/v1/openapi.json` lists every address."
    )
    await send_problem(send, error)
