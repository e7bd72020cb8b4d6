"""From the table of endpoints to Starlette routes: authenticate, decode, run the use case on a thread, encode."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from starlette.routing import Route, Router

from switchyard.errors import Denied, Internal, Malformed, NotFound, UnknownName, YardError
from switchyard.model.api import Output
from switchyard.model.attributes import AttributeRow
from switchyard.model.decode import JsonReader
from switchyard.model.layout import ClusterSet, NamedDefault
from switchyard.model.queue import DomainTags, QueueView
from switchyard.model.unreadable import UNREADABLE_ERRORS
from switchyard.server.flyte.rest_app import FlyteRestApp
from switchyard.server.http import event_stream, hot_routes, job_wait, quote_request
from switchyard.server.http.asgi_messages import (
    JSON,
    AsgiReceive,
    AsgiScope,
    AsgiSend,
    ClientGone,
    RawAnswer,
    answer_errors,
    encode,
    header,
    refuse_closed,
    send_body,
    send_json,
    send_not_allowed,
    send_problem,
)
from switchyard.server.http.authenticate import (
    authenticate_agent,
    authenticate_user,
    bearer,
    has_agent_credential,
    refuse_foreign_origin,
)
from switchyard.server.http.body_decoding import decode_body, read_bounded
from switchyard.server.http.call import Call, read_query
from switchyard.server.http.endpoint import AGENT, JOINER, USER, USER_OR_AGENT, Endpoint, check_query
from switchyard.server.http.endpoints import ENDPOINTS
from switchyard.server.http.openapi import document
from switchyard.server.http.upload import read_upload
from switchyard.server.limiter import ANONYMOUS, current_caller
from switchyard.server.metrics import Metrics, serve_metrics
from switchyard.server.readiness import Readiness
from switchyard.server.runtime import ServerRuntime
from switchyard.service.quarantine import explain_damage
from switchyard.service.rights import Actor, Rights

NO_ACTOR = Actor("nobody", Rights())
ETAG_TYPES = (AttributeRow, ClusterSet, NamedDefault, QueueView, DomainTags)  # answers that carry an ETag
UNVERSIONED_PATHS = frozenset(
    {"/healthz", "/readyz", "/metrics", "/v1/openapi.json"}
)  # addresses of no table: GET alone
COUNTED_PATHS = UNVERSIONED_PATHS | {"/v1/jobs", "/v1/agents/poll"}
READ_METHODS = ("GET", "HEAD")
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class HttpApp:
    """The ASGI application. The two hottest routes are found by comparison, the others by Starlette's router."""

    def __init__(self, yard: ServerRuntime) -> None:
        self._yard = yard
        self._requests = yard.context.tally.requests
        served: dict[str, dict[str, Any]] = {}
        for endpoint in ENDPOINTS:
            handler = _EndpointRoute(yard, endpoint) if endpoint.handler else _hot_handler(endpoint)
            served.setdefault(endpoint.path, {})[endpoint.method] = handler
        # `/v1/agents/join` must be tried before `/v1/agents/{agent}`.
        ordered = sorted(served.items(), key=lambda item: "{" in item[0])
        routes = [Route(path, _PathRoute(yard, path, by_method)) for path, by_method in ordered]
        self._router = Router(routes=routes, default=_no_such_address, redirect_slashes=False)
        self._flyte = FlyteRestApp(yard)
        self._metrics = Metrics(yard)
        self._readiness = Readiness(yard)

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        if scope["type"] != "http":
            return
        current_caller.set(ANONYMOUS)
        status = 0

        async def noting(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            try:
                await send(message)
            except RuntimeError as exc:
                refuse_closed(scope, exc)
                raise

        try:
            await self._serve(scope, receive, noting)
        except ClientGone:
            pass
        finally:
            if status:  # else the client went away before there was an answer
                method = scope["method"] if scope["method"] in METHODS else "other"
                self._requests.add(method, _template(scope), str(status))

    async def _serve(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        path, method = scope["path"], scope["method"]
        if method == "POST" and path == "/v1/jobs":
            await answer_errors(scope, send, lambda: hot_routes.submit_job(self._yard, scope, receive, send))
        elif method == "POST" and path == "/v1/agents/poll":
            await answer_errors(scope, send, lambda: hot_routes.agent_poll(self._yard, scope, receive, send))
        elif path in UNVERSIONED_PATHS and method not in READ_METHODS:
            await send_not_allowed(scope, send, READ_METHODS)
        elif path in ("/healthz", "/readyz"):
            reason = "" if path == "/healthz" else await self._readiness.why_not()
            said = {"status": "not ready", "reason": reason} if reason else {"status": "ok"}
            await send_json(send, 503 if reason else 200, said)
        elif path == "/metrics":
            await answer_errors(scope, send, lambda: serve_metrics(self._yard, self._metrics, scope, receive, send))
        elif path == "/v1/openapi.json":
            is_open = self._yard.settings.is_open
            await send_body(send, 200, await self._yard.in_thread(_openapi, is_open=is_open), JSON)
        elif not path.isprintable():
            # No name has such a character; `$` in a route's pattern would let a last newline through.
            await _no_such_address(scope, receive, send)
        elif path.startswith("/api/v1/"):
            await self._flyte(scope, receive, send)
        else:
            await answer_errors(scope, send, lambda: self._router(scope, receive, send))


class _PathRoute:
    """All methods of one address."""

    def __init__(self, yard: ServerRuntime, path: str, by_method: dict[str, Any]) -> None:
        self.path = path
        self._yard = yard
        # HEAD is GET without the body, which the HTTP server leaves out.
        self._by_method = by_method | ({"HEAD": by_method["GET"]} if "GET" in by_method else {})

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        handler = self._by_method.get(scope["method"])
        if handler is None:
            await send_not_allowed(scope, send, self._by_method)
            return
        if isinstance(handler, _EndpointRoute):
            await handler(scope, receive, send)
        else:
            await handler(self._yard, scope, receive, send)


class _EndpointRoute:
    """One cold endpoint."""

    def __init__(self, yard: ServerRuntime, endpoint: Endpoint) -> None:
        self._yard = yard
        self._endpoint = endpoint
        self._reader = JsonReader(endpoint.body) if endpoint.body is not None and not endpoint.is_upload else None

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        endpoint, yard = self._endpoint, self._yard
        known = yard.context.snapshots.known
        is_agent = endpoint.who == AGENT or (endpoint.who == USER_OR_AGENT and has_agent_credential(scope))
        agent = await authenticate_agent(yard, scope) if is_agent else None
        is_user = endpoint.who == USER or (endpoint.who == USER_OR_AGENT and not is_agent)
        actor = await authenticate_user(yard, scope) if is_user else NO_ACTOR
        if endpoint.who == JOINER and yard.settings.is_open:
            refuse_foreign_origin(scope)
        query = read_query(scope)
        check_query(endpoint, query)
        if endpoint.is_upload:
            body = await read_upload(yard, scope, receive)
        else:
            body = await self._read(scope, receive)
        call = Call(
            yard,
            actor,
            dict(scope["path_params"]),
            query,
            body,
            bearer(scope),
            agent,
            if_match=_text(header(scope, b"if-match")),
            if_none_match=_text(header(scope, b"if-none-match")),
        )
        if endpoint.is_waiting:
            look = partial(self._run, scope, call, known)
            is_log = endpoint.answer is Output
            with yard.waits.taken(call.actor.name):
                found = await job_wait.wait_for_job(yard, call, receive, look, path=endpoint.path, is_log=is_log)
            answer = await yard.in_thread(_encoded, found)
        else:
            answer = await self._run(scope, call, known, self._answer)
        await send_body(send, endpoint.status, answer.body, *answer.headers)

    def _answer(self, call: Call) -> EncodedAnswer:
        """Encoded where it was made: it may be large."""
        assert self._endpoint.handler is not None
        return _encoded(self._endpoint.handler(call))

    async def _run(
        self, scope: AsgiScope, call: Call, known: tuple[int, ...], handler: Callable[[Call], Any] | None = None
    ) -> Any:
        """That something is not there, or not allowed, is never said by what another server may have outdated."""
        yard, handler = self._yard, handler or self._endpoint.handler
        assert handler is not None
        in_thread = yard.in_heavy_thread if self._endpoint.is_heavy else yard.in_thread
        try:
            return await in_thread(handler, call)
        except (NotFound, UnknownName, Denied):
            if yard.context.database.is_sqlite:  # it has one server
                raise
            await yard.in_thread(yard.context.snapshots.refresh)
            if yard.context.snapshots.known == known:
                raise
        except (*UNREADABLE_ERRORS, Internal) as exc:
            if "job" not in call.path or (damage := await yard.in_thread(_damage, call)) is None:
                raise
            raise damage from exc
        if call.actor is not NO_ACTOR:
            call = replace(call, actor=await authenticate_user(yard, scope))  # with the grants of now
        return await in_thread(handler, call)

    async def _read(self, scope: AsgiScope, receive: AsgiReceive) -> Any:
        raw = await read_bounded(scope, receive, self._endpoint.bound)
        if self._reader is not None:
            if not raw and self._endpoint.is_body_optional:
                return self._reader.read(b"{}")
            return await decode_body(self._yard, scope, raw, self._reader, self._endpoint.bound)
        if raw.strip() not in (b"", b"{}"):
            raise Malformed("This call takes no body.", next_step="What it can be told goes into the query.")
        return None


@dataclass(frozen=True, slots=True)
class EncodedAnswer:
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...]


def _encoded(result: Any) -> EncodedAnswer:
    if isinstance(result, RawAnswer):
        return EncodedAnswer(result.content, ((b"content-type", result.media),))
    etag = ((b"etag", f'"{result.etag}"'.encode()),) if isinstance(result, ETAG_TYPES) else ()
    return EncodedAnswer(encode(result), (JSON, *etag))


def _openapi(*, is_open: bool) -> bytes:
    """Made when it is first asked for, which takes a while."""
    return encode(document(is_open=is_open))


def _template(scope: AsgiScope) -> str:
    """The address as the table of endpoints has it: one with names in it would be another one for each of them."""
    found = scope.get("endpoint")  # set by the router
    if isinstance(found, _PathRoute):
        return found.path
    path = str(scope["path"])
    return path if path in COUNTED_PATHS else "flyte" if path.startswith("/api/v1/") else "other"


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")


def _damage(call: Call) -> YardError | None:
    return explain_damage(call.yard.context, call.actor, call.path["job"])


def _hot_handler(endpoint: Endpoint) -> Any:
    return {
        "/v1/jobs": hot_routes.submit_job,
        "/v1/jobs/bulk": hot_routes.submit_bulk,
        "/v1/agents/poll": hot_routes.agent_poll,
        "/v1/clusters/fit": hot_routes.check_fit,
        "/v1/quotes": quote_request.serve_quotes,
        "/v1/events/stream": event_stream.stream_events,
    }[endpoint.path]


async def _no_such_address(scope: AsgiScope, _receive: AsgiReceive, send: AsgiSend) -> None:
    error = NotFound(
        f"There is nothing at {scope['path'][:200]!r}.", next_step="`/v1/openapi.json` lists every address."
    )
    await send_problem(send, error)
